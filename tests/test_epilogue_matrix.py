"""Every epilogue of the catalogue on every architecture, with the schedule that it gets there: it
compiles, fits, spills nothing (but for test_matrix.SPILLING), has no stack frame, and multiplies on
the tensor cores."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from epilogue_cases import FIRST
from test_matrix import ALWAYS, ONE_REGISTER, SPILLING, judge

from labkit import gpus
from labkit.epilogue import OPTIONS, catalogue, gemm, plain, schedule

EVERY = {e.name: e for e in (plain, *catalogue.ALL)}


def _verdicts(cells):
    def one(cell):
        name, number = cell
        gpu = gpus.lookup(f"sm_{number}")
        dtype = "bfloat16" if gpu.sm >= 80 else "float16"
        program = gemm(EVERY[name])(8192, 4096, 4096, dtype=dtype, transpose_B=True,
                                    **schedule(gpu.sm, EVERY[name], dtype))
        wrong = judge(program, gpu.arch, OPTIONS, multiplies=True)
        return [] if name in SPILLING and gpu.sm == 90 and wrong == ONE_REGISTER else wrong

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {cell: verdict for cell, verdict in zip(cells, pool.map(one, cells), strict=True)
                if verdict}


def test_matrix():
    assert _verdicts([(name, number) for name in FIRST for number in ALWAYS]) == {}


@pytest.mark.slow
def test_the_rest_of_the_matrix():
    assert _verdicts([(name, number) for name in EVERY for number in gpus.arch_numbers()
                      if name not in FIRST or number not in ALWAYS]) == {}
