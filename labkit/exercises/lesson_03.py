"""Exercises of lesson 03: schedules. The answers are schedules and a formula; the compilers are
asked whether they hold."""

from __future__ import annotations

import functools
from typing import Any

from labkit.errors import MissingTool, first_line
from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.trial import FunctionCheck, quiet

KNOBS = ("block_M", "block_N", "block_K", "num_stages", "threads")


@functools.cache
def _gemm() -> Any:
    from labkit.lessons import kernel

    return kernel("02", "gemm")


def _compiled(schedule: dict[str, int]) -> Any:
    from labkit.crosscompile import cross_compile

    return cross_compile(_gemm()(4096, 4096, 4096, panel=0, **schedule), "A100")


# --- 03.1

def _shared_kib(block_M: int, block_N: int, block_K: int, num_stages: int) -> float:
    return _compiled(dict(block_M=block_M, block_N=block_N, block_K=block_K,
                          num_stages=num_stages)).shared_bytes / 1024


def _stages(m: int, n: int, k: int, s: int) -> float:
    return s * (m + n) * k * 2 / 1024


SHARED = Exercise(
    key="03.1", title="Shared memory by hand", statement="sched-ex-1", answer="shared_kib",
    stub='''
def shared_kib(block_M, block_N, block_K, num_stages):
    """KiB of shared memory that a block of lesson 02's GEMM takes, in float16."""
    ...
''',
    solution='''
def shared_kib(block_M, block_N, block_K, num_stages):
    """KiB of shared memory that a block of lesson 02's GEMM takes, in float16."""
    stages = num_stages * (block_M + block_N) * block_K * 2  # a tile of A and one of B each
    c_tile = block_M * block_N * 2
    # C is staged after the last product, when the stages are free: they share the space
    return max(stages, c_tile) / 1024
''',
    hints=(
        "Three tiles lie in shared memory: of A, of B and of C. Which of them exist once for each "
        "stage?",
        "A stage holds (block_M + block_N) * block_K numbers of 2 bytes. The tile of C is needed "
        "only when the stages are not needed any more.",
        "The larger of num_stages * (block_M + block_N) * block_K * 2 and block_M * block_N * 2, "
        "divided by 1,024.",
    ),
    judge=FunctionCheck(
        cases=((128, 128, 64, 3), (128, 128, 32, 2), (64, 128, 32, 4), (128, 256, 32, 1),
               (64, 64, 64, 2)),
        wanted=_shared_kib,
        mistakes={
            "The stages and the tile of C were added, but they share the space: C is staged when "
            "the stages are free. Take the larger.":
                lambda m, n, k, s: _stages(m, n, k, s) + m * n * 2 / 1024,
            "The tile of C was left out, which can be the larger part.": _stages,
            "The stages were counted once: each has a tile of A and one of B.":
                lambda m, n, k, s: max(_stages(m, n, k, 1), m * n * 2 / 1024),
            "That is in elements: a float16 takes 2 bytes.":
                lambda m, n, k, s: max(_stages(m, n, k, s), m * n * 2 / 1024) / 2,
            "That is in bytes; a KiB has 1,024 of them.":
                lambda m, n, k, s: max(_stages(m, n, k, s) * 1024, m * n * 2),
        }))


# --- 03.2 and 03.3

def _schedule(answer: Any) -> str:
    """What is wrong with a schedule before any compiler sees it; empty if nothing is."""
    if not isinstance(answer, dict):
        return "The answer is no schedule; write it as in dict(block_M=64, block_N=64, …)."
    if set(answer) != set(KNOBS) or not all(
            type(value) is int and 1 <= value <= 1024 for value in answer.values()):
        return (f"A schedule here has the knobs {', '.join(KNOBS)}, each a whole number of 1 to "
                "1,024.")
    return ""


