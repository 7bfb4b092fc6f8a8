"""Pictures of a block: which GEMM carries which epilogue, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.epilogue.drawings import _arrow
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

# title, what the GEMM multiplies by, lines of the epilogue; "" for what is no GEMM
_FORWARD = (("QKV", "W_qkv", ("times r", "RoPE on pairs", "store q, k, v")),
            ("attention", "", ("torch's kernel", "reads q, k, v", "where they lie")),
            ("output", "W_o", ("plus x", "store x and x γ", "Σ x² of each tile")),
            ("gate and up", "W_in", ("times r", "SwiGLU on pairs", "store z and y")),
            ("down", "W_out", ("plus x", "store x and x γ", "Σ x² of each tile")))
_BACKWARD = (("QKV", "W_qkv", ("dRMSNorm with s", "plus dx; dγ of tiles", "x̂ γ for dW")),
             ("RoPE, attention", "", ("torch's kernel; then",
                                      "one that turns back", "and sums z dz")),
             ("output", "W_o", ("no epilogue:", "a plain GEMM,", "cuBLAS")),
             ("gate and up", "W_in", ("dRMSNorm with s", "plus dx; dγ of tiles", "x̂ γ for dW")),
             ("down", "W_out", ("dSwiGLU on pairs", "store dz, y again", "Σ z dz of each tile")))
_WEIGHTS = ("dzᵀ (x̂ γ)", "", "dxᵀ h", "dzᵀ (x̂ γ)", "dxᵀ y")
_LEFT, _STEP, _WIDE, _TALL = 58, 178, 150, 116


def block() -> Picture:
    """A block forward and backward: GEMMs in blue, their epilogues beneath, and the two row
    statistics that travel to the next GEMM."""
    canvas = _Canvas(_LEFT + 5 * _STEP + 18, 560)
    canvas.label(20, 28, "Forward, left to right", 14, "start", weight="bold")
    top = 46
    for i, box in enumerate(_FORWARD):
        _box(canvas, _at(i), top, *box)
        _arrow(canvas, _at(i) - 26, top + 17, _at(i) - 3, top + 17)
    _arrow(canvas, _at(4) + _WIDE + 2, top + 17, _at(4) + _WIDE + 25, top + 17)
    canvas.label(24, top + 8, "x γ", 11)
    _statistic(canvas, top + _TALL, 2, 3, "r = 1 / √(Σ x² / d + ε)", ORANGE)
    _statistic(canvas, top + _TALL, None, 0, "r of the block before", ORANGE)
    _statistic(canvas, top + _TALL, 4, None, "r for the next block", ORANGE)

    top = 276
    canvas.label(20, top - 18, "Backward, right to left", 14, "start", weight="bold")
    for i, box in enumerate(_BACKWARD):
        _box(canvas, _at(i), top, *box)
        _arrow(canvas, _at(i) + _WIDE + 25, top + 17, _at(i) + _WIDE + 3, top + 17)
    _arrow(canvas, _at(0) - 3, top + 17, _at(0) - 26, top + 17)
    canvas.label(24, top + 8, "dx", 11)
    _statistic(canvas, top + _TALL, 4, 3, "s = Σ z dz / d", PINK)
    _statistic(canvas, top + _TALL, 1, 0, "s = Σ z dz / d", PINK)
    y = top + _TALL + 68
    for i, product in enumerate(_WEIGHTS):
        if product:
            canvas.box(_at(i), y, _WIDE, 30, _EMPTY, _LINE)
            canvas.label(_at(i) + _WIDE / 2, y + 20, f"dW = {product}", 12)
    canvas.label(_at(1) + _WIDE / 2, y + 14, "weight gradients:", 11, colour=GREY)
    canvas.label(_at(1) + _WIDE / 2, y + 29, "plain GEMMs (cuBLAS)", 11, colour=GREY)
    for i, (colour, opacity, words) in enumerate((
            (BLUE, 0.9, "GEMM"), (SKY, 0.3, "its epilogue"),
            (ORANGE, 0.9, "statistic of a row, forward"),
            (PINK, 0.9, "statistic of a row, backward"))):
        x = (58, 150, 290, 540)[i]
        canvas.box(x, 526, 14, 14, colour, "none", opacity)
        canvas.label(x + 20, 538, words, 11, "start")
    return canvas.done(_WORDS)


_WORDS = """\
Forward: the QKV GEMM's epilogue multiplies by r and turns pairs; attention is torch's; the output \
projection's epilogue adds the residual, stores x and x gamma, and sums squares; gate and up: \
times r, SwiGLU, z stored; down: like the output projection. Backward: the down projection's \
gradient GEMM carries dSwiGLU and the sum of z dz; that of gate and up carries dRMSNorm with this \
sum, adds dx and sums dgamma; the output projection's is plain; after attention one kernel undoes \
RoPE and sums z dz; the QKV GEMM carries dRMSNorm. Weight gradients are plain GEMMs."""


def _at(i: int) -> float:
    return _LEFT + i * _STEP


