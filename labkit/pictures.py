"""Pictures of tiles, blocks and pipelines, as SVG that is the same on every run.

Each function returns a `Picture`: it shows itself in a notebook, and its `text` says the same in
words, for readers who do not see it. Colours are from Okabe and Ito's colour-blind palette.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Real
from typing import Any

from labkit.errors import BadArgument

BLUE, ORANGE, GREEN, SKY, PINK, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#56B4E9", "#CC79A7", "#8A8F98")
_INK, _LINE, _EMPTY = "#1f2430", "#c9ced6", "#f3f5f8"
_MOST_BOXES = 6_000  # about 1 MB of SVG

Span = tuple[float, float]  # from when to when


@dataclass(frozen=True)
class Picture:
    """An SVG drawing with its description in words."""

    svg: str
    text: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return self.text


class _Canvas:
    def __init__(self, width: float, height: float) -> None:
        self.width, self.height, self.parts = width, height, []

    def box(self, x: float, y: float, w: float, h: float, fill: str = _EMPTY, line: str = _LINE,
            opacity: float = 1, dash: str = "") -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" '
                          f'fill-opacity="{opacity:g}" stroke="{line}"{dashed}/>')

    def label(self, x: float, y: float, text: str, size: float = 12, anchor: str = "middle",
              colour: str = _INK, weight: str = "normal") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" '
                          f'text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float) -> None:
        self.parts.append(f'<line x1="{x1:.4g}" y1="{y1:.4g}" x2="{x2:.4g}" y2="{y2:.4g}" '
                          f'stroke="{colour}" stroke-width="{width:g}"/>')

    def dot(self, x: float, y: float, colour: str) -> None:
        self.parts.append(f'<circle cx="{x:.4g}" cy="{y:.4g}" r="5" fill="{colour}"/>')

    def done(self, text: str) -> Picture:
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" '
                f'height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
                f'font-family="DejaVu Sans, Verdana, sans-serif"><title>{escape(text)}</title>'
                f'<rect width="100%" height="100%" rx="6" fill="#ffffff"/>')
        return Picture(head + "".join(self.parts) + "</svg>", text)


def vector_blocks(N: int, block: int) -> Picture:
    """A vector of N elements cut into blocks of `block`, with the ragged tail of the last one."""
    _positive(N=N, block=block)
    blocks = -(-N // block)
    tail = N - (blocks - 1) * block
    shown = list(range(blocks)) if blocks <= 6 else [0, 1, 2, None, blocks - 2, blocks - 1]
    width, gap, left, top = 100, 8, 20, 46
    canvas = _Canvas(left * 2 + len(shown) * (width + gap) - gap, 132)
    canvas.label(left, 24, f"{N:,} elements, {block:,} a block: {blocks:,} blocks", 13, "start",
                 weight="bold")
    for place, index in enumerate(shown):
        x = left + place * (width + gap)
        if index is None:
            canvas.label(x + width / 2, top + 26, "…", 20)
            continue
        inside = width * (tail / block if index == blocks - 1 else 1)
        canvas.box(x, top, width, 40, dash="4 3" if inside < width else "")
        canvas.box(x, top, inside, 40, BLUE, BLUE, 0.85)
        canvas.label(x + width / 2, top + 58, f"bx = {index}")
        canvas.label(x + width / 2, top + 74, f"from {index * block:,}", 10, colour=GREY)
    if tail < block:
        canvas.label(left + len(shown) * (width + gap) - gap - 2, top - 6,
                     f"{block - tail:,} past the end: guarded", 10, "end", ORANGE, "bold")
    return canvas.done(f"{N:,} elements in {blocks:,} blocks of {block:,}; the last block has "
                       f"{tail:,} elements, so {block - tail:,} of its positions are guarded.")


def row_reduce(values: Sequence[float], threads: int, *, what: str = "maximum",
               combine: Callable[[Iterable[float]], float] = max) -> Picture:
    """How a block reduces one row: each thread its own elements, then the threads together.

    values: the row. threads: how many share it; must divide its length. combine: of several
    numbers makes one.
    """
    _positive(threads=threads)
    numbers = isinstance(values, Sequence) and all(
        isinstance(value, Real) and math.isfinite(value) for value in values)
    row = list(values) if numbers else []
    if not row or len(row) % threads or len(row) > 64:
        raise BadArgument(f"The row is {values!r}; give 1 to 64 finite numbers that {threads} "
                          "threads can share evenly.")
    each = len(row) // threads
    cell, gap, left = 40, 14, 20
    colours = (BLUE, ORANGE, GREEN, PINK, SKY)
    canvas = _Canvas(2 * left + len(row) * cell + (threads - 1) * gap, 232)
    canvas.label(left, 24, f"A row of {len(row)} elements in the registers of {threads} threads",
                 13, "start", weight="bold")
    partial, middles = [], []
    for thread in range(threads):
        x, colour = left + thread * (each * cell + gap), colours[thread % len(colours)]
        own = row[thread * each:(thread + 1) * each]
        for place, value in enumerate(own):
            canvas.box(x + place * cell, 40, cell - 3, 30, colour, colour, 0.25)
            canvas.label(x + place * cell + (cell - 3) / 2, 60, f"{value:g}", 12)
        middle = x + (each * cell - 3) / 2
        partial.append(combine(own))
        middles.append(middle)
        canvas.line(middle, 74, middle, 92, colour, 2)
        canvas.box(middle - 30, 94, 60, 30, colour, colour, 0.85)
        canvas.label(middle, 114, f"{partial[-1]:g}", 13, colour="#ffffff", weight="bold")
        canvas.label(middle, 140, f"thread {thread}", 10, colour=GREY)
    centre = canvas.width / 2
    for middle in middles:
        canvas.line(middle, 146, centre, 168, _LINE, 1.5)
    canvas.box(centre - 34, 168, 68, 30, _INK, _INK)
    canvas.label(centre, 188, f"{combine(partial):g}", 13, colour="#ffffff", weight="bold")
    canvas.label(centre, 216, f"the row's {what}, known to every thread", 11)
    return canvas.done(f"{threads} threads hold {each} elements of a row each. Their own "
                       f"results are {', '.join(f'{value:g}' for value in partial)}; together "
                       f"they make {combine(partial):g}, the row's {what}.")


def gemm_tiles(M: int, N: int, K: int, block_M: int, block_N: int, block_K: int, *,
               by: int = 0, bx: int = 0, k: int = 0) -> Picture:
    """What block (by, bx) of a GEMM reads at step k: one tile of A, one of B, for one tile of C."""
    _positive(M=M, N=N, K=K, block_M=block_M, block_N=block_N, block_K=block_K)
    rows, columns, steps = (-(-size // tile) for size, tile in
                            ((M, block_M), (N, block_N), (K, block_K)))
    for name, value, count in (("by", by, rows), ("bx", bx, columns), ("k", k, steps)):
        if not isinstance(value, int) or not 0 <= value < count:
            raise BadArgument(f"{name} is {value!r}, but there are {count} of them; give 0 to "
                              f"{count - 1}.")
    _drawable(rows * columns + steps * (rows + columns), "use larger tiles or smaller sizes")
    longest = max(M, N, K)
    scale, pad, gap, top = 190 / longest, 24, 34, 44
    m, n, depth = M * scale, N * scale, K * scale
    canvas = _Canvas(pad * 2 + depth + gap + n + 210, top + depth + gap + m + pad)
    ax, ay = pad, top + depth + gap
    bx0, by0 = pad + depth + gap, top

    def matrix(x: float, y: float, h: int, w: int, tile_h: int, tile_w: int, title: str,
               paint: Callable[[int, int], tuple[str, float]]) -> None:
        canvas.label(x + w * scale / 2, y - 8, title, 12, weight="bold")
        for r in range(-(-h // tile_h)):
            for c in range(-(-w // tile_w)):
                fill, opacity = paint(r, c)
                canvas.box(x + c * tile_w * scale, y + r * tile_h * scale,
                           min(tile_w, w - c * tile_w) * scale,
                           min(tile_h, h - r * tile_h) * scale, fill, _LINE, opacity)

    def of_a(r: int, c: int) -> tuple[str, float]:
        return (_EMPTY, 1.0) if r != by else (BLUE, 0.95 if c == k else 0.25)

    def of_b(r: int, c: int) -> tuple[str, float]:
        return (_EMPTY, 1.0) if c != bx else (ORANGE, 0.95 if r == k else 0.25)

    def of_c(r: int, c: int) -> tuple[str, float]:
        return (GREEN, 0.9) if (r, c) == (by, bx) else (_EMPTY, 1.0)

    matrix(bx0, by0, K, N, block_K, block_N, f"B  {K} x {N}", of_b)
    matrix(ax, ay, M, K, block_M, block_K, f"A  {M} x {K}", of_a)
    matrix(bx0, ay, M, N, block_M, block_N, f"C  {M} x {N}", of_c)
    x = bx0 + n + 22
    for line, (text, colour) in enumerate([
            (f"block (by={by}, bx={bx}) at k = {k} of {steps}", _INK),
            (f"A tile {block_M} x {block_K}", BLUE), (f"B tile {block_K} x {block_N}", ORANGE),
            (f"C tile {block_M} x {block_N}, kept in", GREEN), ("registers for all steps", GREEN),
            (f"grid: {rows} rows x {columns} columns", _INK)]):
        canvas.label(x, by0 + 12 + line * 19, text, 11, "start", colour,
                     "bold" if line == 0 else "normal")
    return canvas.done(
        f"Block (by={by}, bx={bx}) computes one {block_M} x {block_N} tile of C. At step {k} of "
        f"{steps} it reads the {block_M} x {block_K} tile of A in tile row {by} and the "
        f"{block_K} x {block_N} tile of B in tile column {bx}. The grid has {rows} rows and "
        f"{columns} columns of blocks.")


def block_order(rows: int, columns: int, at_once: int, panel: int = 0) -> Picture:
    """Which tiles of C are computed together when `at_once` blocks fit on the GPU.

    rows, columns: tiles of C. panel: 0 for the plain order, else the panel of `T.use_swizzle`,
    which walks `panel` tile rows down before it moves to the next column, and turns at the ends.
    The text counts the tile rows of A and tile columns of B that the first wave reads.
    """
    _positive(rows=rows, columns=columns, at_once=at_once)
    _drawable(rows * columns, "use larger tiles or smaller sizes, so fewer rows and columns")
    order = launch_order(rows, columns, panel)
    wave = order[:at_once]
    a_rows, b_columns = len({r for r, _ in wave}), len({c for _, c in wave})
    cell = min(26, 420 / max(columns, 1))
    pad, top = 46, 52
    canvas = _Canvas(pad * 2 + columns * cell + 150, top + rows * cell + 16)
    title = f"swizzle, panel {panel}" if panel else "plain order"
    canvas.label(pad, 22, f"{title}: the first {len(wave)} blocks", 13, "start", weight="bold")
    turn = {place: number for number, place in enumerate(order)}
    canvas.box(pad, top, columns * cell, rows * cell)
    for c in range(1, columns):
        canvas.line(pad + c * cell, top, pad + c * cell, top + rows * cell, _LINE, 1)
    for r in range(1, rows):
        canvas.line(pad, top + r * cell, pad + columns * cell, top + r * cell, _LINE, 1)
    for r in range(rows):
        for c in range(columns):
            first = turn[r, c] < at_once
            if first:
                canvas.box(pad + c * cell, top + r * cell, cell, cell, GREEN, "#ffffff", 0.85)
            if cell >= 22:
                canvas.label(pad + (c + 0.5) * cell, top + (r + 0.65) * cell, str(turn[r, c]), 9,
                             colour="#ffffff" if first else GREY)
    for r in {r for r, _ in wave}:
        canvas.box(pad - 16, top + r * cell + 1, 10, cell - 2, BLUE, BLUE)
    for c in {c for _, c in wave}:
        canvas.box(pad + c * cell + 1, top - 16, cell - 2, 10, ORANGE, ORANGE)
    x = pad + columns * cell + 18
    canvas.label(x, top + 12, f"rows of A: {a_rows}", 11, "start", BLUE, "bold")
    canvas.label(x, top + 30, f"columns of B: {b_columns}", 11, "start", ORANGE, "bold")
    canvas.label(x, top + 48, f"together: {a_rows + b_columns}", 11, "start", weight="bold")
    return canvas.done(f"{title}: the first {len(wave)} blocks read {a_rows} tile rows of A and "
                       f"{b_columns} tile columns of B, {a_rows + b_columns} together.")


def launch_order(rows: int, columns: int, panel: int = 0) -> list[tuple[int, int]]:
    """The (tile row, tile column) of each block in launch order.

    blockIdx.x counts columns of C and runs fastest. With a panel, TileLang's
    `rasterization2DRow<panel>` takes `panel` rows together, column by column, and walks every
    second panel backwards (tl_templates/cuda/threadblock_swizzle.h).
    """
    _positive(rows=rows, columns=columns)
    if not isinstance(panel, int) or panel < 0:
        raise BadArgument(f"panel is {panel!r}; give a whole number of at least 1, or 0 for the "
                          "plain order.")
    if not panel:
        return [divmod(i, columns) for i in range(rows * columns)]
    order = []
    for index, start in enumerate(range(0, rows, panel)):
        height = min(panel, rows - start)
        for i in range(height * columns):
            column, row = divmod(i, height)
            order.append((start + row, columns - 1 - column if index % 2 else column))
    return order


def pipeline(num_stages: int, steps: int = 6, copy: int = 6, compute: int = 3) -> Picture:
    """When tile k is copied and when it is used, with `num_stages` buffers in shared memory.

    A copy takes `copy` units of time from its start to its arrival, and several can be on their
    way; the matrix product of a tile takes `compute` units. A copy needs a free buffer, so the
    number of buffers is the number of copies that can run ahead.
    """
    _positive(num_stages=num_stages, steps=steps, copy=copy, compute=compute)
    _drawable(num_stages + 2 * steps, "use larger tiles or smaller sizes, so fewer steps, and "
              "fewer stages")
    copies, products = pipeline_times(num_stages, steps, copy, compute)
    end = products[-1][1]
    unit, left, top, high = min(22.0, 620 / (steps * (copy + compute))), 96, 36, 22
    canvas = _Canvas(left + steps * (copy + compute) * unit + 24,
                     top + (num_stages + 1) * (high + 6) + 10)
    idle = end - steps * compute
    name = "1 stage" if num_stages == 1 else f"{num_stages} stages"
    canvas.label(20, 22, f"{name}: {end} units of time, tensor cores wait for {idle}", 13, "start",
                 weight="bold")
    lanes = [(f"buffer {stage}", copies[stage::num_stages], range(stage, steps, num_stages), SKY)
             for stage in range(num_stages)]
    lanes.append(("tensor cores", products, range(steps), GREEN))
    for row, (title, spans, tiles, colour) in enumerate(lanes):
        y = top + row * (high + 6)
        canvas.label(left - 8, y + 15, title, 11, "end")
        canvas.box(left, y, end * unit, high)
        for k, (start, stop) in zip(tiles, spans, strict=True):
            canvas.box(left + start * unit, y, (stop - start) * unit, high, colour, "#ffffff", 0.9)
            canvas.label(left + (start + stop) / 2 * unit, y + 15,
                         f"copy {k}" if colour == SKY else str(k), 10)
    return canvas.done(f"{name}: {steps} tiles take {end} units of time; the tensor cores wait "
                       f"for {idle} of them.")


def pipeline_times(num_stages: int, steps: int, copy: float, compute: float, gap: float = 1
                   ) -> tuple[list[Span], list[Span]]:
    """(start, end) of the copy and of the product of each step.

    There are max(num_stages, 1) buffers: `T.Pipelined` has one for num_stages 0 and 1. The copy of
    a step starts when the product that last used its buffer is done, and `gap` after the copy
    before it started. A product starts when its copy has arrived and the product before it is done.
    """
    buffers = max(num_stages, 1)
    copies: list[Span] = []
    products: list[Span] = []
    for k in range(steps):
        free = products[k - buffers][1] if k >= buffers else 0
        start = max(copies[-1][0] + gap, free) if copies else free
        copies.append((start, start + copy))
        begin = max(copies[k][1], products[-1][1] if products else 0)
        products.append((begin, begin + compute))
    return copies, products


def attention_overlap(tiles: int = 4, product: float = 1, terms: float = 1) -> Picture:
    """One warpgroup of FlashAttention, with each step after the other and with scores ahead.

    tiles: of keys. A product (scores, or values) takes `product` units of time on the tensor cores,
    the exponentials of a tile take `terms` units on the other units. The defaults are the
    proportion on an H100 at a head of 128 (Shah and others, 2024, section 3.1).

    Raises BadArgument for a number that does not fit, or too many tiles to draw.
    """
    _positive(tiles=tiles)
    _above_zero(product=product, terms=terms)
    _drawable(6 * tiles, "draw fewer tiles")
    ways = [("one after the other", attention_times(tiles, product, terms, ahead=False)),
            ("scores ahead", attention_times(tiles, product, terms, ahead=True))]
    longest = max(stop for _, spans in ways for *_, stop in spans)
    unit, left, high = min(46.0, 640 / longest), 104, 22
    canvas = _Canvas(left + longest * unit + 24, 2 * (2 * high + 52) + 6)
    said = []
    for way, (title, spans) in enumerate(ways):
        top, end = 36 + way * (2 * high + 52), max(stop for *_, stop in spans)
        idle = end - 2 * tiles * product
        canvas.label(20, top - 12, f"{title}: {end:g} units of time, tensor cores wait for "
                     f"{idle:g}", 13, "start", weight="bold")
        said.append(f"{title}: {tiles} tiles take {end:g} units of time, and the tensor cores wait "
                    f"for {idle:g} of them")
        for row, lane in enumerate(("tensor cores", "exponentials")):
            canvas.label(left - 8, top + row * (high + 6) + 15, lane, 11, "end")
            canvas.box(left, top + row * (high + 6), end * unit, high)
        for what, k, start, stop in spans:
            y = top + (high + 6) * (what == "exp")
            colour = {"QK": SKY, "PV": GREEN, "exp": ORANGE}[what]
            canvas.box(left + start * unit, y, (stop - start) * unit, high, colour, "#ffffff", 0.9)
            canvas.label(left + (start + stop) / 2 * unit, y + 15, f"{what} {k}", 10)
    return canvas.done("; ".join(said).capitalize() + ".")


def attention_times(tiles: int, product: float, terms: float, *, ahead: bool
                    ) -> list[tuple[str, int, float, float]]:
    """(what, tile, start, end) of the scores "QK", exponentials "exp" and values "PV" of each tile.

    One warpgroup starts its products in the order of its program, and the tensor cores do them in
    that order. ahead: the scores of a tile are started before the values of the tile before.
    """
    spans: list[tuple[str, int, float, float]] = []
    now = cores = 0.0  # when the warpgroup, and the tensor cores, are free
    for k in range(tiles + ahead):
        if k < tiles:
            start = max(now, cores)
            cores = start + product
            spans.append(("QK", k, start, cores))
            scored = cores
        if ahead and k:  # issued right behind the scores
            start = max(now, cores)
            cores = start + product
            spans.append(("PV", k - 1, start, cores))
        if k < tiles:
            spans.append(("exp", k, scored, scored + terms))
            now = scored + terms
        if ahead:
            now = max(now, cores)  # the next terms replace those that the values were made of
        else:
            spans.append(("PV", k, now, now + product))
            now = cores = now + product
    return spans


def roofline(floors: Any, points: Sequence[tuple[str, float, float]], dtype: str = "float16"
             ) -> Picture:
    """Kernels under the two floors: operations per byte across, TFLOP/s up, both logarithmic.

    floors: a `labkit.roofline.Floors`. points: (name, operations per byte, TFLOP/s), both
    numbers above 0.
    """
    points = _listed(points)
    peak = floors.tensor_tflops.get(dtype)
    if not peak or not points:
        raise BadArgument(f"A roofline needs the tensor-core rate for {dtype} and at least one "
                          "kernel; pass floors that have it, and points.")
    for point in points:
        if not _is_point(point):
            raise BadArgument(f"{point!r} is no point of a roofline; give (name, operations per "
                              "byte, TFLOP/s) with both numbers above 0 and finite.")
    ridge = peak * 1e3 / floors.copy_gb_s
    xs, ys = [x for _, x, _ in points] + [ridge], [y for _, _, y in points] + [peak]
    low_x, high_x = math.floor(math.log10(min(xs) / 2)), math.ceil(math.log10(max(xs) * 2))
    low_y, high_y = math.floor(math.log10(min(ys) / 2)), math.ceil(math.log10(max(ys) * 1.5))
    left, top, width, height = 74, 40, 520, 250
    canvas = _Canvas(left + width + 30, top + height + 56)

    def at(x: float, y: float) -> tuple[float, float]:
        return (left + (math.log10(x) - low_x) / (high_x - low_x) * width,
                top + height - (math.log10(y) - low_y) / (high_y - low_y) * height)

    canvas.label(left, 24, f"{floors.gpu}: what its memory and its {dtype} tensor cores allow", 13,
                 "start", weight="bold")
    for power in range(low_x, high_x + 1):
        x, _ = at(10.0**power, 10.0**low_y)
        canvas.line(x, top, x, top + height, _LINE, 1)
        canvas.label(x, top + height + 18, f"{10.0**power:g}", 10, colour=GREY)
    for power in range(low_y, high_y + 1):
        _, y = at(10.0**low_x, 10.0**power)
        canvas.line(left, y, left + width, y, _LINE, 1)
        canvas.label(left - 8, y + 4, f"{10.0**power:g}", 10, "end", GREY)
    canvas.label(left + width / 2, top + height + 40, "operations for each byte moved", 11)
    canvas.label(left - 8, top - 8, "TFLOP/s", 11, "end")
    start = max(10.0**low_x, 10.0**low_y * 1e3 / floors.copy_gb_s)
    canvas.line(*at(start, start * floors.copy_gb_s / 1e3), *at(ridge, peak), ORANGE, 3)
    canvas.line(*at(ridge, peak), *at(10.0**high_x, peak), GREEN, 3)
    middle = math.sqrt(start * ridge)
    x, y = at(middle, middle * floors.copy_gb_s / 1e3)
    canvas.label(x - 10, y - 8, f"memory: {floors.copy_gb_s:,.0f} GB/s", 11, "end", ORANGE)
    canvas.label(left + width - 4, at(1, peak)[1] - 9, f"tensor cores: {peak:,.0f} TFLOP/s", 11,
                 "end", GREEN)
    for name, x, y in points:
        px, py = at(x, y)
        canvas.dot(px, py, BLUE)
        canvas.label(px + 9, py + 16, name, 11, "start", BLUE, "bold")
    listed = "; ".join(f"{name}: {y:,.3g} TFLOP/s at {x:,.3g} operations a byte"
                       for name, x, y in points)
    return canvas.done(f"{floors.gpu}: kernels below {ridge:,.0f} operations a byte are limited by "
                       f"memory ({floors.copy_gb_s:,.0f} GB/s), above it by the tensor cores "
                       f"({peak:,.0f} TFLOP/s in {dtype}). {listed}.")


def fragment(layout: Any, name: str = "fragment", *, rows: int = 16, columns: int = 16,
             thread: int = 0) -> Picture:
    """Which thread holds which element of a fragment, and in which of its registers.

    layout: one of `lab.lower(program, gpu).layouts`. rows, columns: how much of the fragment to
    show, from its first element on. thread: the one to stand out.
    """
    from labkit.lowering import owners

    _positive(rows=rows, columns=columns)
    if not isinstance(thread, int) or thread < 0:
        raise BadArgument(f"thread is {thread!r}; give a whole number of at least 0.")
    owners(layout, *(0 for _ in getattr(layout, "get_input_shape", list)()))  # a fragment at all?
    shape = [int(extent) for extent in layout.get_input_shape()]
    lead, shape = [0] * (len(shape) - 2), [1, 1, *shape][-2:]
    rows, columns = min(rows, shape[0]), min(columns, shape[1])
    _drawable(rows * columns, "use larger tiles or smaller sizes, so fewer rows and columns")
    flat = len(layout.get_input_shape()) == 1
    cell, pad, top = 34, 44, 66
    canvas = _Canvas(max(pad * 2 + columns * cell, 520), top + rows * cell + 22)
    size = f"{shape[1]}" if flat else f"{shape[0]} x {shape[1]}"
    part = f"{columns}" if flat else f"{rows} x {columns}"
    part += " element" if rows * columns == 1 else " elements"
    canvas.label(pad, 22, f"{name}, {size}: the first {part}", 13, "start", weight="bold")
    canvas.label(pad, 40, "in each cell: the thread, below it the register", 11, "start", GREY)
    canvas.label(pad + 284, 40, f"thread {thread} in orange", 11, "start", ORANGE, "bold")
    boxes, threads, registers, mine, seen, copied = [], [], [], [], set(), 1
    for c in range(columns):
        canvas.label(pad + (c + 0.5) * cell, top - 6, str(c), 9, colour=GREY)
    for r in range(rows):
        y = top + r * cell
        canvas.label(pad - 6, y + 0.6 * cell, "" if flat else str(r), 9, "end", GREY)
        for c in range(columns):
            x = pad + c * cell
            holders = owners(layout, *((c,) if flat else (*lead, r, c)))
            (first, register), copied = holders[0], len(holders)
            seen |= {holder for holder, _ in holders}
            fill, opacity = SKY, (0.12, 0.3, 0.48, 0.66)[first % 4]
            if any(holder == thread for holder, _ in holders):
                mine.append(f"[{c}]" if flat else f"[{r}, {c}]")
                fill, opacity = ORANGE, 0.9
            boxes.append(f'<rect x="{x}" y="{y}" width="{cell}" height="{cell}" fill="{fill}" '
                         f'fill-opacity="{opacity}"/>')
            more = "" if copied == 1 else "…"
            threads.append(f'<text x="{x + 17}" y="{y + 16}">{first}{more}</text>')
            registers.append(f'<text x="{x + 17}" y="{y + 28}">r{register}</text>')
    for style, parts in (('stroke="#ffffff"', boxes),
                         (f'text-anchor="middle" font-size="12" font-weight="bold" fill="{_INK}"',
                          threads), (f'text-anchor="middle" font-size="9" fill="{_INK}"',
                                     registers)):
        canvas.parts.append(f'<g {style}>{"".join(parts)}</g>')
    held = f"Each is held by {copied} threads. " if copied > 1 else ""
    listed = ", ".join(mine[:8]) + (" and more" if len(mine) > 8 else "")
    return canvas.done(f"{name}, {size}: the first {part} in the registers of "
                       f"{len(seen)} threads. {held}Thread {thread} holds {len(mine)} of them"
                       f"{': ' + listed if mine else ''}.")


def online_softmax(scores: Sequence[float], tile: int) -> Picture:
    """The softmax of one row, `tile` scores at a time: what is kept between tiles, and how it is
    brought to a new maximum.

    Each line of the picture is one step. Left the scores, with the running maximum `top`; in the
    middle the terms exp(score - top) so far, hollow where they stood before this step; right the
    numbers. The last line divides the terms by their `total`.
    """
    _positive(tile=tile)
    row = [float(s) for s in _listed(scores) if isinstance(s, Real) and math.isfinite(s)]
    if not row or len(row) != len(_listed(scores)):
        raise BadArgument("online_softmax draws a list of finite numbers, as in [1, 3, 2, 0]; "
                          "give at least one.")
    steps = online_steps(row, tile)
    _drawable(len(row) * len(steps), "use fewer scores or larger tiles")
    left, wide, gap, high, top_edge = 24, 250, 36, 80, 78
    line = high + 46
    middle, right = left + wide + gap, left + 2 * (wide + gap)
    canvas = _Canvas(right + 270, top_edge + (len(steps) + 1) * line)
    slot = wide / len(row)
    low, peak = min(0.0, *row), max(0.0, *row)
    unit = high / ((peak - low) or 1)

    def bars(x: float, floor: float, values: Sequence[float], scale: float, colours: Sequence[str],
             hollow: bool = False) -> None:
        for j, (value, colour) in enumerate(zip(values, colours, strict=True)):
            size = abs(value) * scale
            canvas.box(x + j * slot + 2, floor - max(value, 0) * scale, slot - 4, size,
                       "none" if hollow else colour, colour, 0.9, "3 2" if hollow else "")

    canvas.label(left, 24, f"One row of {len(row)} scores, {tile} at a time", 13, "start",
                 weight="bold")
    canvas.label(left, 52, "scores", 11, "start")
    canvas.label(left + wide, 52, "top, the maximum so far", 11, "end", ORANGE, "bold")
    canvas.label(middle, 52, "exp(score - top)", 11, "start")
    canvas.label(middle + wide, 52, "dashed: before fading", 11, "end", GREY)
    kept: list[float] = []
    for number, step in enumerate(steps):
        start, stop = number * tile, min((number + 1) * tile, len(row))
        floor = top_edge + number * line + high
        colours = [SKY if j < start else BLUE if j < stop else _LINE for j in range(len(row))]
        zero = floor + low * unit
        bars(left, zero, row, unit, colours)
        at = zero - step.top * unit
        canvas.line(left, at, left + stop * slot, at, ORANGE, 2.5)
        terms = [math.exp(score - step.top) for score in row[:stop]]
        bars(middle, floor, terms, high, colours[:stop])
        if step.fade < 1:
            bars(middle, floor, kept, high, [GREY] * len(kept), hollow=True)
        kept = terms
        for x in (left, middle):
            canvas.line(x, zero if x == left else floor, x + wide,
                        zero if x == left else floor, _LINE, 1)
        canvas.label(left + (start + stop) / 2 * slot, floor + 17, f"tile {number}", 10,
                     colour=BLUE, weight="bold")
        sum_of = (f"{step.kept:.3f} × {step.fade:.3f} + {step.added:.3f} = " if number else "")
        canvas.label(right, floor - high + 10, f"step {number}", 12, "start", weight="bold")
        for place, (name, text, colour) in enumerate([
                ("top", f"{_short(step.before)} → {_short(step.top)}", ORANGE),
                ("fade", f"exp({_short(step.before)} - {_short(step.top)}) = {step.fade:.3f}"
                 if number else "nothing to fade yet", _INK),
                ("total", f"{sum_of}{step.total:.3f}", _INK)]):
            canvas.label(right, floor - high + 32 + place * 19, name, 11, "start", colour, "bold")
            canvas.label(right + 46, floor - high + 32 + place * 19, text, 11, "start", colour)
    floor = top_edge + len(steps) * line + high
    result = [term / steps[-1].total for term in kept]
    tallest = max(result)
    bars(middle, floor, result, high / tallest, [GREEN] * len(row))
    canvas.line(middle, floor, middle + wide, floor, _LINE, 1)
    canvas.label(left + wide, floor - high / 2 + 4, "at the end: each term / total", 11, "end",
                 GREEN, "bold")
    if len(row) <= 12:
        for j, value in enumerate(result):
            canvas.label(middle + (j + 0.5) * slot, floor + 15, f"{value:.2f}"[1:]
                         if value < 0.995 else "1", 9, colour=GREY)
    canvas.label(right, floor - high / 2 - 4, "the softmax of the whole row", 11, "start", GREEN,
                 "bold")
    canvas.label(right, floor - high / 2 + 14, f"largest {tallest:.3f}, together 1", 11, "start")
    told = [f"Step {n}: top {_short(s.before)} -> {_short(s.top)}, "
            + (f"fade {s.fade:.3f}, " if n else "")
            + f"total {s.kept:.3f} -> {s.total:.3f}." for n, s in enumerate(steps)]
    return canvas.done("\n".join([
        f"The softmax of {len(row)} scores, {tile} at a time.", *told,
        "Each term over the total: " + ", ".join(f"{value:.3f}" for value in result)
        + ". This is the softmax of the whole row."]))


@dataclass(frozen=True)
class OnlineStep:
    """One tile of an online softmax. before, top: the running maximum before and after; fade:
    exp(before - top); kept, total: the running sum before and after; added: this tile's terms."""

    before: float
    top: float
    fade: float
    kept: float
    added: float

    @property
    def faded(self) -> float:
        return self.kept * self.fade

    @property
    def total(self) -> float:
        return self.faded + self.added


