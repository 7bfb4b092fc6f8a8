"""Buffers as heat maps, in shapes alone: the same SVG on every run, and small.

Colours run from blue (negative) over white (zero) to vermilion (positive), of Okabe and Ito's
colour-blind palette. A row of equal cells is one line of a path, and a path holds all cells of one
colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.pictures import _INK, _LINE, ORANGE, Picture, _Canvas
from labkit.steps import Buffer, Step, Steps, number

MOST_CELLS = 64  # along one side
_SIDE, _STRIP, _MARGIN, _HEAD, _FOOT = 192, 14, 22, 42, 34  # pixels
_LEVELS = 15  # of colour, on either side of zero
_NEGATIVE, _POSITIVE = (0, 114, 178), (213, 94, 0)  # #0072B2, #D55E00
_BELOW, _ABOVE, _BLANK, _HATCH = "#00263d", "#4a1d00", "#e4e7ec", "#5b6270"
_NUMBERS = (8, 4)  # rows and columns of a buffer whose numbers are written out
_NOTE = "#5b6270"


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
        rule = "; ".join(filter(None, [rule, f"a cell is {down} x {across} elements"]))
        pad = ((0, -rows % down), (0, -columns % across))
        flat, blank = np.pad(flat, pad), np.pad(blank, pad)
        shape = (flat.shape[0] // down, down, flat.shape[1] // across, across)
        tiles = flat.reshape(shape).swapaxes(1, 2).reshape(shape[0], shape[2], -1)
        blank = blank.reshape(shape).any(axis=(1, 3))
        size = np.abs(np.nan_to_num(tiles, nan=-1, posinf=np.inf, neginf=-np.inf))
        flat = np.take_along_axis(tiles, size.argmax(2)[..., None], 2)[..., 0]
    return Cells(flat, blank, rule)


def scales(steps: Steps) -> dict[str, float]:
    """For each buffer the largest finite size among all steps, the end of its colour scale."""
    import numpy as np

    found = dict.fromkeys(steps.buffers, 0.0)
    seen: set[int] = set()
    for step in steps:
        for name in step.changed:
            values, unset = step.values[name], step.unset[name]
            if id(values) not in seen:
                seen.add(id(values))
                known = values[~unset & np.isfinite(values)]
                if known.size:
                    found[name] = max(found[name], float(np.abs(known.astype(float)).max()))
    return found


def _colour(level: int) -> str:
    """The colour of a level from -15 to 15."""
    end = _NEGATIVE if level < 0 else _POSITIVE
    share = (abs(level) / _LEVELS) ** 0.8
    return "#" + "".join(f"{round(255 + (c - 255) * share):02x}" for c in end)


def _levels(found: Cells, scale: float) -> Any:
    """Each cell's colour, as a number: the level, 98 and 99 for infinities, 97 for unset."""
    import numpy as np

    finite = np.where(np.isfinite(found.values), found.values, 0)
    level = np.rint(finite / (scale or 1) * _LEVELS).astype(int)
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
            inside = row < rows and 0 <= column and mask[row, column]
            if inside and run is None:
                run = row
            elif not inside and run is not None:
                parts.append(f"M{diagonal - run + 1} {run}L{diagonal - row + 1} {row}")
                run = None
    return "".join(parts)


