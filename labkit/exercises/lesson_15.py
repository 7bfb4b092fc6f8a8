"""Exercises of lesson 15: a window of keys, tensors by number, a plan that is kept on disk."""

from __future__ import annotations

import math
from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.graph_trial import GraphCheck, Tensors
from labkit.exercises.kept_plans import judge_numbers, judge_ready
from labkit.exercises.trial import Sizes

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
    judge=judge_numbers)


# --- 15.3

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
    judge=judge_ready)

EXERCISES = (WINDOW, NUMBERS, READY)
