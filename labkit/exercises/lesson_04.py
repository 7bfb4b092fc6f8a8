"""Exercises of lesson 04: epilogue fusion."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.figures import compiles, landmark, no_spills, reads
from labkit.exercises.trial import KernelCheck

BLOCK_N = 64
LARGE = dict(M=4096, N=4096, K=4096)


def _randn(generator: Any, *shape: int, scale: float = 1.0) -> Any:
    import torch

    return (scale * torch.randn(shape, generator=generator)).half()


def _silu(x: Any) -> Any:
    return x * x.sigmoid()


def _first_tile(vector: Any) -> Any:
    """What is read where the tile's column is missing from the index."""
    import torch

    return vector[..., torch.arange(vector.shape[-1]) % BLOCK_N]


# --- 04.1


def _bias_inputs(s: dict[str, int], g: Any) -> list[Any]:
    return [_randn(g, s["M"], s["K"]), _randn(g, s["K"], s["N"], scale=s["K"] ** -0.5),
            _randn(g, s["N"], scale=2.0)]


SILU = Exercise(
    key="04.1", title="Bias and SiLU", statement="epi-ex-1", answer="gemm_bias_silu",
    stub='''
def gemm_bias_silu(M, N, K, block_M=64, block_N=64, block_K=32, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), bias: T.Tensor((N,), dtype),
             C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_K, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, acc)
            ...  # the epilogue
            T.copy(acc, C[by * block_M, bx * block_N])

    return main
''',
    solution='''
def gemm_bias_silu(M, N, K, block_M=64, block_N=64, block_K=32, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), bias: T.Tensor((N,), dtype),
             C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_K, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, acc)
            for i, j in T.Parallel(block_M, block_N):
                # in two steps on the accumulator: no second tile of registers is needed
                acc[i, j] += T.Cast("float32", bias[bx * block_N + j])
                acc[i, j] = acc[i, j] / (1.0 + T.exp(-acc[i, j]))
            T.copy(acc, C[by * block_M, bx * block_N])

    return main
''',
    hints=(
        "The epilogue is a loop over the elements of acc. First the bias, then the activation: "
        "SiLU is x * sigmoid(x).",
        "T.Parallel(block_M, block_N) gives i and j. Column j of this tile is column "
        "bx * block_N + j of C.",
        "acc[i, j] += T.Cast(\"float32\", bias[bx * block_N + j]), and then "
        "acc[i, j] = acc[i, j] / (1.0 + T.exp(-acc[i, j])).",
    ),
    judge=KernelCheck(
        cases=(dict(M=70, N=136, K=40), dict(M=1, N=8, K=96)),
        inputs=_bias_inputs,
        reference=lambda s, A, B, b: _silu(A.float() @ B.float() + b.float()),
        tile=lambda s: (64, 64),
        mistakes={
            "The bias was added after the activation: it belongs before it.":
                lambda s, A, B, b: _silu(A.float() @ B.float()) + b.float(),
            "The bias is missing.": lambda s, A, B, b: _silu(A.float() @ B.float()),
            "Every tile adds the bias of the first tile: add bx * block_N to its index.":
                lambda s, A, B, b: _silu(A.float() @ B.float() + _first_tile(b).float()),
            "The bias was added by row: it has an element for each column of C, "
            "bias[bx * block_N + j].":
                lambda s, A, B, b: _by_row(A, B, b, lambda row, column: row),
            "Every tile adds the first elements of the bias, by row: each column of C has its "
            "own, bias[bx * block_N + j].":
                lambda s, A, B, b: _by_row(A, B, b, lambda row, column: row % 64),
            "The bias was added by row of the tile: its index needs j, not i.":
                lambda s, A, B, b: _by_row(
                    A, B, b, lambda row, column: column // 64 * 64 + row % 64),
            "That is sigmoid(x): SiLU multiplies it by x.":
                lambda s, A, B, b: (A.float() @ B.float() + b.float()).sigmoid(),
            "The activation is missing.": lambda s, A, B, b: A.float() @ B.float() + b.float(),
            "The activation was applied in every step along K, not once at the end.":
                lambda s, A, B, b: _silu_each_step(A, B, b),
        },
        figures=(no_spills("A100", LARGE),)))


def _by_row(A: Any, B: Any, bias: Any, place: Callable[[Any, Any], Any]) -> Any:
    """With the element `place`(row, column) of the bias, 0 beyond its end, at each place of C."""
    import torch

    places = place(torch.arange(len(A))[:, None], torch.arange(B.shape[1]))
    room = torch.nn.functional.pad(bias.float(), (0, max(0, int(places.max()) + 1 - len(bias))))
    return _silu(A.float() @ B.float() + room[places])


def _silu_each_step(A: Any, B: Any, bias: Any, step: int = 32) -> Any:
    acc = 0.0
    for k in range(0, A.shape[1], step):
        acc = _silu(acc + A[:, k:k + step].float() @ B[k:k + step].float() + bias.float())
    return acc


# --- 04.2

RESIDUAL = Exercise(
    key="04.2", title="A residual", statement="epi-ex-2", answer="gemm_residual",
    stub='''
def gemm_residual(M, N, K, alpha=0.5, block_M=64, block_N=64, block_K=32, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), R: T.Tensor((M, N), dtype),
             C: T.Tensor((M, N), dtype)):
        ...  # C = alpha * (A @ B) + R

    return main
''',
    solution='''
def gemm_residual(M, N, K, alpha=0.5, block_M=64, block_N=64, block_K=32, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), R: T.Tensor((M, N), dtype),
             C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_K, block_N), dtype)
            R_tile = T.alloc_shared((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, acc)
            # as a tile: whole rows come in wide accesses, and beyond the edge come zeros; read
            # from the accumulator's layout, each thread would fetch two elements at a time
            T.copy(R[by * block_M, bx * block_N], R_tile)
            for i, j in T.Parallel(block_M, block_N):
                acc[i, j] = alpha * acc[i, j] + T.Cast("float32", R_tile[i, j])
            T.copy(acc, C[by * block_M, bx * block_N])  # rounds once, after the sum

    return main
''',
    hints=(
        "R has C's shape, so the tile of R that a block needs has C's corner. When is it needed?",
        "After the loop: copy R[by * block_M, bx * block_N] into a shared tile, then go through "
        "the accumulator once.",
        "In the epilogue: acc[i, j] = alpha * acc[i, j] + T.Cast(\"float32\", R_tile[i, j]).",
    ),
    judge=KernelCheck(
        cases=(dict(M=70, N=136, K=40), dict(M=130, N=8, K=32, alpha=-2.0)),
        inputs=lambda s, g: [_randn(g, s["M"], s["K"]), _randn(g, s["K"], s["N"]),
                             _randn(g, s["M"], s["N"], scale=4.0)],
        reference=lambda s, A, B, R: _alpha(s) * (A.float() @ B.float()) + R.float(),
        tile=lambda s: (64, 64),
        mistakes={
            "The residual is missing.": lambda s, A, B, R: _alpha(s) * (A.float() @ B.float()),
            "alpha is missing.": lambda s, A, B, R: A.float() @ B.float() + R.float(),
            "alpha multiplies the residual, too: it belongs to the product alone.":
                lambda s, A, B, R: _alpha(s) * (A.float() @ B.float() + R.float()),
            "The residual was added in every step along K, not once.":
                lambda s, A, B, R: _alpha(s) * (A.float() @ B.float())
                + -(-s["K"] // 32) * R.float(),
            "Every tile adds the first tile of R: its index lacks the tile's corner.":
                lambda s, A, B, R: _alpha(s) * (A.float() @ B.float())
                + _first_tile(_first_tile(R).mT).mT.float(),
        },
        figures=(reads("R", 1, LARGE, "read each element of R once, after the loop."),
                 compiles(("T4", "H100"), LARGE))))


def _alpha(sizes: dict[str, Any]) -> float:
    return sizes.get("alpha", 0.5)


# --- 04.3


def _glu(s: dict[str, int], A: Any, W: Any) -> Any:
    x = A.float() @ W.float()
    return _silu(x[:, 0::2]) * x[:, 1::2]


def _halves(A: Any, W: Any) -> Any:
    x = A.float() @ W.float()
    gate, value = x.chunk(2, 1)
    return _silu(gate) * value


def _halves_of_tiles(half: int, s: dict[str, int], A: Any, W: Any) -> Any:
    import torch

    x = A.float() @ W.float()
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % (2 * half))).unflatten(1, (-1, 2, half))
    return (_silu(x[:, :, 0]) * x[:, :, 1]).flatten(1)[:, :s["N"]]


