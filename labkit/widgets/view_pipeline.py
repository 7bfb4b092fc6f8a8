"""When tiles are copied and when they are multiplied, for a number of pipeline stages."""

from __future__ import annotations

from typing import Any

from labkit.errors import BadArgument
from labkit.pictures import _INK, GREEN, ORANGE, SKY, Picture
from labkit.pictures import pipeline_times as times
from labkit.widgets.view_marks import (
    NOTE,
    PALE,
    RED,
    counts,
    dashed,
    fit,
    hatch,
    new_canvas,
    percent,
    positive,
    text_width,
    whole,
)

_MOST_STEPS, _MOST_LANES = 12, 8
_LEFT, _WIDE = 104, 592


def total(stages: int, steps: int, copy: float, math: float, gap: float = 0) -> float:
    """When the last product of `times` ends, without going through the steps.

    The end is the longest chain of things that wait for one another. A chain has some rounds of
    copy and product that hand a buffer on, each `stages` steps further; all other steps cost it
    one product or one gap each. That is linear in the number of rounds, so none or all of them.
    """
    if not steps:
        return 0
    buffers, slower = max(stages, 1), max(math, gap)
    rounds, rest = divmod(steps - 1, buffers)
    return copy + math + max((steps - 1) * slower, rounds * (copy + math) + rest * slower)


def timeline(stages: int, steps: int, copy: float, math: float, gap: float = 0) -> Picture:
    """The lanes of a pipelined loop over time: one for each buffer, one for the tensor cores.

    stages: `num_stages`; 0 and 1 are one buffer, so copy and product alternate. steps: along K.
    copy: how long a copy takes from its start to its arrival, math: a product, in any one unit of
    time. gap: how long after the start of a copy the next may start, at most `copy`: for how long
    one copy keeps the memory busy, its bytes over the block's share of the bandwidth. 0 leaves
    only the buffers to hold a copy back, which is right where the wait is all latency. The first
    12 steps are drawn, to one scale for every number of stages; totals are of all steps. Raises
    BadArgument.
    """
    counts(0, stages=stages)
    counts(1, steps=steps)
    positive(copy=copy, math=math)
    if gap:
        positive(gap=gap)
    if gap > copy:
        raise BadArgument(f"gap is {gap:g}, longer than a copy of {copy:g}; give 0 to {copy:g}.")
    buffers, shown = max(stages, 1), min(steps, _MOST_STEPS)
    copies, products = times(stages, shown, copy, math, gap)
    end, busy = total(stages, steps, copy, math, gap), steps * math
    alone = steps * (copy + math)
    waits = max(end - busy, 0)
    noun = "1 buffer" if buffers == 1 else f"{whole(buffers)} buffers"
    take = f"{whole(steps)} steps take" if steps > 1 else "1 step takes"
    title = (f"num_stages {whole(stages)}: {noun}, {take} {_units(end)} units of time, tensor "
             f"cores busy {percent(busy / end)}")
    lanes = min(buffers, shown, _MOST_LANES)
    top, row, high = 62, 29, 23
    bottom = top + (lanes + 1) * row
    canvas = new_canvas(title, bottom + 66)
    scale = _WIDE / (shown * (copy + math))
    x = 20.0
    for colour, striped, words in ((SKY, False, "copy on its way"),
                                   (ORANGE, False, "tile waits or is in use"),
                                   (GREEN, False, "product"), (RED, True, "tensor cores wait")):
        canvas.box(x, 37, 12, 12, "#ffffff" if striped else colour, colour,
                   0.3 if colour == ORANGE else 0.85)
        if striped:
            hatch(canvas, x, 37, 12, 12, RED, 5)
        canvas.label(x + 18, 47, words, 10, "start", NOTE)
        x += 34 + text_width(words, 10)

    for lane in range(lanes):
        y = top + lane * row
        canvas.label(_LEFT - 8, y + 16, f"buffer {lane}", 11, "end")
        canvas.box(_LEFT, y, products[-1][1] * scale, high, PALE, "#e3e6eb")
        for i in range(lane, shown, buffers):
            (start, arrives), (_, done) = copies[i], products[i]
            _span(canvas, start, arrives, y, high, scale, SKY, 0.85, (f"copy {i}", str(i)))
            _span(canvas, arrives, done, y, high, scale, ORANGE, 0.3, (str(i),))
    y = top + lanes * row
    canvas.label(_LEFT - 8, y + 16, "tensor cores", 11, "end", weight="bold")
    before = 0.0
    for i, (begin, done) in enumerate(products):
        if (begin - before) * scale > 0.5:
            canvas.box(_LEFT + before * scale, y, (begin - before) * scale, high, "#ffffff", RED)
            hatch(canvas, _LEFT + before * scale, y, (begin - before) * scale, high, RED)
        _span(canvas, begin, done, y, high, scale, GREEN, 0.85, (str(i),))
        before = done
    at = _LEFT + products[-1][1] * scale
    dashed(canvas, at, top - 6, at, bottom + 4, _INK)
    last = f"step {shown - 1} done at {_units(products[-1][1])}"
    half = text_width(last, 11) / 2
    canvas.label(min(max(at, _LEFT + half), _LEFT + _WIDE - half), bottom + 18, last, 11)
    hidden = [f"{whole(steps - shown)} more steps"] if steps > shown else []
    hidden += [f"{whole(min(buffers, shown) - lanes)} more buffers"] * (min(buffers, shown) > lanes)
    if buffers > steps:
        hidden.append(f"{whole(buffers - steps)} buffers that no step uses")
    left_out = f"Not drawn: {', '.join(hidden)}." if hidden else ""
    verdict = _verdict(buffers, steps, copy, math, gap, waits, end, alone)
    canvas.label(20, bottom + 38, fit(verdict, 680, 11), 11, "start")
    canvas.label(20, bottom + 55, left_out, 10, "start", NOTE)
    return canvas.done(f"{title}; they wait for {_units(waits)} units. A copy takes "
                       f"{_units(copy)}, a product {_units(math)}. "
                       f"{verdict}{' ' if left_out else ''}{left_out}")


def _verdict(buffers: int, steps: int, copy: float, math: float, gap: float, waits: float,
             end: float, alone: float) -> str:
    """What the number of buffers does to the total."""
    if buffers == 1:
        more = total(2, steps, copy, math, gap)
        return (f"Copy and product alternate. Two buffers would take {_units(more)} units, "
                f"{percent(1 - more / alone)} less." if more < alone
                else "One step has nothing to overlap with.")
    gain = (f"One buffer would take {_units(alone)} units; this saves {percent(1 - end / alone)}."
            if end < alone else "One buffer would take as long.")
    more = total(buffers + 1, steps, copy, math, gap)
    if more < end * (1 - 1e-9):
        return f"{gain} One more buffer: {_units(more)} units."
    return f"{gain} One more buffer would save nothing."


def _span(canvas: Any, start: float, stop: float, y: float, high: float, scale: float, colour: str,
          opacity: float, names: tuple[str, ...]) -> None:
    wide = (stop - start) * scale
    if wide < 0.2:
        return
    canvas.box(round(_LEFT + start * scale, 1), y, round(wide, 1), high, colour, "#ffffff", opacity)
    for name in names:
        if text_width(name, 10) + 2 < wide:
            canvas.label(round(_LEFT + start * scale + wide / 2, 1), y + 15, name, 10)
            break


def _units(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.4g}"
