"""Buffers as heat maps, in shapes alone: the same SVG on every run, and small.

Colours run from blue (negative) over white (zero) to vermilion (positive), of Okabe and Ito's
colour-blind palette. A row of equal cells is one line of a path, and a path holds all cells of one
colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.pictures import _INK, _LINE, ORANGE, _Canvas
from labkit.steps import Buffer, number

MOST_CELLS = 64  # along one side
_STRIP, _HEAD, _LETTER = 14, 40, 5.7  # pixels
LEVELS = 15  # of colour, on either side of zero
_NEGATIVE, _POSITIVE = (0, 114, 178), (213, 94, 0)  # #0072B2, #D55E00
BELOW, ABOVE, BLANK, HATCH = "#00263d", "#4a1d00", "#e4e7ec", "#5b6270"
_NUMBERS = (8, 4)  # rows and columns of a buffer whose numbers are written out
NOTE = "#5b6270"


@dataclass(frozen=True)
class Cells:
    """A buffer as at most 64 x 64 cells. values, unset: two-dimensional. rule: what a cell stands
    for, where it is more than one element."""

    values: Any
    unset: Any
    rule: str = ""


def cells(values: Any, unset: Any) -> Cells:
    """The cells of an array of any shape.

    One row of more than 64 elements goes on in the next line. Other arrays keep their rows, those
    of more than two axes those of the last; where a side has more than 64 elements, a cell stands
    for several: unset if one of them is, else the one furthest from zero.
    """
    import numpy as np

    flat = values.reshape(-1, values.shape[-1]) if values.ndim > 1 else values.reshape(1, -1)
    blank = unset.reshape(flat.shape)
    flat = flat.astype(np.float64)
    rows, columns = flat.shape
    rule = ""
    if min(rows, columns) == 1 and max(rows, columns) > MOST_CELLS:
        width = next((w for w in range(MOST_CELLS, MOST_CELLS // 2, -1) if flat.size % w == 0),
                     MOST_CELLS)
        room = -flat.size % width
        flat = np.pad(flat.reshape(-1), (0, room)).reshape(-1, width)
        blank = np.pad(blank.reshape(-1), (0, room), constant_values=True).reshape(-1, width)
        rule = f"{width} a line"
        rows, columns = flat.shape
    down, across = -(-rows // MOST_CELLS), -(-columns // MOST_CELLS)
    if down * across > 1:
        rule = "; ".join(filter(None, [rule, f"a cell is {down} x {across}"]))
        pad = ((0, -rows % down), (0, -columns % across))
        flat, blank = np.pad(flat, pad), np.pad(blank, pad)
        shape = (flat.shape[0] // down, down, flat.shape[1] // across, across)
        tiles = flat.reshape(shape).swapaxes(1, 2).reshape(shape[0], shape[2], -1)
        blank = blank.reshape(shape).any(axis=(1, 3))
        size = np.abs(np.nan_to_num(tiles, nan=-1, posinf=np.inf, neginf=-np.inf))
        flat = np.take_along_axis(tiles, size.argmax(2)[..., None], 2)[..., 0]
    return Cells(flat, blank, rule)


def colour_of(level: int) -> str:
    """The colour of a level from -15 to 15."""
    end = _NEGATIVE if level < 0 else _POSITIVE
    share = (abs(level) / LEVELS) ** 0.8
    return "#" + "".join(f"{round(255 + (c - 255) * share):02x}" for c in end)


def _levels(found: Cells, scale: float) -> Any:
    """Each cell's colour, as a number: the level, 98 and 99 for infinities, 97 for unset."""
    import numpy as np

    finite = np.where(np.isfinite(found.values), found.values, 0)
    level = np.rint(finite / (scale or 1) * LEVELS).astype(int)
    level = np.where((level == 0) & (finite != 0), np.sign(finite).astype(int), level)
    level = np.where(found.values == np.inf, 99, np.where(found.values == -np.inf, 98, level))
    return np.where(found.unset, 97, level)


def _lines(mask: Any) -> str:
    """The cells of a mask as lines of a path, one for each run along a row, in units of cells."""
    import numpy as np

    padded = np.pad(mask.astype(np.int8), ((0, 0), (1, 1)))
    rows, starts = np.nonzero(np.diff(padded, axis=1) == 1)
    _, stops = np.nonzero(np.diff(padded, axis=1) == -1)
    parts, at = [], (0, 0)
    for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
        across = start - at[1]
        parts.append(f"m{across}{' ' if row - at[0] >= 0 else ''}{row - at[0]}h{stop - start}")
        at = (row, stop)
    return "M0 .5" + "".join(parts) if parts else ""


