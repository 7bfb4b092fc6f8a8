"""What the explorer's pictures share: marks that do not rest on colour, words that fit, sizes.

Hatching is drawn as lines and not as an SVG pattern: patterns are found by an id, and a page with
two pictures, one of them hidden, would lose them.
"""

from __future__ import annotations

import functools
import math
from html import escape
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, _above_zero, _Canvas

WIDTH = 720
RED = "#D55E00"  # vermilion of Okabe and Ito's palette: over a limit, wrong, wasted
PALE = "#f3f5f8"
NOTE = "#5b6270"  # small print; 6:1 against white

_NARROW, _WIDE = set("ijlftrI.,:;|!'()[]{}/- "), set("mwMW@%—…→")


def new_canvas(title: str, height: float, colour: str = _INK, left: float = 20) -> _Canvas:
    """A canvas of the explorer's width with its heading."""
    canvas = _Canvas(WIDTH, height)
    canvas.label(left, 25, fit(title, WIDTH - 2 * left, 13, bold=True), 13, "start", colour, "bold")
    return canvas


@functools.lru_cache(maxsize=4096)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how wide a text is in pixels, in DejaVu Sans or Verdana; errs on the wide side."""
    return sum(map(_units, text)) * size * (1.08 if bold else 1)


@functools.lru_cache(maxsize=4096)
def _units(c: str) -> float:
    return (0.4 if c in _NARROW else 0.98 if c in _WIDE or ord(c) > 0x2e80 else
            0.66 if c.islower() or c.isdigit() else 0.74)


def fit(text: Any, width: float, size: float, bold: bool = False) -> str:
    """The text, cut with "…" where it is wider than `width` pixels. Line breaks become spaces."""
    text = " ".join(str(text)[:400].split())
    if text_width(text, size, bold) <= width:
        return text
    left = width - text_width("…", size, bold)
    for place, c in enumerate(text):
        left -= text_width(c, size, bold)
        if left < 0:
            return text[:place].rstrip() + "…"
    return text


def brief(text: Any, most: int = 60) -> str:
    """The text on one line, cut after `most` characters; for descriptions and hints."""
    words = " ".join(str(text)[:4 * most].split())
    return words if len(words) <= most else words[:most - 1].rstrip() + "…"


def hatch(canvas: _Canvas, x: float, y: float, w: float, h: float, colour: str, gap: float = 7,
          width: float = 1.2) -> None:
    """Diagonal lines in a rectangle, at most about 150 of them."""
    if w <= 0 or h <= 0:
        return
    gap = max(gap, (w + h) / 150)
    path, offset = [], gap / 2
    while offset < w + h:  # the line from (offset, 0) down to (0, offset), inside the rectangle
        left, right = max(0.0, offset - h), min(w, offset)
        path.append(f"M{x + right:.1f} {y + offset - right:.1f}L{x + left:.1f} "
                    f"{y + offset - left:.1f}")
        offset += gap
    canvas.parts.append(f'<path d="{"".join(path)}" stroke="{colour}" stroke-width="{width:g}" '
                        'fill="none"/>')


def dashed(canvas: _Canvas, x1: float, y1: float, x2: float, y2: float, colour: str,
           width: float = 1.5, dash: str = "5 4") -> None:
    canvas.parts.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                        f'stroke="{colour}" stroke-width="{width:g}" stroke-dasharray="{dash}"/>')


def shape(canvas: _Canvas, kind: str, x: float, y: float, colour: str, hint: str = "",
          r: float = 5) -> None:
    """A point's mark: "dot", "ring", "diamond", "cross" or "star"; `hint` shows under the mouse."""
    line = f'stroke="{colour}" stroke-width="2"'
    if kind in ("dot", "ring"):
        fill = colour if kind == "dot" else "#ffffff"
        mark, end = f'circle cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" fill="{fill}" {line}', "circle"
    elif kind == "diamond":
        mark, end = (f'path d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l-{r + 1} {r + 1}'
                     f'l-{r + 1} -{r + 1}z" fill="#ffffff" {line}'), "path"
    elif kind == "cross":
        mark, end = (f'path d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 -{2 * r}l-{2 * r} '
                     f'{2 * r}" fill="none" {line}'), "path"
    else:
        turns = [(math.pi * i / 5, (r + 4) * (0.45 if i % 2 else 1)) for i in range(10)]
        corners = " ".join(f"{x + d * math.sin(a):.1f},{y - d * math.cos(a):.1f}" for a, d in turns)
        mark, end = f'polygon points="{corners}" fill="{colour}" {line}', "polygon"
    inside = f"<title>{escape(hint)}</title></{end}>" if hint else f"</{end}>"
    canvas.parts.append(f"<{mark}>{inside}")


def kib(size: float) -> str:
    """Bytes in units of 1024, as memory is sized: "48 KiB"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{_short(size / unit)} {name}"
    return f"{_short(size)} B"


def moved(size: float) -> str:
    """Bytes in units of 1000, as rates are given: "67.1 MB"."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{_short(size / unit)} {name}"
    return f"{_short(size)} B"


def duration(ms: float) -> str:
    """Milliseconds, in the unit that reads well."""
    if ms >= 1e3:
        return f"{_short(ms / 1e3)} s"
    return f"{_short(ms)} ms" if ms >= 0.1 else f"{_short(ms * 1e3)} µs"


def whole(value: int) -> str:
    """A count, shortened where its digits would fill the line."""
    return f"{value:,}" if value < 10**7 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share of 1 as a percentage that is 0 or 100 only where it is so."""
    if 0 < share < 0.01:
        return "<1%"
    if share >= 100:
        return f"{share * 100:.3g}%"
    return f"{min(99, round(share * 100)) if share < 1 else round(share * 100)}%"


def _short(value: float) -> str:
    return (f"{value:.2e}" if value >= 1e7 else f"{value:,.0f}" if value >= 1000
            else f"{value:.4g}" if value == int(value) else f"{value:.3g}")


positive = _above_zero  # as the lessons' pictures check their times


def counts(low: int, **values: Any) -> None:
    """Raises BadArgument for what is not a whole number of at least `low` (and at most 2^62)."""
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= 1 << 62:
            raise BadArgument(f"{name} is {value!r}; give a whole number of at least {low}.")
