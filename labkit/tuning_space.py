"""A search space: every combination of the knobs' values that the lesson's rule allows."""

from __future__ import annotations

import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from labkit import parsing
from labkit.errors import BadArgument

_MOST_COMBINATIONS, _MOST_LEGAL = 1_000_000, 1_000
_PLAIN = (bool, int, float, str, type(None))


@dataclass(eq=False)
class Candidate:
    """One schedule on its way through the tuner. step, dropped: where it was left out, and why, in
    words. shared_bytes of a block, registers and spilled bytes of a thread: the compilers' figures,
    None where they were not asked. error: relative Frobenius error. ms, spread_ms: median and range
    from the 10th to the 90th percentile; round: of which round they are, "short" or "full"."""

    schedule: dict[str, Any]
    program: Any = None
    step: str = ""
    dropped: str = ""
    shared_bytes: int | None = None
    registers: int | None = None
    spilled: int | None = None
    error: float | None = None
    ms: float | None = None
    spread_ms: float | None = None
    round: str = ""

    def drop(self, step: str, why: str) -> None:
        self.step, self.dropped = step, why

    def time(self, took: dict[str, float], round: str) -> None:
        self.ms, self.spread_ms, self.round = took["ms"], took["spread_ms"], round

    def place(self) -> tuple[bool, float]:
        """What the ranking sorts by: those of the full round first, the fastest first."""
        return self.round != "full", self.ms


def identity(value: Any) -> str:
    """The text that two schedules, or two values of a knob, share if they are the same; 1, 1.0 and
    True are three values."""
    return json.dumps(value, sort_keys=True)


def grid(space: Any) -> list[dict[str, Any]]:
    """The schedules of `space`, each once: knob -> list of values, or a list of schedules. Raises
    BadArgument."""
    if isinstance(space, dict):
        for knob, values in space.items():
            if not isinstance(knob, str) or not isinstance(values, (list, tuple, range)):
                raise BadArgument(f"The knob {knob!r} has the values {values!r}; give a name and a "
                                  'list, as in {"num_stages": [2, 3, 4]}.')
            if not len(values):
                raise BadArgument(f"The knob {knob!r} has no values, so there is nothing to "
                                  "combine; give it at least one.")
        if math.prod(map(len, space.values())) > _MOST_COMBINATIONS:
            raise BadArgument(f"The space has more than {_MOST_COMBINATIONS:,} combinations; give "
                              "fewer values, or a list of schedules.")
        _check_plain((knob, value) for knob, values in space.items() for value in values)
        schedules = [dict(zip(space, row, strict=True)) for row in itertools.product(
            *map(_once, space.values()))] if space else []
    elif isinstance(space, (list, tuple)) and all(isinstance(s, dict) for s in space):
        _check_plain(pair for schedule in space for pair in schedule.items())
        schedules = [dict(s) for s in _once(space)]
    else:
        raise BadArgument(f"The space is of type {type(space).__name__}; give a dictionary from "
                          "knob to list of values, or a list of schedules.")
    if not schedules:
        raise BadArgument("The search space is empty; give at least one knob with a value, as in "
                          '{"num_stages": [2, 3, 4]}.')
    return schedules


def _check_plain(pairs: Iterable[tuple[Any, Any]]) -> None:
    for knob, value in pairs:
        if not isinstance(knob, str):
            raise BadArgument(f"A schedule has the knob {knob!r}; knobs are names, as in "
                              '{"num_stages": 3}.')
        if not isinstance(value, _PLAIN):
            raise BadArgument(f"The knob {knob!r} has the value {value!r}; values are numbers, "
                              "texts or booleans.")


def _once(values: Iterable[Any]) -> list[Any]:
    kept: dict[str, Any] = {}
    for value in values:
        kept.setdefault(identity(value), value)
    return list(kept.values())


def legal_ones(schedules: list[dict[str, Any]], legal: Callable[[dict[str, Any]], bool] | None
               ) -> list[dict[str, Any]]:
    """Those that `legal` allows. Raises BadArgument if none or too many are."""
    if legal is not None and not callable(legal):
        raise BadArgument(f"legal is of type {type(legal).__name__}; give a function that takes a "
                          "schedule and returns whether to try it.")
    left = [s for s in schedules if legal is None or legal(dict(s))]
    if not left:
        raise BadArgument(f"The rule `legal` forbids all {len(schedules)} schedules of the space; "
                          "widen the space, or relax the rule.")
    if len(left) > _MOST_LEGAL:
        raise BadArgument(f"{len(left):,} schedules are left, and each takes seconds to compile; "
                          f"tighten the space or the rule to at most {_MOST_LEGAL:,}.")
    return left


def trace(build: Callable[..., Any], schedule: dict[str, Any]) -> Any:
    """The program of `schedule`. Raises BadArgument for a knob that `build` does not know, or if
    it returns no program, and what `build` raises."""
    from tilelang.language.eager import PrimFunc

    try:
        parameters = inspect.signature(build).parameters
    except (TypeError, ValueError):
        raise BadArgument(f"build is of type {type(build).__name__}; give a function that takes "
                          "the knobs and returns a @T.prim_func.") from None
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [knob for knob in schedule if knob not in parameters and not takes_any]
    if unknown:
        raise BadArgument(f"build has no knob {unknown[0]!r}; it takes {', '.join(parameters)}.")
    try:
        program = parsing.built(build, schedule)
    except TypeError as error:
        if "unexpected keyword argument" in str(error) or "required positional" in str(error):
            raise BadArgument(f"build cannot take this schedule ({error}); name the knobs as it "
                              "does.") from error
        raise
    if not isinstance(program, PrimFunc):
        raise BadArgument(f"build returned a {type(program).__name__}; return a @T.prim_func, as "
                          "gemm(M, N, K) is one.")
    return program
