"""Exercises of lesson 15: a window of keys, tensors by number, a plan that is kept on disk."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.graph_trial import GraphCheck, Tensors
from labkit.exercises.trial import Sizes, failure

# --- 15.1


def _heads(sizes: Sizes, generator: Any, dtype: Any) -> Tensors:
    import torch

    B, heads, shared, Sq, Sk, D = (sizes[name] for name in
                                   ("B", "heads", "kv_heads", "Sq", "Sk", "D"))

    def normal(*dims: int) -> Any:
        return torch.randn(dims, generator=generator).to(dtype)

    o = torch.full((B, Sq, heads, D), math.nan).to(dtype).transpose(1, 2)
    return {"q": 2 * normal(B, heads, Sq, D), "k": normal(B, shared, Sk, D),
            "v": normal(B, shared, Sk, D), "o": o}


def _windowed(sizes: Sizes, t: Tensors, *, first: int | None = None, width: int = 0,
              ahead: bool = False, scale: float | None = None) -> Tensors:
    """The right output, or one with a mistake. first: position of query 0; width: more keys than
    the window has; ahead: later keys count, too; scale: of the products."""
    import torch

    q, k, v = (t[name].double() for name in "qkv")
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    Sq, Sk, window = q.shape[2], k.shape[2], sizes["window"] + width
    place = torch.arange(Sq)[:, None] + (Sk - Sq if first is None else first)
    apart = place - torch.arange(Sk)[None, :]
    seen = (apart < window) & ((apart >= 0) | ahead)
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1).nan_to_num()
    return {"o": weights @ v}


def _words(graph: Any) -> str:
    """What is wrong with sdpa's arguments beyond what it computes on the CPU; "" if nothing is."""
    for node in graph.nodes:
        stats, alone = node.params.get("generate_stats"), node.params.get("is_inference")
        if stats or alone is False:
            return ("sdpa makes the statistics of a backward pass, and nobody reads them: "
                    "generate_stats=False.")
        if stats is None and alone is None:
            return ("sdpa is not told whether to make the statistics of a backward pass, and "
                    "refuses that in step 3: generate_stats=False.")
        if node.params.get("use_causal_mask"):
            return ("use_causal_mask is the old word, and mixing it with a new one is an error: "
                    "diagonal_band_right_bound=0.")
    return ""


WINDOW = Exercise(
    key="15.1", title="The last keys only", statement="sdpa-ex-1", answer="window_attention",
    stub='''
def window_attention(target, q, k, v, o, window):
    graph = target.graph("window_attention", q.dtype)
    Q = graph.tensor(name="Q", **cudnn_graph.describe(q))
    K = graph.tensor(name="K", **cudnn_graph.describe(k))
    V = graph.tensor(name="V", **cudnn_graph.describe(v))
    pack = {Q: q, K: k, V: v}
    ...  # the last query stands at the last key; each sees `window` keys, its own the last
    return graph, pack
''',
    solution='''
def window_attention(target, q, k, v, o, window):
    import cudnn

    graph = target.graph("window_attention", q.dtype)
    Q = graph.tensor(name="Q", **cudnn_graph.describe(q))
    K = graph.tensor(name="K", **cudnn_graph.describe(k))
    V = graph.tensor(name="V", **cudnn_graph.describe(v))
    pack = {Q: q, K: k, V: v}
    out, _ = graph.sdpa(
        q=Q, k=K, v=V, attn_scale=q.shape[-1] ** -0.5, generate_stats=False,
        # the keys before the first query are in the cache: the diagonal ends at the last of both
        diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
        diagonal_band_right_bound=0,  # none after its own
        diagonal_band_left_bound=window)  # and this many up to its own
    out.set_name("O").set_output(True).set_data_type(cudnn_graph.data_type(o.dtype))
    out.set_dim(list(o.shape)).set_stride(list(o.stride()))
    pack[out] = o
    return graph, pack
''',
    hints=(
        "It is one node, as in `attention`, with a band instead of a triangle. Where does the "
        "diagonal stand if there are more keys than queries?",
        "BOTTOM_RIGHT puts the last query at the last key. A right bound of 0 hides what comes "
        "after a query's own place, the left bound what lies too far before it.",
        "diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT, diagonal_band_right_bound=0, "
        "diagonal_band_left_bound=window, beside attn_scale and generate_stats=False (and "
        "`import cudnn`). sdpa returns a pair; its first is the output: pin it as o, and put it "
        "into the pack.",
    ),
    judge=GraphCheck(
        cases=(dict(B=2, heads=4, kv_heads=2, Sq=40, Sk=72, D=32, window=16),
               dict(B=1, heads=2, kv_heads=2, Sq=33, Sk=33, D=16, window=5),
               dict(B=2, heads=2, kv_heads=1, Sq=1, Sk=50, D=16, window=3)),
        tensors=_heads, outputs=("o",), operations=1,
        options=lambda s: {"window": s["window"]}, reference=_windowed, also=_words,
        mistakes={
            "The first query stands at the first key; the last one belongs at the last key.":
                lambda s, t: _windowed(s, t, first=0),
            "The window is missing: every earlier key is seen.":
                lambda s, t: _windowed(s, t, width=10**6),
            "Later keys are seen, too: the mask lacks its causal side.":
                lambda s, t: _windowed(s, t, ahead=True),
            "The window is one key too wide: the left bound counts the query's own key.":
                lambda s, t: _windowed(s, t, width=1),
            "The window is one key too narrow: the left bound counts the query's own key.":
                lambda s, t: _windowed(s, t, width=-1),
            "The products are not divided by sqrt(D).": lambda s, t: _windowed(s, t, scale=1.0),
            "The products are divided by D; its square root is meant.":
                lambda s, t: _windowed(s, t, scale=1 / t["q"].shape[-1]),
        },
        gpu=dict(B=2, heads=8, kv_heads=2, Sq=64, Sk=512, D=128, window=128), min_sm=80))


