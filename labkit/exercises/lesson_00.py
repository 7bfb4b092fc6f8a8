"""Exercises of lesson 00: the environment, the check and the floors."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.trial import FunctionCheck, KernelCheck

BLOCK = 256

# --- 00.1


def _degrees(generator: Any, N: int) -> Any:
    import torch

    return 60 + 40 * torch.randn(N, generator=generator)


FIRST_LINE = Exercise(
    key="00.1", title="Your first line", statement="env-ex-1", answer="celsius",
    stub='''
def celsius(N, block=256, dtype="float32"):
    @T.prim_func
    def main(F: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            for i in T.Parallel(block):
                ...  # your line

    return main
''',
    solution='''
def celsius(N, block=256, dtype="float32"):
    @T.prim_func
    def main(F: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            for i in T.Parallel(block):
                # block bx begins at element bx * block; i counts from there
                C[bx * block + i] = (F[bx * block + i] - 32) / 1.8

    return main
''',
    hints=(
        "The kernel `double` above has the same frame. Only its innermost line computes.",
        "Element i of block bx is number bx * block + i of the vector, in F as in C.",
        "C[bx * block + i] = …, with F[bx * block + i] on the right: take off 32 first, then "
        "divide.",
    ),
    judge=KernelCheck(
        cases=(dict(N=1000), dict(N=1)),
        inputs=lambda s, g: [_degrees(g, s["N"])],
        reference=lambda s, F: (F.double() - 32) / 1.8, tile=lambda s: BLOCK,
        mistakes={
            "32 / 1.8 was computed first: the subtraction needs parentheses.":
                lambda s, F: F.double() - 32 / 1.8,
            "It was multiplied by 1.8, where it has to be divided.":
                lambda s, F: (F.double() - 32) * 1.8,
            "Every block reads the first block's elements: add bx * block to the index of F.":
                lambda s, F: (F.double()[_within_first_block(s["N"])] - 32) / 1.8,
            "That is the way back, from Celsius to Fahrenheit.":
                lambda s, F: F.double() * 1.8 + 32,
        }))


def _within_first_block(N: int) -> Any:
    import torch

    return torch.arange(N) % BLOCK


# --- 00.2

def _short_grid(N: int) -> int:
    return max(1, N // BLOCK) * BLOCK


# name -> how many of N elements the broken program writes, in order
BROKEN = {
    "one that rounds the number of blocks down, to at least one": _short_grid,
    "one that works on four elements at a time and drops the rest": lambda N: N // 4 * 4,
    "one whose counter of elements ends at 1,024": lambda N: min(N, 1024),
    "one whose last block has N % 256 elements":
        lambda N: (N - 1) // BLOCK * BLOCK + N % BLOCK,
    "one that takes a single element for a number and skips it": lambda N: 0 if N == 1 else N,
}
MOST_SIZES, LARGEST = 3, 5000


def _judge_sizes(sizes: Any) -> Outcome:
    """Runs every broken doubling at every size, and says which of them none has caught."""
    import torch

    from labkit.verify import compare

    if not isinstance(sizes, (list, tuple)) or not all(type(n) is int for n in sizes):
        return Outcome(False, ("sizes is not a list of whole numbers; write it as in [256, 512].",))
    if not 1 <= len(sizes) <= MOST_SIZES or not all(1 <= n <= LARGEST for n in sizes):
        return Outcome(False, (f"Give one to {MOST_SIZES} sizes of 1 to {LARGEST:,} elements; "
                               f"these are {list(sizes)}.",))

    def caught(written: Any, N: int) -> bool:
        x = torch.arange(1.0, N + 1)
        out = torch.full_like(x, float("nan"))
        out[:written(N)] = 2 * x[:written(N)]
        return not compare(out, 2 * x).ok

    missed = [name for name, written in BROKEN.items()
              if not any(caught(written, N) for N in sizes)]
    if missed:
        return Outcome(False, (f"{len(BROKEN) - len(missed)} of {len(BROKEN)} broken programs are "
                               f"caught. At all your sizes this one is right: {missed[0]}.",))
    return Outcome(True, (f"All {len(BROKEN)} broken programs are caught.",))


TEST_SIZES = Exercise(
    key="00.2", title="Sizes that hurt", statement="env-ex-2", answer="sizes",
    stub="sizes = [...]  # at most three numbers of elements, each 1 to 5,000",
    solution='''
# 1025: more than one block and no multiple of it, no multiple of 4, and beyond 1,024;
# 512: a multiple of the block, where the last block is a full one;
# 1: the smallest there is, where shortcuts sit
sizes = [1, 512, 1025]
''',
    hints=(
        "Ask of each broken program: at which sizes is it right? Then choose a size that is none "
        "of them.",
        "Three kinds of size are needed: the smallest one, a multiple of the block, and a large "
        "one that is a multiple of nothing.",
        "One of them is 1. One is a multiple of 256. The third is above 1,024, and no multiple of "
        "256 nor of 4.",
    ),
    judge=_judge_sizes)


# --- 00.3

def _floor(moved: float, operations: float, gb_s: float, tflop_s: float) -> float:
    return max(moved / (gb_s * 1e9), operations / (tflop_s * 1e12)) * 1e3


FLOOR = Exercise(
    key="00.3", title="The floor of any kernel", statement="env-ex-3", answer="floor_ms",
    stub='''
def floor_ms(moved, operations, gb_s, tflop_s):
    """The least time in milliseconds: bytes moved, operations, GB/s, TFLOP/s."""
    ...
''',
    solution='''
def floor_ms(moved, operations, gb_s, tflop_s):
    """The least time in milliseconds: bytes moved, operations, GB/s, TFLOP/s."""
    memory = moved / (gb_s * 1e9)  # seconds
    compute = operations / (tflop_s * 1e12)
    # both go on at the same time, so the longer one counts and not the sum
    return max(memory, compute) * 1e3
''',
    hints=(
        "The formula stands above, under *Two floors*. Which unit has each of the four numbers?",
        "A GB is 1e9 bytes, a TFLOP is 1e12 operations. Both quotients are seconds.",
        "Take the larger of moved / (gb_s * 1e9) and operations / (tflop_s * 1e12), and turn "
        "seconds into milliseconds.",
    ),
    judge=FunctionCheck(
        cases=((805_306_368, 67_108_864, 4000.0, 60.0),
               (100_663_296, 137_438_953_472, 3350.0, 700.0),
               (8, 10**12, 1000.0, 100.0), (10**9, 0, 300.0, 65.0)),
        wanted=_floor,
        mistakes={
            "Memory and arithmetic work at the same time: take the larger, not the sum.":
                lambda m, o, g, t: (m / (g * 1e9) + o / (t * 1e12)) * 1e3,
            "That is the smaller of the two: the kernel has to wait for the larger one.":
                lambda m, o, g, t: min(m / (g * 1e9), o / (t * 1e12)) * 1e3,
            "That is in seconds; a second has 1,000 milliseconds.":
                lambda *a: _floor(*a) / 1e3,
            "Only the bytes were counted: the operations may take longer.":
                lambda m, o, g, t: m / (g * 1e9) * 1e3,
            "Only the operations were counted: the bytes may take longer.":
                lambda m, o, g, t: o / (t * 1e12) * 1e3,
        }))

EXERCISES = (FIRST_LINE, TEST_SIZES, FLOOR)
