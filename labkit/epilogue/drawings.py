"""Pictures of epilogues: what one reads and writes, which factor may wait for the next GEMM, how a
norm spreads over two GEMMs, and where the two members of a pair lie."""

from __future__ import annotations

from labkit.epilogue.declare import Epilogue, Operand, Output
from labkit.epilogue.pairs import GROUP, place
from labkit.pictures import (
    _EMPTY,
    _INK,
    _LINE,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    Picture,
    _Canvas,
)

_SIDE, _STRIP = 64, 14
_WORDS = {"rowvec": "one a column", "colvec": "one a row", "tile": "one an element",
          "scalar": "one number", "store": "stored", "row_reduce": "of each column",
          "col_reduce": "of each row", "select": "one a row"}


def parts(chosen: Epilogue) -> Picture:
    """What an epilogue reads beside the product and what it writes, each in its shape."""
    inputs = [*chosen.operands, *(Operand(n, "colvec", "int32") for n in chosen.indices)]
    rows = max(len(inputs), len(chosen.outputs), 1)
    tall = _SIDE + 44
    canvas = _Canvas(760, 62 + rows * tall)
    canvas.label(20, 26, chosen.name, 14, "start", weight="bold")
    middle = 56 + rows * tall / 2 - 18
    canvas.box(318, middle - 42, 124, 84, BLUE, BLUE, 0.9)
    canvas.label(380, middle - 8, "acc", 15, colour="#ffffff", weight="bold")
    canvas.label(380, middle + 10, "registers, float32", 10, colour="#ffffff")
    canvas.label(380, middle + 25, "pairs of columns" if chosen.takes_pairs else "one tile", 10,
                 colour="#ffffff")
    for side, items in ((0, inputs), (1, chosen.outputs)):
        first = 56 + (rows - len(items)) * tall / 2
        for i, item in enumerate(items):
            y = first + i * tall
            x = 190 if side == 0 else 506
            _shape(canvas, x, y, item, ORANGE if side == 0 else GREEN)
            anchor, at = ("end", x - 14) if side == 0 else ("start", x + _SIDE + 14)
            how = getattr(item, "how", "") if item.kind != "select" else "the chosen column"
            canvas.label(at, y + 28, item.name, 13, anchor, weight="bold")
            note = (f"{how} " if how in ("sum", "max", "lse") else f"{how}, " if how else
                    "") + _WORDS[item.kind] + ", pairs" * item.pair
            canvas.label(at, y + 45, note, 10.5, anchor, GREY)
            ends = ((x + _SIDE + 8, y + 32, 310, middle) if side == 0
                    else (450, middle, x - 8, y + 32))
            _arrow(canvas, *ends)
    return canvas.done(f"{chosen!r}. The operands are read while the product lies in registers; "
                       "of the outputs, stores have one value an element, reductions and selected "
                       "values one a row or a column.")


def _shape(canvas: _Canvas, x: float, y: float, item: Operand | Output, colour: str) -> None:
    if item.kind in ("tile", "store"):
        canvas.box(x, y, _SIDE, _SIDE, colour, colour, 0.35)
        if item.pair:
            for i in range(1, 8, 2):
                canvas.box(x + i * 8, y, 8, _SIDE, colour, "none", 0.5)
        return
    canvas.box(x, y, _SIDE, _SIDE, "#ffffff", _LINE, dash="3 3")
    if item.kind in ("rowvec", "row_reduce"):
        top = y if item.kind == "rowvec" else y + _SIDE - _STRIP
        canvas.box(x, top, _SIDE, _STRIP, colour, colour, 0.7)
    elif item.kind == "scalar":
        canvas.dot(x + _SIDE / 2, y + _SIDE / 2, colour)
    else:
        left = x if item.kind == "colvec" else x + _SIDE - _STRIP
        canvas.box(left, y, _STRIP, _SIDE, colour, colour, 0.7)


