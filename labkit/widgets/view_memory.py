"""What a schedule holds and moves: the shared-memory bar and the levels of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, Picture
from labkit.widgets.view_marks import (
    NOTE,
    PALE,
    RED,
    brief,
    counts,
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
    whole,
)

_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, GREY)
_LEFT, _BAR = 20, 680
_MOST_PARTS, _MOST_BLOCKS = 6, 32


def shared_bar(parts: Mapping[str, int], limit: int, gpu: str, exact: int | None = None,
               per_sm: int = 0, blocks_per_sm: int | None = None) -> Picture:
    """The buffers of one block in shared memory, against what the GPU gives a block.

    parts: bytes of each buffer, in the order they are drawn. limit: bytes one block may have.
    exact: the compiler's own figure in bytes, once known; it decides whether the block fits,
    because the compiler lets buffers share space that are not needed at the same time. per_sm:
    bytes of one multiprocessor, 0 to leave it out. blocks_per_sm: how many blocks fit there by
    all limits; None if only shared memory is known. Raises BadArgument.
    """
    if not isinstance(parts, Mapping):
        raise BadArgument(f"parts is of type {type(parts).__name__}; give a dictionary from a "
                          'buffer\'s name to its bytes, as in {"A_tile": 8192}.')
    counts(0, **{f"parts[{name!r}]": size for name, size in parts.items()}, per_sm=per_sm)
    counts(1, limit=limit)
    counts(0, **{"exact": exact} if exact is not None else {},
           **{"blocks_per_sm": blocks_per_sm} if blocks_per_sm is not None else {})
    sized = list(parts.items())
    total = sum(parts.values())
    if len(sized) > _MOST_PARTS:
        rest = sized[_MOST_PARTS - 1:]
        sized = [*sized[:_MOST_PARTS - 1], (f"{len(rest)} more", sum(size for _, size in rest))]
    taken = total if exact is None else exact
    over = taken > limit
    title = (f"{kib(taken)} > {kib(limit)}: does not fit the shared memory of a block on the {gpu}"
             if over else f"Shared memory a block: {kib(taken)} of {kib(limit)} on the {gpu} "
                          f"({percent(taken / limit)})")
    legend = _legend(sized)
    foot = 136 + 18 * max(row for *_, row in [(0, 0), *legend])  # below the legend
    canvas = new_canvas(title, foot + (62 if per_sm else 14), RED if over else _INK)
    scale = _BAR / (min(max(limit, total, exact or 0), 2.5 * limit) * 1.03)
    end, bar, high = _LEFT + _BAR, 58, 34
    stop = _LEFT + limit * scale

    canvas.box(_LEFT, bar, limit * scale, high, PALE)
    x, middles = float(_LEFT), []
    for number, (_, size) in enumerate(sized):
        width = min(size * scale, end - x)
        if width > 0:
            colour = _COLOURS[number % len(_COLOURS)]
            canvas.box(x, bar, width, high, colour, "#ffffff", 0.85)
            middles.append((x + width / 2 if width >= 18 else -1, number + 1))
        x += max(width, 0)
    if x > stop:
        canvas.box(stop, bar, x - stop, high, "#ffffff", RED, 0.7)
        hatch(canvas, stop, bar, x - stop, high, RED)
    for middle, number in middles:
        if middle > 0:
            canvas.parts.append(f'<circle cx="{middle:.1f}" cy="{bar + high / 2}" r="8" '
                                'fill="#ffffff"/>')
            canvas.label(middle, bar + high / 2 + 4, str(number), 11, weight="bold")
    if total * scale > _BAR + 1:
        canvas.label(end, bar - 9, f"the bar goes on to {kib(total)} →", 11, "end", RED)
    canvas.line(stop, bar - 8, stop, bar + high + 6, _INK, 2.5)
    side = "end" if stop > _LEFT + _BAR / 2 else "start"
    canvas.label(stop + (-5 if side == "end" else 5), bar - 9, f"limit {kib(limit)}", 11, side,
                 weight="bold")
    if exact is not None:
        _exact(canvas, exact, total, min(_LEFT + exact * scale, end), bar + high)

    for number, (words, x, row) in enumerate(legend):
        colour, y = _COLOURS[number % len(_COLOURS)], bar + high + 42 + 18 * row
        canvas.box(x, y - 11, 14, 14, colour, colour, 0.85)
        canvas.label(x + 7, y, str(number + 1), 10, colour="#ffffff", weight="bold")
        canvas.label(x + 20, y, words, 11, "start")
    fits = _multiprocessor(canvas, taken, per_sm, blocks_per_sm, foot + 18) if per_sm else ""
    listed = ", ".join(f"{brief(name)} {kib(size)}" for name, size in sized)
    compiler = "" if exact is None else f" The compiler's figure: {kib(exact)}."
    return canvas.done(f"{title}. Buffers: {listed or 'none'}, together {kib(total)}.{compiler}"
                       f"{fits}")


def _legend(sized: Sequence[tuple[str, int]]) -> list[tuple[str, float, int]]:
    """(words, x, row) of each buffer."""
    placed, x, row = [], float(_LEFT), 0
    for name, size in sized:
        words = f"{fit(name, 150, 11)}: {kib(size)}"
        wide = 36 + text_width(words, 11)
        if x + wide > _LEFT + _BAR and placed:
            x, row = float(_LEFT), row + 1
        placed.append((words, x, row))
        x += wide
    return placed


def _exact(canvas: Any, exact: int, total: int, x: float, y: float) -> None:
    """The compiler's figure as a tick under the bar."""
    canvas.parts.append(f'<path d="M{x:.1f} {y + 1}l-6 9h12z" fill="{_INK}"/>')
    saved = ("" if exact == total else "; buffers share space" if exact < total
             else f"; {kib(exact - total)} more than these")
    words = f"compiler: {kib(exact)}{saved}"
    half = text_width(words, 11) / 2
    middle = min(max(x, _LEFT + half), _LEFT + _BAR - half)
    canvas.label(middle, y + 21, words, 11)