def _sides(rows: int, columns: int) -> tuple[float, float]:
    """Width and height of a cell in pixels."""
    if rows <= _NUMBERS[0] and columns <= _NUMBERS[1]:
        return 46, 20
    side = max(3, min(18, _SIDE // max(rows, columns)))
    return (max(side, _STRIP) if columns == 1 else side), (max(side, _STRIP) if rows == 1 else side)


@dataclass(frozen=True)
class _Panel:
    """One buffer, ready to be drawn."""

    buffer: Buffer
    found: Cells
    cell: tuple[float, float]
    says: str
    scale: float
    changed: bool

    @property
    def size(self) -> tuple[float, float]:
        rows, columns = self.found.values.shape
        width = max(columns * self.cell[0] + 4, 6.4 * max(len(line) for line in self.lines) + 8)
        return width, _HEAD + rows * self.cell[1] + _FOOT

    @property
    def lines(self) -> tuple[str, str, str, str]:
        size = " × ".join(map(str, self.buffer.shape)) or "1"
        name = self.buffer.name + self.buffer.part + ("  ✎ written" if self.changed else "")
        return (name, f"{self.buffer.scope} · {size} {self.buffer.dtype}", self.says,
                self.found.rule)

    def draw(self, canvas: _Canvas, x: float, y: float) -> None:
        import numpy as np

        rows, columns = self.found.values.shape
        wide, high = self.cell
        name, kind, says, rule = self.lines
        canvas.label(x, y + 12, self.buffer.name + self.buffer.part, 12, "start", weight="bold")
        if self.changed:
            canvas.label(x + self.size[0] - 4, y + 12, "✎ written", 11, "end", "#9a5b00", "bold")
        canvas.label(x, y + 28, kind, 10.5, "start", _NOTE)
        top = y + _HEAD - 6
        level = _levels(self.found, self.scale)
        canvas.parts.append(f'<g transform="translate({x:g} {top:g}) scale({wide:g} {high:g})" '
                            f'fill="none"><path d="M0 0h{columns}v{rows}h-{columns}z" '
                            'fill="#ffffff"/>')
        for one in np.unique(level).tolist():
            if one:
                colour = {97: _BLANK, 98: _BELOW, 99: _ABOVE}.get(one) or _colour(one)
                canvas.parts.append(f'<path d="{_lines(level == one)}" stroke="{colour}" '
                                    'shape-rendering="crispEdges"/>')
        if (level == 97).any():
            canvas.parts.append(f'<path d="{_hatching(level == 97, wide, high)}" '
                                f'stroke="{_HATCH}" vector-effect="non-scaling-stroke"/>')
        canvas.parts.append("</g>")
        line, width = (ORANGE, 3) if self.changed else (_LINE, 1)
        canvas.parts.append(
            f'<rect x="{x - width / 2:g}" y="{top - width / 2:g}" width="{columns * wide + width:g}"'
            f' height="{rows * high + width:g}" fill="none" stroke="{line}" '
            f'stroke-width="{width}"/>')
        if wide == 46:
            self._write(canvas, x, top, level)
        foot = top + rows * high + 15
        canvas.label(x, foot, says, 10.5, "start")
        canvas.label(x, foot + 14, rule, 10, "start", _NOTE)

    def _write(self, canvas: _Canvas, x: float, y: float, level: Any) -> None:
        rows, columns = level.shape
        for r in range(rows):
            for c in range(columns):
                if level[r, c] != 97:
                    dark = level[r, c] > 90 or abs(level[r, c]) > 10
                    canvas.label(x + (c + 0.5) * self.cell[0], y + (r + 0.5) * self.cell[1] + 4,
                                 number(self.found.values[r, c]), 11,
                                 colour="#ffffff" if dark else _INK)


def maps(steps: Steps, step: Step, width: float, top: float = 0,
         scale: dict[str, float] | None = None) -> _Canvas:
    """All buffers of a step, side by side as far as `width` pixels reach, with the key below."""
    scale = scale or scales(steps)
    panels = []
    for name, buffer in steps.buffers.items():
        found = cells(step.values[name], step.unset[name])
        panels.append(_Panel(buffer, found, _sides(*found.values.shape), step.range(name),
                             scale[name], name in step.changed))
    rows: list[list[_Panel]] = [[]]
    used = 0.0
    for panel in panels:
        if rows[-1] and used + panel.size[0] > width - 16:
            rows.append([])
            used = 0
        rows[-1].append(panel)
        used += panel.size[0] + _MARGIN
    height = top + sum(max(p.size[1] for p in row) + 6 for row in rows if row)
    canvas = _Canvas(width, height + 46)
    y = top
    for row in rows:
        x = 10.0
        for panel in row:
            panel.draw(canvas, x, y)
            x += panel.size[0] + _MARGIN
        y += max((p.size[1] for p in row), default=0) + 6
    _key(canvas, 10, y + 4)
    return canvas


def _key(canvas: _Canvas, x: float, y: float) -> None:
    """What the colours mean."""
    for place, level in enumerate(range(-_LEVELS, _LEVELS + 1, 2)):
        canvas.box(x + place * 6, y, 6.5, 11, _colour(level), "none")
    canvas.parts.append(f'<rect x="{x}" y="{y}" width="96" height="11" fill="none" '
                        f'stroke="{_LINE}"/>')
    canvas.label(x, y + 25, "-max", 10, "start", _NOTE)
    canvas.label(x + 48, y + 25, "0", 10, colour=_NOTE)
    canvas.label(x + 96, y + 25, "max", 10, "end", _NOTE)
    canvas.label(x, y + 38, "max: of this buffer, among all steps", 10, "start", _NOTE)
    for at, colour, text in ((124, _BELOW, "-∞"), (170, _ABOVE, "∞")):
        canvas.box(x + at, y, 14, 11, colour, _LINE)
        canvas.label(x + at + 19, y + 10, text, 10.5, "start", _NOTE)
    canvas.box(x + 212, y, 14, 11, _BLANK, _LINE)
    canvas.line(x + 213, y + 10, x + 219, y + 1, _HATCH, 1)
    canvas.line(x + 219, y + 10, x + 225, y + 1, _HATCH, 1)
    canvas.label(x + 231, y + 10, "never written, or made from", 10.5, "start", _NOTE)
    canvas.label(x + 231, y + 23, "what never was (NaN)", 10.5, "start", _NOTE)


def picture(steps: Steps, step: Step, width: float = 720) -> Picture:
    """The statement in its source, and below it all buffers."""
    listed = excerpt(steps, step)
    top = 52 + 17 * len(listed) + 22
    canvas = maps(steps, step, width, top)
    canvas.label(16, 22, steps.title, 13, "start", weight="bold")
    canvas.label(16, 40, f"after step {step.number}" + (f", {step.place}" if step.place else ""),
                 12, "start", "#9a5b00", "bold")
    for place, (line, text, current) in enumerate(listed):
        y = 62 + 17 * place
        if current:
            canvas.box(10, y - 12, width - 20, 17, "#fff3d6", "none")
            canvas.box(10, y - 12, 4, 17, ORANGE, "none")
        canvas.parts.append('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" '
                            'xml:space="preserve" style="white-space:pre">')
        canvas.label(44, y, line, 10.5, "end", _NOTE)
        canvas.label(54, y, text if len(text) <= 104 else text[:103] + "…", 10.5, "start")
        canvas.parts.append("</g>")
    return canvas.done(describe(steps, step))


def excerpt(steps: Steps, step: Step, around: int = 3) -> Sequence[tuple[str, str, bool]]:
    """The lines about the step's statement: (number, text, whether it is the statement's own)."""
    for section in steps.sections:
        last = section.first + len(section.lines) - 1
        if section.file == step.file and step.line and section.first <= step.line <= last:
            until = max(step.line, step.last or 0)
            chosen = range(max(section.first, step.line - around), min(last, until + around) + 1)
            return [(str(n), section.lines[n - section.first], step.line <= n <= until)
                    for n in chosen]
    return [(str(step.line or ""), step.text, True)]


def describe(steps: Steps, step: Step) -> str:
    """A step in words."""
    lines = [steps.title + ".",
             f"After step {step.number}" + (f", {step.place}" if step.place else "")
             + f": {step.text}"]
    for name, buffer in steps.buffers.items():
        mark = "written: " if name in step.changed else ""
        lines.append(f"  {mark}{buffer}: {step.range(name)}")
    return "\n".join(lines)