def online_steps(scores: Sequence[float], tile: int) -> list[OnlineStep]:
    """The steps of an online softmax over `scores`, `tile` of them at a time."""
    steps: list[OnlineStep] = []
    top, total = -math.inf, 0.0
    for start in range(0, len(scores), tile):
        part = scores[start:start + tile]
        new = max(top, *part)
        steps.append(OnlineStep(top, new, math.exp(top - new), total,
                                sum(math.exp(score - new) for score in part)))
        top, total = new, steps[-1].total
    return steps


def stack(pictures: Sequence[Picture]) -> Picture:
    """Pictures one below the other, as one."""
    chosen = _listed(pictures)
    if not chosen or not all(isinstance(picture, Picture) for picture in chosen):
        raise BadArgument("stack needs a list of at least one picture and of nothing else; pass "
                          "what the other functions return, as in [pipeline(1), pipeline(2)].")
    sizes = [tuple(float(p.svg.split(f'{side}="', 1)[1].split('"', 1)[0])
                   for side in ("width", "height")) for p in chosen]
    canvas = _Canvas(max(w for w, _ in sizes), sum(h for _, h in sizes) + 8 * (len(sizes) - 1))
    y = 0.0
    for picture, (_, height) in zip(chosen, sizes, strict=True):
        canvas.parts.append(f'<g transform="translate(0 {y:g})">{picture.svg}</g>')
        y += height + 8
    return canvas.done("\n".join(p.text for p in chosen))


def _short(value: float) -> str:
    return "-inf" if value == -math.inf else f"{value:g}"


def _positive(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadArgument(f"{name} is {value!r}; give a whole number of at least 1.")


def _above_zero(**values: Any) -> None:
    """Raises BadArgument for what is not a number above 0 that can be drawn."""
    for name, value in values.items():
        if (not isinstance(value, (int, float)) or isinstance(value, bool)
                or not 1e-30 < value < 1e30):
            raise BadArgument(f"{name} is {value!r}; give a finite number above 0.")


def _drawable(boxes: int, advice: str) -> None:
    if boxes > _MOST_BOXES:
        raise BadArgument(f"This picture would have {boxes:,} boxes, too many to see and above "
                          f"the limit of {_MOST_BOXES:,}; {advice}.")


def _listed(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Iterable) else []


def _is_point(point: Any) -> bool:
    return (isinstance(point, (tuple, list)) and len(point) == 3 and isinstance(point[0], str)
            and all(isinstance(value, Real) and 1e-30 < value < 1e30 for value in point[1:]))