# --- 15.2

_UIDS = {"A": 11, "B": 7, "bias": 42, "Y": 3}


def _named_graph(order: str) -> tuple[Any, dict[Any, Any], dict[str, Any], Any]:
    """A small graph, its pack, its memory by name, and what Y should become. order: in which the
    pack lists them."""
    import torch

    from labkit.cudnn_graph import Target, describe
    from labkit.cudnn_loader import load_cudnn

    generator = torch.Generator().manual_seed(len(order) + ord(order[0]))
    a, b, bias = (torch.randn(dims, generator=generator) for dims in
                  ((2, 5, 5), (2, 5, 5), (2, 1, 5)))
    memory = {"A": a, "B": b, "bias": bias, "Y": torch.full((2, 5, 5), math.nan)}
    graph = Target("H100", 90, load_cudnn()).graph("named", torch.float32)
    A, B, Bias = (graph.tensor(name=name, **describe(memory[name])) for name in ("A", "B", "bias"))
    Y = graph.add(a=graph.matmul(A=A, B=B), b=Bias)
    Y.set_name("Y").set_output(True).set_dim([2, 5, 5]).set_stride([25, 5, 1])
    tensors = dict(zip("AByY", (A, B, Bias, Y), strict=True))
    pack = {tensors[letter]: memory[tensors[letter].get_name()] for letter in order}
    return graph, pack, memory, a @ b + bias


def _judge_numbers(number: Any) -> Outcome:
    if not callable(number):
        return Outcome(False, ("The answer is no function; it takes a pack and the UIDs.",))
    for order in ("AByY", "YyBA", "ByYA"):
        graph, pack, memory, wanted = _named_graph(order)
        names = [tensor.get_name() for tensor in pack]
        try:
            found = number(dict(pack), dict(_UIDS))
            said = _number_fault(found, pack, memory)
        except Exception as error:  # whatever a learner's code raises is told, not raised
            said = failure(error, number)
        if not said:
            said = _evaluated(graph, found, memory["Y"], wanted)
        if said:
            return Outcome(False, (f"For a pack of {', '.join(names)}: {said}",))
    return Outcome(True, ("Right for one graph and three orders of its pack: the tensors have "
                          "their UIDs, the new pack has them as keys, and the graph computes "
                          "from it.",))


