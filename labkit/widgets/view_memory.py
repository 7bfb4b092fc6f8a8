"""What a block holds in shared memory, against what the GPU gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, BLUE, GREEN, GREY, ORANGE, PINK, SKY, Picture
from labkit.widgets.view_levels import Level, hierarchy
from labkit.widgets.view_marks import (
    NOTE,
    PALE,
    RED,
    brief,
    counts,
    fit,
    hatch,
    kib,
    new_canvas,
    percent,
    text_width,
    whole,
)

__all__ = ["Level", "hierarchy", "shared_bar"]

_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, GREY)
_LEFT, _BAR = 20, 680
_MOST_PARTS, _MOST_BLOCKS = 6, 32


def shared_bar(parts: Mapping[str, int], limit: int, gpu: str, exact: int | None = None,
               per_sm: int = 0, blocks_per_sm: int | None = None, reserved: int = 0) -> Picture:
    """The buffers of one block in shared memory, against what the GPU gives a block.

    parts: bytes of each buffer, in the order they are drawn. limit: bytes one block may have.
    exact: the compiler's own figure in bytes, once known; it decides whether the block fits,
    because the compiler lets buffers share space that are not needed at the same time. per_sm:
    bytes of one multiprocessor, 0 to leave it out. blocks_per_sm: how many blocks fit there by
    all limits; None if only shared memory is known. reserved: bytes that the system takes of a
    multiprocessor for each block, besides. Raises BadArgument.
    """
    if not isinstance(parts, Mapping):
        raise BadArgument(f"parts is of type {type(parts).__name__}; give a dictionary from a "
                          'buffer\'s name to its bytes, as in {"A_tile": 8192}.')
    counts(0, **{f"parts[{name!r}]": size for name, size in parts.items()}, per_sm=per_sm,
           reserved=reserved)
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
    fits = (_multiprocessor(canvas, taken + reserved * (taken > 0), per_sm, blocks_per_sm,
                            foot + 18) if per_sm else "")
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
