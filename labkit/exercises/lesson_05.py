"""Exercises of lesson 05: softmax and other reductions of rows."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.figures import compiles, reads
from labkit.exercises.trial import KernelCheck

EPS = 1e-5
GPUS, ODD = ("T4", "H100"), dict(M=64, N=1001)
ADVICE = "the width of a fragment has to suit the threads; a power of two does."


def _rows(generator: Any, M: int, N: int, scale: float = 3.0) -> Any:
    import torch

    return (scale * torch.randn(M, N, generator=generator)).half()


def _width(N: int) -> int:
    return max(32, 1 << (N - 1).bit_length())


# --- 05.1


def _log_softmax_inputs(s: dict[str, int], g: Any) -> list[Any]:
    X = _rows(g, s["M"], s["N"]) - 6  # all maxima are below 0, so padding with zeros is seen
    X[0] += 60
    return [X]


def _zeros_take_part(X: Any) -> Any:
    import torch

    extra = torch.zeros(X.shape[0], _width(X.shape[1]) - X.shape[1])
    return torch.log_softmax(torch.cat([X.double(), extra], 1), 1)[:, :X.shape[1]]


LOG_SOFTMAX = Exercise(
    key="05.1", title="log_softmax", statement="soft-ex-1", answer="log_softmax",
    stub='''
def log_softmax(M, N, rows=4, threads=128, dtype="float16"):
    width = max(32, 1 << (N - 1).bit_length())

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as b:
            x = T.alloc_fragment((rows, width), "float32")
            terms = T.alloc_fragment((rows, width), "float32")
            top = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            ...  # load, maximum, terms, sum
            for i, j in T.Parallel(rows, width):
                if j < N:
                    Y[b * rows + i, j] = x[i, j]  # not yet what it should be

    return main
''',
    solution='''
def log_softmax(M, N, rows=4, threads=128, dtype="float16"):
    width = max(32, 1 << (N - 1).bit_length())

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as b:
            x = T.alloc_fragment((rows, width), "float32")
            terms = T.alloc_fragment((rows, width), "float32")
            top = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            for i, j in T.Parallel(rows, width):
                # minus infinity is no one's maximum, and its exp adds nothing
                x[i, j] = T.if_then_else(
                    j < N, T.Cast("float32", X[b * rows + i, j]), -T.infinity("float32"))
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(rows, width):
                terms[i, j] = T.exp(x[i, j] - top[i])  # x itself is needed once more
            T.reduce_sum(terms, total, dim=1)
            for i in T.Parallel(rows):
                total[i] = top[i] + T.log(total[i])  # one logarithm a row, not one an element
            for i, j in T.Parallel(rows, width):
                if j < N:
                    Y[b * rows + i, j] = x[i, j] - total[i]

    return main
''',
    hints=(
        "The logarithm of a softmax is x - m - log(s). The lesson's kernel has m as `top` and s "
        "as `total`; x must survive the exponential.",
        "Load as the lesson does, with -T.infinity(\"float32\") past the row's end. "
        "T.reduce_max(x, top, dim=1); terms = T.exp(x - top); T.reduce_sum(terms, total, dim=1).",
        "Then store x[i, j] - (top[i] + T.log(total[i])). Compute the bracket once a row.",
    ),
    judge=KernelCheck(
        cases=(dict(M=6, N=50), dict(M=1, N=1), dict(M=9, N=128)),
        inputs=_log_softmax_inputs,
        reference=lambda s, X: X.double().log_softmax(1), tile=lambda s: (4, 16),
        mistakes={
            "The padding takes part: beyond the row's end stand zeros, where minus infinity "
            "belongs.": lambda s, X: _zeros_take_part(X),
            "That is the softmax; its logarithm was asked for.":
                lambda s, X: X.double().softmax(1),
            "The maximum was taken off, and the logarithm of the sum was not.":
                lambda s, X: X.double() - X.double().amax(1, keepdim=True),
            "The logarithm of the sum was taken off, and the maximum was not.":
                lambda s, X: X.double().log_softmax(1) + X.double().amax(1, keepdim=True),
            "The sum was taken off, where its logarithm belongs.":
                lambda s, X: X.double() - X.double().amax(1, keepdim=True)
                - (X.double() - X.double().amax(1, keepdim=True)).exp().sum(1, keepdim=True),
        },
        figures=(compiles(GPUS, ODD, ADVICE),)))


# --- 05.2


def _norm_inputs(s: dict[str, int], g: Any) -> list[Any]:
    import torch

    X = _rows(g, s["M"], s["N"], 1.0) + 0.5  # no mean is 0
    X[0] *= 0.002  # a row so small that eps counts
    return [X, (1 + torch.rand(s["N"], generator=g)).half()]


def _rms(X: Any, w: Any, divisor: int, eps: float = EPS) -> Any:
    mean = X.double().square().sum(1, keepdim=True) / divisor
    return X.double() / (mean + eps).sqrt() * w.double()


RMS_NORM = Exercise(
    key="05.2", title="RMSNorm", statement="soft-ex-2", answer="rms_norm",
    stub='''
def rms_norm(M, N, eps=1e-5, rows=4, threads=128, dtype="float16"):
    width = max(32, 1 << (N - 1).bit_length())

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        ...  # Y = X / sqrt(mean(X^2) + eps) * W

    return main
''',
    solution='''
def rms_norm(M, N, eps=1e-5, rows=4, threads=128, dtype="float16"):
    width = max(32, 1 << (N - 1).bit_length())

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, rows), threads=threads) as b:
            x = T.alloc_fragment((rows, width), "float32")
            squares = T.alloc_fragment((rows, width), "float32")
            scale = T.alloc_fragment((rows,), "float32")
            for i, j in T.Parallel(rows, width):
                # zeros past the end add nothing to a sum of squares
                x[i, j] = T.if_then_else(j < N, T.Cast("float32", X[b * rows + i, j]), 0.0)
            for i, j in T.Parallel(rows, width):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(rows):
                scale[i] = T.rsqrt(scale[i] / N + eps)  # by N: the padding is no part of the mean
            for i, j in T.Parallel(rows, width):
                if j < N:
                    Y[b * rows + i, j] = x[i, j] * scale[i] * T.Cast("float32", W[j])

    return main
''',
    hints=(
        "One reduction is left, a sum. What may stand in the padding, so that the sum of squares "
        "stays right? And by what do you divide?",
        "Zeros in the padding, and a division by N, not by width. x is needed again after the "
        "squares, so they need a fragment of their own.",
        "scale[i] = T.rsqrt(scale[i] / N + eps) once a row, then "
        "Y[…] = x[i, j] * scale[i] * T.Cast(\"float32\", W[j]).",
    ),
    judge=KernelCheck(
        cases=(dict(M=6, N=50), dict(M=1, N=1), dict(M=9, N=128)),
        inputs=_norm_inputs,
        reference=lambda s, X, w: _rms(X, w, s["N"]), tile=lambda s: (4, 16),
        mistakes={
            "The mean was divided by the padded width, where the row's length N belongs.":
                lambda s, X, w: _rms(X, w, _width(s["N"])),
            "That is the sum of squares, not their mean: divide by N.":
                lambda s, X, w: _rms(X, w, 1),
            "eps is missing: a row of tiny numbers needs it.":
                lambda s, X, w: _rms(X, w, s["N"], 0.0),
            "eps was added after the root: it belongs under it.":
                lambda s, X, w: _rms_eps_outside(X, w),
            "The weight W is missing.":
                lambda s, X, w: _rms(X, w, s["N"]) / w.double(),
            "The mean was taken off first: that is LayerNorm.":
                lambda s, X, w: _rms(X.double() - X.double().mean(1, keepdim=True), w, s["N"]),
        },
        figures=(compiles(GPUS, ODD, ADVICE),)))


def _rms_eps_outside(X: Any, w: Any) -> Any:
    return X.double() / (X.double().square().mean(1, keepdim=True).sqrt() + EPS) * w.double()


# --- 05.3


def _lse_inputs(s: dict[str, int], g: Any) -> list[Any]:
    import torch

    X = _rows(g, s["M"], s["N"], 4.0)
    X += torch.linspace(0, 20, s["N"]).half()  # maxima rise along the row, so all sums must fade
    if s["M"] > 1:
        X[0, :s["N"] // 2] = -torch.inf
    return [X]


def _faded_wrongly(s: dict[str, int], X: Any) -> Any:
    """The result without correcting the sums so far, for the pieces of the solution."""
    import torch

    each, threads = 8, 128
    steps = -(-s["N"] // (threads * each))
    pad = torch.full((s["M"], steps * threads * each), -torch.inf, dtype=torch.float64)
    pad[:, :s["N"]] = X.double()
    pieces = pad.reshape(s["M"], steps, threads, each)
    top = pieces.amax(3).cummax(1).values.clamp_min(-3.4028234663852886e38)
    total = (pieces - top[..., None]).exp().sum((1, 3))
    last = top[:, -1]
    row = last.amax(1, keepdim=True)
    return row[:, 0] + (total * (last - row).exp()).sum(1).log()


LOG_SUM_EXP = Exercise(
    key="05.3", title="The log-sum-exp of a long row", statement="soft-ex-3",
    answer="logsumexp",
    stub='''
def logsumexp(M, N, threads=128, each=8, dtype="float16"):
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), L: T.Tensor((M,), "float32")):
        ...  # L[b] = log(sum(exp(X[b, :]))), in one pass over the row

    return main
''',
    solution='''
def logsumexp(M, N, threads=128, each=8, dtype="float16"):
    piece = threads * each

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), L: T.Tensor((M,), "float32")):
        with T.Kernel(M, threads=threads) as b:
            x = T.alloc_fragment((threads, each), "float32")
            before, top, total = (T.alloc_fragment((threads,), "float32") for _ in range(3))
            row_top, row_total = (T.alloc_fragment((1,), "float32") for _ in range(2))
            # the lowest finite number, not minus infinity: a thread that sees only masked
            # elements would compute inf - inf
            T.fill(top, LOWEST)
            T.clear(total)
            for s in T.serial(T.ceildiv(N, piece)):
                for t, v in T.Parallel(threads, each):
                    j = s * piece + t * each + v
                    x[t, v] = T.if_then_else(
                        j < N, T.Cast("float32", X[b, j]), -T.infinity("float32"))
                T.copy(top, before)
                T.reduce_max(x, top, dim=1, clear=False)
                for t, v in T.Parallel(threads, each):
                    x[t, v] = T.exp(x[t, v] - top[t])
                for t in T.Parallel(threads):
                    total[t] *= T.exp(before[t] - top[t])  # what was summed with the old maximum
                T.reduce_sum(x, total, dim=1, clear=False)
            T.reduce_max(top, row_top, dim=0)  # the threads' pairs become the row's
            for t in T.Parallel(threads):
                total[t] *= T.exp(top[t] - row_top[0])
            T.reduce_sum(total, row_total, dim=0)
            for i in T.Parallel(1):
                L[b] = row_top[i] + T.log(row_total[i])

    return main
''',
    hints=(
        "It is the first half of the lesson's online kernel: one pass keeps a maximum and a sum. "
        "What is stored is a number a row.",
        "Keep top and total for each thread, start top at LOWEST, and correct total by "
        "exp(before - top) in every step. After the loop, bring all threads to the row's maximum "
        "in the same way.",
        "After the loop: T.reduce_max(top, row_top, dim=0); total[t] *= T.exp(top[t] - "
        "row_top[0]); T.reduce_sum(total, row_total, dim=0); L[b] = row_top + log(row_total).",
    ),
    judge=KernelCheck(
        cases=(dict(M=3, N=2500), dict(M=2, N=2), dict(M=1, N=1024)),
        inputs=_lse_inputs,
        reference=lambda s, X: X.double().logsumexp(1), tile=lambda s: 1,
        mistakes={
            "The sums so far were not corrected when the maximum rose: multiply them by "
            "exp(before - top).": _faded_wrongly,
            "The row's maximum is missing from the result: log(sum) belongs on top of it.":
                lambda s, X: X.double().logsumexp(1) - X.double().amax(1),
            "That is the sum; its logarithm was asked for.":
                lambda s, X: X.double().amax(1)
                + (X.double() - X.double().amax(1, keepdim=True)).exp().sum(1),
            "The last piece is left out: the number of steps rounds down. Use T.ceildiv.":
                lambda s, X: X[:, :s["N"] // 1024 * 1024].double().logsumexp(1),
            "Padding with zeros takes part: each adds exp(0) to the sum.":
                lambda s, X: _lse_zeros(s, X),
        },
        figures=(reads("X", 1, dict(M=64, N=65536),
                       "one pass is enough for a maximum and a sum."),
                 compiles(GPUS, dict(M=64, N=65536), ADVICE))))


def _lse_zeros(s: dict[str, int], X: Any) -> Any:
    import torch

    extra = torch.zeros(s["M"], -s["N"] % 1024, dtype=torch.float64)
    return torch.cat([X.double(), extra], 1).logsumexp(1)


EXERCISES = (LOG_SOFTMAX, RMS_NORM, LOG_SUM_EXP)
