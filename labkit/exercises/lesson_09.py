"""Exercises of lesson 09: CODA forward."""

from __future__ import annotations

import math
from typing import Any

from labkit.exercises.epilogue_trial import EpilogueCheck
from labkit.exercises.exercise import Exercise
from labkit.exercises.trial import FunctionCheck


def _half(generator: Any, *shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=generator).half()


def _positive(generator: Any, n: int) -> Any:
    """Factors of rows or columns between 0.5 and 1.5, float32."""
    import torch

    return 0.5 + torch.rand(n, generator=generator)


# --- 09.1


def _dequantised(product: Any, row_scale: Any, column_scale: Any, bias: Any) -> dict[str, Any]:
    return dict(y=product * row_scale.double()[:, None] * column_scale.double() + bias.double())


DEQUANTISE = Exercise(
    key="09.1", title="Scales of a quantised product", statement="coda-ex-1", answer="dequantise",
    stub='''
@epilogue(store=["y"])
def dequantise(acc):
    return dict(y=acc)  # and the scales, and the bias
''',
    solution='''
@epilogue(colvec=["row_scale"], rowvec={"column_scale": "float32", "bias": None}, store=["y"])
def dequantise(acc, row_scale, column_scale, bias):
    # the two scales undo the quantisation of A's rows and B's columns; the bias never was quantised
    return dict(y=acc * row_scale * column_scale + bias)
''',
    hints=(
        "Three operands: which of them has one value a row, which one a column?",
        "A row's values are a colvec. Both others are rowvecs of unlike dtypes: a rowvec takes "
        "the GEMM's dtype unless a dictionary names another one; None in it means the GEMM's.",
        'colvec=["row_scale"], rowvec={"column_scale": "float32", "bias": None}; then '
        "acc * row_scale * column_scale + bias.",
    ),
    judge=EpilogueCheck(
        cases=(dict(M=70, N=136, K=40), dict(M=1, N=8, K=96)),
        operands=lambda s, g: dict(row_scale=_positive(g, s["M"]),
                                   column_scale=_positive(g, s["N"]), bias=3 * _half(g, s["N"])),
        wanted=_dequantised,
        mistakes={
            "The bias was scaled, too: it is added after both scales.":
                lambda p, row_scale, column_scale, bias: dict(
                    y=(p * column_scale + bias) * row_scale[:, None]),
            "The bias was multiplied by both scales: it is added after them.":
                lambda p, row_scale, column_scale, bias: dict(
                    y=(p + bias) * column_scale * row_scale[:, None]),
            "The scale of the rows is missing.":
                lambda p, row_scale, column_scale, bias: dict(y=p * column_scale + bias),
            "The scale of the columns is missing.":
                lambda p, row_scale, column_scale, bias: dict(y=p * row_scale[:, None] + bias),
            "The bias is missing.":
                lambda p, row_scale, column_scale, bias: dict(
                    y=p * row_scale[:, None] * column_scale),
            "It was divided by the scales, where they multiply.":
                lambda p, row_scale, column_scale, bias: dict(
                    y=p / row_scale[:, None] / column_scale + bias),
        }))


# --- 09.2


def _clipped(product: Any, limit: float, top: bool = True, bottom: bool = True,
             gate_bottom: bool = False, one: float = 1.0, steep: float = 1.702) -> dict[str, Any]:
    from labkit.epilogue import pairs

    gate, up = pairs.split(product)
    gate = gate.clamp(-limit if gate_bottom else None, limit)
    up = up.clamp(-limit if bottom else None, limit if top else None)
    return dict(y=gate * (steep * gate).sigmoid() * (up + one))


