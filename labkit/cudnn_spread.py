"""The picture of a graph's plans: how far apart their times are, and where the default stands."""

from __future__ import annotations

import math
from typing import Any

from labkit.pictures import BLUE, GREEN, GREY, ORANGE, PINK, SKY, Picture, _Canvas

_SHOWN = 8.0  # plans that take longer than this many times the best stand above the axis
_DASHES = ("", "7 4", "2 4", "9 3 2 3")
_LEFT, _TOP, _WIDE, _TALL, _ABOVE = 76, 82, 580, 230, 34


def spread(plans: Any) -> Picture:
    """The timed ones of `plans`, a `cudnn_plans.Plans`: the place in cuDNN's ranking across, the
    time on a logarithmic axis up, colour by engine; what they are compared with as lines. Plans
    far slower than the best stand in a strip above, with their times in words."""
    best = plans.best  # raises where nothing was timed
    timed = sorted(plans.ranked, key=lambda p: p.index)
    unit = best.kernel_ms * 1e3
    others = {name: ms * 1e3 for name, ms in plans.others.items()}
    low = min([unit, *others.values()]) * 0.9
    high = unit * _SHOWN
    last = max(timed[-1].index, 1)

    def x(index: int) -> float:
        return _LEFT + 14 + (_WIDE - 28) * index / last

    def y(us: float) -> float:
        return _TOP + _TALL * (1 - math.log(us / low) / math.log(high / low))

    colours = dict(zip(plans.engines, [BLUE, GREEN, PINK, SKY, GREY] * len(plans.engines),
                       strict=False))
    canvas = _Canvas(_LEFT + _WIDE + 270, _TOP + _TALL + 56)
    canvas.label(_LEFT, 24, f"{len(timed)} plans of one graph on {plans.gpu}", 13, "start",
                 weight="bold")
    canvas.box(_LEFT, _TOP - _ABOVE - 8, _WIDE, _ABOVE, "#f3f5f8")
    canvas.label(_LEFT - 8, _TOP - 21, "slower", 11, "end", GREY)
    canvas.box(_LEFT, _TOP, _WIDE, _TALL, "#ffffff")
    for tick in _ticks(low, high):
        canvas.line(_LEFT, y(tick), _LEFT + _WIDE, y(tick), "#e3e6eb", 1)
        canvas.label(_LEFT - 8, y(tick) + 4, in_words(tick), 11, "end", GREY)
    for index in range(0, last + 1, 5):
        canvas.label(x(index), _TOP + _TALL + 18, str(index), 11, colour=GREY)
    canvas.label(_LEFT + _WIDE / 2, _TOP + _TALL + 40,
                 "place in cuDNN's own ranking (0: the default)", 11, colour=GREY)
    dashes = dict(zip(others, _DASHES * len(others), strict=False))
    for name, us in others.items():
        if us < high:
            _line(canvas, _LEFT, y(us), _LEFT + _WIDE, dashes[name])
    far = [p for p in timed if p.kernel_ms * 1e3 >= high]
    for plan in timed:
        us = plan.kernel_ms * 1e3
        canvas.dot(x(plan.index), y(us) if us < high else _TOP - 25, colours[plan.engine])
    if far:
        text = ", ".join(in_words(p.kernel_ms * 1e3) for p in far[:6])
        canvas.label(x(far[0].index) - 12, _TOP - 21, text + (", …" if len(far) > 6 else ""), 11,
                     "end")
    canvas.parts.append(f'<circle cx="{x(best.index):.4g}" cy="{y(unit):.4g}" r="9" fill="none" '
                        'stroke="#1f2430" stroke-width="1.6"/>')
    _legend(canvas, plans, colours, others, dashes)
    worst = plans.ranked[-1]
    return canvas.done(
        f"{len(timed)} plans on {plans.gpu}, from {in_words(unit)} (place {best.index}) to "
        f"{in_words(worst.kernel_ms * 1e3)} (place {worst.index}); the default, place "
        f"{plans.default.index}, takes {in_words((plans.default.kernel_ms or math.nan) * 1e3)}. "
        + " ".join(f"{name} takes {in_words(us)}." for name, us in others.items()))


def _legend(canvas: _Canvas, plans: Any, colours: dict[int, str], others: dict[str, float],
            dashes: dict[str, str]) -> None:
    x, y = _LEFT + _WIDE + 18, _TOP + 8
    canvas.label(x, y, "engine", 11, "start", GREY, "bold")
    for engine, colour in colours.items():
        y += 19
        canvas.dot(x + 6, y - 4, colour)
        count = plans.engines[engine]
        canvas.label(x + 20, y, f"{engine}: {count} plan{'s' * (count > 1)}", 11, "start")
    y += 19
    canvas.parts.append(f'<circle cx="{x + 6:g}" cy="{y - 4:g}" r="6" fill="none" '
                        'stroke="#1f2430" stroke-width="1.6"/>')
    canvas.label(x + 20, y, f"the best: {in_words(plans.best.kernel_ms * 1e3)}", 11, "start")
    y += 12
    for name, us in others.items():
        y += 19
        _line(canvas, x - 2, y - 4, x + 16, dashes[name])
        canvas.label(x + 20, y, f"{name}: {in_words(us)}", 10.5, "start")


def _line(canvas: _Canvas, x1: float, y: float, x2: float, dash: str) -> None:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    canvas.parts.append(f'<line x1="{x1:.4g}" y1="{y:.4g}" x2="{x2:.4g}" y2="{y:.4g}" '
                        f'stroke="{ORANGE}" stroke-width="1.8"{dashed}/>')


def _ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [step * 10.0**power for power in range(first, last + 1) for step in (1, 2, 3, 5, 7)]
    return [tick for tick in found if low <= tick <= high]


def in_words(us: float) -> str:
    """Microseconds with the unit that suits them."""
    return f"{us / 1e3:,.4g} ms" if us >= 1000 else f"{us:,.4g} us"
