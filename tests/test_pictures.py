"""Pictures: well-formed, the same on every run, and true."""

from __future__ import annotations

import itertools
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from labkit import pictures
from labkit.errors import BadArgument

ALL = {
    "vector": lambda: pictures.vector_blocks(10_007, 1024),
    "vector_even": lambda: pictures.vector_blocks(2048, 1024),
    "tiles": lambda: pictures.gemm_tiles(200, 328, 200, 64, 128, 32, by=1, bx=1, k=2),
    "order": lambda: pictures.block_order(8, 16, 32, 4),
    "online": lambda: pictures.online_softmax([1, 3, 2, 0, 2, 1, 5], 4),
    "online_negative": lambda: pictures.online_softmax([-1.5, -3, -0.25], 1),
    "pipeline": lambda: pictures.pipeline(3),
    "overlap": lambda: pictures.attention_overlap(3),
    "stack": lambda: pictures.stack([pictures.pipeline(1), pictures.pipeline(2)]),
}


@pytest.mark.parametrize("name", ALL)
def test_well_formed_and_the_same_twice(name):
    first, second = ALL[name](), ALL[name]()
    assert first.svg == second.svg
    ElementTree.fromstring(first.svg)
    assert len(first.svg) < 60_000 and len(first.text) > 20
    assert re.search(r"<title>.+?</title>", first.svg, re.S)


def test_plain_order_is_row_by_row():
    assert pictures.launch_order(2, 3) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@pytest.mark.parametrize(("rows", "columns", "panel"),
                         [(8, 16, 4), (7, 5, 3), (3, 9, 10), (1, 1, 2)])
def test_swizzled_order_is_tilelangs_own(rows, columns, panel, tmp_path):
    """Compiles TileLang's header on the CPU and compares block by block."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    header = Path(TILELANG_TEMPLATE_PATH, "tl_templates/cuda/threadblock_swizzle.h").read_text()
    source = tmp_path / "order.cpp"
    source.write_text(f"""
#include <cstdio>
#define TL_DEVICE inline
struct dim3 {{ unsigned x, y, z; }};
dim3 blockIdx, gridDim{{{columns}, {rows}, 1}};
{header.replace('#include "common.h"', '').replace('#pragma once', '')}
int main() {{
  for (unsigned i = 0; i < gridDim.x * gridDim.y; i++) {{
    blockIdx = dim3{{i % gridDim.x, i / gridDim.x, 0}};
    dim3 place = tl::rasterization2DRow<{panel}>();
    printf("%u %u\\n", place.y, place.x);
  }}
}}
""")
    subprocess.run(["g++", "-o", tmp_path / "order", source], check=True)
    done = subprocess.run([tmp_path / "order"], check=True, capture_output=True, text=True)
    theirs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert pictures.launch_order(rows, columns, panel) == theirs
    assert sorted(theirs) == [(r, c) for r in range(rows) for c in range(columns)]


def test_pipeline_times():
    for stages in (1, 2, 3, 4):
        copies, products = pictures.pipeline_times(stages, 6, 6, 3)
        for k in range(6):
            assert products[k][0] >= copies[k][1], "a product needs its tile"
            if k >= stages:
                assert copies[k][0] >= products[k - stages][1], "a copy needs a free buffer"
    ends = [pictures.pipeline_times(s, 6, 6, 3)[1][-1][1] for s in (1, 2, 3)]
    assert ends == sorted(ends, reverse=True) and ends[0] == 6 * (6 + 3)


@pytest.mark.parametrize("terms", [0.5, 1, 3])
@pytest.mark.parametrize("tiles", [1, 2, 5])
def test_attention_times(tiles, terms):
    ends = {}
    for ahead in (False, True):
        spans = {(what, k): (start, stop) for what, k, start, stop in
                 pictures.attention_times(tiles, 1, terms, ahead=ahead)}
        assert len(spans) == 3 * tiles
        for k in range(tiles):
            assert spans["exp", k][0] >= spans["QK", k][1], "exponentials need their scores"
            assert spans["PV", k][0] >= spans["exp", k][1], "the product needs its terms"
            if k:  # there is one tile of scores, and one of terms
                assert spans["QK", k][0] >= spans["exp", k - 1][1]
                assert spans["exp", k][0] >= spans["exp", k - 1][1]
        cores = sorted(span for (what, _), span in spans.items() if what != "exp")
        assert all(first[1] <= then[0] for first, then in itertools.pairwise(cores))
        ends[ahead] = max(stop for _, stop in spans.values())
    assert ends[False] == tiles * (2 + terms)
    assert ends[True] == 1 + terms + (tiles - 1) * (1 + max(1, terms)) + 1


@pytest.mark.parametrize(("scores", "tile"), [
    ([1, 3, 2, 0, 2, 1, 5, 4, 3, 4, 2, 1], 4), ([1, 3, 2, 0, 2], 2), ([-700.0, 700, -3], 1),
    ([2], 5), ([0, 0, 0], 3)])
def test_online_softmax_is_softmax(scores, tile):
    import torch

    steps = pictures.online_steps(scores, tile)
    assert len(steps) == -(-len(scores) // tile) and steps[-1].top == max(scores)
    row = torch.tensor(scores, dtype=torch.float64)
    ours = torch.exp(row - steps[-1].top) / steps[-1].total
    assert torch.allclose(ours, row.softmax(0), rtol=1e-12, atol=0)
    for step, after in pairwise(steps):
        assert step.top == after.before and step.total == after.kept


def test_online_softmax_shows_its_numbers():
    picture = pictures.online_softmax([1, 3, 2, 0, 2, 1, 5, 4], 4)
    for said in ("top 3 -> 5", "fade 0.135", "total 1.553 -> 1.646", "0.607"):
        assert said in picture.text
    for drawn in ("3 → 5", "exp(3 - 5) = 0.135", "1.553 × 0.135 + 1.436 = 1.646", "to fade yet"):
        assert drawn in picture.svg


@pytest.mark.parametrize("call", [
    lambda: pictures.online_softmax([], 2), lambda: pictures.online_softmax([1, "a"], 2),
    lambda: pictures.online_softmax([1, float("inf")], 2), lambda: pictures.online_softmax(3, 2),
    lambda: pictures.online_softmax([1, 2], 0), lambda: pictures.online_softmax([1.0] * 3000, 8),
    lambda: pictures.vector_blocks(0, 4), lambda: pictures.pipeline(0),
    lambda: pictures.gemm_tiles(8, 8, 8, 4, 4, 4, k=2), lambda: pictures.block_order(0, 1, 1),
])
def test_bad_input(call):
    with pytest.raises(BadArgument):
        call()