CLIPPED = Exercise(
    key="09.2", title="A gated unit with limits", statement="coda-ex-2", answer="clipped_swiglu",
    stub='''
@epilogue(scalar=["limit"], store=["y"])
def clipped_swiglu(acc, limit):
    return dict(y=acc * limit)  # gate and up come from the product
''',
    solution='''
@epilogue(pairs=["acc"], scalar=["limit"], store=["y"])
def clipped_swiglu(acc, limit):
    gate, up = acc  # both members lie with one thread
    gate = ops.minimum(gate, limit)  # sigmoid ends large negative gates by itself
    up = ops.maximum(ops.minimum(up, limit), -limit)
    return dict(y=gate * ops.sigmoid(1.702 * gate) * (up + 1.0))
''',
    hints=(
        "The product has to come as pairs; what does the function get then?",
        'pairs=["acc"] makes acc a tuple: gate, up = acc. Limits are ops.minimum and ops.maximum, '
        "since min() and max() do not know an element.",
        "gate = ops.minimum(gate, limit); up = ops.maximum(ops.minimum(up, limit), -limit); then "
        "gate * ops.sigmoid(1.702 * gate) * (up + 1.0).",
    ),
    judge=EpilogueCheck(
        cases=(dict(M=70, N=144, K=40), dict(M=1, N=16, K=96)),
        operands=lambda s, g: dict(limit=0.75), wanted=_clipped,
        mistakes={
            "Gate and up changed places: the first member of a pair is the gate.":
                lambda p, limit: _swapped(p, limit),
            "The gate was limited from below, too; only its upper end is.":
                lambda p, limit: _clipped(p, limit, gate_bottom=True),
            "up is limited at both ends; its lower limit is missing.":
                lambda p, limit: _clipped(p, limit, bottom=False),
            "up is limited at both ends; its upper limit is missing.":
                lambda p, limit: _clipped(p, limit, top=False),
            "up + 1 belongs into the product, not up.":
                lambda p, limit: _clipped(p, limit, one=0.0),
            "The sigmoid takes 1.702 times the gate.":
                lambda p, limit: _clipped(p, limit, steep=1.0),
            "Nothing was limited.": lambda p, limit: _clipped(p, math.inf),
        }))


def _swapped(product: Any, limit: float) -> dict[str, Any]:
    from labkit.epilogue import pairs

    return _clipped(pairs.join(*reversed(pairs.split(product))), limit)


# --- 09.3


def _capped(product: Any, rstd: Any, target: Any, cap: float, lse_of: Any = None,
            picked_of: Any = None, logits: Any = None) -> dict[str, Any]:
    z = product * rstd.double()[:, None]
    if logits is None:
        logits = cap * (z / cap).tanh()
    source = dict(logits=logits, raw=z)
    picked = source[picked_of or "logits"].gather(1, target.long()[:, None])[:, 0]
    return dict(logits=logits, lse=source[lse_of or "logits"].logsumexp(1), picked=picked)


CAPPED = Exercise(
    key="09.3", title="Cross-entropy of capped logits", statement="coda-ex-3",
    answer="capped_cross_entropy",
    stub='''
@epilogue(colvec=["rstd"], scalar=["cap"], store=["logits"])
def capped_cross_entropy(acc, rstd, cap):
    return dict(logits=acc * rstd)  # cap them; lse and picked are missing, too
''',
    solution='''
@epilogue(colvec=["rstd"], scalar=["cap"], store=["logits"], col_reduce={"lse": "lse"},
          select={"picked": "target"})
def capped_cross_entropy(acc, rstd, cap):
    logits = cap * ops.tanh(acc * rstd / cap)
    # the loss is that of the capped logits, so all three outputs take these; the reduction
    # exponentiates by itself, below a running maximum
    return dict(logits=logits, lse=logits, picked=logits)
''',
    hints=(
        "rstd_cross_entropy above has all but the cap. Which of its three outputs change?",
        'col_reduce={"lse": "lse"} makes log Σ exp of what you return; select={"picked": "target"} '
        "keeps the value of the column that target names. The loss is that of the capped logits.",
        "logits = cap * ops.tanh(acc * rstd / cap), and then "
        "dict(logits=logits, lse=logits, picked=logits).",
    ),
    judge=EpilogueCheck(
        cases=(dict(M=70, N=136, K=40), dict(M=3, N=8, K=96)),
        operands=lambda s, g: dict(rstd=3 * _positive(g, s["M"]), cap=2.0,
                                   target=_targets(g, s["M"], s["N"])),
        wanted=_capped,
        mistakes={
            "The logits were not capped.": lambda p, rstd, target, cap: _capped(
                p, rstd, target, cap, logits=p * rstd.double()[:, None]),
            "lse is that of the raw logits: return the capped ones for it.":
                lambda p, rstd, target, cap: _capped(p, rstd, target, cap, lse_of="raw"),
            "picked is the raw logit: return the capped one for it.":
                lambda p, rstd, target, cap: _capped(p, rstd, target, cap, picked_of="raw"),
            "The cap was applied before the norm's factor: r comes first.":
                lambda p, rstd, target, cap: _capped(
                    p, rstd, target, cap, logits=cap * (p / cap).tanh() * rstd.double()[:, None]),
            "tanh was not multiplied by the cap again.": lambda p, rstd, target, cap: _capped(
                p, rstd, target, cap, logits=(p * rstd.double()[:, None] / cap).tanh()),
            "lse gets the logit itself, not its exponential: the reduction exponentiates.":
                lambda p, rstd, target, cap: _exponentiated(p, rstd, target, cap),
        }))


