"""Schedules under the two floors: what memory feeds, and what the tensor cores can do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, BLUE, GREEN, ORANGE, Picture
from labkit.widgets.view_marks import (
    NOTE,
    brief,
    dashed,
    fit,
    new_canvas,
    percent,
    positive,
    shape,
    text_width,
)

_LEFT, _TOP, _WIDE, _HIGH = 74, 66, 616, 236
_MOST_POINTS, _MOST_NAMES = 80, 10
_SIZE = 11
Box = tuple[float, float, float, float]  # left, top, right, bottom


def roof(intensity: float, bandwidth_gb_s: float, peak_tflops: float) -> float:
    """The most TFLOP/s at an intensity of so many operations a byte: the lower of what the
    bandwidth feeds and the peak (Williams, Waterman, Patterson, CACM 52(4), 2009)."""
    return min(intensity * bandwidth_gb_s / 1e3, peak_tflops)


def roofline(points: Sequence[tuple[str, float, float | None]], bandwidth_gb_s: float,
             peak_tflops: float, gpu: str) -> Picture:
    """Operations per byte across, TFLOP/s up, both logarithmic, under the GPU's roof.

    points: (name, operations per byte of memory traffic, measured TFLOP/s). With None for the
    last, nothing was measured: the point is drawn hollow on the roof, as the best there can be.
    bandwidth_gb_s: 1e9 bytes a second. The last of the points is named first; the last 80 are drawn
    and at most 10 names written out. Raises BadArgument.
    """
    points = list(points)
    earlier = len(points[:-_MOST_POINTS])
    positive(bandwidth_gb_s=bandwidth_gb_s, peak_tflops=peak_tflops)
    for point in points:
        if not isinstance(point, (tuple, list)) or len(point) != 3:
            raise BadArgument(f"{point!r} is no point of a roofline; give (name, operations per "
                              "byte, TFLOP/s or None).")
        positive(**{f"operations per byte of {point[0]}": point[1]})
        if point[2] is not None:
            positive(**{f"TFLOP/s of {point[0]}": point[2]})
    ridge = peak_tflops * 1e3 / bandwidth_gb_s
    drawn = [(name, x, y if y is not None else roof(x, bandwidth_gb_s, peak_tflops), y is not None)
             for name, x, y in points[-_MOST_POINTS:]]
    axis_x = _decades([ridge / 20, ridge * 12, *(x for _, x, _, _ in drawn)])
    axis_y = _decades([peak_tflops / 25, peak_tflops * 1.6, *(y for _, _, y, _ in drawn)])
    canvas = new_canvas(f"{gpu}: below {ridge:,.3g} operations a byte memory is the limit, above "
                        "it the tensor cores", _TOP + _HIGH + 56)

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = ((math.log10(value) - low) / (high - low)
                      for value, (low, high) in ((x, axis_x), (y, axis_y)))
        return _LEFT + across * _WIDE, _TOP + (1 - up) * _HIGH

    _grid(canvas, axis_x, axis_y, at)
    low_x = max(10.0**axis_x[0], 10.0**axis_y[0] * 1e3 / bandwidth_gb_s)
    corner, right = at(ridge, peak_tflops), at(10.0**axis_x[1], peak_tflops)
    start = at(low_x, roof(low_x, bandwidth_gb_s, peak_tflops))
    canvas.line(*start, *corner, ORANGE, 3)
    canvas.line(*corner, *right, GREEN, 3)
    dashed(canvas, *corner, corner[0], _TOP + _HIGH, NOTE, 1, "3 3")
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in (at(x, y) for _, x, y, _ in drawn)]

    def write(x: float, y: float, words: str, side: str, colour: str, bold: bool = True) -> None:
        canvas.label(x, y, words, _SIZE, side, colour, "bold" if bold else "normal")
        taken.append(_area(x, y, words, side, bold))

    cores = f"tensor cores: {peak_tflops:,.4g} TFLOP/s"
    last = _LEFT + _WIDE - text_width(cores, _SIZE, True)
    places = [(min(x, last), corner[1] - 8) for x in (corner[0] + 8, last, corner[0] - 60)]
    clear = [place for place in places if _clear(_area(*place, cores, "start"), taken)]
    write(*[*clear, *places][0], cores, "start", "#00684d")
    memory = f"memory: {_rate(bandwidth_gb_s)} GB/s"
    write(max(start[0] + (corner[0] - start[0]) * 0.62 - 10, _LEFT + text_width(memory, 11, True)),
          start[1] + (corner[1] - start[1]) * 0.62 - 6, memory, "end", "#9a6a00")
    write(min(corner[0] + 5, _LEFT + _WIDE - 60), _TOP + _HIGH - 6, f"ridge {ridge:,.3g}", "start",
          NOTE, False)
    lines = [*_along(start, corner), *_along(corner, right)]
    said, unnamed = [], 0
    for number, (name, x, y, measured) in enumerate(reversed(drawn)):
        px, py = at(x, y)
        share = percent(y / roof(x, bandwidth_gb_s, peak_tflops))
        words = (f"{y:,.3g} TFLOP/s, {share} of the roof" if measured
                 else f"at best {y:,.3g} TFLOP/s")
        hint = f"{brief(name, 40)}: {words} at {x:,.4g} operations a byte"
        brackets = f"{y:,.3g} TFLOP/s ({share})" if measured else words
        name = f"{fit(name, 210, _SIZE, True)}: {brackets}"
        colour = BLUE if number else _INK
        shape(canvas, "dot" if measured else "diamond", px, py, colour, hint)
        said.append(hint)
        place = number < _MOST_NAMES and (_free(px, py, name, not number, [*taken, *lines])
                                          or _free(px, py, name, not number, taken))
        if place:
            left, top, stop, bottom = _area(*place[:2], name, place[2], not number)
            if abs(place[1] - 4 - py) > 20:  # a line from the point to its name
                near = {"start": left, "end": stop, "middle": px}[place[2]]
                canvas.line(px, py, near, place[1] - 4, colour, 0.8)
            canvas.box(round(left, 1), top, round(stop - left, 1), bottom - top, "#ffffff", "none",
                       0.8)
            write(*place[:2], name, place[2], colour, not number)
        else:
            unnamed += 1
    left_out = [f"{unnamed} point{'s' * (unnamed > 1)} without a name"] if unnamed else []
    left_out += [f"{earlier:,} earlier not drawn"] if earlier else []
    canvas.label(_LEFT + _WIDE, _TOP - 20, ", ".join(left_out), 10, "end", NOTE)
    listed = f" {'; '.join(said[:20])}." if said else " No point."
    more = f" And {len(points) - 20:,} more." if len(said) > 20 else ""
    return canvas.done(f"{gpu}: below {ridge:,.3g} operations a byte memory is the limit "
                       f"({_rate(bandwidth_gb_s)} GB/s), above it the tensor cores "
                       f"({peak_tflops:,.4g} TFLOP/s).{listed}{more}")


def _rate(value: float) -> str:
    return f"{value:,.0f}" if 100 <= value < 1e7 else f"{value:.3g}"


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around the values, to a quarter of a decade."""
    low, high = math.log10(min(values) / 1.3), math.log10(max(values) * 1.3)
    return math.floor(low * 4) / 4, math.ceil(high * 4) / 4


