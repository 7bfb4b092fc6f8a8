"""Exercises of lesson 01: vector add."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.figures import wide_accesses
from labkit.exercises.trial import FunctionCheck, KernelCheck

BLOCK = 1024


def _randn(generator: Any, *shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=generator)


def _from_first_block(vector: Any) -> Any:
    import torch

    return vector[torch.arange(len(vector)) % BLOCK]


# --- 01.1

AXPY = Exercise(
    key="01.1", title="axpy", statement="add-ex-1", answer="axpy",
    stub='''
def axpy(N, alpha, block=1024, threads=128, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        ...  # the grid, the loop, the line

    return main
''',
    solution='''
def axpy(N, alpha, block=1024, threads=128, dtype="float32"):
    @T.prim_func
    def main(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        # rounded up: the last block may be a ragged one, and TileLang guards it
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                # alpha is a Python number: it becomes a constant of the program
                C[bx * block + i] = alpha * A[bx * block + i] + B[bx * block + i]

    return main
''',
    hints=(
        "It is the lesson's kernel with one factor more. Write its three lines from memory.",
        "T.Kernel takes the number of blocks, T.ceildiv(N, block), and gives the block's number. "
        "T.Parallel(block) goes through its elements.",
        "Inside both: C[bx * block + i] = alpha * A[bx * block + i] + B[bx * block + i].",
    ),
    judge=KernelCheck(
        cases=(dict(N=2500, alpha=-1.5), dict(N=1024, alpha=3.0), dict(N=1, alpha=0.0)),
        inputs=lambda s, g: [_randn(g, s["N"]), _randn(g, s["N"])],
        reference=lambda s, A, B: s["alpha"] * A.double() + B.double(), tile=lambda s: BLOCK,
        mistakes={
            "alpha multiplies the sum, where it belongs to A alone.":
                lambda s, A, B: s["alpha"] * (A.double() + B.double()),
            "alpha multiplies B, where it belongs to A.":
                lambda s, A, B: A.double() + s["alpha"] * B.double(),
            "alpha has no effect: that is A + B.": lambda s, A, B: A.double() + B.double(),
            "Every block reads the first block's elements: add bx * block to the index.":
                lambda s, A, B: s["alpha"] * _from_first_block(A).double()
                + _from_first_block(B).double(),
            "Every block reads the first block of B: add bx * block to its index.":
                lambda s, A, B: s["alpha"] * A.double() + _from_first_block(B).double(),
        }))


# --- 01.2

def _padded(N: int, bytes_each: int) -> int:
    each = 16 // bytes_each
    return -(-N // each) * each


PADDING = Exercise(
    key="01.2", title="A length that keeps accesses wide", statement="add-ex-2", answer="padded",
    stub='''
def padded(N, bytes_each):
    """The least length of at least N elements that fills accesses of 16 bytes."""
    ...
''',
    solution='''
def padded(N, bytes_each):
    """The least length of at least N elements that fills accesses of 16 bytes."""
    each = 16 // bytes_each  # elements in one access: 4 of float32, 8 of float16
    # round up by rounding the negative down; a length that fits already stays as it is
    return -(-N // each) * each
''',
    hints=(
        "How many elements fit in one access of 16 bytes? The length has to be a multiple of that.",
        "16 // bytes_each elements. Now round N up to a multiple of it; a multiple stays.",
        "Rounding up in whole numbers: -(-N // each) * each.",
    ),
    judge=FunctionCheck(
        cases=((10_007, 4), (10_008, 4), (17, 2), (24, 2), (1, 8), (33, 1)), wanted=_padded,
        mistakes={
            "That rounds down, and elements are lost.":
                lambda N, b: N // (16 // b) * (16 // b),
            "A length that fits already must stay as it is.":
                lambda N, b: (N // (16 // b) + 1) * (16 // b),
            "That is a multiple of 16 elements, where 16 bytes are meant: divide by bytes_each.":
                lambda N, b: -(-N // 16) * 16,
            "That is the length in bytes; it is asked for in elements.":
                lambda N, b: _padded(N, b) * b,
        }))


# --- 01.3

def _gate(s: Any, X: Any, G: Any) -> Any:
    return X.double() * G.double().sigmoid()


GATE = Exercise(
    key="01.3", title="A gate at full width", statement="add-ex-3", answer="gate",
    stub='''
def gate(N, dtype="float16"):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), G: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        ...  # choose the block and the threads yourself

    return main
''',
    solution='''
def gate(N, dtype="float16"):
    # 16 bytes are 8 elements of 2 bytes, so a thread needs at least 8 neighbours:
    # 1,024 elements over 128 threads are just that
    block, threads = 1024, 128

    @T.prim_func
    def main(X: T.Tensor((N,), dtype), G: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                # in float32: exp of a float16 overflows at 11.09, and each step would round
                g = T.Cast("float32", G[bx * block + i])
                x = T.Cast("float32", X[bx * block + i])
                Y[bx * block + i] = x / (1.0 + T.exp(-g))

    return main
''',
    hints=(
        "First make it right, with lesson 01's frame. sigmoid(g) is 1 / (1 + exp(-g)).",
        "How many elements of 2 bytes fill 16 bytes? Each thread must have at least as many: that "
        "decides block / threads.",
        "1,024 elements a block over 128 threads. Compute in float32 with "
        "T.Cast(\"float32\", G[…]); T.exp is the exponential.",
    ),
    judge=KernelCheck(
        cases=(dict(N=2503), dict(N=1), dict(N=2048)),
        inputs=lambda s, g: [_randn(g, s["N"]).half(), (8 * _randn(g, s["N"])).half()],
        reference=_gate, tile=lambda s: BLOCK,
        mistakes={
            "exp lacks its minus sign: that is the gate of -G.":
                lambda s, X, G: X.double() * (-G.double()).sigmoid(),
            "The gate itself was stored: multiply it by X.": lambda s, X, G: G.double().sigmoid(),
            "X and G have changed places: G is what goes through the sigmoid.":
                lambda s, X, G: G.double() * X.double().sigmoid(),
            "That is G * sigmoid(G): X is not used.": lambda s, X, G: _gate(s, G, G),
        },
        figures=(wide_accesses("H100", dict(N=1_048_576), 3),)))

EXERCISES = (AXPY, PADDING, GATE)
