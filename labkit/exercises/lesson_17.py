"""Exercises of lesson 17: reference."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.figures import compiles
from labkit.exercises.trial import FunctionCheck, KernelCheck

# --- 17.1


def _moved(M: int, N: int, K: int, kernels: int) -> int:
    return 2 * (M * K + K * N + N + M * N) + (kernels - 1) * 2 * 2 * M * N


BYTES = Exercise(
    key="17.1", title="The bytes of a layer", statement="ref-ex-1", answer="moved",
    stub='''
def moved(M, N, K, kernels):
    """Bytes of GEMM, bias and GELU in 16 bits: fused (kernels = 1), or with one more kernel for
    each step that is not fused (kernels = 2: GELU apart; kernels = 3: the bias apart, too)."""
    ...
''',
    solution='''
def moved(M, N, K, kernels):
    """Bytes of GEMM, bias and GELU in 16 bits: fused (kernels = 1), or with one more kernel for
    each step that is not fused (kernels = 2: GELU apart; kernels = 3: the bias apart, too)."""
    once = M * K + K * N + N + M * N  # A, B and bias read, C written: whatever is fused
    # each further kernel reads all of C, and writes all of it
    again = (kernels - 1) * 2 * M * N
    return 2 * (once + again)  # 2 bytes an element
''',
    hints=(
        "What must be read and written once, even if everything is fused?",
        "A kernel that comes after the GEMM reads the whole of its output, and writes it again.",
        "2 * (M * K + K * N + N + M * N), and 2 * 2 * M * N more for each kernel after the first.",
    ),
    judge=FunctionCheck(
        cases=((8192, 14336, 4096, 1), (8192, 14336, 4096, 2), (200, 328, 72, 3), (1, 8, 16, 2)),
        wanted=_moved,
        mistakes={
            "The bias is read, too: N elements.":
                lambda M, N, K, n: _moved(M, N, K, n) - 2 * N,
            "That is the number of elements; each has 2 bytes.":
                lambda *a: _moved(*a) // 2,
            "A further kernel reads C and writes it: two passes, not one.":
                lambda M, N, K, n: _moved(M, N, K, 1) + (n - 1) * 2 * M * N,
            "The first kernel moves the fused bytes already: count only those after it.":
                lambda M, N, K, n: _moved(M, N, K, n + 1),
            "Only what is fused was counted: the further kernels move bytes as well.":
                lambda M, N, K, n: _moved(M, N, K, 1),
            "A further kernel does not read A and B again: only C.":
                lambda M, N, K, n: n * _moved(M, N, K, 1),
        }))

# --- 17.2


def _inputs(s: dict[str, int], g: Any) -> list[Any]:
    import torch

    X = torch.randn(s["M"], s["N"], generator=g).half()
    X[:, -1] = -8.0 - torch.arange(s["M"], dtype=torch.float16) % 5  # the largest, and negative
    return [X]


def _scales(s: dict[str, int], X: Any) -> Any:
    return 448 / X.double().abs().amax(1)


def _first_rows(M: int, rows: int = 16) -> Any:
    import torch

    return torch.arange(M) % rows


ROW_SCALES = Exercise(
    key="17.2", title="A scale for each row", statement="ref-ex-2", answer="row_scales",
    stub='''
def row_scales(M, N, rows=16, dtype="float16"):
    width = 1 << (N - 1).bit_length()  # a power of 2: every thread gets as much

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), S: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as b:
            x = T.alloc_fragment((rows, width), "float32")
            top = T.alloc_fragment((rows,), "float32")
            ...  # S[i] = 448 / max |X[i, :]|

    return main
''',
    solution='''
def row_scales(M, N, rows=16, dtype="float16"):
    width = 1 << (N - 1).bit_length()  # a power of 2: every thread gets as much

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), S: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as b:
            x = T.alloc_fragment((rows, width), "float32")
            top = T.alloc_fragment((rows,), "float32")
            T.copy(X[b * rows, 0], x)  # past the edge come zeros, which no maximum of |x| sees
            T.reduce_absmax(x, top, dim=1)
            for i in T.Parallel(rows):
                S[b * rows + i] = 448.0 / top[i]  # rows past M are guarded by TileLang

    return main
''',
    hints=(
        "Three steps, and the page has a line for each: copy a tile, reduce its rows, write one "
        "value a row.",
        "T.copy from a first index on fills with zeros what lies past the edge. For a largest "
        "absolute value that does no harm.",
        "T.copy(X[b * rows, 0], x), then T.reduce_absmax(x, top, dim=1), then a T.Parallel loop "
        "over the rows: S[b * rows + i] = 448.0 / top[i].",
    ),
    judge=KernelCheck(
        cases=(dict(M=37, N=100), dict(M=16, N=64)),
        inputs=_inputs, reference=_scales, tile=lambda s: 16,
        mistakes={
            "The largest value was taken, not the largest absolute value.":
                lambda s, X: 448 / X.double().amax(1),
            "That is the largest absolute value itself: the scale is 448 over it.":
                lambda s, X: X.double().abs().amax(1),
            "It was divided the other way round.":
                lambda s, X: X.double().abs().amax(1) / 448,
            "The smallest absolute value was taken.":
                lambda s, X: 448 / X.double().abs().amin(1),
            "Every block reads the first rows: add b * rows to the index of X.":
                lambda s, X: 448 / X.double().abs().amax(1)[_first_rows(s["M"])],
            "The values of a row were added up, where the largest one decides.":
                lambda s, X: 448 / X.double().abs().sum(1),
        },
        figures=(compiles(("T4", "H100"), dict(M=4096, N=1000)),)))

EXERCISES = (BYTES, ROW_SCALES)
