"""Programs lowered for GPUs that are not here."""

from __future__ import annotations

import programs
import pytest

import labkit as lab
from labkit import crosscompile, ptxas
from labkit.errors import BadArgument, CompileFailed, MissingTool
from labkit.gpus import lookup
from labkit.occupancy import occupancy

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
    with pytest.raises(CompileFailed, match="for sm_80") as error:
        lab.cross_compile(programs.pipelined_gemm("float16", 64, 64, 64, 24, 40, 16), "A100")
    assert "\n" not in str(error.value)


# --- what ptxas and the data sheet add


GEMM_80 = dict(block_M=128, block_N=128, block_K=32)


def test_resources_and_report():
    program = programs.pipelined_gemm("float16", 512, 512, 512, **GEMM_80)
    compiled = lab.cross_compile(program, "A100")
    used = compiled.resources
    assert 100 < used.registers <= 255 and not used.spill_stores and not used.stack_bytes
    assert compiled.launches and compiled.obstacle == ""
    assert compiled.occupancy.blocks == 2 and compiled.occupancy.limited_by == "registers"
    text = repr(compiled.report())
    assert "registers a thread" in text and "can be launched" in text and "48 KiB of 163" in text


def test_too_much_shared_memory_is_said_before_and_after_nvcc():
    program = programs.pipelined_gemm("float16", 512, 512, 512, 256, 256, 64)
    compiled = lab.cross_compile(program, "T4")
    assert not compiled.launches
    assert "192 KiB of shared memory a block, and the T4 gives 64 KiB" in compiled.obstacle
    assert "cannot be launched" in repr(compiled)


def test_too_many_threads():
    compiled = lab.cross_compile(lab.kernel("01", "vector_add")(1 << 20, threads=2048), "H100")
    assert "2048 threads a block, and the H100 takes 1024" in compiled.obstacle
    assert compiled.obstacle in repr(compiled)


def test_global_accesses_by_width():
    vector_add = lab.kernel("01", "vector_add")
    assert lab.cross_compile(vector_add(1 << 20), "A100").global_access == {16: 3}
    assert lab.cross_compile(vector_add(10_007), "A100").global_access == {}


def test_fast_math_changes_the_machine_code():
    gelu, fast = lab.kernel("04", "gemm_bias_gelu"), lab.kernel("04", "FAST_MATH")
    program = gelu(512, 512, 512)
    plain, quick = (lab.cross_compile(program, "A100", options) for options in (None, fast))
    codes = [ptxas.cubin(c.source, c.entry, "sm_80", c.nvcc_flags) for c in (plain, quick)]
    assert len(codes[1]) < len(codes[0])


def test_results_are_kept_and_damaged_ones_made_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    program = lab.kernel("01", "vector_add")(1 << 20)
    crosscompile._lowered.cache_clear()
    first = lab.cross_compile(program, "A100")
    used = first.resources
    (kept,), (counted,) = tmp_path.glob("lowered/*.json"), tmp_path.glob("ptxas/*/resources.json")
    monkeypatch.setattr(crosscompile, "_lower", lambda *a: pytest.fail("lowered again"))
    crosscompile._lowered.cache_clear()
    assert lab.cross_compile(program, "A100") == first
    monkeypatch.undo()
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    for damage in ("{", "[]", '{"name": 1}'):
        kept.write_text(damage)
        counted.write_text(damage)
        crosscompile._lowered.cache_clear()
        again = lab.cross_compile(program, "A100")
        assert again == first and again.resources == used


def test_no_nvcc(monkeypatch):
    from tilelang.contrib import nvcc

    def missing():
        raise RuntimeError("not found")

    ptxas.nvcc.cache_clear()
    monkeypatch.setattr(nvcc, "get_nvcc_compiler", missing)
    with pytest.raises(MissingTool, match=r"pip install .*tilelang\[nvcc\]"):
        ptxas.nvcc()
    ptxas.nvcc.cache_clear()


def test_ptxas_output_is_read():
    log = """ptxas info    : Function properties for k_kernel
    512 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 72 registers, used 1 barriers, 512 bytes cumulative stack size, 1024 bytes smem
"""
    assert ptxas.parse(log, "k_kernel") == ptxas.Resources(72, 8, 12, 512, 1024)
    with pytest.raises(CompileFailed, match="its output has changed"):
        ptxas.parse(log, "other_kernel")


@pytest.mark.parametrize(("gpu", "threads", "registers", "shared", "blocks", "limited_by"), [
    ("A100", 128, 220, 49152, 2, "registers"),
    ("A100", 256, 32, 0, 8, "registers and threads"),
    ("A100", 1024, 64, 0, 1, "registers"),
    ("A100", 1024, 65, 0, 0, "registers"),
    ("H100", 384, 168, 148480, 1, "registers and shared memory"),
    ("H100", 128, 26, 0, 16, "registers and threads"),
    ("T4", 128, 72, 32768, 2, "shared memory"),
    ("T4", 32, 16, 0, 16, "blocks"),
    ("L4", 1024, 32, 0, 1, "threads"),
])
def test_occupancy(gpu, threads, registers, shared, blocks, limited_by):
    found = occupancy(lookup(gpu), threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)


@pytest.mark.gpu
def test_agrees_with_the_driver(cuda):
    """Registers, static shared memory, blocks per multiprocessor and launchability."""
    driver = pytest.importorskip("cuda.bindings.driver")
    cuda.zeros(1, device="cuda")
    gemm, here = lab.kernel("02", "gemm"), lab.here("gpu")

    def checked(result):
        assert result[0] == driver.CUresult.CUDA_SUCCESS, result
        return result[1]

    attribute = driver.CUfunction_attribute
    for schedule in ({}, dict(block_K=64), dict(num_stages=5), dict(block_N=256, threads=256),
                     dict(block_M=256, block_N=256, num_stages=6, threads=256)):
        compiled = lab.cross_compile(gemm(1024, 1024, 1024, **schedule), here.gpu)
        code = ptxas.cubin(compiled.source, compiled.entry, here.gpu.arch)
        function = checked(driver.cuModuleGetFunction(
            checked(driver.cuModuleLoadData(code)), compiled.entry.encode()))
        used = compiled.resources
        assert used.registers == checked(driver.cuFuncGetAttribute(
            attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
        assert used.static_shared_bytes == checked(driver.cuFuncGetAttribute(
            attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function))
        allowed = driver.cuFuncSetAttribute(
            function, attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            compiled.shared_bytes)[0] == driver.CUresult.CUDA_SUCCESS
        blocks = checked(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            function, compiled.threads, compiled.shared_bytes)) if allowed else 0
        assert compiled.occupancy.blocks == blocks
        assert compiled.launches == (blocks > 0)