def _arrow(canvas: _Canvas, x1: float, y1: float, x2: float, y2: float,
           colour: str = _INK) -> None:
    canvas.line(x1, y1, x2, y2, colour, 1.4)
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    tip = [(x2, y2)] + [(x2 - 8 * ux + s * 4 * uy, y2 - 8 * uy - s * 4 * ux) for s in (1, -1)]
    canvas.parts.append('<polygon points="' + " ".join(f"{x:.4g},{y:.4g}" for x, y in tip)
                        + f'" fill="{colour}"/>')


def _matrix(canvas: _Canvas, x: float, y: float, rows: int, columns: int, cell: float = 22,
            row: int = -1, column: int = -1, colour: str = ORANGE, rest: float = 0) -> None:
    for r in range(rows):
        for c in range(columns):
            hit = r == row or c == column
            canvas.box(x + c * cell, y + r * cell, cell - 2, cell - 2, colour if hit or rest
                       else _EMPTY, colour if hit or rest else _LINE, 0.85 if hit else rest or 1)


def factors() -> Picture:
    """Why a factor of a row may wait until after the product, and a factor of a column may not."""
    canvas = _Canvas(800, 372)
    for top, row, column, title, found in (
            (0, 1, -1, "A factor of a row of A is a factor of the same row of A W: it can wait",
             "row 1 of A is multiplied by r"),
            (186, -1, 2, "A factor of a column of A meets one row of W, and goes into every sum: "
             "it cannot wait", "column 2 of A is multiplied by gamma")):
        colour = GREEN if row >= 0 else PINK
        canvas.label(20, top + 28, title, 13, "start", weight="bold")
        y = top + 48
        _matrix(canvas, 50, y, 4, 5, row=row, column=column, colour=colour)
        _matrix(canvas, 260, y, 5, 4, row=-1 if row >= 0 else column, colour=colour)
        _matrix(canvas, 470, y, 4, 4, row=row, colour=colour, rest=0.0 if row >= 0 else 0.3)
        canvas.label(212, y + 50, "x", 16)
        canvas.label(408, y + 50, "=", 16)
        for x, name in ((104, "A [M, K]"), (303, "W [K, N]"), (513, "A W [M, N]")):
            canvas.label(x, y + 128, name, 11, colour=GREY)
        canvas.label(590, y + 34, found, 10.5, "start", GREY)
        told = ("one row is touched" if row >= 0 else "every element is touched")
        canvas.label(590, y + 52, told, 12, "start", colour, "bold")
    return canvas.done("A factor of one row of A reaches only that row of A W, so it can be "
                       "applied to the product afterwards. A factor of one column of A meets one "
                       "row of W and enters every element of A W, so it has to be applied before "
                       "the product.")


