"""The explorer's pictures: true numbers, small, quick, the same on every run, safe at extremes."""

from __future__ import annotations

import itertools
import random
import re
import time
import xml.etree.ElementTree as ElementTree

import pytest

from labkit import pictures
from labkit.errors import BadArgument
from labkit.widgets import (
    view_grid,
    view_history,
    view_marks,
    view_memory,
    view_pipeline,
    view_roofline,
    view_source,
)
from labkit.widgets.view_history import Measured
from labkit.widgets.view_memory import Level

KIB = 1024
EVIL = '<script>alert("&")</script>'
HUGE = 1 << 62
STAGES = {"A_tile × 3": 48 * KIB, "B_tile × 3": 48 * KIB}
LEVELS = [Level("global", 100e6, 80 << 30, 3350, 100.7e6, "A, B and C once each"),
          Level("L2", 67e6, 50 << 20, 5500, 2.15e9), Level("shared", 98304, 227 * KIB, None, 8.6e9),
          Level("registers", 65536)]
TRIED = [Measured("a", 0.3), Measured("b", 0.2), Measured("wrong", 0.1, ok=False),
         Measured("broken", None, ok=False), Measured("old", 0.25, recorded=True)]

PICTURES = {
    "bar": lambda: view_memory.shared_bar(STAGES, 227 * KIB, "H100", 96 * KIB, 228 * KIB, 2),
    "bar_over": lambda: view_memory.shared_bar(STAGES, 64 * KIB, "T4", None, 64 * KIB),
    "bar_zero": lambda: view_memory.shared_bar({}, 1, "T4", 0, 1, 0),
    "bar_huge": lambda: view_memory.shared_bar({str(i): HUGE for i in range(500)}, 1, EVIL, HUGE,
                                               HUGE, HUGE),
    "bar_tiny": lambda: view_memory.shared_bar({EVIL: 1}, HUGE, "", 1, HUGE, HUGE),
    "levels": lambda: view_memory.hierarchy(LEVELS),
    "levels_zero": lambda: view_memory.hierarchy([Level("global", 0, 0, 0, 0)]),
    "levels_huge": lambda: view_memory.hierarchy([Level(EVIL * 9, 1e29, 1e-9, 1e-9, 1e29, EVIL * 99)
                                                  ] * 8),
    "waves": lambda: view_grid.waves(512, 132, "H200"),
    "waves_one": lambda: view_grid.waves(1, 1, "H200"),
    "waves_many": lambda: view_grid.waves(300 * 132 - 1, 132, "H200"),
    "waves_huge": lambda: view_grid.waves(HUGE, 7, EVIL),
    "waves_none": lambda: view_grid.waves(512, 0, EVIL),
    "walk": lambda: view_grid.tile_walk(32, 16, 64, (3, 5), 10, 10, 132),
    "walk_one": lambda: view_grid.tile_walk(1, 1, 1, (0, 0), 0, None, 1),
    "walk_dense": lambda: view_grid.tile_walk(64, 64, 64, (63, 63), 63, 8, 4000),
    "walk_4096": lambda: view_grid.tile_walk(4096, 4096, 4096, (4095, 0), 4095, 16, 264),
    "walk_huge": lambda: view_grid.tile_walk(HUGE, 1, HUGE, (HUGE - 1, 0), HUGE - 1, HUGE, HUGE),
    "pipeline": lambda: view_pipeline.timeline(3, 64, 6, 3, 1),
    "pipeline_none": lambda: view_pipeline.timeline(0, 1, 1, 1),
    "pipeline_huge": lambda: view_pipeline.timeline(HUGE, HUGE, 1e29, 1e-29),
    "pipeline_small": lambda: view_pipeline.timeline(2, 12, 1e-29, 1e29),
    "roofline": lambda: view_roofline.roofline([("now", 1365, 620.0), ("best", 1365, None)], 4800,
                                               989, "H200"),
    "roofline_empty": lambda: view_roofline.roofline([], 320, 65, "T4"),
    "roofline_huge": lambda: view_roofline.roofline(
        [(f"{EVIL} {i}", 10.0 ** (i % 58 - 29), 10.0 ** (i * 7 % 58 - 29)) for i in range(200)],
        1e-29, 1e29, EVIL),
    "history": lambda: view_history.history(TRIED, ("torch.mm (cuBLAS)", 0.19)),
    "history_none": lambda: view_history.history([]),
    "history_wrong": lambda: view_history.history([(EVIL, None, False)], (EVIL, 1e-29)),
    "history_many": lambda: view_history.history(
        [(EVIL * 3, 10.0 ** (i * 7 % 50 - 25), i % 9 > 0, i % 4 == 0) for i in range(1000)],
        (EVIL * 3, 1e29)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_well_formed_small_quick_and_the_same_twice(name):
    first = PICTURES[name]()
    took = []
    for _ in range(7):
        start = time.process_time()
        again = PICTURES[name]()
        took.append(time.process_time() - start)
    assert first == again
    assert len(first.svg.encode()) < 40_000
    tree = ElementTree.fromstring(first.svg)
    assert first.text and tree[0].tag.endswith("title") and tree[0].text == first.text
    assert float(tree.get("width")) <= 760 and "<script" not in first.svg
    assert min(took) < 0.005, f"{min(took) * 1e3:.1f} ms"


@pytest.mark.parametrize("name", PICTURES)
def test_everything_is_drawn_inside(name):
    tree = ElementTree.fromstring(PICTURES[name]().svg)
    width, height = float(tree.get("width")), float(tree.get("height"))
    for part in tree.iter():
        kind = part.tag.rsplit("}")[-1]
        if kind == "rect" and part.get("width") != "100%":
            x, y, w, h = (float(part.get(key)) for key in ("x", "y", "width", "height"))
            assert x >= -0.1 and y >= -0.1 and w >= 0 and h >= 0
            assert x + w <= width + 3 and y + h <= height + 0.1
        if kind == "text":
            size, x, y = (float(part.get(key)) for key in ("font-size", "x", "y"))
            wide = view_marks.text_width(part.text or "", size) * 0.9  # it errs on the wide side
            left = {"start": x, "middle": x - wide / 2, "end": x - wide}[part.get("text-anchor")]
            assert left >= 0 and left + wide <= width, part.text
            assert 0 < y <= height, part.text


def swizzled(rows: int, columns: int, panel: int) -> list[tuple[int, int]]:
    """TileLang's rasterization2DRow<panel>, line by line."""
    order = []
    for block_idx in range(rows * columns):
        grid_size = columns * rows
        panel_size = panel * columns
        panel_offset = block_idx % panel_size
        panel_idx = block_idx // panel_size
        total_panel = -(-grid_size // panel_size)
        stride = (panel if panel_idx + 1 < total_panel
                  else (grid_size - panel_idx * panel_size) // columns)
        col_idx = (columns - 1 - panel_offset // stride if panel_idx & 1
                   else panel_offset // stride)
        row_idx = panel_offset % stride + panel_idx * panel
        order.append((row_idx, col_idx))
    return order


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (8, 16), (7, 5), (3, 9), (1, 12), (12, 1)])
@pytest.mark.parametrize("panel", [None, 0, 1, 2, 3, 4, 10])
def test_first_blocks_are_tilelangs(rows, columns, panel):
    order = (swizzled(rows, columns, panel) if panel
             else [divmod(i, columns) for i in range(rows * columns)])
    assert order == pictures.launch_order(rows, columns, panel or 0)
    for number in range(rows * columns + 3):
        boxes = view_grid.first_blocks(rows, columns, number, panel)
        tiles = [(r + i, c + j) for r, c, h, w in boxes for i in range(h) for j in range(w)]
        first = order[:number]
        assert len(boxes) <= 3 and sorted(tiles) == sorted(first)
        assert view_grid.strips(rows, columns, number, panel) == (
            len({r for r, _ in first}), len({c for _, c in first}))


def persistent(rows: int, columns: int, group: int) -> list[tuple[int, int] | None]:
    """TileLang's PersistentFor, line by line; None for a place outside the grid."""
    group = max(1, min(group, columns))
    grouped = [-(-columns // group), rows, group]
    order = []
    for rest in range(grouped[0] * rows * group):
        rest, inside = divmod(rest, grouped[2])
        rest, row = divmod(rest, grouped[1])
        column = rest * group + inside
        order.append((row, column) if column < columns else None)
    return order


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (8, 16), (7, 5), (3, 9), (1, 12), (12, 1)])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8, 20])
def test_first_tiles_of_blocks_that_stay_are_tilelangs(rows, columns, group):
    order = persistent(rows, columns, group)
    for number in range(len(order) + 3):
        boxes = view_grid.first_blocks(rows, columns, number, group=group)
        tiles = [(r + i, c + j) for r, c, h, w in boxes for i in range(h) for j in range(w)]
        first = [tile for tile in order[:number] if tile]
        assert len(boxes) <= 3 and sorted(tiles) == sorted(first)
        assert view_grid.strips(rows, columns, number, group=group) == (
            len({r for r, _ in first}), len({c for _, c in first}))


def test_groups_of_columns_are_said_beside_the_plain_order():
    text = view_grid.tile_walk(8, 16, 4, (2, 3), 1, concurrent=32, group=4).text
    assert "groups of 4 columns: 8 tile rows of A and 4 tile columns of B, 12 in all" in text
    assert "plain order: 2 tile rows of A and 16 tile columns of B, 18 in all" in text
    assert "9 tiles, 4 at once" in view_grid.waves(9, 4, "H200", "tile").text


def test_swizzle_is_said_with_and_without():
    text = view_grid.tile_walk(8, 16, 4, (2, 3), 1, 4, 32).text
    assert "panel 4: 4 tile rows of A and 8 tile columns of B, 12 in all" in text
    assert "plain order: 2 tile rows of A and 16 tile columns of B, 18 in all" in text
    assert "first" not in view_grid.tile_walk(8, 16, 4, (2, 3), 1).text


@pytest.mark.parametrize(("blocks", "slots", "number", "tail", "idle"), [
    (512, 132, 4, 116, 16 / 528), (132, 132, 1, 132, 0), (133, 132, 2, 1, 131 / 264),
    (1, 132, 1, 1, 131 / 132), (0, 132, 0, 0, 0), (9, 0, 0, 0, 0)])
def test_waves(blocks, slots, number, tail, idle):
    assert view_grid.wave_counts(blocks, slots) == (number, tail, pytest.approx(idle))
    text = view_grid.waves(blocks, slots, "H200").text
    if number:
        assert f"{number} wave" in text and f"{tail} of {slots} slots work" in text
        assert (f"{idle:.1%}" if idle else "no slot idle") in text
    else:
        assert "nothing runs" in text


def events(stages: int, steps: int, copy: int, math: int, gap: int) -> int:
    """The same loop as a machine that goes through time unit by unit."""
    free, started, done, now = max(stages, 1), 0, 0, 0
    arrives, next_copy, ends = [], 0, None  # ends: of the product that runs
    while True:
        if ends == now:
            done, free, ends = done + 1, free + 1, None
            if done == steps:
                return now
        while started < steps and free and now >= next_copy:
            arrives.append(now + copy)
            started, free, next_copy = started + 1, free - 1, now + gap
        if ends is None and done < started and arrives[done] <= now:
            ends = now + math
        now += 1


def test_pipeline_totals_against_events():
    choose = random.Random(0)
    for stages, steps, copy, math in itertools.product((0, 1, 2, 3, 4, 7), (1, 2, 5, 13),
                                                       (1, 3, 8), (1, 2, 5)):
        gap = choose.randint(0, copy)
        expected = events(stages, steps, copy, math, gap)
        _, products = view_pipeline.times(stages, steps, copy, math, gap)
        assert products[-1][1] == expected, (stages, steps, copy, math, gap)
        assert view_pipeline.total(stages, steps, copy, math, gap) == expected
        assert (f" {expected} units" in view_pipeline.timeline(stages, steps, copy, math, gap).text)


def test_pipeline_of_one_buffer_alternates():
    for stages in (0, 1):
        assert view_pipeline.total(stages, 10, 6, 3) == 90
    assert [view_pipeline.total(s, 10, 6, 3) for s in (2, 3, 4)] == [48, 36, 36]


def test_pipeline_agrees_with_the_lessons_picture():
    for stages in (1, 2, 3, 4):
        assert view_pipeline.times(stages, 6, 6, 3, 1) == pictures.pipeline_times(stages, 6, 6, 3)


def test_bar_says_what_fits():
    over = view_memory.shared_bar(STAGES, 64 * KIB, "T4").text
    assert "96 KiB > 64 KiB" in over
    shared = view_memory.shared_bar(STAGES, 64 * KIB, "T4", exact=48 * KIB)
    assert ">" not in shared.text and "48 KiB of 64 KiB on the T4 (75%)" in shared.text
    assert "buffers share space" in shared.svg
    more = view_memory.shared_bar(STAGES, 99 * KIB, "L4", exact=100 * KIB)
    assert "100 KiB > 99 KiB" in more.text and "4 KiB more than these" in more.svg
    sm = view_memory.shared_bar(STAGES, 227 * KIB, "H100", None, 228 * KIB)
    assert "At most 2 blocks" in sm.text and "by shared memory alone" in sm.text
    small = view_memory.shared_bar({"A": 8 * KIB}, 163 * KIB, "A100", None, 164 * KIB,
                                   reserved=KIB)
    assert "At most 18 blocks" in small.text
    one = view_memory.shared_bar(STAGES, 227 * KIB, "H100", 96 * KIB, 228 * KIB, 1)
    assert "1 block a multi" in one.text and "shared memory alone: 2" in one.text


def test_many_buffers_are_summed_up():
    text = view_memory.shared_bar({f"b{i}": KIB for i in range(12)}, 64 * KIB, "T4").text
    assert "7 more 7 KiB" in text and "together 12 KiB" in text


def test_levels_name_the_slowest():
    text = view_memory.hierarchy(LEVELS).text
    assert "moves 2.15 GB at 5.5 TB/s: 0.391 ms" in text
    assert text.endswith("The longest: L2, at least 0.391 ms.")
    assert "longest" not in view_memory.hierarchy(LEVELS[1:]).text  # nothing to compare with
    assert LEVELS[1].ms == pytest.approx(2.15e9 / 5500e9 * 1e3)


def test_roof():
    assert view_roofline.roof(100, 3350, 989) == pytest.approx(335)
    assert view_roofline.roof(1e4, 3350, 989) == 989
    text = view_roofline.roofline([("now", 1365, 494.5), ("then", 100, None)], 3350, 989, "H100"
                                  ).text
    assert "494 TFLOP/s, 50% of the roof" in text and "then: at best 335 TFLOP/s" in text
    assert "below 295 operations a byte" in text


def test_crowded_roofline_says_what_has_no_name():
    svg = view_roofline.roofline([(f"schedule {i}", 200 + i, 300.0) for i in range(40)], 3350, 989,
                                 "H100").svg
    assert re.search(r"\d+ points without a name", svg)
    many = view_roofline.roofline([(str(i), 200 + i, 300.0) for i in range(300)], 3350, 989, "H100")
    assert "220 earlier not drawn" in many.svg and "And 280 more" in many.text


def test_history_marks():
    picture = view_history.history(TRIED, ("cuBLAS", 0.1))
    assert "5 schedules tried, 2 failed; the best 0.2 ms, 50% of cuBLAS's speed" in picture.text
    assert "The best: b." in picture.text and "old 0.25 ms, recorded" in picture.text
    assert "2: b: 0.2 ms" in picture.svg and picture.svg.count("<polygon") == 2  # legend and point
    assert view_history.history([tuple(vars(p).values()) for p in TRIED], ("cuBLAS", 0.1)
                                ) == picture


def test_history_keeps_the_best_in_sight():
    tried = [("best", 0.1, True)] + [(f"s{i}", 0.2 + i / 1e4, True) for i in range(200)]
    picture = view_history.history(tried)
    assert "121 earlier ones not drawn" in picture.svg and "1: best: 0.1 ms" in picture.svg


CODE = "#include <x>\nvoid main() {\n  tl::wgmma_ss(a < b);\n  x.wait(0); x.arrive(1);\n}\n"
MARKS = {"wgmma": r"tl::wgmma_\w+", "mbarrier": r"\.(?:wait|arrive\w*)\(", "mma": "tl::mma_sync"}


def parsed(html: str) -> ElementTree.Element:
    closed = re.sub("<input([^>]*)>", r"<input\1/>", html)
    return ElementTree.fromstring(f"<r>{closed}</r>")


def test_source_marks_lines_and_jumps():
    html = view_source.source(CODE, MARKS, "main")
    tree = parsed(html)
    labels = {label.get("for"): label.text for label in tree.iter("label")}
    assert list(labels.values()) == ["wgmma ×1", "mbarrier ×2"]
    inputs = {mark.get("id"): mark.get("aria-label") for mark in tree.iter("input")}
    assert list(inputs.values()) == ["line 3: wgmma", "line 4: mbarrier"]
    assert labels.keys() == inputs.keys()
    assert all(m.get("data-lm-suppress-shortcuts") for m in tree.iter("input"))  # keys stay here
    code = "".join(next(p for p in tree.iter("pre") if p.get("class") == "lk-code").itertext())
    assert "tl::wgmma_ss(a < b);" in code
    assert html == view_source.source(CODE, MARKS, "main")
    assert set(re.findall(r'id="(\w+)-', html)).isdisjoint(
        re.findall(r'id="(\w+)-', view_source.source(CODE, MARKS, "main", key="two")))


def test_source_escapes_everything():
    html = view_source.source(EVIL, {EVIL: "alert"}, EVIL, EVIL)
    assert "<script" not in html and '"&")' not in html
    parsed(html)


def test_source_is_cut():
    text = "\n".join(f"tl::mma_sync({i}); {'x' * 999}" for i in range(5000))
    start = time.perf_counter()
    html = view_source.source(text, MARKS)
    assert time.perf_counter() - start < 0.5
    assert "5,000 lines, the first 400 shown" in html and "mma ×5000" in html
    assert len(html) < 400 * 700 and "tl::mma_sync(400)" not in html
    late = view_source.source("\n" * 500 + "tl::mma_sync", MARKS)
    assert "<label" not in late.split("</style>")[1] and "not shown" in late
    assert "no landmarks" in view_source.source("", {})


@pytest.mark.parametrize("call", [
    lambda: view_memory.shared_bar([1], 1, "T4"),
    lambda: view_memory.shared_bar({"a": -1}, 1, "T4"),
    lambda: view_memory.shared_bar({"a": 1}, 0, "T4"),
    lambda: view_memory.shared_bar({"a": 1}, 1, "T4", exact=-1), lambda: view_memory.hierarchy([]),
    lambda: view_memory.hierarchy([("L2", 1)]),
    lambda: view_memory.hierarchy([Level("L2", float("nan"))]),
    lambda: view_grid.waves(-1, 1, "T4"), lambda: view_grid.waves(1, 1.5, "T4"),
    lambda: view_grid.tile_walk(0, 1, 1, (0, 0), 0),
    lambda: view_grid.tile_walk(1, 1, 1, (0, 1), 0),
    lambda: view_grid.tile_walk(1, 1, 1, (0, 0), 1), lambda: view_grid.tile_walk(1, 1, 1, 0, 0),
    lambda: view_grid.tile_walk(1, 1, 1, (0, 0), 0, -1),
    lambda: view_pipeline.timeline(1, 0, 1, 1), lambda: view_pipeline.timeline(1, 1, 0, 1),
    lambda: view_pipeline.timeline(1, 1, 1, float("inf")),
    lambda: view_pipeline.timeline(1, 1, 1, 1, gap=2),
    lambda: view_pipeline.timeline(True, 1, 1, 1),
    lambda: view_roofline.roofline([("a", 0, 1)], 1, 1, "T4"),
    lambda: view_roofline.roofline([("a", 1)], 1, 1, "T4"),
    lambda: view_roofline.roofline([], None, 1, "T4"),
    lambda: view_history.history([("a", 0, True)]), lambda: view_history.history(["a"]),
    lambda: view_history.history(TRIED, ("x", 0)), lambda: view_history.history(TRIED, None, 2),
    lambda: view_source.source("a", {"b": "("}), lambda: view_source.source(None, {}),
])
def test_bad_input(call):
    with pytest.raises(BadArgument) as caught:
        call()
    assert "give" in str(caught.value) or "not " in str(caught.value)
