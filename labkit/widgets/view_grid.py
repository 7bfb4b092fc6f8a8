"""Which blocks run when: waves over the multiprocessors, and the tiles that they walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, _LINE, BLUE, GREEN, GREY, ORANGE, SKY, Picture
from labkit.widgets.launch_order import first_blocks, strips, wave_counts
from labkit.widgets.view_marks import (
    NOTE,
    PALE,
    RED,
    WIDTH,
    counts,
    fit,
    hatch,
    new_canvas,
    text_width,
    whole,
)

_MOST_WAVES = 24


def waves(blocks: int, slots: int, gpu: str, unit: str = "block") -> Picture:
    """The blocks of a kernel in waves over the GPU.

    slots: how many blocks the GPU runs at once, multiprocessors times blocks each; 0 if none
    fits. unit: "tile" where blocks stay and walk over as many tiles. A wave is one slot-full of
    blocks; what the last one leaves empty is shaded. Raises
    BadArgument.
    """
    counts(0, blocks=blocks, slots=slots)
    number, tail, idle = wave_counts(blocks, slots)
    if not number:
        words = (f"No block fits the {gpu}, so nothing runs" if blocks
                 else "No blocks, so nothing runs")
        return new_canvas(words, 44, RED).done(words + ".")
    noun = "wave" if number == 1 else "waves"
    share = "<0.1%" if 0 < idle < 0.001 else f"{idle:.1%}"
    wasted = f"{share} of the slots' time idle" if idle else "no slot idle"
    title = (f"{whole(blocks)} {unit}{'s' * (blocks > 1)}, {whole(slots)} at once on the {gpu}: "
             f"{whole(number)} {noun}, {wasted}")
    canvas = new_canvas(title, 214)
    shown: list[int | None] = list(range(number)) if number <= _MOST_WAVES else [
        *range(16), None, *range(number - 5, number)]
    left, top, high, gap = 76, 54, 112, 4
    slot = min(96.0, (WIDTH - left - 24 + gap) / (len(shown) + (number > _MOST_WAVES)))
    canvas.label(left - 10, top + 10, whole(slots), 10, "end", NOTE)
    canvas.label(left - 10, top + 24, "slots", 10, "end", NOTE)
    canvas.label(left - 10, top + high, "0", 10, "end", NOTE)
    x = float(left)
    for wave in shown:
        if wave is None:
            canvas.label(x + slot - gap / 2, top + high / 2, "…", 20)
            canvas.label(x + slot - gap / 2, top + high / 2 + 16, whole(number - 21), 10,
                         colour=NOTE)
            canvas.label(x + slot - gap / 2, top + high / 2 + 28, "more", 10, colour=NOTE)
            x += 2 * slot
            continue
        inside = tail if wave == number - 1 else slots
        full = max(high * inside / slots, 1.5)
        if inside < slots:
            canvas.box(x, top, slot - gap, high, "#ffffff", RED)
            hatch(canvas, x, top, slot - gap, high - full, RED)
        colour = GREEN if inside == slots else ORANGE
        canvas.box(x, top + high - full, slot - gap, full, colour, colour, 0.85)
        if text_width(f"{wave + 1:,}", 10) <= slot:
            canvas.label(x + (slot - gap) / 2, top + high + 16, f"{wave + 1:,}", 10, colour=NOTE)
        x += slot
    canvas.label(left - 10, top + high + 16, "wave", 10, "end", NOTE)
    edge, last = x - gap, f"last wave: {whole(tail)} of {whole(slots)} slots work"
    side = "end" if edge > WIDTH / 2 else "start"
    canvas.label(edge if side == "end" else edge - slot + gap, top - 8, last, 11, side,
                 RED if tail < slots else _INK, "bold")
    work = f"{blocks / slots:,.2f}" if number < 10**7 else whole(number)
    words = f"If every {unit} takes as long as every other, "
    words += (f"{work} waves of work take the time of {whole(number)}." if idle
              else "no slot waits for another.")
    canvas.label(20, top + high + 40, words, 11, "start", NOTE)
    return canvas.done(f"{title}. In the {last}. {words}")


def tile_walk(tiles_m: int, tiles_n: int, tiles_k: int, block: tuple[int, int], step: int,
              panel: int | None = 0, concurrent: int = 0, group: int = 0) -> Picture:
    """What one block of a GEMM reads at a step along K, and which blocks run beside it.

    tiles_m, tiles_n, tiles_k: tiles along M, N and K. block: (tile row, tile column) of C. step:
    along K, from 0. panel: of `T.use_swizzle`, 0 or None for the plain order; group: of
    `T.Persistent`, 0 where blocks do not stay. concurrent: how many blocks run
    at once, the first in launch order; 0 leaves them out. The text says how many tile rows of A
    and columns of B they read together, in this order and in another. Raises BadArgument.
    """
    counts(1, tiles_m=tiles_m, tiles_n=tiles_n, tiles_k=tiles_k)
    counts(0, panel=panel or 0, concurrent=concurrent)
    if not isinstance(block, (tuple, list)) or len(block) != 2:
        raise BadArgument(f"block is {block!r}; give (tile row, tile column) of C, as in (0, 0).")
    for name, value, most in (("The block's tile row", block[0], tiles_m),
                              ("The block's tile column", block[1], tiles_n),
                              ("step", step, tiles_k)):
        counts(0, **{name: value})
        if value >= most:
            raise BadArgument(f"{name} is {value}, but there are {most:,}; give 0 to {most - 1:,}.")
    m, n, k = (_axis(tiles, most) for tiles, most in
               ((tiles_m, 210), (tiles_n, 210), (tiles_k, 150)))
    left, top, gap = 40, 78, 26
    names = [_size("A", tiles_m, tiles_k, k), _size("B", tiles_k, tiles_n, n),
             _size("C", tiles_m, tiles_n, n)]
    cx, cy = left + max(k, text_width(names[0], 11, True)) + gap, top + k + gap
    by, bx = block
    title = (f"Block (by={whole(by)}, bx={whole(bx)}) at k = {whole(step)} of {whole(tiles_k)}: a "
             "tile of A times a tile of B")
    canvas = new_canvas(title, max(cy + m + 34, 312 if concurrent else 150))

    at_once = min(concurrent, tiles_m * tiles_n)
    boxes = first_blocks(tiles_m, tiles_n, at_once, panel, group)
    _matrix(canvas, left, cy, tiles_m, tiles_k, m, k, names[0], False)
    _matrix(canvas, cx, top, tiles_k, tiles_n, k, n, names[1], True)
    _matrix(canvas, cx, cy, tiles_m, tiles_n, m, n, names[2], False)
    of_a = _painter(canvas, left, cy, k, m, tiles_m, tiles_k)
    of_b = _painter(canvas, cx, top, n, k, tiles_k, tiles_n)
    of_c = _painter(canvas, cx, cy, n, m, tiles_m, tiles_n)
    if boxes:  # the strips that the blocks at once read: these lie side by side
        first, last = min(c for _, c, *_ in boxes), max(c + w for _, c, _, w in boxes)
        deep = max(r + h for r, _, h, _ in boxes)
        _painter(canvas, left - 13, cy, 7, m, tiles_m, 1)(0, 0, deep, 1, BLUE, 0.9)
        _painter(canvas, cx, top - 13, n, 7, 1, tiles_n)(0, first, 1, last - first, ORANGE, 0.9)
    for box in boxes:
        of_c(*box, SKY, 0.45)
    of_a(by, 0, 1, tiles_k, BLUE, 0.3)
    of_a(by, step, 1, 1, BLUE, 1)
    of_b(0, bx, tiles_k, 1, ORANGE, 0.35)
    of_b(step, bx, 1, 1, ORANGE, 1)
    of_c(by, bx, 1, 1, GREEN, 1)

    x, y = 470, top - 12
    for mark, words in ((BLUE, "A tile read at this step"), (ORANGE, "B tile read at this step"),
                        (GREEN, "C tile, in registers all along")):
        canvas.box(x, y, 12, 12, mark, mark)
        canvas.label(x + 19, y + 10, words, 11, "start")
        y += 19
    told = _together(canvas, x, y + 8, tiles_m, tiles_n, at_once, panel, group) if at_once else ""
    return canvas.done(f"{title}. A has {tiles_m:,} × {tiles_k:,} tiles, B {tiles_k:,} × "
                       f"{tiles_n:,}, C {tiles_m:,} × {tiles_n:,}. Over all steps the block reads "
                       f"tile row {by:,} of A and tile column {bx:,} of B.{told}")


def _together(canvas: Any, x: float, y: float, rows: int, columns: int, at_once: int,
              panel: int | None, group: int) -> str:
    """Bars of what the blocks at once read, in this order and in the other; returns the words."""
    here = (f"groups of {group:,} columns" if group else f"swizzle, panel {panel:,}" if panel
            else "plain order")
    other = 0 if panel or group else 8
    orders = [(here, "this order", panel, group),
              (f"swizzle, panel {other}" if other else "plain order", "for comparison", other, 0)]
    canvas.box(x, y, 12, 12, SKY, SKY, 0.45)
    noun = "block" if at_once == 1 else "blocks"
    canvas.label(x + 19, y + 10, f"the first {whole(at_once)} {noun}, at once", 11, "start")
    canvas.label(x, y + 34, "Strips they read together (bars at", 11, "start", weight="bold")
    canvas.label(x, y + 49, "the edges), through the L2 cache", 11, "start", weight="bold")
    read = [strips(rows, columns, at_once, *order[2:]) for order in orders]
    scale = 226 / max(sum(pair) for pair in read)
    said = []
    for place, ((name, which, *_), (a_rows, b_columns)) in enumerate(
            zip(orders, read, strict=True)):
        at = y + 68 + place * 58
        canvas.label(x, at, fit(f"{name} ({which})", 232, 11), 11, "start",
                     _INK if not place else NOTE)
        opacity = 0.9 if not place else 0.45
        canvas.box(x, at + 6, a_rows * scale, 13, BLUE, BLUE, opacity)
        canvas.box(x + a_rows * scale, at + 6, b_columns * scale, 13, ORANGE, ORANGE, opacity)
        words = f"{a_rows:,} of A + {b_columns:,} of B = {a_rows + b_columns:,}"
        canvas.label(x, at + 33, fit(words, 232, 11), 11, "start", _INK if not place else NOTE)
        said.append(f"with {name}: {a_rows:,} tile rows of A and {b_columns:,} tile columns of B, "
                    f"{a_rows + b_columns:,} in all")
    return f" The first {at_once:,} {noun}, at once, read together {said[0]}; {said[1]}."


def _axis(tiles: int, most: float) -> float:
    """The length in pixels of an axis with so many tiles."""
    return min(most, tiles * 34.0)


def _size(name: str, rows: int, columns: int, wide: float) -> str:
    """A matrix's name with its tiles, the word "tiles" only where there is room."""
    long = f"{name}: {whole(rows)} × {whole(columns)} tiles"
    return long if text_width(long, 11, True) <= wide else long.removesuffix(" tiles")