def _hatching(mask: Any, wide: float, high: float) -> str:
    """Diagonal lines over the cells of a mask, in units of cells."""
    rows, columns = mask.shape
    gap = max(1, round(7 / max(wide, high)))
    parts = []
    for diagonal in range(gap // 2, rows + columns - 1, gap):
        run = None
        for row in range(max(0, diagonal - columns + 1), min(rows, diagonal + 1) + 1):
            column = diagonal - row
            inside = row < rows and column >= 0 and mask[row, column]
            if inside and run is None:
                run = row
            elif not inside and run is not None:
                parts.append(f"M{diagonal - run + 1} {run}L{diagonal - row + 1} {row}")
                run = None
    return "".join(parts)


def sides(rows: int, columns: int, longest: float) -> tuple[float, float]:
    """Width and height of a cell, so that no side of the buffer gets longer than `longest`, all in
    pixels."""
    if rows <= _NUMBERS[0] and columns <= _NUMBERS[1]:
        return 46, 20
    side = max(2, min(18, longest // max(rows, columns)))
    return max(side, min(_STRIP, 60 // columns)), max(side, min(_STRIP, 60 // rows))


@dataclass(frozen=True)
class Panel:
    """One buffer, ready to be drawn."""

    buffer: Buffer
    found: Cells
    cell: tuple[float, float]
    says: tuple[str, str]  # the range of its numbers; how many are unset
    scale: float
    changed: bool

    @property
    def strip(self) -> bool:
        """Whether it is low enough to stand above another one."""
        return self.found.values.shape[0] * self.cell[1] <= 2 * _STRIP

    @property
    def size(self) -> tuple[float, float]:
        """In pixels; the same at every step, so that nothing moves."""
        rows, columns = self.found.values.shape
        named = f"{self.name}  written"
        words = f"{named}  {self.kind}" if self.strip else max(named, self.kind, key=len)
        return (max(columns * self.cell[0] + 4, _LETTER * max(len(words), 24)),
                (22 if self.strip else _HEAD) + rows * self.cell[1] + 32)

    @property
    def name(self) -> str:
        return self.buffer.name + self.buffer.part

    @property
    def kind(self) -> str:
        size = " × ".join(map(str, self.buffer.shape)) or "1"
        return f"{self.buffer.scope} · {size} {self.buffer.dtype}"

    def draw(self, canvas: _Canvas, x: float, y: float) -> None:
        import numpy as np

        rows, columns = self.found.values.shape
        wide, high = self.cell
        after = x + 8.6 * len(self.name) + 10
        canvas.label(x, y + 12, self.name, 12, "start", weight="bold")
        if self.changed:
            canvas.label(after, y + 12, "written", 11, "start", "#9a5b00", "bold")
            after += 60
        if self.strip:
            canvas.label(after, y + 12, self.kind, 10.5, "start", NOTE)
        else:
            canvas.label(x, y + 28, self.kind, 10.5, "start", NOTE)
        top = y + (22 if self.strip else _HEAD) - 4
        level = _levels(self.found, self.scale)
        canvas.parts.append(f'<g transform="translate({x:g} {top:g}) scale({wide:g} {high:g})" '
                            f'fill="none"><path d="M0 0h{columns}v{rows}h-{columns}z" '
                            'fill="#ffffff"/>')
        for one in np.unique(level).tolist():
            if one:
                colour = {97: BLANK, 98: BELOW, 99: ABOVE}.get(one) or colour_of(one)
                canvas.parts.append(f'<path d="{_lines(level == one)}" stroke="{colour}" '
                                    'shape-rendering="crispEdges"/>')
        if (level == 97).any():
            canvas.parts.append(f'<path d="{_hatching(level == 97, wide, high)}" '
                                f'stroke="{HATCH}" vector-effect="non-scaling-stroke"/>')
        canvas.parts.append("</g>")
        line, width = (ORANGE, 3) if self.changed else (_LINE, 1)
        edge = width / 2
        canvas.parts.append(
            f'<rect x="{x - edge:g}" y="{top - edge:g}" width="{columns * wide + width:g}" '
            f'height="{rows * high + width:g}" fill="none" stroke="{line}" '
            f'stroke-width="{width}"/>')
        if wide == 46:
            self._write(canvas, x, top, level)
        foot = top + rows * high + 14
        canvas.label(x, foot, self.says[0], 10.5, "start")
        note = "; ".join(filter(None, [self.says[1], self.found.rule]))
        canvas.label(x, foot + 13, note, 10, "start", NOTE)

    def _write(self, canvas: _Canvas, x: float, y: float, level: Any) -> None:
        rows, columns = level.shape
        for r in range(rows):
            for c in range(columns):
                if level[r, c] != 97:
                    dark = level[r, c] > 90 or abs(level[r, c]) > 10
                    canvas.label(x + (c + 0.5) * self.cell[0], y + (r + 0.5) * self.cell[1] + 4,
                                 number(self.found.values[r, c]), 11,
                                 colour="#ffffff" if dark else _INK)
