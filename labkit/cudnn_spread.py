"""The picture of a graph's plans: how far apart their times are, and where the default stands."""

from __future__ import annotations

import math
from typing import Any

from labkit.pictures import BLUE, GREEN, GREY, ORANGE, PINK, SKY, Picture, _Canvas


def spread(plans: Any) -> Picture:
    """The timed ones of `plans`, a `cudnn_plans.Plans`: place across, time on a log axis up."""
    timed = sorted((p for p in plans.plans if p.kernel_ms is not None), key=lambda p: p.index)
    best = plans.best  # raises where nothing was timed
    times = [p.kernel_ms * 1e3 for p in timed] + [ms * 1e3 for ms in plans.others.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)) + 0.05)
    left, top, wide, tall = 76, 44, 560, 250
    canvas = _Canvas(left + wide + 230, top + tall + 56)
    last = max(timed[-1].index, 1)

    def x(index: int) -> float:
        return left + 12 + (wide - 24) * index / last

    def y(us: float) -> float:
        return top + tall * (1 - (math.log10(us) - low) / (high - low))

    canvas.label(left, 24, f"{len(timed)} plans of one graph on {plans.gpu}", 13, "start",
                 weight="bold")
    canvas.box(left, top, wide, tall, "#ffffff")
    for power in range(low, high + 1):
        canvas.line(left, y(10.0**power), left + wide, y(10.0**power), "#e3e6eb", 1)
        canvas.label(left - 8, y(10.0**power) + 4, _time(10.0**power), 11, "end", GREY)
    for index in range(0, last + 1, 5):
        canvas.label(x(index), top + tall + 18, str(index), 11, colour=GREY)
    canvas.label(left + wide / 2, top + tall + 40, "place in cuDNN's own ranking (0: the default)",
                 11, colour=GREY)
    side = left + wide + 16
    colours = dict(zip(plans.engines, [BLUE, GREEN, PINK, SKY, GREY] * len(plans.engines),
                       strict=False))
    for ms in plans.others.values():
        canvas.line(left, y(ms * 1e3), left + wide, y(ms * 1e3), ORANGE, 1.5)
    for plan in timed:
        canvas.dot(x(plan.index), y(plan.kernel_ms * 1e3), colours[plan.engine])
    canvas.label(side, top + 8, "engine", 11, "start", GREY, "bold")
    for turn, (engine, colour) in enumerate(colours.items()):
        canvas.dot(side + 5, top + 24 + turn * 18, colour)
        canvas.label(side + 16, top + 28 + turn * 18, f"{engine}: {plans.engines[engine]} plans"
                     if plans.engines[engine] > 1 else f"{engine}: 1 plan", 11, "start")
    below = top + 24 + len(colours) * 18 + 14
    for turn, (name, ms) in enumerate(plans.others.items()):
        canvas.line(side, below + turn * 18, side + 12, below + turn * 18, ORANGE, 2)
        canvas.label(side + 18, below + 4 + turn * 18, f"{name}: {_time(ms * 1e3)}", 10.5, "start")
    worst = max(timed, key=lambda p: p.kernel_ms)
    return canvas.done(
        f"{len(timed)} plans on {plans.gpu}, from {_time(best.kernel_ms * 1e3)} (place "
        f"{best.index}) to {_time(worst.kernel_ms * 1e3)} (place {worst.index}); the default, "
        f"place {plans.default.index}, takes {_time(plans.default.kernel_ms * 1e3)}.")


def _time(us: float) -> str:
    return f"{us / 1e3:,.4g} ms" if us >= 1000 else f"{us:,.4g} us"
