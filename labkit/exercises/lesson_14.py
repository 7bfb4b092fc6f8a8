"""Exercises of lesson 14: the scale of an 8-bit tensor, a maximum a row, scales on both sides."""

from __future__ import annotations

import math
from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.graph_trial import GraphCheck, Tensors
from labkit.exercises.trial import FunctionCheck, Sizes

E4M3, E5M2 = 448.0, 57344.0  # the largest numbers of the two 8-bit formats (arXiv:2209.05433)

# --- 14.1


def _power(amax: float, largest: float = E4M3, rounding: Any = math.floor) -> float:
    return 1.0 if amax == 0 else 2.0 ** rounding(math.log2(largest / amax))


SCALE = Exercise(
    key="14.1", title="A scale without rounding", statement="mma-ex-1", answer="scale_for",
    stub='''
def scale_for(amax, largest=448.0):
    """The largest power of two with amax * scale <= largest; 1.0 for an amax of 0.

    amax: the largest absolute value, 0 or more. largest: that of the 8-bit format.
    """
    ...
''',
    solution='''
import math


def scale_for(amax, largest=448.0):
    """The largest power of two with amax * scale <= largest; 1.0 for an amax of 0.

    amax: the largest absolute value, 0 or more. largest: that of the 8-bit format.
    """
    if amax == 0:
        return 1.0  # nothing to scale, and no division by zero
    # a power of two changes the exponent alone, so multiplying by it and dividing again is
    # exact; rounded down, so that nothing is above the range
    return 2.0 ** math.floor(math.log2(largest / amax))
''',
    hints=(
        "Begin with the scale that would use the whole range, then go down to a power of two. What "
        "does an amax of 0 do to it?",
        "The whole range is largest / amax. A power of two is 2.0 ** n with a whole number n; "
        "math.log2 gives the n that need not be whole.",
        "math.floor rounds n down, also where it is negative: there int() would round up.",
    ),
    judge=FunctionCheck(
        cases=((1.3,), (0.004,), (448.0,), (449.0,), (3.5,), (1000.0, E5M2), (60000.0,), (0.0,),
               (60000.0, E5M2)),
        wanted=_power,
        mistakes={
            "That uses the whole range, and is no power of two: its multiplication rounds.":
                lambda amax, largest=E4M3: largest / amax if amax else 1.0,
            "It is rounded up: amax * scale is then above the largest number.":
                lambda amax, largest=E4M3: _power(amax, largest, math.ceil),
            "It is rounded to the nearest power, which may be above the range: round down.":
                lambda amax, largest=E4M3: _power(amax, largest, round),
            "int() rounds towards zero, so up where the exponent is negative: math.floor.":
                lambda amax, largest=E4M3: _power(amax, largest, int),
            "It is the other way round: a small amax needs a large scale.":
                lambda amax, largest=E4M3: 1.0 if amax == 0 else 2.0 ** math.floor(
                    math.log2(amax / largest)),
            "`largest` has no effect, and other formats end elsewhere.":
                lambda amax, largest=E4M3: _power(amax),
        }))


# --- 14.2


def _layer(sizes: Sizes, generator: Any, dtype: Any) -> Tensors:
    import torch

    B, M, N, K = (sizes[name] for name in "BMNK")

    def normal(*dims: int) -> Any:
        return torch.randn(dims, generator=generator)

    # more to the negative side, where a maximum without the absolute value finds another one
    bias = 0.3 * normal(B, 1, N) - 1.5
    return {"a": normal(B, M, K).to(dtype), "b": (normal(B, K, N) / K**0.5).to(dtype),
            "bias": bias.to(dtype), "alpha": torch.full((1, 1, 1), 0.375),
            "y": torch.full((B, M, N), math.nan).to(dtype), "amax": torch.full((B, M, 1), math.nan)}


def _row_max(value: Any) -> Any:
    return value.abs().amax(2, keepdim=True)


def _product(t: Tensors) -> Any:
    return t["a"].float() @ t["b"].float()


def _rows(t: Tensors, before: Any = None, reduced: Any = None) -> Tensors:
    """Both outputs; before: what goes into tanh; reduced: value, before -> the maximum."""
    before = t["alpha"].item() * _product(t) + t["bias"].float() if before is None else before
    value = before.tanh()
    return {"y": value, "amax": _row_max(value) if reduced is None else reduced(value, before)}


