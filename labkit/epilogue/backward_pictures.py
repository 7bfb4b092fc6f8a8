"""Pictures of the backward pass through GEMMs with epilogues: who needs whom, and what is one
kernel. Each function returns a `labkit.pictures.Picture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.errors import BadArgument
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

_SOFT = "#5b6270"
_TILE = 19  # a tile's edge in pixels


def _arrow(canvas: _Canvas, points: Sequence[tuple[float, float]], colour: str = _SOFT,
           dash: str = "") -> None:
    """A line through `points` with a head at its end; the last stretch is level or upright."""
    (x0, y0), (x1, y1) = points[-2:]
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    tip = [(x1, y1), (x1 - 7 * dx - 4 * dy, y1 - 7 * dy - 4 * dx),
           (x1 - 7 * dx + 4 * dy, y1 - 7 * dy + 4 * dx)]
    line = [*points[:-1], (x1 - 5 * dx, y1 - 5 * dy)]
    path = " ".join(f"{x:g},{y:g}" for x, y in line)
    head = " ".join(f"{x:g},{y:g}" for x, y in tip)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    canvas.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                        f'stroke-width="1.6"{dashed}/><polygon points="{head}" fill="{colour}"/>')


def _rounded(canvas: _Canvas, x: float, y: float, w: float, h: float, fill: str, line: str,
             opacity: float = 1, dash: str = "") -> None:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    canvas.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8" '
                        f'fill="{fill}" fill-opacity="{opacity:g}" stroke="{line}"{dashed}/>')


def _tensor(canvas: _Canvas, x: float, y: float, columns: int, name: str, below: str = "",
            row: bool = False, held: bool = True) -> None:
    """A tensor as three rows of tiles. The tile in row 1, column 3 is marked, or (row) the whole
    row 1. held: it lies in memory; otherwise its frame is dashed."""
    for r in range(3):
        for c in range(columns):
            own = r == 1 and (row or c == 3)
            fill, opacity = (BLUE if row else GREEN, 0.85) if own else (_EMPTY, 1.0)
            canvas.box(x + c * _TILE, y + r * _TILE, _TILE, _TILE, fill, _LINE, opacity,
                       "" if held else "3 3")
    middle = x + columns * _TILE / 2
    canvas.label(middle, y - 7, name, 13, weight="bold")
    if below:
        canvas.label(middle, y + 3 * _TILE + 15, below, 10, colour=_SOFT)


def chain() -> Picture:
    """GEMM, tile-local f, GEMM: forwards and back, tile by tile, and what is one kernel."""
    canvas = _Canvas(774, 388)
    narrow, wide, up, down = 2 * _TILE, 4 * _TILE, 82, 238
    x = {"X": 34, "Z": 238, "Y": 464, "O": 698}
    mid = 1.5 * _TILE
    for top, end, text in ((up - 44, x["Y"] + wide + 30, "one kernel: a GEMM, and f on its tiles"),
                           (down - 44, x["O"] - 22, "one kernel: a GEMM, and f′ on its tiles")):
        start = x["X"] + narrow + 22 if top < 100 else x["Z"] - 30
        _rounded(canvas, start, top, end - start, 130, SKY, BLUE, 0.10, "5 4")
        canvas.label((start + end) / 2, top + 16, text, 11, colour=BLUE, weight="bold")
    canvas.label(34, 20, "forward", 13, "start", weight="bold")
    canvas.label(34, down - 30, "backward", 13, "start", weight="bold")

    _tensor(canvas, x["X"], up, 2, "X", row=True)
    _tensor(canvas, x["Z"], up, 4, "Z", "saved")
    _tensor(canvas, x["Y"], up, 4, "Y", "for the next GEMM")
    _tensor(canvas, x["O"], up, 2, "O")
    _tensor(canvas, x["X"], down, 2, "dX")
    _tensor(canvas, x["Z"], down, 4, "dZ", "for the next GEMM")
    _tensor(canvas, x["Y"], down, 4, "dY", "in registers only", held=False)
    _tensor(canvas, x["O"], down, 2, "dO", row=True)

    def between(left: str, right: str, width: int, y: float, text: str, back: bool = False) -> None:
        a, b = x[left] + width + 8, x[right] - 8
        _arrow(canvas, [(b, y), (a, y)] if back else [(a, y), (b, y)])
        canvas.label((a + b) / 2, y - 8, text, 12)

    between("X", "Z", narrow, up + mid, "times W₁ᵀ")
    between("Z", "Y", wide, up + mid, "f")
    between("Y", "O", wide, up + mid, "times W₂ᵀ")
    between("X", "Z", narrow, down + mid, "times W₁", True)
    between("Z", "Y", wide, down + mid, "dY · f′(Z)", True)
    between("Y", "O", wide, down + mid, "times W₂", True)
    tile = x["Z"] + 3.5 * _TILE
    _arrow(canvas, [(tile, up + 2 * _TILE + 2), (tile, down + 1 * _TILE - 2)], GREEN, "5 3")
    canvas.label(tile + 10, down - 8, "that tile of Z", 10, "start", GREEN, "bold")

    canvas.label(34, 356, "weight gradients, two more GEMMs:", 12, "start", weight="bold")
    canvas.label(290, 356, "dW₂ = dOᵀ Y", 12, "start")
    canvas.label(400, 356, "dW₁ = dZᵀ X", 12, "start")
    canvas.label(34, 375, "Each sums over all rows, so no tile of the others holds it. "
                 "Their operands are what the kernels above stored.", 11, "start", _SOFT)
    return canvas.done(
        "Forward: a GEMM makes Z = X W1^T, f turns each tile of Z into the same tile of Y, a "
        "second GEMM makes O = Y W2^T. Backward: a GEMM makes a tile of dY = dO W2 in registers; "
        "with the same tile of Z it becomes the same tile of dZ = dY f'(Z), all in one kernel; the "
        "next GEMM makes dX = dZ W1. The weight gradients dW2 = dO^T Y and dW1 = dZ^T X are two "
        "more GEMMs.")


def influence(jacobians: Mapping[str, Any], tiles: int = 2) -> Picture:
    """Which inputs of a row each output of it needs, from Jacobians.

    jacobians: name -> matrix [outputs, inputs] of derivatives, a torch tensor, at most 64 each way.
    tiles: into how many equal tiles the row's outputs and inputs are cut.
    Green: the derivative is not 0 and lies in the output's own tile; orange: in another tile.
    Raises BadArgument for matrices that do not fit.
    """
    for name, matrix in jacobians.items():
        shape = tuple(getattr(matrix, "shape", ()))
        if len(shape) != 2 or max(shape) > 64 or any(n % tiles for n in shape):
            raise BadArgument(f"The Jacobian {name!r} has shape {shape}; give a matrix of at most "
                              f"64 x 64 that {tiles} tiles divide.")
    cell, left, top, gap = 6, 44, 58, 58
    widths = [max(matrix.shape[1] * cell, 150) for matrix in jacobians.values()]
    tallest = max(matrix.shape[0] for matrix in jacobians.values()) * cell
    canvas = _Canvas(left + sum(widths) + gap * (len(widths) - 1) + 24, top + tallest + 66)
    told, x = [], left
    for (name, matrix), width in zip(jacobians.items(), widths, strict=True):
        outputs, inputs = matrix.shape
        canvas.label(x, 24, name, 13, "start", weight="bold")
        canvas.label(x, 46, "inputs of a row", 10, "start", _SOFT)
        canvas.box(x, top, inputs * cell, outputs * cell)
        own = other = 0
        for i, needed in enumerate((matrix.abs() > 1e-12).tolist()):
            for tile in range(tiles):
                same = i * tiles // outputs == tile
                for start, stop in _runs(needed, tile * inputs // tiles, inputs // tiles):
                    own, other = own + same * (stop - start), other + (not same) * (stop - start)
                    canvas.box(x + start * cell, top + i * cell, (stop - start) * cell, cell,
                               GREEN if same else ORANGE, "none", 0.85)
        for tile in range(1, tiles):
            canvas.line(x + tile * inputs // tiles * cell, top,
                        x + tile * inputs // tiles * cell, top + outputs * cell, _INK, 1.2)
            canvas.line(x, top + tile * outputs // tiles * cell, x + inputs * cell,
                        top + tile * outputs // tiles * cell, _INK, 1.2)
        verdict = ("needs its own tile only" if not other else
                   f"needs {tiles - 1} other tile{'s' * (tiles > 2)}, too")
        canvas.label(x, top + tallest + 20, f"{own:,} derivatives inside a tile", 11, "start",
                     GREEN, "bold")
        canvas.label(x, top + tallest + 36, f"{other:,} across tiles", 11, "start",
                     ORANGE if other else GREY, "bold")
        canvas.label(x, top + tallest + 54, f"an output {verdict}", 11, "start")
        told.append(f"{name}: {own:,} derivatives inside a tile, {other:,} across tiles; an output "
                    f"{verdict}.")
        x += width + gap
    canvas.parts.append(f'<text x="{left - 14}" y="{top + tallest / 2:g}" font-size="10" '
                        f'fill="{_SOFT}" text-anchor="middle" transform="rotate(-90 {left - 14} '
                        f'{top + tallest / 2:g})">outputs of the row</text>')
    return canvas.done("\n".join(told))


def _runs(marks: Sequence[bool], first: int, count: int) -> list[tuple[int, int]]:
    """From where to where the marks are set, among `count` of them from `first` on."""
    edges = [i for i in range(first, first + count + 1)
             if (i < first + count and marks[i]) != (i > first and marks[i - 1])]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _kernel(canvas: _Canvas, x: float, y: float, product: str, name: str) -> None:
    """A GEMM with its epilogue: two boxes of 190 x 50, one upon the other."""
    _rounded(canvas, x, y, 190, 104, "#ffffff", BLUE)
    canvas.box(x + 6, y + 6, 178, 42, BLUE, BLUE, 0.85)
    canvas.label(x + 95, y + 23, "GEMM", 10, colour="#ffffff")
    canvas.label(x + 95, y + 40, product, 13, colour="#ffffff", weight="bold")
    canvas.box(x + 6, y + 54, 178, 44, GREEN, GREEN, 0.85)
    canvas.label(x + 95, y + 71, "epilogue", 10, colour="#ffffff")
    canvas.label(x + 95, y + 89, name, 13, colour="#ffffff", weight="bold")


def one_gemm_ahead() -> Picture:
    """Half a block backwards: two GEMMs with epilogues, and how s gets from one to the other."""
    canvas = _Canvas(880, 340)
    first, second, top = 96, 520, 70
    canvas.label(20, 24, "x + swiglu(norm(x) W_inᵀ) W_outᵀ, backwards, from left to right", 13,
                 "start", weight="bold")
    _kernel(canvas, first, top, "dout W_out → dy", "dSwiGLU")
    _kernel(canvas, second, top, "dz W_in → D", "dRMSNorm + dout")
    _arrow(canvas, [(60, top + 27), (first, top + 27)])
    canvas.label(38, top + 31, "dout", 12, weight="bold")
    _arrow(canvas, [(first + 40, top + 142), (first + 40, top + 104)])
    canvas.label(first + 40, top + 157, "z, saved", 11, colour=_SOFT)
    _arrow(canvas, [(first + 190, top + 27), (second, top + 27)])
    canvas.label((first + 190 + second) / 2, top + 19, "dz", 12, weight="bold")

    y = top + 76
    _arrow(canvas, [(first + 190, y), (370, y)], PINK)
    canvas.label(334, y - 8, "Σ z · dz", 12, colour=PINK, weight="bold")
    _rounded(canvas, 370, y - 17, 74, 34, "#ffffff", PINK)
    canvas.label(407, y - 2, "add tiles,", 10)
    canvas.label(407, y + 10, "over d", 10)
    _arrow(canvas, [(444, y), (second, y)], PINK)
    canvas.label(482, y - 8, "s", 13, colour=PINK, weight="bold")
    canvas.label(407, y + 38, "one number a row and tile", 10, colour=PINK)

    _arrow(canvas, [(second + 40, top + 142), (second + 40, top + 104)])
    canvas.label(second + 40, top + 157, "x, r, γ, saved; dout", 11, colour=_SOFT)
    _arrow(canvas, [(second + 190, top + 60), (second + 240, top + 60)])
    canvas.label(second + 262, top + 65, "dx", 14, weight="bold")
    _arrow(canvas, [(second + 190, top + 90), (second + 240, top + 90)])
    canvas.label(second + 248, top + 94, "Σ D · x̂ → dγ", 12, "start", weight="bold")

    for x, letter, formula, other, start in (
            (first, "y", "dW_out = doutᵀ y", "dout", first + 150),
            (second, "n", "dW_in = dzᵀ n", "dz", second + 150)):
        _arrow(canvas, [(start, top + 104), (start, top + 186)])
        canvas.label(start + 8, top + 150, f"{letter}, made again" if letter == "y" else
                     "n = γ x̂, made again", 11, "start", weight="bold")
        _rounded(canvas, x + 20, top + 186, 190, 46, "#ffffff", BLUE)
        canvas.box(x + 26, top + 192, 178, 34, BLUE, BLUE, 0.55)
        canvas.label(x + 115, top + 214, formula, 13, weight="bold")
        _arrow(canvas, [(x - 24, top + 209), (x + 20, top + 209)])
        canvas.label(x - 28, top + 213, other, 12, "end", weight="bold")
    canvas.label(20, 326, "Blue: a GEMM. Green: its epilogue. Pink: all that the second epilogue "
                 "needs to know of the row's other tiles.", 11, "start", _SOFT)
    return canvas.done(
        "Backwards through x + swiglu(norm(x) W_in^T) W_out^T. The first GEMM makes dy = dout "
        "W_out; its epilogue dSwiGLU reads the saved z and writes dz, y and, a number a row and "
        "tile, the sums of z dz. Added up and divided by d they are s. The second GEMM makes D = "
        "dz W_in; its epilogue reads x, r, gamma, dout and s, and writes dx, n = gamma x^ and the "
        "partial sums of D x^ for dgamma. Two plain GEMMs make dW_out = dout^T y and dW_in = dz^T "
        "n.")