def _number_fault(found: Any, pack: dict[Any, Any], memory: dict[str, Any]) -> str:
    import torch

    if not isinstance(found, dict):
        returned = "nothing" if found is None else type(found).__name__
        return f"it returns {returned}, where a new pack belongs, UID -> torch tensor."
    odd = next((key for key in found if type(key) is not int), None)
    if odd is not None:
        kind = "a name" if isinstance(odd, str) else "a tensor of the graph"
        return (f"a key of the new pack is {kind}: a loaded graph knows integers alone."
                if isinstance(odd, str) or hasattr(odd, "get_uid") else
                f"a key of the new pack is of type {type(odd).__name__}, where a UID belongs.")
    for tensor in pack:
        name = tensor.get_name()
        if tensor.get_uid() != _UIDS[name]:
            return (f"{name} has the UID {tensor.get_uid()}, where {_UIDS[name]} belongs: the "
                    "name says which, the order of the pack says nothing, and set_uid sets it.")
    for name, uid in _UIDS.items():
        if uid not in found:
            return f"the new pack has no key {uid}, the UID of {name}."
        if found[uid] is not memory[name]:
            other = next((n for n, m in memory.items() if m is found[uid]), "something else")
            same = isinstance(found[uid], torch.Tensor) and other == "something else"
            return (f"under {uid} the new pack holds {'a copy' if same else other}, where the "
                    f"memory of {name} belongs.")
    return ""


def _evaluated(graph: Any, pack: dict[int, Any], y: Any, wanted: Any) -> str:
    from labkit.cudnn_graph import evaluate, infer
    from labkit.verify import compare

    infer(graph)
    evaluate(graph, pack)
    verdict = compare(y, wanted.double(), name="Y")
    return "" if verdict.ok else repr(verdict).splitlines()[0]


NUMBERS = Exercise(
    key="15.2", title="Tensors by number", statement="sdpa-ex-2", answer="by_uid",
    stub='''
def by_uid(pack, uids):
    """Gives each tensor of the graph its UID, and returns the pack with UIDs as keys.

    pack: tensor of the graph -> torch tensor. uids: name of a tensor -> its UID.
    """
    ...
''',
    solution='''
def by_uid(pack, uids):
    """Gives each tensor of the graph its UID, and returns the pack with UIDs as keys.

    pack: tensor of the graph -> torch tensor. uids: name of a tensor -> its UID.
    """
    numbered = {}
    for tensor, memory in pack.items():
        # by name: the process that loads the plan has no pack whose order it could count
        uid = uids[tensor.get_name()]
        tensor.set_uid(uid)  # before the build: the plan keeps the number, not the name
        numbered[uid] = memory
    return numbered
''',
    hints=(
        "One loop over the pack. What do the program that builds and the one that loads have in "
        "common?",
        "tensor.get_name() gives the name, tensor.set_uid(...) sets the number. Both belong in "
        "the same loop as the new dictionary.",
        "For tensor, memory in pack.items(): uid = uids[tensor.get_name()]; set it; "
        "numbered[uid] = memory.",
    ),
    judge=_judge_numbers)


# --- 15.3

_END = b"end of the plan"


class _Plan:
    """Stands for a graph whose plan is built or loaded: it takes and gives a list of integers, as
    every release of the frontend does, and refuses what it should not be given, with the errors
    that the frontend 1.32 raised for such bytes over cuDNN 9.19."""

    def __init__(self, sm: int, version: int) -> None:
        self.made_for = f"a plan for sm_{sm} by cuDNN {version}; "
        self.ready = self.loaded = False
        self.complaint = ""

    def build(self) -> None:
        self.ready = True

    def _plan(self) -> bytes:
        return self.made_for.encode() * 40 + _END

    def serialize(self) -> list[int]:
        if not self.ready:
            raise RuntimeError("there is no plan yet, so there is nothing to serialize")
        return list(self._plan())

    def deserialize(self, data: Any) -> None:
        if not isinstance(data, list) or any(type(x) is not int for x in data):
            kind = f"of type {type(data).__name__}" if not isinstance(data, list) else (
                "a list of other things than integers")
            self.complaint = (f"deserialize got what is {kind}; every release of the frontend "
                              "takes a list of integers: list(data).")
            raise RuntimeError(self.complaint)
        if not bytes(data).endswith(_END):
            raise RuntimeError("parse error: unexpected end of input")
        if bytes(data) != self._plan():
            self.complaint = ("it loads the plan of another GPU or another cuDNN: both belong into "
                              "the file's name.")
            from cudnn import cudnnGraphNotSupportedError

            raise cudnnGraphNotSupportedError("CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH")
        self.ready = self.loaded = True