def _problem(answer: dict[str, int], least: int, blocks: int) -> tuple[str, str]:
    """(what is wrong with it on an A100, or "", what was found)."""
    elements = answer["block_M"] * answer["block_N"]
    if elements < least:
        return (f"The tile of C has {elements:,} elements; at least {least:,} are asked for.", "")
    try:
        with quiet():
            compiled = _compiled(answer)
        if compiled.obstacle:
            return f"On an A100 it cannot be launched. {compiled.obstacle}", ""
        used, occupied = compiled.resources, compiled.occupancy
    except MissingTool:
        return "", "Spills and occupancy were not judged: nvcc is not here."
    except Exception as error:  # whatever a schedule provokes in the compilers is told, not raised
        return f"It does not compile: {first_line(error)}", ""
    spilled = used.spill_stores + used.spill_loads
    if spilled:
        threads = answer["threads"]
        here = min(255, 65_536 // threads)  # CUDA C++ Programming Guide: registers of a block
        return (f"{spilled} bytes a thread are spilled to memory: the accumulator has "
                f"{elements // threads} elements a thread, and of the 65,536 registers a thread "
                f"gets {here} at {threads} threads. The accumulator, addresses and operands must "
                "fit there together.", "")
    if occupied.blocks < blocks:
        return (f"{occupied.blocks} at once on a multiprocessor, limited by {occupied.limited_by}; "
                f"{blocks} are asked for.", "")
    return "", (f"{elements:,} elements, {compiled.shared_bytes / 1024:g} KiB of shared memory, "
                f"{used.registers} registers a thread, nothing spilled, {occupied.blocks} at once "
                f"on an A100's multiprocessor, limited by {occupied.limited_by}.")


def _judge(answer: Any, least: int, blocks: int) -> Outcome:
    import torch

    from labkit.compiler import compile
    from labkit.verify import compare

    wrong = _schedule(answer)
    if wrong:
        return Outcome(False, (wrong,))
    problem, found = _problem(answer, least, blocks)
    if problem:
        return Outcome(False, (problem,))
    generator = torch.Generator().manual_seed(3)
    A, B = (torch.randn(shape, generator=generator).half() for shape in ((70, 72), (72, 136)))
    try:
        run = compile(_gemm()(70, 136, 72, panel=0, **answer), out_idx=-1, device="cpu")
        verdict = compare(run(A, B), A.float() @ B.float(), name="gemm")
    except Exception as error:  # as above
        return Outcome(False, (f"It does not run: {first_line(error)}",))
    return Outcome(verdict.ok, (found, *repr(verdict).splitlines()[:2]))


BLOCKS = Exercise(
    key="03.2", title="Three blocks at once", statement="sched-ex-2", answer="three_blocks",
    stub='''
three_blocks = dict(block_M=..., block_N=..., block_K=..., num_stages=..., threads=...)
''',
    solution='''
# 128 threads of 170 registers at most let three blocks in, and 163 KiB leave 54 KiB for each.
# 64 x 128 over 128 threads is an accumulator of 64 registers; 3 stages of 32 take 36 KiB.
# Given up: the tile does 43 operations a byte, where 128 x 128 does 64.
three_blocks = dict(block_M=64, block_N=128, block_K=32, num_stages=3, threads=128)
''',
    hints=(
        "Three things must fit three times: threads, registers and shared memory. The report of "
        "lab.cross_compile says which of them ran out first.",
        "An A100's multiprocessor has 65,536 registers and 164 KiB of shared memory, of which a "
        "block can take 163. A third of each is your budget.",
        "Take the smallest tile that is allowed, 64 x 128, with 128 threads. Then choose block_K "
        "and num_stages so that the stages stay below 54 KiB.",
    ),
    judge=functools.partial(_judge, least=64 * 128, blocks=3))

LARGEST = Exercise(
    key="03.3", title="The largest tile", statement="sched-ex-3", answer="largest",
    stub='''
largest = dict(block_M=..., block_N=..., block_K=..., num_stages=..., threads=...)
''',
    solution='''
# 32,768 accumulators over 256 threads are 128 registers each, which leaves as many for the
# operands that mma takes from registers. 512 threads would get 128 registers in all.
largest = dict(block_M=128, block_N=256, block_K=32, num_stages=2, threads=256)
''',
    hints=(
        "The accumulator's elements over the threads are registers a thread. At most 255 are "
        "there, and the operands need some, too.",
        "More threads make the share smaller, but all threads of a block share 65,536 registers. "
        "Try 256 threads.",
        "128 x 256 over 256 threads is 128 registers for the accumulator. Keep block_K and the "
        "stages small first, then see what is left.",
    ),
    judge=functools.partial(_judge, least=128 * 256, blocks=1))

EXERCISES = (SHARED, BLOCKS, LARGEST)