def _box(canvas: _Canvas, x: float, y: float, title: str, weight: str,
         lines: Sequence[str]) -> None:
    fill = BLUE if weight else GREY
    canvas.box(x, y, _WIDE, 34, fill, fill, 0.9)
    words = f"{title}: {weight}" if weight else title
    canvas.label(x + _WIDE / 2, y + 22, words, 12.5, colour="#ffffff", weight="bold")
    canvas.box(x, y + 34, _WIDE, _TALL - 34, SKY if weight else _EMPTY, fill, 0.3)
    for number, line in enumerate(lines):
        canvas.label(x + _WIDE / 2, y + 56 + 20 * number, line, 11.5)


def _statistic(canvas: _Canvas, y: float, start: int | None, end: int | None, words: str,
               colour: str) -> None:
    """An arrow beneath the boxes, from one's lower edge to another's; None: the picture's edge."""
    low = y + 26
    forward = start is None or end is None or end > start
    a = 20 if start is None else _at(start) + _WIDE * (0.6 if forward else 0.4)
    b = canvas.width - 20 if end is None else _at(end) + _WIDE * (0.4 if forward else 0.6)
    if start is not None:
        canvas.line(a, y, a, low, colour, 2)
    if end is None:
        _arrow(canvas, a, low, b, low, colour)
    else:
        canvas.line(a, low, b, low, colour, 2)
        _arrow(canvas, b, low, b, y + 3, colour)
    anchor, at = ("start", 20) if start is None else ("end", b) if end is None else (
        "middle", (a + b) / 2)
    canvas.label(at, low + 17, words, 11.5, anchor)


_KINDS = ((BLUE, 0.9), (ORANGE, 0.85), (GREEN, 0.75), (PINK, 0.75))


def stacked(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> Picture:
    """One bar a row, in parts: (name, part -> milliseconds). All rows have the same parts."""
    left, wide, bar, gap = 150, 560, 34, 20
    canvas = _Canvas(left + wide + 110, 92 + len(rows) * (bar + gap))
    canvas.label(20, 26, title, 14, "start", weight="bold")
    parts = list(rows[0][1])
    at = 20.0
    for (colour, opacity), name in zip(_KINDS, parts, strict=False):
        canvas.box(at, 42, 14, 14, colour, "none", opacity)
        canvas.label(at + 20, 54, name, 11.5, "start")
        at += 48 + 7.2 * len(name)
    scale = wide / max(sum(row.values()) for _, row in rows)
    for i, (name, row) in enumerate(rows):
        x, y = float(left), 76 + i * (bar + gap)
        canvas.label(left - 10, y + 22, name, 12.5, "end", weight="bold")
        for (colour, opacity), part in zip(_KINDS, parts, strict=False):
            w = row[part] * scale
            canvas.box(x, y, w, bar, colour, "#ffffff", opacity)
            if w > 44:
                canvas.label(x + w / 2, y + 22, f"{row[part]:.2f}", 11,
                             colour="#ffffff" if colour == BLUE else _INK, weight="bold")
            x += w
        canvas.label(x + 8, y + 22, f"{sum(row.values()):.2f} ms", 12.5, "start", weight="bold")
    return canvas.done(f"{title}. " + " ".join(
        f"{name}: " + ", ".join(f"{part} {row[part]:.2f} ms" for part in parts) + "."
        for name, row in rows))


def curves(title: str, lines: Mapping[str, Sequence[float]]) -> Picture:
    """Values over the number of the step, one line each; the first one broad, so that others that
    lie on it are seen."""
    left, top, wide, tall = 60, 74, 620, 250
    canvas = _Canvas(left + wide + 30, top + tall + 52)
    canvas.label(20, 26, title, 14, "start", weight="bold")
    highest = max(max(values) for values in lines.values())
    count = max(len(values) for values in lines.values())
    for part in range(5):
        y = top + tall * part / 4
        canvas.line(left, y, left + wide, y, _LINE, 1)
        canvas.label(left - 8, y + 4, f"{highest * (4 - part) / 4:.2f}", 11, "end", GREY)
    for part in range(5):
        number = round((count - 1) * part / 4)
        x = left + wide * number / max(count - 1, 1)
        canvas.label(x, top + tall + 18, str(number), 11, colour=GREY)
    canvas.label(left + wide / 2, top + tall + 38, "step", 11.5)
    at = 20.0
    for i, (name, values) in enumerate(lines.items()):
        colour, width = (GREY, ORANGE, BLUE)[i % 3], (6, 2.4, 1.8)[i % 3]
        dash = ' stroke-dasharray="7 4"' if i % 3 == 2 else ""
        points = " ".join(f"{left + wide * n / max(count - 1, 1):.1f},"
                          f"{top + tall * (1 - value / highest):.1f}"
                          for n, value in enumerate(values))
        canvas.parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" '
                            f'stroke-width="{width}" stroke-linejoin="round" '
                            f'stroke-opacity="{0.55 if i % 3 == 0 else 1}"{dash}/>')
        canvas.line(at, 50, at + 26, 50, colour, width)
        canvas.label(at + 34, 54, name, 11.5, "start")
        at += 62 + 7.2 * len(name)
    return canvas.done(f"{title}. " + " ".join(
        f"{name}: from {values[0]:.2f} to {values[-1]:.2f}." for name, values in lines.items()))
