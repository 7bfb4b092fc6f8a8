"""The picture of a comparison: four bars an op, and the room between cuBLAS and the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.pictures import BLUE, GREEN, GREY, ORANGE, SKY, Picture, _Canvas
from labkit.results import RECORDED

_LEFT, _WIDE, _RIGHT, _BAR, _GAP = 210, 470, 250, 20, 5
_LOSES = "#D55E00"  # vermillion of the same palette


def bars_of(results: Sequence[tuple[str, Any]], own_alone: str, alone: str, baseline: str,
            without: str) -> Picture:
    """results: (op, its `benchmark.Result`). own_alone, alone, baseline: names of the times beside
    the op's own. without: what to say where there are no results."""
    if not results:
        canvas = _Canvas(620, 44)
        canvas.label(20, 27, without, 13, "start")
        return canvas.done(without)
    group = 4 * (_BAR + _GAP) + 62
    canvas = _Canvas(_LEFT + _WIDE + _RIGHT, 66 + group * len(results))
    where = sorted({f"{r.gpu}, {r.date}" + ("" if r.measured_now else f" ({RECORDED})")
                    for _, r in results})
    canvas.label(20, 26, "Time of each op; every group has its own scale", 14, "start",
                 weight="bold")
    canvas.label(20, 45, "; ".join(where), 11, "start", GREY)
    words = [_group(canvas, 70 + group * i, name, result, own_alone, alone, baseline)
             for i, (name, result) in enumerate(results)]
    return canvas.done(f"{'; '.join(where)}. " + " ".join(words))


def _group(canvas: _Canvas, top: float, name: str, result: Any, own_alone: str, alone: str,
           baseline: str) -> str:
    m = result.measurement
    times = [(alone, m.references[alone], GREY), (own_alone, m.references[own_alone], SKY),
             ("own GEMM + epilogue", m.kernel_ms, BLUE), (baseline, m.baselines[baseline], ORANGE)]
    scale = _WIDE / max(ms for _, ms, _ in times)
    room, gain = times[3][1] / times[0][1], times[3][1] / times[2][1]
    shape = " x ".join(f"{n:,}" for n in m.shape.values())
    canvas.label(20, top + 14, name, 13, "start", weight="bold")
    canvas.label(_LEFT, top + 14, f"{shape}, {m.dtype}", 11, "start", GREY)
    first, last = _LEFT + times[0][1] * scale, _LEFT + times[3][1] * scale
    y = top + 24
    tall = 4 * (_BAR + _GAP) + 3
    if last > first:  # the room: what an epilogue can save at most
        canvas.box(first, y - 4, last - first, tall, ORANGE, "none", 0.22)
    for what, ms, colour in times:
        canvas.label(_LEFT - 8, y + 15, what, 11, "end")
        canvas.box(_LEFT, y, ms * scale, _BAR, colour, "none", 0.9)
        canvas.label(_LEFT + 8, y + 15, _time(ms), 11, "start",
                     "#1f2430" if colour in (ORANGE, SKY) else "#ffffff", "bold")
        y += _BAR + _GAP
    for x in (first, last):
        canvas.parts.append(f'<line x1="{x:.4g}" y1="{top + 20:.4g}" x2="{x:.4g}" '
                            f'y2="{top + 20 + tall:.4g}" stroke="#1f2430" stroke-width="1" '
                            'stroke-dasharray="4 3"/>')
    x = _LEFT + _WIDE + 16
    canvas.label(x, top + 42, f"room {room:.3f}", 13, "start", "#8a5a00", "bold")
    canvas.label(x, top + 58, "baseline over cuBLAS alone", 10.5, "start", GREY)
    canvas.label(x, top + 88, f"gain {gain:.3f}", 13, "start", GREEN if gain >= 1 else _LOSES,
                 "bold")
    canvas.label(x, top + 104, "baseline over own GEMM + epilogue", 10.5, "start", GREY)
    return (f"{name} at {shape}: " + ", ".join(f"{what} {_time(ms)}" for what, ms, _ in times)
            + f"; room {room:.3f}, gain {gain:.3f}.")


def _time(ms: float) -> str:
    return f"{ms:,.2f} ms" if ms >= 10 else f"{ms * 1e3:,.0f} us"