def _matrix(canvas: Any, x: float, y: float, rows: int, columns: int, high: float, wide: float,
            name: str, above: bool) -> None:
    canvas.box(x, y, wide, high, PALE, GREY)
    path = ""
    if wide >= 4 * columns:  # closer lines would only be grey
        path += "".join(f"M{x + c * wide / columns:.1f} {y:.1f}v{high:.1f}"
                        for c in range(1, columns))
    if high >= 4 * rows:
        path += "".join(f"M{x:.1f} {y + r * high / rows:.1f}h{wide:.1f}" for r in range(1, rows))
    if path:
        canvas.parts.append(f'<path d="{path}" stroke="{_LINE}" stroke-width="0.8" fill="none"/>')
    canvas.label(x, y - 18 if above else y + high + 16, name, 11, "start", weight="bold")


def _painter(canvas: Any, x: float, y: float, wide: float, high: float, rows: int, columns: int
             ) -> Callable[..., None]:
    """Paints boxes of tiles into a matrix of so many pixels: never too thin to see, never over
    its edge."""
    def paint(r: int, c: int, h: int, w: int, colour: str, opacity: float) -> None:
        across, down = max(w * wide / columns, 3.0), max(h * high / rows, 3.0)
        canvas.box(round(x + min(c * wide / columns, wide - across), 1),
                   round(y + min(r * high / rows, high - down), 1), round(across, 1),
                   round(down, 1), colour, colour if opacity == 1 else "none", opacity)
    return paint