def norm_over_two_gemms(tiles: int = 4) -> Picture:
    """How RMSNorm spreads over the GEMM before it and the GEMM behind it."""
    canvas = _Canvas(860, 336)
    top = 92
    for x, title, under in ((150, "GEMM 1 + epilogue", "output projection"),
                            (640, "GEMM 2 + epilogue", "gate and up, or QKV")):
        canvas.box(x, top - 8, 170, 132, _EMPTY, BLUE)
        canvas.label(x + 85, top - 34, title, 13, weight="bold", colour=BLUE)
        canvas.label(x + 85, top - 18, under, 10.5, colour=GREY)
    wide, y = 34, top + 18
    for t in range(tiles):
        canvas.box(164 + t * (wide + 2), y, wide, 96, SKY, SKY, 0.35)
        canvas.box(164 + t * (wide + 2), y + 40, wide, 12, ORANGE, ORANGE, 0.9)
    canvas.label(235, top + 8, "a row lies in several tiles", 10.5, colour=GREY)
    _arrow(canvas, 96, top + 50, 144, top + 50)
    canvas.label(90, top + 46, "attention's", 11, "end")
    canvas.label(90, top + 62, "output", 11, "end")
    _arrow(canvas, 326, top + 14, 634, top + 14)
    canvas.label(480, top + 6, "scaled = x γ", 12, weight="bold")
    canvas.label(480, top + 30, "16 bits, not divided by the rms", 10.5, colour=GREY)
    canvas.label(725, y + 30, "z = r (scaled W)", 13, weight="bold")
    canvas.label(725, y + 52, "r: one number a row,", 10.5, colour=GREY)
    canvas.label(725, y + 67, "after the main loop", 10.5, colour=GREY)
    _arrow(canvas, 816, top + 50, 846, top + 50)
    base = top + 156
    for t in range(tiles):
        x = 164 + t * (wide + 2)
        canvas.line(x + wide / 2, y + 52, x + wide / 2, base, ORANGE, 1.4)
        canvas.box(x, base, wide, 22, ORANGE, ORANGE, 0.85)
    canvas.label(235, base + 40, "Σ x² of each tile, float32", 11)
    _arrow(canvas, 326, base + 11, 402, base + 11, ORANGE)
    canvas.box(408, base - 12, 150, 46, ORANGE, ORANGE, 0.25)
    canvas.label(483, base + 7, "add, then 1 / √", 12, weight="bold")
    canvas.label(483, base + 23, "one tiny kernel", 10.5, colour=GREY)
    canvas.line(558, base + 11, 725, base + 11, ORANGE, 1.4)
    _arrow(canvas, 725, base + 11, 725, top + 130, ORANGE)
    canvas.label(640, base + 3, "r, one a row", 11)
    canvas.label(20, 26, "RMSNorm without a pass over memory", 14, "start", weight="bold")
    canvas.label(430, base + 70, "The residual stream x is stored as well: the next residual needs "
                 "it.", 11, colour=GREY)
    return canvas.done("GEMM 1 adds the residual in its epilogue, stores x and x times gamma in "
                       f"16 bits, and each of {tiles} tiles of a row writes its sum of squares. A "
                       "tiny kernel adds these and takes 1 over the root: r, one number a row. "
                       "GEMM 2 reads x times gamma and multiplies its rows by r in its epilogue.")


def pair_columns() -> Picture:
    """Sixteen columns of a product: which thread holds which, and which two make a pair."""
    colours = (BLUE, ORANGE, GREEN, PINK)
    cell, left, top = 44, 24, 74
    canvas = _Canvas(2 * left + 16 * cell, 216)
    canvas.label(left, 26, "One row of a tile: sixteen columns, colour by thread", 13, "start",
                 weight="bold")
    canvas.label(left, 46, "a tensor core leaves columns 2t and 2t + 1 of every eight with "
                 "thread t of four", 11, "start", GREY)
    for column in range(2 * GROUP):
        thread, member = column % GROUP // 2, column // GROUP
        x = left + column * cell
        canvas.box(x + 1, top, cell - 3, 40, colours[thread], colours[thread],
                   0.85 if member == 0 else 0.35)
        canvas.label(x + cell / 2, top + 18, f"{'gu'[member]}{column % GROUP}", 13,
                     colour="#ffffff" if member == 0 else _INK, weight="bold")
        canvas.label(x + cell / 2, top + 33, str(column), 9,
                     colour="#ffffff" if member == 0 else GREY)
    for pair in range(GROUP):
        x1, x2 = (left + place(pair, m) * cell + cell / 2 for m in (0, 1))
        deep = top + 54 + pair % GROUP * 8
        canvas.parts.append(f'<path d="M{x1:g},{top + 42} V{deep} H{x2:g} V{top + 42}" '
                            f'fill="none" stroke="{colours[pair // 2]}" stroke-width="1.4"/>')
    canvas.label(left, 206, "g: gate, u: up. Both members of a pair lie with one thread.", 11,
                 "start")
    return canvas.done("Sixteen columns hold eight pairs: gates in columns 0 to 7, ups in 8 to 15. "
                       "Thread t of four holds columns 2t, 2t + 1, 8 + 2t and 9 + 2t, so both "
                       "members of its two pairs.")
