"""What a kernel holds and moves at each level of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, BLUE, ORANGE, SKY, Picture
from labkit.widgets.view_marks import (
    NOTE,
    PALE,
    RED,
    brief,
    dashed,
    duration,
    fit,
    hatch,
    kib,
    moved,
    new_canvas,
    percent,
    positive,
    text_width,
)

_LEFT, _BAR = 20, 680


@dataclass(frozen=True)
class Level:
    """One level of memory. used: bytes held there. capacity: bytes there are, None if not known.
    bandwidth: GB/s (1e9 bytes a second), None if not known. traffic: bytes moved over the whole
    kernel, None if not counted. note: one line in small print, such as whose bytes they are."""

    name: str
    used: float
    capacity: float | None = None
    bandwidth: float | None = None
    traffic: float | None = None
    note: str = ""

    @property
    def ms(self) -> float | None:
        """The least time in ms that the traffic takes at the bandwidth; None where not known."""
        if self.traffic is None or not self.bandwidth:
            return None
        return self.traffic / self.bandwidth / 1e6


def hierarchy(levels: Sequence[Level]) -> Picture:
    """What the kernel holds in each level of memory, and what it moves there, the farthest on top.

    The level whose traffic takes longest at its bandwidth is marked. Raises BadArgument if there
    is no level, more than 8, or a figure that is not a number of at least 0.
    """
    levels = list(levels)
    if not 1 <= len(levels) <= 8 or not all(isinstance(level, Level) for level in levels):
        raise BadArgument("hierarchy draws 1 to 8 levels; give a list of Level.")
    for level in levels:
        for figure in (level.used, level.capacity, level.bandwidth, level.traffic):
            if figure:
                positive(**{f"a figure of level {level.name!r}": figure})
    most = max((level.traffic or 0 for level in levels), default=0)
    timed = [level for level in levels if level.ms]
    slow = max(timed, key=lambda level: level.ms) if len(timed) > 1 else None
    row, top, held, flow = 68, 66, 142, 418
    canvas = new_canvas("What this schedule holds and moves at each level of memory",
                        top + row * len(levels) + 4)
    canvas.label(held, 50, "held at one time", 11, "start", NOTE)
    canvas.label(flow, 50, "moved over the whole kernel", 11, "start", NOTE)
    said = []
    for number, level in enumerate(levels):
        y = top + number * row
        if number:
            canvas.line(_LEFT, y - 7, _LEFT + _BAR, y - 7, "#e3e6eb", 1)
            canvas.parts.append(f'<path d="M{_LEFT + 10} {y - 14}v9m-4 -4l4 5l4 -5" fill="none" '
                                f'stroke="{NOTE}" stroke-width="1.5"/>')
        for line, words in enumerate(_two_lines(level.name, held - _LEFT - 8)):
            canvas.label(_LEFT, y + 16 + 16 * line, words, 12, "start", weight="bold")
        holds = _held(canvas, level, held, y)
        moves = _moves(canvas, level, flow, y, most, level is slow)
        if level.note:
            canvas.label(held, y + 48, fit(level.note, _LEFT + _BAR - held, 10), 10, "start", NOTE)
        said.append(f"{brief(level.name)}: holds {holds}{f', {moves}' if moves else ''}."
                    f"{f' {brief(level.note, 120)}.' if level.note else ''}")
    end = f" The longest: {brief(slow.name)}, at least {duration(slow.ms)}." if slow else ""
    return canvas.done(" ".join(said) + end)


def _two_lines(name: str, width: float) -> list[str]:
    """The name broken at a space where it does not fit one line."""
    first, *rest = " ".join(str(name)[:200].split()).split(" ")
    while rest and text_width(f"{first} {rest[0]}", 12, True) <= width:
        first = f"{first} {rest.pop(0)}"
    return [fit(line, width, 12, True) for line in (first, " ".join(rest)) if line]


def _held(canvas: Any, level: Level, x: float, y: float) -> str:
    wide, high = 250, 16
    words = kib(level.used)
    if level.capacity:
        share = level.used / level.capacity
        words += f" of {kib(level.capacity)} ({percent(share)})" if share <= 10 else (
            f" of {kib(level.capacity)} (× {share:.3g})")
        canvas.box(x, y + 3, wide, high, PALE)
        canvas.box(x, y + 3, max(min(share, 1) * wide, 1.5 if level.used else 0), high, BLUE, BLUE,
                   0.85)
        if share > 1:
            canvas.box(x, y + 3, wide, high, "#ffffff", RED, 0.55)
            hatch(canvas, x, y + 3, wide, high, RED)
    else:
        dashed(canvas, x, y + 11, x + wide, y + 11, "#c9ced6")
    over = bool(level.capacity) and level.used > level.capacity
    canvas.label(x, y + 33, fit(words + ": more than fits" * over, wide + 16, 11), 11, "start",
                 RED if over else _INK)
    return words


def _moves(canvas: Any, level: Level, x: float, y: float, most: float, slowest: bool) -> str:
    wide, high = 280, 16
    if level.traffic is None:
        canvas.label(x, y + 16, "not counted", 11, "start", NOTE)
        return ""
    length = max(level.traffic / most * wide, 1.5 if level.traffic else 0) if most else 0
    canvas.box(x, y + 3, length, high, ORANGE if slowest else SKY,
               ORANGE if slowest else SKY, 0.9)
    if slowest:
        hatch(canvas, x, y + 3, length, high, "#ffffff", 8, 1.5)
    words = moved(level.traffic)
    if level.ms is not None:
        words += f" at {moved(level.bandwidth * 1e9)}/s: {duration(level.ms)}"
    canvas.label(x, y + 33, fit(words + ("  ◄ longest" if slowest else ""), wide + 12, 11, slowest),
                 11, "start", weight="bold" if slowest else "normal")
    return f"moves {words}"
