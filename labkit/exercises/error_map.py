"""A wrong output as a picture: its grid of tiles, each coloured by its largest error."""

from __future__ import annotations

import math

from labkit.exercises.mistakes import Wrong
from labkit.pictures import _EMPTY, _INK, _LINE, BLUE, GREEN, ORANGE, Picture, _Canvas

_MOST = (24, 48)  # tiles shown along rows and columns


def error_map(wrong: Wrong, title: str) -> Picture:
    """The tiles of a wrong output. Green: right. Orange: wrong, the darker the larger its largest
    error beside what would pass. Dark: NaN or infinite. The worst element's tile has a blue frame.
    """
    grid, tile, worst = wrong.verdict.grid, wrong.verdict.tile, _worst_tile(wrong)
    rows, columns = (min(n, most) for n, most in zip(grid, _MOST, strict=True))
    errors = _tile_errors(wrong)
    cell = max(10.0, min(52.0, 460 / columns, 300 / rows))
    left, top = 46, 66
    x_of, y_of = (_edges(n, grid[axis], tile[axis], wrong.extent[axis], cell)
                  for axis, n in ((1, columns), (0, rows)))
    canvas = _Canvas(max(left + x_of[-1] + 190, 560), max(top + y_of[-1] + 34, top + 124))
    canvas.label(20, 24, title, 13, "start", weight="bold")
    size = f"{tile[1]} elements" if grid[0] == 1 and tile[0] == 1 else f"{tile[0]} x {tile[1]}"
    bad = set(wrong.verdict.bad_tiles)
    canvas.label(20, 44, f"{len(bad):,} of {grid[0] * grid[1]:,} tiles of {size} hold errors", 11,
                 "start", "#5b6270")
    for r in range(rows):
        for c in range(columns):
            fill, opacity = _colour(errors.get((r, c), 0.0)) if (r, c) in bad else (GREEN, 0.28)
            canvas.box(left + x_of[c] + 1, top + y_of[r] + 1, x_of[c + 1] - x_of[c] - 2,
                       y_of[r + 1] - y_of[r] - 2, fill, fill, opacity)
    if worst[0] < rows and worst[1] < columns:
        r, c = worst
        canvas.parts.append(f'<rect x="{left + x_of[c] + 1:g}" y="{top + y_of[r] + 1:g}" '
                            f'width="{x_of[c + 1] - x_of[c] - 2:g}" '
                            f'height="{y_of[r + 1] - y_of[r] - 2:g}" fill="none" '
                            f'stroke="{BLUE}" stroke-width="2.5"/>')
    for r in _marks(rows):
        canvas.label(left - 6, top + (y_of[r] + y_of[r + 1]) / 2 + 3, str(r), 9, "end", "#5b6270")
    for c in _marks(columns):
        canvas.label(left + (x_of[c] + x_of[c + 1]) / 2, top + y_of[-1] + 14, str(c), 9,
                     colour="#5b6270")
    _legend(canvas, left + x_of[-1] + 28, top)
    cut = "" if (rows, columns) == grid else f" The first {rows} x {columns} of them are shown."
    return canvas.done(f"{title}: errors in {len(bad)} of {grid[0] * grid[1]} tiles of {size}; "
                       f"the worst element lies in tile {worst}.{cut}\n{wrong.verdict.tile_map()}")


def _edges(shown: int, count: int, tile: int, extent: int, cell: float) -> list[float]:
    """Where each of the shown tiles begins and the last one ends; a ragged last one is narrower."""
    edges = [n * cell for n in range(shown + 1)]
    if shown == count:
        part = (extent - (count - 1) * tile) / tile
        edges[-1] = edges[-2] + max(min(part, 1.0) * cell, 9.0)
    return edges


def _colour(error: float) -> tuple[str, float]:
    """Fill and opacity for an error in units of what would pass; infinite: not a number."""
    if not math.isfinite(error):
        return _INK, 1.0
    return ORANGE, min(1.0, 0.35 + 0.22 * math.log10(max(error, 1.0)))


def _legend(canvas: _Canvas, x: float, y: float) -> None:
    entries = [("right", GREEN, 0.28), ("off by just too much", *_colour(1.5)),
               ("off by 100 times that", *_colour(100.0)),
               ("off by 1,000 or more", *_colour(1000.0)), ("NaN or infinite", *_colour(math.inf))]
    for line, (text, fill, opacity) in enumerate(entries):
        canvas.box(x, y + line * 20, 13, 13, fill, _LINE, opacity)
        canvas.label(x + 20, y + line * 20 + 11, text, 11, "start")
    canvas.box(x, y + 100, 13, 13, _EMPTY, BLUE)
    canvas.label(x + 20, y + 111, "the worst element", 11, "start")


def _tile_errors(wrong: Wrong) -> dict[tuple[int, int], float]:
    """Tile -> its largest error in units of what would pass."""
    import torch

    height, width = wrong.verdict.tile
    matrix_rows = (1, *wrong.shape)[-2]
    share = torch.where(wrong.bad, (wrong.out - wrong.ref).abs() / wrong.limit, 0.0)
    share = torch.where(wrong.bad & ~share.isfinite(), math.inf, share)
    down, across = wrong.verdict.grid
    rows, columns = wrong.bad.nonzero(as_tuple=True)
    tiles = rows % matrix_rows // height * across + columns // width
    largest = torch.zeros(down * across, dtype=share.dtype, device=share.device)
    largest.scatter_reduce_(0, tiles, share[rows, columns], "amax")
    return {divmod(tile, across): largest[tile].item() for tile in tiles.unique().tolist()}


def _worst_tile(wrong: Wrong) -> tuple[int, int]:
    row, column = (0, *wrong.verdict.worst)[-2:]
    return row // wrong.verdict.tile[0], column // wrong.verdict.tile[1]


def _marks(count: int) -> list[int]:
    """Which of `count` tiles carry their number."""
    step = max(1, -(-count // 12))
    return list(range(0, count, step))