def _grid(canvas: Any, axis_x: tuple[float, float], axis_y: tuple[float, float], at: Any) -> None:
    """Lines at powers of ten, at most about eight labels an axis."""
    for axis, across in ((axis_x, True), (axis_y, False)):
        every = max(1, math.ceil((axis[1] - axis[0]) / (8 if across else 6)))
        for power in range(math.ceil(axis[0]), math.floor(axis[1]) + 1):
            if power % every:
                continue
            name = f"{10.0**power:,g}" if -4 < power < 6 else f"1e{power}"
            if across:
                x, _ = at(10.0**power, 10.0**axis_y[0])
                canvas.line(x, _TOP, x, _TOP + _HIGH, "#e3e6eb", 1)
                canvas.label(x, _TOP + _HIGH + 16, name, 10, colour=NOTE)
            else:
                _, y = at(10.0**axis_x[0], 10.0**power)
                canvas.line(_LEFT, y, _LEFT + _WIDE, y, "#e3e6eb", 1)
                canvas.label(_LEFT - 8, y + 4, name, 10, "end", NOTE)
    canvas.line(_LEFT, _TOP + _HIGH, _LEFT + _WIDE, _TOP + _HIGH, NOTE, 1)
    canvas.line(_LEFT, _TOP, _LEFT, _TOP + _HIGH, NOTE, 1)
    canvas.label(_LEFT + _WIDE / 2, _TOP + _HIGH + 38, "operations for each byte moved; in "
                 "brackets: share of the roof", 11)
    canvas.label(_LEFT - 52, _TOP - 18, "TFLOP/s", 11, "start")


def _along(one: tuple[float, float], other: tuple[float, float]
           ) -> list[Box]:
    """Small areas along a line, for names to keep away from."""
    parts = [(one[0] + (other[0] - one[0]) * t / 40, one[1] + (other[1] - one[1]) * t / 40)
             for t in range(41)]
    return [(x - 2, y - 2, x + 2, y + 2) for x, y in parts]


def _area(x: float, y: float, words: str, side: str, bold: bool = True) -> Box:
    wide = text_width(words, _SIZE, bold)
    left = {"start": x, "middle": x - wide / 2, "end": x - wide}[side]
    return left - 2, y - 11, left + wide + 2, y + 4


def _clear(area: Box, taken: list[Any]) -> bool:
    left, top, right, bottom = area
    return all(right <= a or left >= c or bottom <= b or top >= d for a, b, c, d in taken)


def _free(px: float, py: float, words: str, bold: bool, taken: list[Box]
          ) -> tuple[float, float, str] | None:
    """Where beside a point its name lies on no other: (x, y, anchor), None if nowhere near."""
    for down in (4, 20, -12, -28, 36, -44, 52, 68, 84, 100, 116):
        for side in ("start", "end", "middle") if abs(down) > 10 else ("start", "end"):
            x, y = px + {"start": 11, "end": -11, "middle": 0}[side], py + down
            left, top, right, bottom = _area(x, y, words, side, bold)
            inside = (left > _LEFT and right <= _LEFT + _WIDE + 8 and top > _TOP - 8
                      and bottom < _TOP + _HIGH)
            if inside and _clear((left, top, right, bottom), taken):
                return x, y, side
    return None
