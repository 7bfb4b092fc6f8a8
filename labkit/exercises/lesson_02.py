"""Exercises of lesson 02: GEMM."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.figures import compiles, fits, no_spills, reads
from labkit.exercises.trial import KernelCheck

STEP = 32  # block_K of all three
COLUMNS = 64  # block_N of the first two


def randn(generator: Any, *shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=generator).half()


# --- 02.1

def _linear(sizes: dict[str, int], A: Any, B: Any, first: int = 0, last: int | None = None) -> Any:
    return A[:, first:last].float() @ B[:, first:last].float().mT


TRANSPOSED = Exercise(
    key="02.1", title="B lies the other way", statement="gemm-ex-1", answer="gemm_bt",
    stub='''
def gemm_bt(M, N, K, block_M=64, block_N=64, block_K=32, num_stages=2, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            ...  # the tile of B, the accumulator, the loop over K
            T.copy(acc, C[by * block_M, bx * block_N])

    return main
''',
    solution='''
def gemm_bt(M, N, K, block_M=64, block_N=64, block_K=32, num_stages=2, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((N, K), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            # as B lies in memory: a row of the tile is a piece of a row of B, so the copy stays
            # contiguous; turning the tile is left to the tensor cores, which do it for nothing
            B_tile = T.alloc_shared((block_N, block_K), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(acc)  # T.gemm adds to it
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[bx * block_N, k * block_K], B_tile)  # rows of B are columns of C
                T.gemm(A_tile, B_tile, acc, transpose_B=True)
            T.copy(acc, C[by * block_M, bx * block_N])

    return main
''',
    hints=(
        "Only B has changed. Which of the lesson's lines name B or its tile?",
        "Keep the tile of B as B lies in memory, block_N x block_K. Its upper left corner is a "
        "row of C's column tile, and a step along K.",
        "The copy is T.copy(B[bx * block_N, k * block_K], B_tile), and T.gemm takes "
        "transpose_B=True. Clear the accumulator before the loop.",
    ),
    judge=KernelCheck(
        cases=(dict(M=70, N=136, K=72), dict(M=1, N=8, K=200), dict(M=64, N=64, K=32)),
        inputs=lambda s, g: [randn(g, s["M"], s["K"]), randn(g, s["N"], s["K"])],
        reference=_linear, tile=lambda s: (64, 64),
        mistakes={
            "The last step along K is left out: the number of steps rounds down. Use T.ceildiv.":
                lambda s, A, B: _linear(s, A, B, 0, s["K"] // STEP * STEP),
            "Only the last step along K counts: the accumulator is cleared inside the loop.":
                lambda s, A, B: _linear(s, A, B, (s["K"] - 1) // STEP * STEP),
            "Every step reads the first tile of B: its index along K is missing.":
                lambda s, A, B: _linear(s, A, _first_tile_again(B)),
            "B's two indices are swapped: its rows are columns of C, and its columns lie along K.":
                lambda s, A, B: _by_tiles(A, B, swapped=True, turned=True),
            "B is read as if it were K x N: its tile is block_N x block_K, and its rows are "
            "columns of C.": lambda s, A, B: _by_tiles(A, B, swapped=True, turned=False),
            "The tile of B is not turned: make it block_N x block_K and multiply with "
            "transpose_B=True.": lambda s, A, B: _by_tiles(A, B, swapped=False, turned=False),
        },
        figures=(compiles(("T4", "H100"), dict(M=512, N=512, K=512)),)))


def _first_tile_again(B: Any) -> Any:
    import torch

    steps = -(-B.shape[1] // STEP)
    return torch.cat([B[:, :STEP]] * steps, 1)[:, :B.shape[1]]


def _by_tiles(A: Any, B: Any, *, swapped: bool, turned: bool) -> Any:
    """A times what comes of B where its tiles are read from corners whose indices are `swapped`,
    or into tiles of STEP x COLUMNS that are not `turned`. Beyond the edge of B come zeros."""
    import torch

    width = len(B)
    steps, tiles = -(-A.shape[1] // STEP), -(-width // COLUMNS)
    high, wide = (COLUMNS, STEP) if turned else (STEP, COLUMNS)
    reach = max(steps, tiles) * COLUMNS + COLUMNS
    B = torch.nn.functional.pad(B.float(), (0, reach - B.shape[1], 0, reach - B.shape[0]))
    A = torch.nn.functional.pad(A.float(), (0, steps * STEP - A.shape[1]))
    columns = []
    for n in range(tiles):
        column = 0.0
        for k in range(steps):
            row, left = (k * STEP, n * COLUMNS) if swapped else (n * COLUMNS, k * STEP)
            tile = B[row:row + high, left:left + wide]
            column = column + A[:, k * STEP:(k + 1) * STEP] @ (tile.mT if turned else tile)
        columns.append(column)
    return torch.cat(columns, 1)[:, :width]


# --- 02.2

BATCHED = Exercise(
    key="02.2", title="A batch of products", statement="gemm-ex-2", answer="gemm_batched",
    stub='''
def gemm_batched(batch, M, N, K, block_M=64, block_N=64, block_K=32, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((batch, M, K), dtype), B: T.Tensor((batch, K, N), dtype),
             C: T.Tensor((batch, M, N), dtype)):
        ...  # the grid has three axes

    return main
''',
    solution='''
def gemm_batched(batch, M, N, K, block_M=64, block_N=64, block_K=32, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((batch, M, K), dtype), B: T.Tensor((batch, K, N), dtype),
             C: T.Tensor((batch, M, N), dtype)):
        # the batch is the slowest axis: blocks that run together share one A and one B in the L2
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), batch,
                      threads=128) as (bx, by, bz):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_K, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                # the first index picks a matrix; the tile covers the last two axes
                T.copy(A[bz, by * block_M, k * block_K], A_tile)
                T.copy(B[bz, k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, acc)
            T.copy(acc, C[bz, by * block_M, bx * block_N])

    return main
''',
    hints=(
        "T.Kernel takes up to three extents and then gives three indices. What does the third "
        "one count?",
        "The grid is T.ceildiv(N, block_N), T.ceildiv(M, block_M), batch, bound as (bx, by, bz). "
        "The rest is lesson 02's kernel with bz as the first index of A, B and C.",
        "A tile of one matrix of the batch: T.copy(A[bz, by * block_M, k * block_K], A_tile). "
        "The tile has two axes, so it covers the last two.",
    ),
    judge=KernelCheck(
        cases=(dict(batch=3, M=70, N=72, K=40), dict(batch=1, M=1, N=136, K=8),
               dict(batch=5, M=64, N=64, K=64)),
        inputs=lambda s, g: [randn(g, s["batch"], s["M"], s["K"]),
                             randn(g, s["batch"], s["K"], s["N"])],
        reference=lambda s, A, B: A.float() @ B.float(), tile=lambda s: (64, 64),
        mistakes={
            "Every product uses the first A: its index along the batch is missing.":
                lambda s, A, B: A[:1].float() @ B.float(),
            "Every product uses the first B: its index along the batch is missing.":
                lambda s, A, B: A.float() @ B[:1].float(),
            "All results are the first product: A and B lack their index along the batch.":
                lambda s, A, B: (A[:1].float() @ B[:1].float()).expand(s["batch"], -1, -1),
            "The last step along K is left out: the number of steps rounds down. Use T.ceildiv.":
                lambda s, A, B: (A[..., :s["K"] // STEP * STEP].float()
                                 @ B[:, :s["K"] // STEP * STEP].float()),
        },
        figures=(compiles(("T4", "H100"), dict(batch=2, M=512, N=512, K=512)),)))


# --- 02.3

LARGE = dict(M=4096, N=4096, K=4096)

TWO_PRODUCTS = Exercise(
    key="02.3", title="Two products, one A", statement="gemm-ex-3", answer="gemm_two",
    stub='''
def gemm_two(M, N, K, dtype="float16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), G: T.Tensor((K, N), dtype),
             C: T.Tensor((M, N), dtype), D: T.Tensor((M, N), dtype)):
        ...  # C = A @ B and D = A @ G

    return main
''',
    solution='''
def gemm_two(M, N, K, dtype="float16"):
    # two accumulators of 128 x 64 over 128 threads take 128 registers a thread, as one of
    # 128 x 128 does; with a wider tile both would not fit, and spill
    block_M, block_N, block_K = 128, 64, 32

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), G: T.Tensor((K, N), dtype),
             C: T.Tensor((M, N), dtype), D: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile, G_tile = (T.alloc_shared((block_K, block_N), dtype) for _ in range(2))
            c, d = (T.alloc_fragment((block_M, block_N), "float32") for _ in range(2))
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_tile)  # once, for both products
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.copy(G[k * block_K, bx * block_N], G_tile)
                T.gemm(A_tile, B_tile, c)
                T.gemm(A_tile, G_tile, d)
            T.copy(c, C[by * block_M, bx * block_N])
            T.copy(d, D[by * block_M, bx * block_N])

    return main
''',
    hints=(
        "One loop over K, one tile of A, and everything else twice. What has to stay in registers "
        "meanwhile?",
        "Two accumulators share the registers that one had. A tile of 128 x 64 with 128 threads "
        "leaves each accumulator 64 registers a thread.",
        "In the loop: three copies, A_tile, B_tile and G_tile, then T.gemm(A_tile, B_tile, c) and "
        "T.gemm(A_tile, G_tile, d). Clear both accumulators before it; store both after it.",
    ),
    judge=KernelCheck(
        cases=(dict(M=130, N=136, K=72), dict(M=1, N=8, K=64)),
        inputs=lambda s, g: [randn(g, s["M"], s["K"]), randn(g, s["K"], s["N"]),
                             randn(g, s["K"], s["N"])],
        reference=lambda s, A, B, G: (A.float() @ B.float(), A.float() @ G.float()),
        out_idx=[-2, -1], tile=lambda s: (64, 64),
        mistakes={
            "C and D have changed places.":
                lambda s, A, B, G: (A.float() @ G.float(), A.float() @ B.float()),
            "Both outputs are A @ B: G is not used.":
                lambda s, A, B, G: (A.float() @ B.float(),) * 2,
            "Both products went into one accumulator: each needs its own.":
                lambda s, A, B, G: (A.float() @ (B.float() + G.float()),) * 2,
        },
        figures=(
            reads("A", 1, LARGE, "copy the tile of A once a step and use it for both products."),
            fits("T4", LARGE), no_spills("A100", LARGE))))

EXERCISES = (TRANSPOSED, BATCHED, TWO_PRODUCTS)
