"""A ranking as horizontal bars, the best on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.errors import BadArgument
from labkit.pictures import BLUE, GREY, ORANGE, SKY, Picture, _Canvas

_LINE = "#d9dee6"
_ROW, _WIDTH, _MOST = 15, 470, 60


@dataclass(frozen=True)
class Bar:
    """value: the length, above 0. short: measured in the short round only, alone, so not to be
    compared with the others. own: the hand-picked one."""

    name: str
    value: float
    short: bool = False
    own: bool = False


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
        canvas.label(left + length + 5, y + 10.5, f"{bar.value:,.0f}", 10, "start")
    return canvas.done(f"{title}: {_words(unit, bars)}")


def _words(unit: str, bars: Sequence[Bar]) -> str:
    """What the picture shows; `bars` are sorted. Only bars of one round are compared."""
    full = [bar for bar in bars if not bar.short]
    round = full or bars
    words = (f"{len(bars)} schedules, {len(full)} of them timed at length. Of "
             f"{'these' if full else 'all'}, the fastest is {round[0].name} with "
             f"{round[0].value:,.0f} {unit}, the slowest {round[-1].name} with "
             f"{round[-1].value:,.0f}.")
    if 0 < len(full) < len(bars):
        words += " The others' figures are of the short round and compare with one another only."
    own = next((place for place, bar in enumerate(bars) if bar.own), None)
    if own is not None:
        what = "was in the short round only," if bars[own].short else f"has rank {own + 1}"
        words += f" The hand-picked one {what} with {bars[own].value:,.0f}."
    return words


def _step(most: float) -> float:
    """A round distance between grid lines, three to seven of them."""
    power = 1.0
    while power * 10 <= most:
        power *= 10
    while power > most:
        power /= 10
    return next(power * part for part in (0.2, 0.5, 1, 2) if most / (power * part) < 7.5)
