"""The schedules that were measured, in the order they were tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, BLUE, GREEN, ORANGE, Picture
from labkit.widgets.view_marks import (
    NOTE,
    RED,
    brief,
    counts,
    dashed,
    duration,
    fit,
    new_canvas,
    percent,
    positive,
    shape,
    text_width,
)

_LEFT, _TOP, _WIDE, _HIGH = 84, 82, 616, 164
_MOST = 80


@dataclass(frozen=True)
class Measured:
    """One schedule that was tried. ms: its median time, None if it did not run. ok: whether its
    result was right. recorded: measured earlier and kept with the kit, not in this run."""

    label: str
    ms: float | None
    ok: bool = True
    recorded: bool = False


def history(points: Sequence[Measured | tuple[Any, ...]],
            baseline: tuple[str, float] | None = None, best: int | None = None) -> Picture:
    """The time of each schedule, the first tried on the left, below it is faster.

    points: `Measured`, or (label, ms, ok) or (label, ms, ok, recorded). baseline: (name, ms).
    best: index of the fastest right one; None finds it. Only the last 80 are drawn. A wrong result
    or one that did not run is a cross, a recorded time is hollow. Raises BadArgument.
    """
    tried = [_measured(point) for point in points]
    if baseline is not None:
        if not isinstance(baseline, (tuple, list)) or len(baseline) != 2:
            raise BadArgument(f"baseline is {baseline!r}; give (name, ms), or None.")
        positive(**{"the baseline's ms": baseline[1]})
    right = [place for place, point in enumerate(tried) if point.ok and point.ms is not None]
    if best is None and right:
        best = min(right, key=lambda place: tried[place].ms)
    if best is not None:
        counts(0, best=best)
        if best not in right:
            raise BadArgument(f"best is {best}, not one of the {len(right)} schedules that ran and "
                              "were right; give the index of one that is, or None.")
    if not tried:
        words = "No schedule measured yet"
        return new_canvas(words, 44, NOTE).done(words + ".")
    head = _headline(tried, best, baseline)
    canvas = new_canvas(head, _TOP + _HIGH + 48)
    first = max(0, len(tried) - _MOST)
    if best is not None and best < first:
        shown = [best, *range(first + 1, len(tried))]
    else:
        shown = list(range(first, len(tried)))
    values = [tried[place].ms for place in shown if tried[place].ms is not None]
    if baseline:
        values.append(baseline[1])
    at = _scale(canvas, values)
    _legend(canvas, tried, shown, baseline)
    if len(tried) > len(shown):
        canvas.label(_LEFT + _WIDE, 47, f"{len(tried) - len(shown):,} earlier ones not drawn", 10,
                     "end", NOTE)
    wide = _WIDE
    if baseline:
        y = at(baseline[1])
        dashed(canvas, _LEFT, y, _LEFT + _WIDE, y, _INK, 1.5)
        name = fit(baseline[0], 150, 11, True)
        wide -= text_width(name, 11, True) + 8
        canvas.label(_LEFT + _WIDE, y - 6, name, 11, "end", weight="bold")
        canvas.label(_LEFT + _WIDE, y + 15 if y < _TOP + _HIGH - 16 else y - 20,
                     duration(baseline[1]), 11, "end")
    slot = wide / len(shown)
    every = max(1, math.ceil(32 / slot))
    for turn, place in enumerate(shown):
        point, x = tried[place], _LEFT + (turn + 0.5) * slot
        wrong = not point.ok or point.ms is None
        y = _TOP - 12 if point.ms is None else at(point.ms)
        took = "did not run" if point.ms is None else duration(point.ms)
        hint = (f"{place + 1}: {brief(point.label, 40)}: {took}{', recorded' * point.recorded}"
                f"{', wrong result' * (not point.ok)}")
        if turn % every == 0 or place == best:
            canvas.label(x, _TOP + _HIGH + 16, str(place + 1), 10,
                         colour=_INK if place == best else NOTE,
                         weight="bold" if place == best else "normal")
        kind = ("cross" if wrong else "star" if place == best and not point.recorded
                else "ring" if point.recorded else "dot")
        colour = RED if wrong else GREEN if place == best else ORANGE if point.recorded else BLUE
        shape(canvas, kind, x, y, colour, hint, min(5.0, max(3.0, slot / 3)))
    if any(tried[place].ms is None for place in shown):
        canvas.label(_LEFT - 8, _TOP - 8, "did not run", 10, "end", RED)
    if best is not None:
        _name_best(canvas, tried[best], _LEFT + (shown.index(best) + 0.5) * slot,
                   at(tried[best].ms))
    said = "; ".join(f"{brief(p.label, 40)} {duration(p.ms) if p.ms else 'did not run'}"
                     f"{', wrong' * (not p.ok)}{', recorded' * p.recorded}" for p in tried[-12:])
    named = f"The best: {brief(tried[best].label)}. " if best is not None else ""
    which = "The last 12" if len(tried) > 12 else "In order"
    return canvas.done(f"{head}. {named}{which}: {said}.")


def _measured(point: Any) -> Measured:
    if isinstance(point, (tuple, list)) and 2 <= len(point) <= 4:
        point = Measured(*point)
    if not isinstance(point, Measured):
        raise BadArgument(f"{point!r} is no measured schedule; give Measured(label, ms, ok, "
                          "recorded), or a tuple of these.")
    if point.ms is not None and not (type(point.ms) is float and 1e-30 < point.ms < 1e30):
        positive(**{f"ms of {point.label}": point.ms})
    return point


def _headline(tried: list[Measured], best: int | None, baseline: tuple[str, float] | None) -> str:
    noun = "schedule" if len(tried) == 1 else "schedules"
    wrong = sum(not p.ok or p.ms is None for p in tried)
    words = f"{len(tried):,} {noun} tried" + (f", {wrong:,} failed" if wrong else "")
    if best is None:
        return f"{words}; none right so far"
    fastest = tried[best]
    words += f"; the best {duration(fastest.ms)}{' (recorded)' * fastest.recorded}"
    if baseline:
        words += f", {percent(baseline[1] / fastest.ms)} of {brief(baseline[0], 40)}'s speed"
    return words


def _scale(canvas: Any, values: list[float]) -> Any:
    """Draws the axis and returns the function from ms to y: from zero, or logarithmic where the
    slowest takes more than 8 times as long as the fastest."""
    low, high = (min(values), max(values)) if values else (1.0, 1.0)
    log = high > 8 * low
    bottom = math.log(low / 1.4) if log else 0.0
    top = math.log(high * 1.25) if log else high * 1.12

    def at(ms: float) -> float:
        value = math.log(ms) if log else ms
        return _TOP + _HIGH * (1 - (value - bottom) / (top - bottom))

    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        parts = (1, 2, 5) if len(powers) <= 3 else (1,)
        every = max(1, len(powers) // 7)
        ticks = [part * 10.0**power for power in powers[::every] for part in parts]
    else:
        step = 10.0 ** math.floor(math.log10(high))
        step = next(step * part for part in (0.1, 0.2, 0.5, 1, 2) if high / (step * part) <= 6)
        ticks = [step * turn for turn in range(7)]
    for tick in ticks:
        if (tick > 0 or not log) and _TOP <= (y := at(tick) if tick else at(0)) <= _TOP + _HIGH:
            canvas.line(_LEFT, y, _LEFT + _WIDE, y, "#e3e6eb", 1)
            name = duration(tick) if log or high < 0.1 or high >= 1e3 else f"{tick:.3g} ms"
            canvas.label(_LEFT - 8, y + 4, name if tick else "0", 10, "end", NOTE)
    canvas.line(_LEFT, _TOP + _HIGH, _LEFT + _WIDE, _TOP + _HIGH, NOTE, 1)
    canvas.label(_LEFT + _WIDE / 2, _TOP + _HIGH + 36, "schedules in the order tried"
                 + ("; their times on a logarithmic scale" if log else ""), 11)
    return at


def _legend(canvas: Any, tried: list[Measured], shown: list[int],
            baseline: tuple[str, float] | None) -> None:
    points = [tried[place] for place in shown]
    entries = [("star", GREEN, "best")] if any(p.ok and p.ms and not p.recorded for p in points
                                               ) else []
    entries += [("dot", BLUE, "measured here")] * any(p.ok and p.ms and not p.recorded
                                                      for p in points)
    entries += [("ring", ORANGE, "recorded earlier")] * any(p.recorded for p in points)
    entries += [("cross", RED, "wrong or did not run")] * any(not p.ok or p.ms is None
                                                              for p in points)
    x = 26.0
    for kind, colour, words in entries:
        shape(canvas, kind, x, 43, colour, r=2.5 if kind == "star" else 4.5)
        canvas.label(x + 11, 47, words, 10, "start", NOTE)
        x += 34 + text_width(words, 10)


def _name_best(canvas: Any, point: Measured, x: float, y: float) -> None:
    """The best one's name under its mark, or above it near the axis."""
    words = fit(point.label, 240, 11, True)
    half = text_width(words, 11, True) / 2
    low = y > _TOP + _HIGH - 30
    x, y = min(max(x, _LEFT + half), _LEFT + _WIDE - half), y - 14 if low else y + 23
    canvas.box(round(x - half, 1), round(y - 10, 1), round(2 * half, 1), 13, "#ffffff", "none", 0.8)
    canvas.label(x, y, words, 11, colour="#00684d", weight="bold")