ROWS = Exercise(
    key="14.2", title="A maximum for each row", statement="mma-ex-2", answer="matmul_row_amax",
    stub='''
def matmul_row_amax(target, a, b, bias, alpha, y, amax):
    graph = target.graph("matmul_row_amax", a.dtype)
    pack = {}
    ...  # Y = tanh(alpha * (A B) + bias), and of each row of Y the largest absolute value
    return graph, pack
''',
    solution='''
def matmul_row_amax(target, a, b, bias, alpha, y, amax):
    import cudnn

    graph = target.graph("matmul_row_amax", a.dtype)
    A = graph.tensor(name="A", **cudnn_graph.describe(a))
    B = graph.tensor(name="B", **cudnn_graph.describe(b))
    Bias = graph.tensor(name="bias", **cudnn_graph.describe(bias))
    Alpha = graph.tensor_like(alpha, name="alpha")  # on the CPU: a number, passed by value

    product = graph.matmul(A=A, B=B)
    scaled = graph.mul(a=product, b=Alpha)
    biased = graph.add(a=scaled, b=Bias)
    Y = graph.tanh(input=biased)
    # what is reduced follows from the dims of the result alone: amax is [batch, M, 1], so it is
    # the columns
    Amax = graph.reduction(input=Y, mode=cudnn.reduction_mode.AMAX)
    pack = {A: a, B: b, Bias: bias, Alpha: alpha, Y: y, Amax: amax}
    for tensor, memory in ((Y, y), (Amax, amax)):
        tensor.set_output(True).set_data_type(cudnn_graph.data_type(memory.dtype))
        tensor.set_dim(list(memory.shape)).set_stride(list(memory.stride()))
    return graph, pack
''',
    hints=(
        "It is `matmul_epilogue` without the 8 bits. What says that a maximum is one of a row?",
        "graph.reduction has no axes: the dims of its output say what is reduced. amax has the "
        "dims [batch, M, 1]. alpha lies on the CPU, so graph.tensor_like.",
        "matmul, mul by alpha, add the bias, tanh; graph.reduction(input=Y, "
        "mode=cudnn.reduction_mode.AMAX), with `import cudnn` before it. Then set_output(True), "
        "set_data_type, set_dim and set_stride of both outputs, from y and amax.",
    ),
    judge=GraphCheck(
        cases=(dict(B=3, M=24, N=40, K=32), dict(B=1, M=7, N=5, K=3), dict(B=2, M=1, N=8, K=8)),
        tensors=_layer, outputs=("y", "amax"), numbers=("alpha",), rounded=("amax",), operations=5,
        reference=lambda s, t: _rows(t),
        mistakes={
            "alpha belongs to the product alone: alpha * (A B) + bias.":
                lambda s, t: _rows(t, t["alpha"].item() * (_product(t) + t["bias"].float())),
            "The activation comes before the bias; it belongs after it.":
                lambda s, t: _activated_early(t),
            "alpha has no effect.": lambda s, t: _rows(t, _product(t) + t["bias"].float()),
            "The bias is missing.": lambda s, t: _rows(t, t["alpha"].item() * _product(t)),
            "The bias of the first product is added to all; it has a row for each.":
                lambda s, t: _rows(t, t["alpha"].item() * _product(t) + t["bias"][:1].float()),
            "The maximum is taken before the activation; that of Y is asked for.":
                lambda s, t: _rows(t, reduced=lambda value, before: _row_max(before)),
            "MAX takes no absolute value; the mode is AMAX.":
                lambda s, t: _rows(t, reduced=lambda value, before: value.amax(2, keepdim=True)),
            "There is no tanh.": lambda s, t: _linear(t),
        },
        gpu=dict(B=4, M=128, N=256, K=128)))


def _activated_early(t: Tensors) -> Tensors:
    value = (t["alpha"].item() * _product(t)).tanh() + t["bias"].float()
    return {"y": value, "amax": _row_max(value)}


def _linear(t: Tensors) -> Tensors:
    value = t["alpha"].item() * _product(t) + t["bias"].float()
    return {"y": value, "amax": _row_max(value)}


# --- 14.3


