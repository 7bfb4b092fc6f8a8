"""Judges what is done with a built plan: tensors by UID, a plan that is kept as bytes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.exercises.exercise import Outcome
from labkit.exercises.trial import failure

# --- UIDs

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


def judge_numbers(number: Any) -> Outcome:
    """number(pack, uids) -> the pack with UIDs as keys, which the tensors have, too."""
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


# --- bytes

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


def judge_ready(ready: Any) -> Outcome:
    """ready(folder, sm, version, graph, build) -> "built" or "loaded"."""
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
