"""Tries an epilogue's function without compiling it: what it returns, and whether every operation
in it is one that a kernel can do.

The function is called with stand-ins that have no value and know what a TileLang expression knows:
+ - * /, negation, comparisons, and `labkit.epilogue.ops`. An `if` on a value, `abs`, `**`, `max`,
`math.exp` or `torch.relu` fails here, at the declaration, and not in the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.errors import BadArgument


class Value:
    """Stands for one float32 element."""

    def _same(self, _other: Any = None) -> Value:
        if not isinstance(_other, (int, float, Value, type(None))):
            raise TypeError(f"an element meets a {type(_other).__name__}")
        return Value()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __truediv__ = __rtruediv__ = __neg__ = _same

    def _compare(self, _other: Any) -> Condition:
        return Condition()

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compare
    __hash__ = None

    def __pow__(self, _power: Any) -> Value:
        raise TypeError("a kernel has no **; write x * x, or ops.exp and ops.log")

    __rpow__ = __pow__

    def __abs__(self) -> Value:
        raise TypeError("abs() does not know an element; write ops.abs")

    def __bool__(self) -> bool:
        raise TypeError("an element is used as a condition; compare it inside ops.where")

    def __float__(self) -> float:
        raise TypeError("an element is no number yet; use labkit.epilogue.ops, not math")

    def __getitem__(self, _index: Any) -> Any:
        raise TypeError("an element is indexed; only what `pairs` names has two members")

    __iter__ = None


class Condition:
    """Stands for a comparison of elements."""

    def _same(self, _other: Any) -> Condition:
        if not isinstance(_other, Condition):
            raise TypeError("& and | join two comparisons; put each one in brackets")
        return Condition()

    __and__ = __or__ = _same

    def __bool__(self) -> bool:
        raise TypeError("`if`, `and`, `or`, `not`, max() and min() cannot look at an element; use "
                        "ops.where, &, |, ops.maximum, ops.minimum")


def call(name: str, fn: Callable[..., Any], pairs: list[bool]) -> Any:
    """What `fn` returns for stand-ins, two for each parameter that is a pair. Raises BadArgument
    for an operation that a kernel cannot do."""
    try:
        return fn(*((Value(), Value()) if pair else Value() for pair in pairs))
    except BadArgument:
        raise
    except Exception as error:
        line = _line(error, fn)
        raise BadArgument(f"{name}, line {line}: {error}. The function sees one element at a time, "
                          "with + - * /, comparisons and labkit.epilogue.ops.") from error


def _line(error: Exception, fn: Callable[..., Any]) -> str:
    """The line of `fn` in which it failed, counted from its decorator, and its text."""
    import linecache

    code, step, found = fn.__code__, error.__traceback__, None
    while step is not None:
        if step.tb_frame.f_code is code:
            found = step.tb_lineno
        step = step.tb_next
    if found is None:
        return "1"
    text = linecache.getline(code.co_filename, found).strip()
    return f"{found - code.co_firstlineno + 1}" + f" (`{text}`)" * bool(text)