def _eight_bits(sizes: Sizes, generator: Any, dtype: Any) -> Tensors:
    """a: row-major, b: column-major, both FP8, scaled by row and by column; rows, columns: what
    undoes the scales."""
    import torch

    B, M, N, K = (sizes[name] for name in "BMNK")
    f8 = torch.float8_e4m3fn

    def normal(*dims: int) -> Any:
        return torch.randn(dims, generator=generator)

    # rows and columns of very different sizes, as activations and weights have them
    a = normal(B, M, K) * 2.0 ** normal(B, M, 1)
    b = normal(B, N, K) / K**0.5 * 2.0 ** normal(B, N, 1)
    scale_a, scale_b = (E4M3 / x.abs().amax(2, keepdim=True).clamp(min=1e-6) for x in (a, b))
    return {"a": (a * scale_a).to(f8), "b": (b * scale_b).to(f8).mT, "rows": 1 / scale_a,
            "columns": (1 / scale_b).mT.contiguous(), "bias": normal(B, 1, N).to(dtype),
            "y": torch.full((B, M, N), math.nan).to(dtype)}


def _undone(t: Tensors, rows: Any = None, columns: Any = None, inside: bool = False) -> Tensors:
    rows = t["rows"] if rows is None else rows
    columns = t["columns"] if columns is None else columns
    bias = t["bias"].float()
    product = _product(t) + (bias if inside else 0)
    return {"y": product * rows * columns + (0 if inside else bias)}


def _turned(t: Tensors) -> Tensors:
    """Each scale along the other axis, where the sizes allow it."""
    rows, columns = t["rows"], t["columns"]
    if rows.shape[1] != columns.shape[2]:
        return _undone(t)
    return _undone(t, rows.mT, columns)


LINEAR = Exercise(
    key="14.3", title="Scales for rows and columns", statement="mma-ex-3", answer="fp8_linear",
    stub='''
def fp8_linear(target, a, b, rows, columns, bias, y):
    ...  # Y = (A B) * rows * columns + bias
''',
    solution='''
def fp8_linear(target, a, b, rows, columns, bias, y):
    graph = target.graph("fp8_linear", a.dtype)
    A = graph.tensor(name="A", **cudnn_graph.describe(a))
    B = graph.tensor(name="B", **cudnn_graph.describe(b))  # column-major: its strides say so
    # [batch, M, 1] and [batch, 1, N]: each is broadcast along the axis where it has size 1
    Rows = graph.tensor(name="rows", **cudnn_graph.describe(rows))
    Columns = graph.tensor(name="columns", **cudnn_graph.describe(columns))
    Bias = graph.tensor(name="bias", **cudnn_graph.describe(bias))

    product = graph.matmul(A=A, B=B)
    # the bias was never scaled, so the scales are undone before it is added
    undone = graph.mul(a=graph.mul(a=product, b=Rows), b=Columns)
    Y = graph.add(a=undone, b=Bias)
    # without this Y would have the graph's own dtype, 8 bits
    Y.set_output(True).set_data_type(cudnn_graph.data_type(y.dtype))
    Y.set_dim(list(y.shape)).set_stride(list(y.stride()))
    return graph, {A: a, B: b, Rows: rows, Columns: columns, Bias: bias, Y: y}
''',
    hints=(
        "The scales are tensors in memory here, one number for each row of A and for each column "
        "of B. Four operations: which is the last?",
        "graph.mul broadcasts an axis of size 1, so `rows` and `columns` go in as they are "
        "described. The bias was not scaled.",
        "matmul, mul by Rows, mul by Columns, add Bias. Give Y the dtype of y: the graph's own is "
        "that of a.",
    ),
    judge=GraphCheck(
        cases=(dict(B=2, M=24, N=24, K=32), dict(B=1, M=5, N=9, K=7), dict(B=3, M=1, N=16, K=16)),
        tensors=_eight_bits, outputs=("y",), operations=4, reference=lambda s, t: _undone(t),
        mistakes={
            "The bias is as good as lost: it is missing, or it went in before the scales were "
            "undone, which makes it small.": lambda s, t: _undone(t, inside=True),
            "The scales of the rows are missing.": lambda s, t: _undone(t, rows=1.0),
            "The scales of the columns are missing.": lambda s, t: _undone(t, columns=1.0),
            "It is divided by them; `rows` and `columns` undo the scales by multiplication.":
                lambda s, t: _undone(t, 1 / t["rows"], 1 / t["columns"]),
            "The scales of the rows lie along the columns: they are transposed.":
                lambda s, t: _turned(t),
        },
        gpu=dict(B=4, M=128, N=256, K=128), min_sm=89))

EXERCISES = (SCALE, ROWS, LINEAR)