PAIRS = Exercise(
    key="04.3", title="Pairs of columns", statement="epi-ex-3", answer="gemm_glu",
    stub='''
def gemm_glu(M, N, K, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), W: T.Tensor((K, 2 * N), dtype),
             C: T.Tensor((M, N), dtype)):
        ...  # C[i, j] = silu(X[i, 2 j]) * X[i, 2 j + 1], with X = A @ W

    return main
''',
    solution='''
def gemm_glu(M, N, K, dtype="float16"):
    block_M, block_N, block_K = 64, 32, 32  # block_N columns of C are 2 * block_N of W

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), W: T.Tensor((K, 2 * N), dtype),
             C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            W_tile = T.alloc_shared((block_K, 2 * block_N), dtype)
            # a pair lies in registers of the tensor core's choosing; through shared memory every
            # thread finds both of its numbers, still in float32
            X_tile = T.alloc_shared((block_M, 2 * block_N), "float32")
            acc = T.alloc_fragment((block_M, 2 * block_N), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(W[k * block_K, bx * 2 * block_N], W_tile)
                T.gemm(A_tile, W_tile, acc)
            T.copy(acc, X_tile)
            for i, j in T.Parallel(block_M, block_N):
                gate = X_tile[i, 2 * j]
                C[by * block_M + i, bx * block_N + j] = (
                    gate / (1.0 + T.exp(-gate)) * X_tile[i, 2 * j + 1])

    return main
''',
    hints=(
        "The tile of the product is twice as wide as the tile of C. Both numbers of a pair lie in "
        "the same tile, so no other block is needed.",
        "Let W_tile and acc be 2 * block_N wide. A thread needs two neighbours of acc; copy acc "
        "to a shared float32 tile, and any thread can read any element.",
        "For i, j in T.Parallel(block_M, block_N): the gate is X_tile[i, 2 * j], the value "
        "X_tile[i, 2 * j + 1]; store gate / (1 + exp(-gate)) * value in "
        "C[by * block_M + i, bx * block_N + j].",
    ),
    judge=KernelCheck(
        cases=(dict(M=70, N=72, K=40), dict(M=1, N=4, K=64)),
        inputs=lambda s, g: [_randn(g, s["M"], s["K"]),
                             _randn(g, s["K"], 2 * s["N"], scale=s["K"] ** -0.5)],
        reference=_glu, tile=lambda s: (64, 32),
        mistakes={
            "Gate and value have changed places: SiLU belongs to the even columns.":
                lambda s, A, W: _glu(s, A, W[:, _swapped(s["N"])]),
            "The halves of W were paired, where neighbours belong together.":
                lambda s, A, W: _halves(A, W),
            **{f"Halves of the tile were paired, its columns j and {half} + j, where neighbours "
               "belong together, 2 j and 2 j + 1.": functools.partial(_halves_of_tiles, half)
               for half in (16, 32, 64, 128)},
            "The gate went through sigmoid alone: SiLU multiplies it by itself.":
                lambda s, A, W: _sigmoid_gate(A, W),
            "The activation is missing: that is the product of each pair.":
                lambda s, A, W: _products(A, W),
        },
        figures=(landmark("A100", "mma", LARGE, "the product does not use the tensor cores; keep "
                          "T.gemm."), no_spills("A100", LARGE))))


def _swapped(N: int) -> Any:
    import torch

    return torch.arange(2 * N) ^ 1


def _sigmoid_gate(A: Any, W: Any) -> Any:
    x = A.float() @ W.float()
    return x[:, 0::2].sigmoid() * x[:, 1::2]


def _products(A: Any, W: Any) -> Any:
    x = A.float() @ W.float()
    return x[:, 0::2] * x[:, 1::2]


EXERCISES = (SILU, RESIDUAL, PAIRS)