# what happens -> (sm, cuDNN's version, "built" or "loaded"), one after another in one folder
_STARTS: tuple[tuple[str, int, int, str], ...] = (
    ("the first start", 90, 91900, "built"), ("a second start", 90, 91900, "loaded"),
    ("a start on another GPU", 80, 91900, "built"),
    ("a start with another cuDNN", 90, 92400, "built"),
    ("the first GPU again", 90, 91900, "loaded"), ("the other GPU again", 80, 91900, "loaded"),
)


def _start(ready: Callable[..., Any], folder: Path, sm: int, version: int, wanted: str) -> str:
    """What is wrong with one start of a service; "" if nothing is."""
    graph, built = _Plan(sm, version), []

    def build() -> None:
        built.append(True)
        graph.build()

    try:
        said = ready(folder, sm, version, graph, build)
    except Exception:
        if not graph.complaint:  # else the reason is known, and told in its own words
            raise
    if graph.complaint:
        return graph.complaint
    if not graph.ready:
        return "afterwards there is no plan: it is neither built nor loaded."
    if wanted == "loaded" and not graph.loaded:
        files = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing"
        return f"it builds, where a plan was kept; in the folder is {files}."
    if built and graph.loaded:
        return "it builds the plan although it was loaded."
    if said != wanted:
        return f"it returns {said!r}, where {wanted!r} belongs."
    return ""


def _judge_ready(ready: Any) -> Outcome:
    if not callable(ready):
        return Outcome(False, ("The answer is no function; it takes a folder, the GPU's and "
                               "cuDNN's version, a graph and `build`.",))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            what = "the first start"
            for what, sm, version, wanted in _STARTS:
                said = _start(ready, folder, sm, version, wanted)
                if said:
                    return Outcome(False, (f"At {what}: {said}",))
            for what, damage in (("a start after the disk was full", lambda data: data[:100]),
                                 ("a start with an empty file", lambda data: b"")):
                for path in folder.iterdir():
                    path.write_bytes(damage(path.read_bytes()))
                for again, wanted in ((what, "built"), (f"the one after {what}", "loaded")):
                    what = again
                    said = _start(ready, folder, 90, 91900, wanted)
                    if said:
                        return Outcome(False, (f"At {what}: {said}",))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (f"At {what}: {failure(error, ready)}",))
    return Outcome(True, (f"Right at {len(_STARTS) + 4} starts: built where no file fits or the "
                          "file is damaged, else loaded.",))


READY = Exercise(
    key="15.3", title="Built once, loaded ever after", statement="sdpa-ex-3", answer="ready",
    stub='''
def ready(folder, sm, version, graph, build):
    """Loads the graph's plan if the folder has one that fits, else builds it and keeps it.

    folder: a pathlib.Path. sm, version: as target.sm and cudnn.backend_version(). build(): builds
    the plan of `graph`. graph.deserialize raises RuntimeError for a file that was cut off.
    Returns "loaded" or "built".
    """
    ...
''',
    solution='''
def ready(folder, sm, version, graph, build):
    """Loads the graph's plan if the folder has one that fits, else builds it and keeps it.

    folder: a pathlib.Path. sm, version: as target.sm and cudnn.backend_version(). build(): builds
    the plan of `graph`. graph.deserialize raises RuntimeError for a file that was cut off.
    Returns "loaded" or "built".
    """
    # both in the name: then a plan for another GPU or another cuDNN is never opened
    path = folder / f"plan_sm{sm}_cudnn{version}"
    try:
        graph.deserialize(list(path.read_bytes()))
        return "loaded"
    except (FileNotFoundError, RuntimeError):
        pass  # no file yet, or one that was cut off: build, and write it anew
    build()
    path.write_bytes(bytes(graph.serialize()))
    return "built"
''',
    hints=(
        "The plan's file has a name that says for what it is valid. Try to load it; if that fails "
        "for whatever reason, build and write.",
        "serialize gives a list of integers: bytes(...) for the file, list(...) of what was read. "
        "A file that is not there raises FileNotFoundError, a cut-off one RuntimeError.",
        'path = folder / f"plan_sm{sm}_cudnn{version}"; try: '
        'graph.deserialize(list(path.read_bytes())) and return "loaded"; after the except: build, '
        "write, return.",
    ),
    judge=_judge_ready)

EXERCISES = (WINDOW, NUMBERS, READY)
