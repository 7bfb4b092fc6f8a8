"""The mathematics of an epilogue, once for the kernel and once for its reference.

Each function takes what the epilogue gets: in a kernel a TileLang expression of one element, in a
reference a torch tensor, at the declaration a stand-in (`probe`), elsewhere a number. So the same
epilogue is traced into the generated program and evaluated in float64 by PyTorch. `+ - * /` and
comparisons need no function here; `&` and `|` join comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.epilogue.probe import Condition, Value

# the tanh form of GELU: 2 sqrt(2/pi) and 0.044715 (Hendrycks and Gimpel, arXiv 1606.08415)
_GELU_OUTER, _GELU_INNER = math.sqrt(2 / math.pi), 0.044715


def _torch(x: Any) -> bool:
    return type(x).__module__.startswith("torch")


def _by_kind(name: str, number: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of one value that goes by the same name in torch and in TileLang."""

    def apply(x: Any) -> Any:
        if isinstance(x, (int, float)):
            return number(x)
        if isinstance(x, Value):
            return Value()
        if _torch(x):
            import torch

            return getattr(torch, name)(x)
        import tilelang.language as T

        return getattr(T, name)(x)

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{name}(x) of each element."
    return apply


exp = _by_kind("exp", math.exp)
log = _by_kind("log", math.log)
tanh = _by_kind("tanh", math.tanh)
erf = _by_kind("erf", math.erf)
sin = _by_kind("sin", math.sin)
cos = _by_kind("cos", math.cos)
floor = _by_kind("floor", math.floor)
sqrt = _by_kind("sqrt", math.sqrt)
rsqrt = _by_kind("rsqrt", lambda x: 1 / math.sqrt(x))
abs = _by_kind("abs", math.fabs)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where `condition` holds, else `no`."""
    if isinstance(condition, bool):
        return yes if condition else no
    if isinstance(condition, Condition):
        return Value()
    if _torch(condition):
        import torch

        return torch.where(condition, yes, no)
    import tilelang.language as T

    return T.if_then_else(condition, yes, no)


def maximum(a: Any, b: Any) -> Any:
    """The larger one of `a` and `b`."""
    return where(a > b, a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller one of `a` and `b`."""
    return where(a < b, a, b)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + exp(-x))


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return where(x > 0, x, 0.0)


def silu(x: Any) -> Any:
    """x sigmoid(x), also called swish."""
    return x * sigmoid(x)


def gelu(x: Any) -> Any:
    """GELU in its tanh form, as `torch.nn.functional.gelu(x, approximate="tanh")`."""
    return 0.5 * x * (1.0 + tanh(_GELU_OUTER * (x + _GELU_INNER * x * x * x)))


def gelu_slope(x: Any) -> Any:
    """The derivative of `gelu`."""
    t = tanh(_GELU_OUTER * (x + _GELU_INNER * x * x * x))
    inner = _GELU_OUTER * (1.0 + 3 * _GELU_INNER * x * x)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


def silu_slope(x: Any) -> Any:
    """The derivative of `silu`."""
    s = sigmoid(x)
    return s + x * s * (1.0 - s)


def rotate(pair: tuple[Any, Any], angle: Any) -> tuple[Any, Any]:
    """The pair, as a point of the plane, turned by `angle` in radians."""
    a, b = pair
    # Whole turns are dropped first, so that the GPU's fast sine and cosine are accurate too.
    turns = angle * (1 / math.tau)
    angle = (turns - floor(turns + 0.5)) * math.tau
    c, s = cos(angle), sin(angle)
    return a * c - b * s, a * s + b * c
