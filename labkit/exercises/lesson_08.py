"""Exercises of lesson 08: debugging."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.figures import compiles
from labkit.exercises.trial import FunctionCheck, KernelCheck, failure

# --- 08.1


def _peak(X: Any) -> Any:
    return X.double() / X.double().abs().amax(1, keepdim=True)


def _rows(X: Any, rows: int = 4) -> Any:
    """The peak of the first row of each block for all of its rows."""
    peak = X.double().abs().amax(1)
    return X.double() / peak[[i // rows * rows for i in range(len(X))]][:, None]


def _inputs(s: dict[str, int], g: Any) -> list[Any]:
    import torch

    return [torch.randn(s["M"], s["N"], generator=g) - 0.5]


MEND = Exercise(
    key="08.1", title="A patient with four complaints", statement="debug-ex-1",
    answer="peak_scale",
    stub='''
def peak_scale(M, N, rows=4, threads=128):
    width = N

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(M // rows, threads=threads) as b:
            x = T.alloc_fragment((rows, width), "float32")
            peak = T.alloc_fragment((rows,), "float32")
            T.copy(X[b * rows, 0], x)
            T.reduce_max(x, peak, dim=1)
            for i, j in T.Parallel(rows, width):
                x[i, j] = x[i, j] / peak[0]
            T.copy(x, Y[b * rows, 0])

    return main
''',
    solution='''
def peak_scale(M, N, rows=4, threads=128):
    width = max(threads, 1 << (N - 1).bit_length())  # a fragment that the threads can share

    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as b:  # the ragged block, too
            x = T.alloc_fragment((rows, width), "float32")
            peak = T.alloc_fragment((rows,), "float32")
            T.copy(X[b * rows, 0], x)  # zeros past the end: never the largest magnitude
            T.reduce_absmax(x, peak, dim=1)  # the largest magnitude may be a negative number's
            for i, j in T.Parallel(rows, width):
                x[i, j] = x[i, j] / peak[i]  # each row its own
            T.copy(x, Y[b * rows, 0])

    return main
''',
    hints=(
        "Run the check and read the map: which tiles are wrong, and is it NaN or a number? Mend "
        "one thing at a time.",
        "Three mistakes are in the numbers: the grid, which row's peak, and what a peak is for a "
        "row of negative numbers. The fourth shows only when it is compiled for a GPU: clinic, "
        "case 1.",
        "T.ceildiv(M, rows); peak[i]; T.reduce_absmax; and a width that is a power of two of at "
        "least `threads`.",
    ),
    judge=KernelCheck(
        cases=(dict(M=10, N=50), dict(M=1, N=1), dict(M=8, N=128)), inputs=_inputs,
        reference=lambda s, X: _peak(X), tile=lambda s: (4, 25),
        mistakes={
            "The peak is that of the largest element, not of the largest magnitude: negative "
            "numbers count, too.":
                lambda s, X: X.double() / X.double().amax(1, keepdim=True),
            "All rows of a block are divided by the peak of its first row.":
                lambda s, X: _rows(X),
            "Each row was divided by its sum of magnitudes, not by its peak.":
                lambda s, X: X.double() / X.double().abs().sum(1, keepdim=True),
        },
        figures=(compiles(("T4", "A100"), dict(M=64, N=1001),
                          "the width of the fragment has to suit the threads."),)))


# --- 08.2


def _reading(compiled: Any, order: str = "fit core spill", cores: tuple[str, ...] = (
        "wgmma", "mma"), limit: int = 0) -> str:
    for what in order.split():
        most = limit or compiled.gpu.shared_per_block
        if what == "fit" and compiled.shared_bytes > most:
            return "does not fit"
        if what == "core" and not any(mark in compiled.landmarks for mark in cores):
            return "no tensor core"
        if what == "spill" and compiled.resources.spill_stores:
            return "spills"
    return ""


@functools.cache
def _reading_check() -> FunctionCheck:
    from labkit.crosscompile import cross_compile
    from labkit.lessons import kernel

    gemm = kernel("02", "gemm")
    large = kernel("02", "SCHEDULES")[90]
    cases = [cross_compile(gemm(4096, 4096, 4096, dtype=dtype, **schedule), gpu)
             for gpu, dtype, schedule in (
                 ("A100", "bfloat16", {}), ("T4", "bfloat16", {}), ("T4", "bfloat16", large),
                 ("H100", "bfloat16", {}),
                 ("A100", "float16", dict(block_M=128, block_N=256, threads=128)))]
    return FunctionCheck(
        cases=tuple((compiled,) for compiled in cases), wanted=_reading,
        mistakes={
            "Spills were not looked at: resources.spill_stores counts them in bytes.":
                functools.partial(_reading, order="fit core"),
            "The fit was not looked at: shared_bytes may exceed gpu.shared_per_block.":
                functools.partial(_reading, order="core spill"),
            "The tensor core was not looked at.": functools.partial(_reading, order="fit spill"),
            "wgmma is Hopper's name alone; elsewhere the instruction is mma.":
                functools.partial(_reading, cores=("wgmma",)),
            "mma is not the only name: Hopper's instruction is wgmma.":
                functools.partial(_reading, cores=("mma",)),
            "What does not fit cannot be launched at all: ask that first.":
                functools.partial(_reading, order="core fit spill"),
            "The limit is the GPU's own: gpu.shared_per_block.":
                functools.partial(_reading, limit=48 * 1024),
        })


READER = Exercise(
    key="08.2", title="A reader of compiled kernels", statement="debug-ex-2", answer="complaint",
    stub='''
def complaint(compiled):
    """The first thing wrong with a GEMM that lab.cross_compile gave, or "".

    "does not fit", "no tensor core" or "spills", asked in this order.
    """
    ...
''',
    solution='''
def complaint(compiled):
    """The first thing wrong with a GEMM that lab.cross_compile gave, or "".

    "does not fit", "no tensor core" or "spills", asked in this order.
    """
    if compiled.shared_bytes > compiled.gpu.shared_per_block:
        return "does not fit"
    if not {"mma", "wgmma"} & set(compiled.landmarks):
        return "no tensor core"  # right, and many times slower: no message will ever say so
    if compiled.resources.spill_stores:  # the only question that needs nvcc, so it comes last
        return "spills"
    return ""
''',
    hints=(
        "`compiled` has all three: shared_bytes beside gpu.shared_per_block, landmarks, and "
        "resources.",
        "landmarks is a dict of the instructions that were found. Two names mean a tensor core: "
        "mma, and Hopper's wgmma. (compiled.tensor_core looks for both.)",
        "compiled.shared_bytes > compiled.gpu.shared_per_block; not compiled.tensor_core; "
        "compiled.resources.spill_stores. Return \"\" if none holds.",
    ),
    judge=lambda answer: _reading_check()(answer))


# --- 08.3

BUDGET = 200
START = dict(M=777, N=777, K=777)
# name -> whether a broken GEMM is wrong at these sizes
FAILURES: dict[str, Callable[[int, int, int], bool]] = {
    "a grid that rounds down over tiles of 64 rows": lambda M, N, K: M > 64 and M % 64 != 0,
    "a loop over K that runs once": lambda M, N, K: K > 32,
    "a guard that is missing where both edges are ragged":
        lambda M, N, K: M % 16 != 0 and N % 16 != 0 and N > 16,
    "an index that overflows in a large output": lambda M, N, K: M * N > 4096,
}


def _smaller(sizes: dict[str, int]) -> list[dict[str, int]]:
    """Sizes with one of them one less, or halved."""
    return [sizes | {name: value} for name in sizes
            for value in {sizes[name] - 1, sizes[name] // 2} if value >= 1]


def _judge_shrink(shrink: Any) -> Outcome:
    if not callable(shrink):
        return Outcome(False, ("The answer is no function; it takes `fails` and the sizes.",))
    most = 0
    for name, wrong in FAILURES.items():
        calls = 0

        def fails(M: int, N: int, K: int, wrong: Any = wrong) -> bool:
            nonlocal calls
            calls += 1
            if calls > BUDGET:
                raise RuntimeError(f"all {BUDGET} calls are used up")
            if min(M, N, K) < 1:
                raise ValueError("sizes start at 1")
            return wrong(M, N, K)

        try:
            found = shrink(fails, dict(START))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (f"For {name}: {failure(error, shrink)}",))
        if not isinstance(found, dict) or set(found) != set(START):
            return Outcome(False, (f"For {name} it returns {found!r}, where sizes such as {START} "
                                   "belong.",))
        if not wrong(**found):
            return Outcome(False, (f"For {name} it returns {found}, where the kernel is right: "
                                   "take a step only if it still fails.",))
        better = next((s for s in _smaller(found) if wrong(**s)), None)
        if better:
            return Outcome(False, (f"For {name} it returns {found}, but {better} fails, too: go on "
                                   "until no single step is left.",))
        most = max(most, calls)
    return Outcome(True, (f"Right for {len(FAILURES)} broken kernels, with at most {most} of "
                          f"{BUDGET} calls.",))


SHRINK = Exercise(
    key="08.3", title="Shrink a failure", statement="debug-ex-3", answer="shrink",
    stub='''
def shrink(fails, sizes):
    """Small sizes at which a kernel still fails. fails(M=…, N=…, K=…) -> bool; at most 200 calls.

    At the end, halving one size or taking 1 off it must make the failure go away.
    """
    ...
''',
    solution='''
def shrink(fails, sizes):
    """Small sizes at which a kernel still fails. fails(M=…, N=…, K=…) -> bool; at most 200 calls.

    At the end, halving one size or taking 1 off it must make the failure go away.
    """
    step_found = True
    while step_found:
        step_found = False
        for name in sizes:
            # large steps first: halving reaches 1 in ten calls, counting down takes hundreds;
            # between them, steps of a quarter and less, because what halving skips may still fail
            step = sizes[name] // 2
            while step:
                smaller = sizes | {name: sizes[name] - step}
                if smaller[name] >= 1 and fails(**smaller):
                    sizes, step_found = smaller, True
                else:
                    step //= 2
        # shrinking one size can make room for another: go round until nothing moves
    half = [sizes | {name: sizes[name] // 2} for name in sizes if sizes[name] > 1]
    for smaller in half:
        if fails(**smaller):
            return shrink(fails, smaller)
    return sizes
''',
    hints=(
        "Change one size at a time, keep the change if it still fails, and go round until nothing "
        "changes.",
        "Taking 1 off from 777 down costs 776 calls a size. Take off large steps first, and halve "
        "the step when one makes the failure go away.",
        "For each name: step = sizes[name] // 2; while step: try sizes[name] - step; if it fails, "
        "keep it, else step //= 2. Repeat until a whole round changes nothing.",
    ),
    judge=_judge_shrink)

EXERCISES = (MEND, READER, SHRINK)
