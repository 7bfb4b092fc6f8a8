"""A ranking as horizontal bars, the best on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import BadArgument
from labkit.pictures import BLUE, GREY, ORANGE, SKY, Picture, _Canvas

_INK, _LINE = "#1f2430", "#d9dee6"
_ROW, _WIDTH, _MOST = 15, 470, 60


@dataclass(frozen=True)
class Bar:
    """value: the length, above 0. short: measured in the short round only, alone, so not to be
    compared with the others. own: the hand-picked one. low: the value at the slow end of the
    spread."""

    name: str
    value: float
    short: bool = False
    own: bool = False
    low: float | None = None


def ranking(title: str, unit: str, bars: Sequence[Bar]) -> Picture:
    """Bars from the best to the worst. Raises BadArgument if there is none, or a value is not
    above 0."""
    if not bars or not all(0 < bar.value < float("inf") for bar in bars):
        raise BadArgument("A ranking needs at least one bar, and each a finite value above 0.")
    bars = sorted(bars, key=lambda bar: (bar.short, -bar.value))
    shown = bars[:_MOST]
    left = 34 + 6.6 * max(len(bar.name) for bar in shown)
    top, most = 66, max(bar.value for bar in shown)
    finalists = sum(not bar.short for bar in shown)
    gap = 34 if 0 < finalists < len(shown) else 0
    bottom = top + len(shown) * _ROW + gap
    canvas = _Canvas(max(left + _WIDTH + 60, 640), bottom + 18)
    canvas.label(16, 24, title, 13, "start", weight="bold")
    x = 16.0
    for colour, words in ((BLUE, "timed at length, interleaved"), (SKY, "short round only"),
                          (ORANGE, "hand-picked")):
        canvas.box(x, 37, 11, 11, colour, colour)
        canvas.label(x + 16, 47, words, 11, "start")
        x += 32 + 6.1 * len(words)
    canvas.line(x, 42.5, x + 14, 42.5, _INK, 1.5)
    canvas.label(x + 19, 47, "spread of the runs", 11, "start")
    step = _step(most)
    for turn in range(1, int(most / step) + 1):
        across = left + turn * step / most * _WIDTH
        canvas.line(across, top - 2, across, bottom, _LINE, 1)
        canvas.label(across, bottom + 12, f"{turn * step:g}", 9, colour=GREY)
    canvas.label(left, bottom + 12, unit, 9, "start", GREY)
    if gap:
        y = top + finalists * _ROW + 22
        canvas.label(left, y, "short round: alone, on a cooler GPU. Compare these with one another "
                     "only.", 11, "start", weight="bold")
    for place, bar in enumerate(shown):
        y = top + place * _ROW + (gap if bar.short else 0)
        colour = ORANGE if bar.own else SKY if bar.short else BLUE
        length = bar.value / most * _WIDTH
        canvas.label(left - 6, y + 10.5, bar.name, 10, "end",
                     weight="bold" if bar.own or not place else "normal")
        canvas.box(left, y + 1.5, length, _ROW - 4, colour, colour, 0.9)
        if bar.low is not None and bar.low < bar.value:
            canvas.line(left + bar.low / most * _WIDTH, y + _ROW / 2 - 0.5, left + length,
                        y + _ROW / 2 - 0.5, _INK, 1.5)
        canvas.label(left + length + 5, y + 10.5, f"{bar.value:,.0f}", 10, "start")
    own = next((place for place, bar in enumerate(bars, 1) if bar.own), None)
    words = (f"{title}: {len(bars)} schedules. The fastest is {bars[0].name} with "
             f"{bars[0].value:,.0f} {unit}, the slowest {bars[-1].name} with "
             f"{bars[-1].value:,.0f}; {sum(not bar.short for bar in bars)} were timed at length.")
    if gap:
        words += " The others' figures are of the short round and compare with one another only."
    if own:
        words += f" The hand-picked one has rank {own} with {bars[own - 1].value:,.0f}."
    return canvas.done(words)


def _step(most: float) -> float:
    """A round distance between grid lines, three to seven of them."""
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    return next(power * part for part in (0.2, 0.5, 1, 2) if most / (power * part) < 7.5)
