"""A step of a block as a picture: its statement in the source, and its buffers as heat maps."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.heatmaps import (
    ABOVE,
    BELOW,
    BLANK,
    HATCH,
    LEVELS,
    NOTE,
    Panel,
    cells,
    colour_of,
    sides,
)
from labkit.pictures import _LINE, ORANGE, Picture, _Canvas
from labkit.steps import Step, Steps

_MARGIN = 14  # pixels between buffers


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


def maps(steps: Steps, step: Step, width: float, top: float = 0,
         scale: dict[str, float] | None = None, longest: float = 192) -> _Canvas:
    """All buffers of a step, side by side as far as `width` pixels reach, with the key below; no
    buffer is longer than `longest`."""
    scale = scale or scales(steps)
    panels = []
    for name, buffer in steps.buffers.items():
        found = cells(step.values[name], step.unset[name])
        panels.append(Panel(buffer, found, sides(*found.values.shape, longest), step.said(name),
                             scale[name], name in step.changed))
    lines: list[list[list[Panel]]] = [[]]  # a line of columns of panels
    used = 0.0
    for column in _columns(panels):
        wide = max(panel.size[0] for panel in column)
        if lines[-1] and used + wide > width - 20:
            lines.append([])
            used = 0
        lines[-1].append(column)
        used += wide + _MARGIN
    tall = [max((sum(p.size[1] + 6 for p in column) for column in line), default=0)
            for line in lines]
    merged = any("a cell is" in panel.found.rule for panel in panels)
    canvas = _Canvas(width, top + sum(tall) + (64 if merged else 50))
    y = top
    for line, high in zip(lines, tall, strict=True):
        x = 10.0
        for column in line:
            down = y
            for panel in column:
                panel.draw(canvas, x, down)
                down += panel.size[1] + 6
            x += max(panel.size[0] for panel in column) + _MARGIN
        y += high
    _key(canvas, 10, y + 4)
    if merged:
        canvas.label(10, y + 56, "A cell of several elements shows the one furthest from zero; "
                     "hatched if one is NaN.", 10, "start", NOTE)
    return canvas


def _columns(panels: Sequence[Panel]) -> list[list[Panel]]:
    """Panels in order, neighbours that are strips one above the other."""
    columns: list[list[Panel]] = []
    for panel in panels:
        last = columns[-1] if columns else []
        if last and last[-1].strip and panel.strip and len(last) < 5:
            last.append(panel)
        else:
            columns.append([panel])
    return columns


def _key(canvas: _Canvas, x: float, y: float) -> None:
    """What the colours mean."""
    for place, level in enumerate(range(-LEVELS, LEVELS + 1, 2)):
        canvas.box(x + place * 6, y, 6.5, 11, colour_of(level), "none")
    canvas.parts.append(f'<rect x="{x}" y="{y}" width="96" height="11" fill="none" '
                        f'stroke="{_LINE}"/>')
    canvas.label(x, y + 25, "-max", 10, "start", NOTE)
    canvas.label(x + 48, y + 25, "0", 10, colour=NOTE)
    canvas.label(x + 96, y + 25, "max", 10, "end", NOTE)
    canvas.label(x, y + 38, "max: of this buffer, among all steps", 10, "start", NOTE)
    for at, colour, text in ((124, BELOW, "-∞"), (170, ABOVE, "∞")):
        canvas.box(x + at, y, 14, 11, colour, _LINE)
        canvas.label(x + at + 19, y + 10, text, 10.5, "start", NOTE)
    canvas.box(x + 212, y, 14, 11, BLANK, _LINE)
    canvas.line(x + 213, y + 10, x + 219, y + 1, HATCH, 1)
    canvas.line(x + 219, y + 10, x + 225, y + 1, HATCH, 1)
    canvas.label(x + 231, y + 10, "NaN: never written, or", 10.5, "start", NOTE)
    canvas.label(x + 231, y + 23, "computed from such", 10.5, "start", NOTE)


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
        text = text if len(text) <= 104 else text[:103] + "…"
        canvas.parts.append('<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace">')
        canvas.label(44, y, line, 10.5, "end", NOTE)
        canvas.label(54, y, text.replace(" ", "\u00a0"), 10.5, "start")
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