def _multiprocessor(canvas: Any, taken: int, per_sm: int, blocks: int | None, y: float) -> str:
    """The blocks on one multiprocessor as boxes; returns the words."""
    alone = per_sm // taken if taken else 0
    count = alone if blocks is None else blocks
    scale = 380 / per_sm
    canvas.box(_LEFT, y, 380, 22, PALE)
    shown = min(count, _MOST_BLOCKS)
    for place in range(shown):
        at = place * taken * scale
        if taken * scale < 1 or at >= 380:
            break
        canvas.box(_LEFT + at, y, min(taken * scale, 380 - at), 22, SKY, "#ffffff", 0.9)
        if taken * scale > 18:
            canvas.label(_LEFT + at + min(taken * scale, 380 - at) / 2, y + 15, str(place + 1), 10,
                         weight="bold")
    used = min(shown * taken * scale, 380)
    hatch(canvas, _LEFT + used, y, 380 - used, 22, "#c9ced6", 9, 1)
    noun = "block" if count == 1 else "blocks"
    if blocks is None and not taken:
        words = "shared memory limits no blocks"
    elif not count:
        words = "no block fits a multiprocessor"
    elif blocks is None:
        words = f"at most {whole(count)} {noun} a multiprocessor"
    else:
        words = f"{whole(count)} {noun} a multiprocessor"
    more = ("" if not count or not taken else "by shared memory alone" if blocks is None
            else f"shared memory alone: {whole(alone)}" if alone > count
            else "shared memory allows no more")
    canvas.label(_LEFT + 392, y + 10, words, 12, "start", RED if words[:2] == "no" else _INK,
                 "bold")
    canvas.label(_LEFT + 392, y + 24, f"{more}; it has {kib(per_sm)}" if more
                 else f"it has {kib(per_sm)}", 10, "start", NOTE)
    return f" {words[0].upper() + words[1:]} of {kib(per_sm)}{f', {more}' if more else ''}."


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
    slow = max((level for level in levels if level.ms), key=lambda level: level.ms, default=None)
    row, top, held, flow = 68, 66, 130, 410
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
        canvas.label(_LEFT, y + 16, fit(level.name, held - _LEFT - 8, 13, True), 13, "start",
                     weight="bold")
        holds = _held(canvas, level, held, y)
        moves = _moves(canvas, level, flow, y, most, level is slow and len(levels) > 1)
        if level.note:
            canvas.label(held, y + 48, fit(level.note, _LEFT + _BAR - held, 10), 10, "start", NOTE)
        said.append(f"{brief(level.name)}: holds {holds}{f', {moves}' if moves else ''}."
                    f"{f' {brief(level.note, 120)}.' if level.note else ''}")
    end = f" The longest: {brief(slow.name)}, at least {duration(slow.ms)}." if slow else ""
    return canvas.done(" ".join(said) + end)


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
    wide, high = 288, 16
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
