"""Pictures of sums over a product's tiles, and of one sum taken in two orders. Each function
returns a `labkit.pictures.Picture`.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.epilogue.backward_pictures import _SOFT, _arrow
from labkit.errors import BadArgument
from labkit.pictures import _EMPTY, _LINE, BLUE, GREEN, ORANGE, PINK, Picture, _Canvas


def two_orders(dz: Sequence[int], W: Sequence[Sequence[int]], n: Sequence[int]) -> Picture:
    """The sum of dz_i W_ij n_j over i and j, down the columns first and along the rows first.

    dz: a number for each row of W; n: one for each column; whole numbers, at most 6 x 8 of them.
    Raises BadArgument where the lengths do not fit.
    """
    rows, columns = len(dz), len(n)
    if not (1 <= rows <= 6 and 1 <= columns <= 8 and len(W) == rows
            and all(len(row) == columns for row in W)):
        raise BadArgument(f"W has {len(W)} rows for {rows} numbers dz and {columns} numbers n; "
                          "give a row for each dz and a column for each n, at most 6 x 8.")
    D = [sum(dz[i] * W[i][j] for i in range(rows)) for j in range(columns)]
    z = [sum(W[i][j] * n[j] for j in range(columns)) for i in range(rows)]
    down, along = [d * k for d, k in zip(D, n, strict=True)], [a * b for a, b in zip(dz, z,
                                                                                      strict=True)]
    w, h, left, top = 46, 30, 130, 92
    far, low = left + columns * w, top + rows * h
    canvas = _Canvas(max(far + 2 * w + 150, 540), low + 2 * h + 80)
    canvas.label(20, 26, f"One sum over a W of {rows} x {columns}, in two orders", 13, "start",
                 weight="bold")

    def cell(x: float, y: float, value: int, colour: str, opacity: float) -> None:
        canvas.box(x, y, w - 3, h - 3, colour, colour if colour != _EMPTY else _LINE, opacity)
        canvas.label(x + (w - 3) / 2, y + h / 2 + 3, f"{value}".replace("-", "−"), 12)

    for j in range(columns):
        cell(left + j * w, top - h - 10, n[j], BLUE, 0.22)
        cell(left + j * w, low + 10, D[j], ORANGE, 0.22)
        cell(left + j * w, low + h + 10, down[j], ORANGE, 0.5)
        for i in range(rows):
            cell(left + j * w, top + i * h, W[i][j], _EMPTY, 1)
    for i in range(rows):
        cell(left - w - 10, top + i * h, dz[i], GREEN, 0.22)
        cell(far + 10, top + i * h, z[i], PINK, 0.28)
        cell(far + w + 10, top + i * h, along[i], PINK, 0.6)
    for x, y, text, anchor, colour in (
            (left - 14, top - h + 9, "n", "end", BLUE),
            (left - w - 20, top + 19, "dz", "end", GREEN),
            (left - 14, low + 29, "D = dz W", "end", ORANGE),
            (left - 14, low + h + 29, "D · n", "end", ORANGE)):
        canvas.label(x, y, text, 12, anchor, colour, "bold")
    canvas.label(far + 4 + w / 2, top - 8, "z = W n", 12, "middle", PINK, "bold")
    canvas.label(far + 18 + w, top - 8, "dz · z", 12, "start", PINK, "bold")
    total = f"{sum(along)}".replace("-", "−")
    canvas.label(far + 16, low + h + 29, f"adds up to {total}", 12, "start", ORANGE, "bold")
    canvas.label(far + 2 * w + 20, top + rows * h / 2 + 4, f"adds up to {total}", 12, "start", PINK,
                 "bold")
    canvas.label(20, low + 2 * h + 42, "Orange: what RMSNorm's backward asks for. It needs D, the "
                 "result of the next GEMM.", 11, "start", _SOFT)
    canvas.label(20, low + 2 * h + 60, "Pink: the same number from z and dz, which are there one "
                 "GEMM earlier.", 11, "start", _SOFT)
    return canvas.done(
        f"The sum of dz_i W_ij n_j over i and j. Down the columns first: D = dz W is "
        f"{', '.join(map(str, D))}; times n, {', '.join(map(str, down))}, together {sum(down)}. "
        f"Along the rows first: z = W n is {', '.join(map(str, z))}; times dz, "
        f"{', '.join(map(str, along))}, together {sum(along)}.")


def partials(rows: int = 4, columns: int = 6) -> Picture:
    """Where a product's tiles write their partial sums: along rows, and down columns."""
    if not (1 <= rows <= 8 and 1 <= columns <= 10):
        raise BadArgument(f"{rows} x {columns} tiles; give at most 8 rows and 10 columns of them.")
    w, h, left, top, thin = 46, 30, 26, 62, 13
    canvas = _Canvas(left + columns * w + 66 + columns * (thin + 5) + 190,
                     top + rows * h + 26 + rows * (thin + 5) + 30)
    canvas.label(left, 24, f"a product of {rows} x {columns} tiles", 13, "start", weight="bold")
    at_row, at_column = min(1, rows - 1), min(3, columns - 1)
    for r in range(rows):
        for c in range(columns):
            both = r == at_row and c == at_column
            fill = (BLUE if both else PINK if c == at_column else ORANGE if r == at_row
                    else _EMPTY)
            opacity = 0.85 if both else 0.28 if fill != _EMPTY else 1.0
            canvas.box(left + c * w, top + r * h, w, h, fill, _LINE, opacity)
    right = left + columns * w + 66
    canvas.label(right, top - 22, "sums along rows", 12, "start", PINK, "bold")
    canvas.label(right, top - 8, f"[{columns}, M]: a number a row and tile", 10, "start", _SOFT)
    for c in range(columns):
        own = c == at_column
        canvas.box(right + c * (thin + 5), top, thin, rows * h, PINK if own else _EMPTY, _LINE,
                   0.28 if own else 1.0)
        if own:
            canvas.box(right + c * (thin + 5), top + at_row * h, thin, h, PINK, PINK, 0.9)
    below = top + rows * h + 26
    end = below + rows * (thin + 5) + 14
    canvas.label(left, end, "sums down columns", 12, "start", ORANGE, "bold")
    canvas.label(left + 148, end, f"[{rows}, N]: a number a column and tile", 10, "start", _SOFT)
    for r in range(rows):
        own = r == at_row
        canvas.box(left, below + r * (thin + 5), columns * w, thin, ORANGE if own else _EMPTY,
                   _LINE, 0.28 if own else 1.0)
        if own:
            canvas.box(left + at_column * w, below + r * (thin + 5), w, thin, ORANGE, ORANGE, 0.9)
    middle = left + (at_column + 0.5) * w
    _arrow(canvas, [(left + (at_column + 1) * w + 2, top + (at_row + 0.5) * h),
                    (right + at_column * (thin + 5) - 3, top + (at_row + 0.5) * h)], PINK)
    _arrow(canvas, [(middle, top + (at_row + 1) * h + 2),
                    (middle, below + at_row * (thin + 5) - 2)], ORANGE)
    x = right + columns * (thin + 5) + 14
    canvas.label(x, top + 14, "then add the strips:", 11, "start")
    canvas.label(x, top + 32, "M sums, as for s", 11, "start", PINK, "bold")
    canvas.label(x, below + 11, "then add the strips:", 11, "start")
    canvas.label(x, below + 29, "N sums, as for dγ", 11, "start", ORANGE, "bold")
    return canvas.done(
        f"A product of {rows} x {columns} tiles. Each tile adds its elements along rows and writes "
        f"one number a row: [{columns}, M] partial sums. Or it adds down columns and writes one "
        f"number a column: [{rows}, N]. A small sum over the tiles ends the work.")
