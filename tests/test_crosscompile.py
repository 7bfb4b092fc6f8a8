"""Programs lowered for GPUs that are not here."""

from __future__ import annotations

import programs
import pytest

import labkit as lab
from labkit.errors import BadArgument, CompileFailed

TENSOR_CORE = {"T4": "mma", "A100": "mma", "L4": "mma", "H100": "wgmma", "H200": "wgmma",
               "B200": "mma", "RTX 5090": "mma"}


@pytest.mark.parametrize("gpu", TENSOR_CORE)
def test_gemm_uses_the_tensor_cores(gpu):
    program = programs.pipelined_gemm("float16", 512, 512, 512, 128, 128, 32)
    compiled = lab.cross_compile(program, gpu)
    assert TENSOR_CORE[gpu] in compiled.landmarks
    assert compiled.grid == (4, 4, 1)
    assert compiled.shared_bytes == 3 * 2 * (128 * 32 + 32 * 128)
    assert compiled.threads == (128 if compiled.gpu.sm < 90 else 256)  # producer warps
    assert compiled.body.startswith('extern "C" __global__') and compiled.body.endswith("}")


def test_a_program_for_the_cpu_and_for_a_gpu_is_the_same_object():
    program = programs.pipelined_gemm("float16")
    lab.compile(program, device="cpu")
    assert "mma" in lab.cross_compile(program, "T4").landmarks
    lab.compile(program, device="cpu")


def test_landmark_table():
    table = lab.landmark_table(programs.pipelined_gemm("float16", 512, 512, 512, 128, 128, 32),
                               ("T4", "H100"))
    assert "wgmma" in repr(table) and "T4" in repr(table) and "<table" in table._repr_html_()


def test_dynamic_grid():
    compiled = lab.cross_compile(programs.dynamic_rows("float16"), "A100")
    assert compiled.grid[0] is None and "grid ? x 1 x 1" in repr(compiled)


def test_bad_input():
    with pytest.raises(BadArgument, match="GTX 480"):
        lab.cross_compile(programs.pipelined_gemm("float16"), "GTX 480")
    with pytest.raises(BadArgument, match="call its builder with sizes"):
        lab.cross_compile(programs.pipelined_gemm, "T4")
    with pytest.raises(CompileFailed, match="for A100") as error:
        lab.cross_compile(programs.pipelined_gemm("float16", 64, 64, 64, 24, 40, 16), "A100")
    assert "\n" not in str(error.value)