def _targets(generator: Any, M: int, N: int) -> Any:
    import torch

    return torch.randint(0, N, (M,), generator=generator).int()


def _exponentiated(product: Any, rstd: Any, target: Any, cap: float) -> dict[str, Any]:
    right = _capped(product, rstd, target, cap)
    return right | dict(lse=right["logits"].exp().logsumexp(1))


# --- 09.4


def _gain(e: float, K: int, tflop_s: float, gb_s: float, slower: float) -> float:
    return (1 + e * tflop_s * 1e12 / (2 * K * gb_s * 1e9)) / slower


GAIN = Exercise(
    key="09.4", title="When fusion loses", statement="coda-ex-4", answer="best_gain",
    stub='''
def best_gain(e, K, tflop_s, gb_s, slower):
    """The gain of an op whose epilogue itself is free."""
    ...
''',
    solution='''
def best_gain(e, K, tflop_s, gb_s, slower):
    """The gain of an op whose epilogue itself is free."""
    # in units of the library's GEMM: the baseline takes 1 + room, the op takes `slower`
    room = e * tflop_s * 1e12 / (2 * K * gb_s * 1e9)
    return (1 + room) / slower
''',
    hints=(
        "Take the library's GEMM as the unit of time. How long does the baseline take, how long "
        "the op?",
        "The baseline is the GEMM and the kernel behind it: 1 + e F / (2 K BW). The op is our own "
        "GEMM alone, since its epilogue is free.",
        "(1 + e * tflop_s * 1e12 / (2 * K * gb_s * 1e9)) / slower.",
    ),
    judge=FunctionCheck(
        cases=((8.0, 4096, 700.0, 4000.0, 1.0), (2.0, 4096, 700.0, 4000.0, 1.05),
               (12.0, 1024, 65.0, 300.0, 1.2)),
        wanted=_gain,
        mistakes={
            "That is the room alone: our own GEMM may be slower than the library's.":
                lambda e, K, t, g, s: _gain(e, K, t, g, 1.0),
            "A slower GEMM makes the op slower: divide by it.":
                lambda e, K, t, g, s: _gain(e, K, t, g, 1 / s),
            "The GEMM itself is missing: the baseline takes 1 + the kernel's share.":
                lambda e, K, t, g, s: (_gain(e, K, t, g, 1.0) - 1) / s,
            "A product of depth K takes 2 K operations an element: a multiplication and an "
            "addition.": lambda e, K, t, g, s: _gain(2 * e, K, t, g, s),
            "TFLOP and GB differ by a factor of 1,000.":
                lambda e, K, t, g, s: _gain(e / 1000, K, t, g, s),
        }))

EXERCISES = (DEQUANTISE, CLIPPED, CAPPED, GAIN)
