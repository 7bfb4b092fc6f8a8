"""The compile matrix: every kernel of every lesson on every architecture, with the schedule and the
dtype that the lesson picks there.

It must compile, fit shared memory, spill nothing, have no stack frame, and use the tensor cores
where it multiplies matrices. `make test` compiles for a T4 and an H100, the first of each kind for
an L4 too, `make test-all` for all architectures.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import lesson_cases
import pytest

import labkit as lab
from labkit import gpus, lessons, parsing
from labkit.epilogue import OPTIONS, gemm, schedule
from labkit.errors import LabError

TENSOR_CORE = {75: "mma", 80: "mma", 86: "mma", 89: "mma", 90: "wgmma", 100: "mma", 120: "mma"}


def _sixteen_bit(sm):
    return "bfloat16" if sm >= 80 else "float16"


def _gemm(sm, dtype):
    return lab.kernel("02", "gemm")(4096, 4096, 4096, dtype=dtype,
                                    **lab.kernel("02", "gemm_schedule")(sm))


def _gelu(sm):
    return lab.kernel("04", "gemm_bias_gelu")(8192, 14336, 4096, dtype=_sixteen_bit(sm),
                                              **lab.kernel("03", "persistent_schedule")(sm))


def _gelu_in_flight(sm):
    return lab.kernel("04", "gelu_in_flight")(8192, 14336, 4096, dtype=_sixteen_bit(sm),
                                              **lab.kernel("03", "in_flight_schedule")(sm))


def _persistent(sm):
    return lab.kernel("03", "gemm_persistent")(4096, 4096, 4096, dtype=_sixteen_bit(sm),
                                               **lab.kernel("03", "persistent_schedule")(sm))


def _in_flight(sm):
    return lab.kernel("03", "gemm_in_flight")(4096, 4096, 4096, dtype=_sixteen_bit(sm),
                                              **lab.kernel("03", "in_flight_schedule")(sm))


def _fp8(sm):
    """Below compute capability 8.9 the lesson multiplies the same values in 16 bits."""
    dtype = "float8_e4m3fn" if sm >= 89 else _sixteen_bit(sm)
    return lab.kernel("03", "gemm_fp8")(4096, 4096, 4096, dtype=dtype, out_dtype=_sixteen_bit(sm),
                                        **lab.kernel("03", "fp8_schedule")(sm))


def _softmax(kernel, schedule, N, sm):
    return lab.kernel("05", kernel)(2048, N, dtype=_sixteen_bit(sm),
                                    **lab.kernel("05", schedule)(N))


def _kept(N, sm):
    """Where the row does not stay on the chip, the online form."""
    schedule = lab.kernel("05", "kept_schedule")(N, sm)
    if schedule is None:
        return _softmax("softmax_online", "online_schedule", N, sm)
    return lab.kernel("05", "softmax_kept")(2048, N, dtype=_sixteen_bit(sm), **schedule)


_SOFTMAX_OPTIONS = lab.kernel("05", "FAST_MATH")

def _attention(sm, D, causal, kernel="attention"):
    return lab.kernel("06", kernel)(sm, 4, 16, 8, 4096, 4096, D, causal,
                                         dtype=_sixteen_bit(sm))


# (lesson, kernel): (program for a compute capability, compiler options, multiplies matrices)
KERNELS = {
    ("00_environment", "double"): (lambda sm: lab.kernel("00", "double")(1 << 20), None, False),
    ("01_vector_add", "vector_add"): (
        lambda sm: lab.kernel("01", "vector_add")(1 << 26), None, False),
    ("02_gemm", "gemm"): (lambda sm: _gemm(sm, "float16"), None, True),
    ("03_schedules", "gemm"): (lambda sm: _gemm(sm, _sixteen_bit(sm)), None, True),
    ("03_schedules", "gemm_persistent"): (_persistent, None, True),
    ("03_schedules", "gemm_in_flight"): (_in_flight, None, True),
    ("03_schedules", "gemm_fp8"): (_fp8, None, True),
    ("04_epilogue_fusion", "gemm_bias_gelu"): (_gelu, lab.kernel("04", "FAST_MATH"), True),
    ("04_epilogue_fusion", "gelu_in_flight"): (
        _gelu_in_flight, lab.kernel("04", "FAST_MATH"), True),
    ("05_softmax", "softmax"): (
        lambda sm: _softmax("softmax", "softmax_schedule", 16384, sm), _SOFTMAX_OPTIONS, False),
    ("05_softmax", "softmax_online"): (
        lambda sm: _softmax("softmax_online", "online_schedule", 131072, sm), _SOFTMAX_OPTIONS,
        False),
    # the macros are parts of softmax_kept: in one block, and in clusters of four and eight
    ("05_softmax", "online_pair"): (lambda sm: _kept(32768, sm), _SOFTMAX_OPTIONS, False),
    ("05_softmax", "exchange"): (lambda sm: _kept(262144, sm), _SOFTMAX_OPTIONS, False),
    ("05_softmax", "softmax_kept"): (lambda sm: _kept(128256, sm), _SOFTMAX_OPTIONS, False),
    ("08_debugging", "centre"): (lambda sm: lab.kernel("08", "centre")(4096, 1000), None, False),
    ("08_debugging", "two_products"): (
        lambda sm: lab.kernel("08", "two_products")(4096, 4096), None, True),
}
# The step is a part of flash_attention; `attention` is that with the lesson's schedule.
for _name, _D, _causal in (
    ("online_step", 64, False), ("flash_attention", 128, False), ("attention", 128, True),
    ("attention, D 64 causal", 64, True), ("attention, D 96", 96, False),
    ("attention, D 96 causal", 96, True),
):
    KERNELS["06_flash_attention", _name] = (
        lambda sm, D=_D, causal=_causal: _attention(sm, D, causal),
        lab.kernel("06", "FAST_MATH"), True)
# ... and those of the kernel that starts scores ahead, on Hopper; elsewhere it is the one before
for _name, _D, _causal in (
    ("roles", 64, False), ("named_step", 96, True), ("rules", 96, False),
    ("flash_attention_ahead", 128, False), ("attention_ahead", 128, True),
    ("start_scores", 64, True),
):
    KERNELS["06_flash_attention", _name] = (
        lambda sm, D=_D, causal=_causal: _attention(sm, D, causal, "attention_ahead"),
        lab.kernel("06", "FAST_MATH"), True)


def _epilogue(lesson, name, sm, **more):
    chosen, dtype = lab.kernel(lesson, name), _sixteen_bit(sm)
    return gemm(chosen)(8192, 4096, 4096, dtype=dtype, **more, **schedule(sm, chosen, dtype))


# all but the first of 09 make the programs of the catalogue's, which test_epilogue_matrix compiles
for _lesson, _name, _transposed in (
    *(("09_coda_forward", n, True) for n in (
        "scale_bias", "residual_rms", "rstd_swiglu", "rstd_rope", "rstd_cross_entropy")),
    *(("10_coda_backward", n, False) for n in ("dsilu", "dswiglu", "drms_residual")),
    *(("11_coda_block", n, True) for n in (
        "squared_reglu", "capped_cross_entropy", "dgelu_bias")),
):
    KERNELS[_lesson, _name] = (
        lambda sm, lesson=_lesson[:2], name=_name, transposed=_transposed: _epilogue(
            lesson, name, sm, transpose_B=transposed), OPTIONS, True)
for _stem, _cases in lesson_cases.modules().items():
    KERNELS.update({(_stem, name): entry for name, entry in _cases.KERNELS.items()})
ALWAYS = ("75", "90a")
FOR_AN_L4 = {"gemm", "gemm_persistent", "gemm_fp8", "flash_attention", "softmax"}
# further shapes and parts of kernels that others stand for
FURTHER = {"online_step", "attention", "attention, D 64 causal", "attention, D 96", "roles",
           "rules", "start_scores", "attention_ahead", "online_pair", "exchange"}
CELLS = [pytest.param(lesson, kernel, f"sm_{number}", marks=() if kernel not in FURTHER and (
                      number in ALWAYS or (number == "89" and kernel in FOR_AN_L4))
                      else pytest.mark.slow)
         for lesson, kernel in KERNELS for number in gpus.arch_numbers()]


def judge(program, arch, options=None, multiplies=False) -> list[str]:
    """What is wrong with `program` on `arch`; an empty list if nothing is."""
    try:
        compiled = lab.cross_compile(program, arch, options)
        used = compiled.resources
    except LabError as error:
        return [str(error)]
    wrong = []
    if compiled.obstacle:
        wrong.append(compiled.obstacle)
    if used.spill_stores or used.spill_loads:
        wrong.append(f"spills {used.spill_stores} + {used.spill_loads} bytes")
    if used.stack_bytes:
        wrong.append(f"has a stack frame of {used.stack_bytes} bytes")
    if multiplies and compiled.tensor_core != TENSOR_CORE[compiled.gpu.sm]:
        wrong.append(f"multiplies with {compiled.tensor_core or 'no tensor-core instruction'}")
    return wrong


@pytest.fixture(scope="module")
def verdicts(request):
    cells = lesson_cases.selected(request, "test_matrix", "lesson", "kernel", "arch")
    start = time.monotonic()

    def one(cell):
        lesson, kernel, arch = cell
        build, options, multiplies = KERNELS[lesson, kernel]
        with parsing.LOCK:  # TileLang parses the kernel's source here
            program = build(gpus.lookup(arch).sm)
        return judge(program, arch, options, multiplies)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = dict(zip(cells, pool.map(one, cells), strict=True))
    print(f"\ncompile matrix: {len(cells)} kernels in {time.monotonic() - start:.1f} s")
    return found


def _needs_sm80(lesson, kernel):
    found = lessons.find(lesson)
    defining = {cell.id for cell in found.kernel_cells() if f"def {kernel}(" in cell.source}
    return bool(defining & set(found.front_matter["sm80_cells"]))


# A sum over rows beside a tile that is fetched ahead: one register too many, outside the main loop.
# Without the fetching nothing spills, and the kernel took 1 % longer on an H200.
SPILLING = {"drms_residual", "dgelu_bias"}
ONE_REGISTER = ["spills 4 + 4 bytes", "has a stack frame of 8 bytes"]


@pytest.mark.parametrize(("lesson", "kernel", "arch"), CELLS)
def test_matrix(lesson, kernel, arch, verdicts):
    if arch == "sm_75" and _needs_sm80(lesson, kernel):
        return  # declared in the lesson's front matter
    if arch == "sm_90a" and kernel in SPILLING:
        assert verdicts[lesson, kernel, arch] in ([], ONE_REGISTER)
        return
    wrong = "; ".join(verdicts[lesson, kernel, arch])
    assert not wrong, (f"{kernel} of {lesson} on {arch}: {wrong}. Choose a schedule for it there "
                       "in KERNELS, or name its cell in sm80_cells if it needs an A100")


def test_every_kernel_cell_is_in_the_matrix():
    for lesson in lessons.all_lessons():
        for cell in lesson.kernel_cells():
            if "T.prim_func" not in cell.source and "import cudnn" in cell.source:
                continue  # cuDNN makes the kernels of its graphs itself
            assert any(stem == lesson.stem and f"def {kernel}(" in cell.source
                       for stem, kernel in KERNELS), (
                f"KERNELS builds no kernel of the cell {cell.id} of {lesson.stem}: add its name "
                f"and how to build it to KERNELS in tests/cases_{lesson.number}.py, or in this "
                "file up to lesson 16")


# --- the judge itself


def test_a_bfloat16_gemm_on_a_t4_fails():
    """It spills nothing, yet its accumulator lies in a stack frame, and no tensor core is used."""
    wrong = judge(_gemm(75, "bfloat16"), "sm_75", multiplies=True)
    assert "has a stack frame of 512 bytes" in wrong
    assert "multiplies with no tensor-core instruction" in wrong


def test_what_does_not_fit_fails():
    large = dict(block_M=256, block_N=256, block_K=64, num_stages=3, threads=256)
    wrong = judge(lab.kernel("02", "gemm")(4096, 4096, 4096, **large), "sm_80", multiplies=True)
    assert any("192 KiB of shared memory" in line for line in wrong)
    assert any(line.startswith("spills") for line in wrong)


def test_what_does_not_compile_fails():
    odd = dict(block_M=24, block_N=40, block_K=16)
    (reason,) = judge(lab.kernel("02", "gemm")(64, 64, 64, **odd), "sm_80")
    assert "could not compile" in reason
