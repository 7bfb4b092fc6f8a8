"""Exercises of lesson 06: FlashAttention."""

from __future__ import annotations

import math
from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.figures import Finding, compiles
from labkit.exercises.trial import FunctionCheck, KernelCheck

FAST_MATH = {"tl.enable_fast_math": True}
LOG2E = 1.4426950408889634


def _randn(generator: Any, *shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=generator).half()


# --- 06.1


def _visited(Sq: int, Sk: int, block_M: int, block_N: int, past: int = 0, *, last: bool = True,
             clip: bool = True, up: bool = True) -> int:
    """Tiles of a causal kernel, right or with a mistake."""
    total = 0
    for first in range(0, Sq, block_M):
        seen = first + (block_M if last else 1) + past
        seen = min(Sk, seen) if clip else seen
        total += -(-seen // block_N) if up else seen // block_N
    return total


TILES = Exercise(
    key="06.1", title="Count the tiles", statement="attn-ex-1", answer="tiles_visited",
    stub='''
def tiles_visited(Sq, Sk, block_M, block_N, past=0):
    """How many tiles of scores the causal kernel visits for one head."""
    ...
''',
    solution='''
def tiles_visited(Sq, Sk, block_M, block_N, past=0):
    """How many tiles of scores the causal kernel visits for one head."""
    total = 0
    for first in range(0, Sq, block_M):
        # the last query of the tile sees most: itself, all before it, and what is kept from
        # earlier tokens; no one sees more than Sk keys
        seen = min(Sk, first + block_M + past)
        total += -(-seen // block_N)  # a tile that is seen in part is visited whole
    return total
''',
    hints=(
        "Take one tile of queries. Which of its queries sees the most keys, and how many?",
        "Query i sees min(Sk, i + past + 1) keys, and the last one of a tile is i = first + "
        "block_M - 1. How many tiles of block_N is that?",
        "Add up -(-min(Sk, first + block_M + past) // block_N) over first = 0, block_M, 2 block_M, "
        "… below Sq.",
    ),
    judge=FunctionCheck(
        cases=((1024, 1024, 192, 112), (130, 331, 64, 64, 201), (301, 77, 64, 32),
               (1, 300, 64, 64, 299), (100, 100, 64, 64)),
        wanted=_visited,
        mistakes={
            "That counts for the first query of each tile; the last one sees more.":
                lambda *a: _visited(*a, last=False),
            "`past` has no effect: the keys before the first query are seen by all.":
                lambda Sq, Sk, m, n, past=0: _visited(Sq, Sk, m, n),
            "No query sees more than Sk keys.": lambda *a: _visited(*a, clip=False),
            "That rounds down: a tile that is seen in part is visited, too.":
                lambda *a: _visited(*a, up=False),
            "That is all tiles, as without a mask.":
                lambda Sq, Sk, m, n, past=0: -(-Sq // m) * -(-Sk // n),
        }))


# --- 06.2


def _attention(Q: Any, K: Any, V: Any) -> tuple[Any, Any]:
    scores = Q.float() @ K.float().mT / math.sqrt(Q.shape[-1])
    return scores.softmax(-1) @ V.float(), scores.logsumexp(-1)


def _parts(Q: Any, K: Any) -> tuple[Any, Any]:
    """(row maximum of the scores before the scale, log of the sum), as the kernel has them."""
    raw = Q.float() @ K.float().mT
    top = raw.amax(-1)
    return top, ((raw - top[..., None]) / math.sqrt(Q.shape[-1])).exp().sum(-1).log()


def _with_lse(lse: Any) -> Any:
    """The outputs with another log-sum-exp: a function of top, log(total) and 1 / sqrt(D)."""
    def outputs(s: dict[str, int], Q: Any, K: Any, V: Any) -> tuple[Any, Any]:
        top, total = _parts(Q, K)
        return _attention(Q, K, V)[0], lse(top, total, Q.shape[-1] ** -0.5)
    return outputs


_ATTENTION = '''
def attention_lse(heads, Sq, Sk, D, block_M=64, block_N=64, dtype="float16"):
    step = online_step(block_M, block_N, D, scale=D**-0.5 * 1.4426950408889634)
    rows = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(Q: T.Tensor((heads, Sq, D), dtype), K: T.Tensor((heads, Sk, D), dtype),
             V: T.Tensor((heads, Sk, D), dtype), Out: T.Tensor((heads, Sq, D), dtype),
             L: T.Tensor((heads, Sq), "float32")):
        with T.Kernel(T.ceildiv(Sq, block_M), heads, threads=128) as (bx, by):
            Q_tile = T.alloc_shared((block_M, D), dtype)
            K_tile, V_tile = (T.alloc_shared((block_N, D), dtype) for _ in range(2))
            S = T.alloc_fragment((block_M, block_N), "float32")
            P = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, D), "float32")
            top, before, fade, total = (T.alloc_fragment((block_M,), "float32") for _ in range(4))
            T.copy(Q[by, bx * block_M, 0], Q_tile)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for k in T.Pipelined(T.ceildiv(Sk, block_N), num_stages=1):
                T.copy(K[by, k * block_N, 0], K_tile)
                for i, j in T.Parallel(block_M, block_N):
                    S[i, j] = T.if_then_else(k * block_N + j < Sk, 0, -T.infinity("float32"))
                T.gemm(Q_tile, K_tile, S, transpose_B=True, policy=rows)
                T.copy(V[by, k * block_N, 0], V_tile)
                step(S, P, acc, top, before, fade, total)
                T.gemm(P, V_tile, acc, policy=rows)
            for i, j in T.Parallel(block_M, D):
                acc[i, j] /= total[i]
            T.copy(acc, Out[by, bx * block_M, 0])
{end}
    return main
'''

LSE = Exercise(
    key="06.2", title="Save the log-sum-exp", statement="attn-ex-2", answer="attention_lse",
    stub=_ATTENTION.replace("{end}", "            ...  # L\n"),
    solution=_ATTENTION.replace("{end}", '''\
            for i in T.Parallel(block_M):
                # top is a score before the scale, so it is scaled here; total is a sum of
                # 2 ** (x log2(e)) = exp(x), so its logarithm is the natural one
                total[i] = top[i] * D**-0.5 + T.log(total[i])
            T.copy(total, L[by, bx * block_M])  # the copy guards the ragged tile
'''),
    hints=(
        "After the loop, top and total hold all that is needed: exp of what, times what, is the "
        "sum?",
        "The sum of exp(score) is exp(top / sqrt(D)) * total. `step` takes scores before the "
        "scale, so top is one, too.",
        "total[i] = top[i] * D**-0.5 + T.log(total[i]), in a loop over T.Parallel(block_M); then "
        "T.copy(total, L[by, bx * block_M]).",
    ),
    judge=KernelCheck(
        cases=(dict(heads=2, Sq=70, Sk=100, D=32), dict(heads=1, Sq=1, Sk=64, D=64)),
        inputs=lambda s, g: [2 * _randn(g, s["heads"], s["Sq"], s["D"]),
                             _randn(g, s["heads"], s["Sk"], s["D"]),
                             _randn(g, s["heads"], s["Sk"], s["D"])],
        reference=lambda s, Q, K, V: _attention(Q, K, V), out_idx=[-2, -1],
        tile=lambda s: (64, 32), pass_configs=FAST_MATH,
        mistakes={
            "top was not scaled: it is a score before the division by sqrt(D).":
                _with_lse(lambda top, total, scale: top + total),
            "top was scaled by log2(e), too: the logarithm here is the natural one.":
                _with_lse(lambda top, total, scale: top * scale * LOG2E + total),
            "The maximum is missing from L: the sum was taken relative to it.":
                _with_lse(lambda top, total, scale: total),
            "That logarithm is of base 2: the sum is one of exp, so take T.log.":
                _with_lse(lambda top, total, scale: top * scale + total * LOG2E),
            "That is the maximum alone; the logarithm of the sum belongs on top of it.":
                _with_lse(lambda top, total, scale: top * scale),
        },
        figures=(compiles(("T4", "H100"), dict(heads=2, Sq=512, Sk=512, D=64), "",
                          FAST_MATH),)))


# --- 06.3


def _window(Q: Any, K: Any, V: Any, window: int, causal: bool = True, scale: bool = True) -> Any:
    import torch

    i = torch.arange(Q.shape[1])
    apart = i[:, None] - i[None, :]  # how far a key lies before a query
    hidden = (apart >= window) | ((apart < 0) if causal else (apart <= -window))
    scores = Q.float() @ K.float().mT / (math.sqrt(Q.shape[-1]) if scale else 1.0)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ V.float()


def _skips(build: Any) -> Finding:
    """Tiles of keys that no query of a block sees are not visited: the values there are NaN, and
    NaN times a weight of 0 would still be NaN."""
    import torch

    from labkit.compiler import compile

    sizes = dict(heads=1, S=256, D=32, window=32)
    run = compile(build(**sizes), out_idx=-1, device="cpu", pass_configs=FAST_MATH)
    generator = torch.Generator().manual_seed(1)
    Q, K, V = (_randn(generator, 1, 256, 32) for _ in range(3))
    V[:, :64] = torch.nan
    if run(Q, K, V)[:, 128:].isnan().any():
        return Finding(False, "with S = 256 and window = 32 the queries from 128 on read the keys "
                       "0 to 63, which none of them sees: start the loop at the first tile that "
                       "is seen, so that its cost does not grow with S.")
    return Finding(True, "Tiles of keys that a block does not see are not visited.")


WINDOW = Exercise(
    key="06.3", title="A sliding window", statement="attn-ex-3", answer="window_attention",
    stub='''
def window_attention(heads, S, D, window, block_M=64, block_N=64, dtype="float16"):
    @T.prim_func
    def main(Q: T.Tensor((heads, S, D), dtype), K: T.Tensor((heads, S, D), dtype),
             V: T.Tensor((heads, S, D), dtype), Out: T.Tensor((heads, S, D), dtype)):
        ...  # query i sees the keys i - window + 1 to i

    return main
''',
    solution='''
def window_attention(heads, S, D, window, block_M=64, block_N=64, dtype="float16"):
    step = online_step(block_M, block_N, D, scale=D**-0.5 * 1.4426950408889634)
    rows = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(Q: T.Tensor((heads, S, D), dtype), K: T.Tensor((heads, S, D), dtype),
             V: T.Tensor((heads, S, D), dtype), Out: T.Tensor((heads, S, D), dtype)):
        with T.Kernel(T.ceildiv(S, block_M), heads, threads=128) as (bx, by):
            Q_tile = T.alloc_shared((block_M, D), dtype)
            K_tile, V_tile = (T.alloc_shared((block_N, D), dtype) for _ in range(2))
            scores = T.alloc_fragment((block_M, block_N), "float32")
            P = T.alloc_fragment((block_M, block_N), dtype)
            acc = T.alloc_fragment((block_M, D), "float32")
            top, before, fade, total = (T.alloc_fragment((block_M,), "float32") for _ in range(4))
            T.copy(Q[by, bx * block_M, 0], Q_tile)
            T.clear(acc)
            T.clear(total)
            # finite: a query may see nothing in the first tile, and -inf - (-inf) is no number
            T.fill(top, -1e30)
            first = T.max(0, bx * block_M - window + 1) // block_N  # of the first query
            tiles = T.ceildiv(T.min(S, (bx + 1) * block_M), block_N) - first
            for t in T.Pipelined(tiles, num_stages=1):
                T.copy(K[by, (first + t) * block_N, 0], K_tile)
                for i, j in T.Parallel(block_M, block_N):
                    apart = bx * block_M + i - (first + t) * block_N - j
                    scores[i, j] = T.if_then_else(
                        (apart >= 0) & (apart < window), 0, -T.infinity("float32"))
                T.gemm(Q_tile, K_tile, scores, transpose_B=True, policy=rows)
                T.copy(V[by, (first + t) * block_N, 0], V_tile)
                step(scores, P, acc, top, before, fade, total)
                T.gemm(P, V_tile, acc, policy=rows)
            for i, j in T.Parallel(block_M, D):
                acc[i, j] /= total[i]
            T.copy(acc, Out[by, bx * block_M, 0])

    return main
''',
    hints=(
        "A block's first query decides where the loop starts, its last one where it ends. The mask "
        "inside a tile has two sides.",
        "Start at tile max(0, bx * block_M - window + 1) // block_N and add that to the loop's "
        "index. A query may see nothing in its first tile: what does -inf - (-inf) do to top?",
        "Fill top with -1e30. For a pair let apart = query - key; it is visible if apart >= 0 and "
        "apart < window. Everything else is exercise 06.2's kernel.",
    ),
    judge=KernelCheck(
        cases=(dict(heads=2, S=150, D=32, window=40), dict(heads=1, S=70, D=64, window=1)),
        inputs=lambda s, g: [2 * _randn(g, s["heads"], s["S"], s["D"]),
                             _randn(g, s["heads"], s["S"], s["D"]),
                             _randn(g, s["heads"], s["S"], s["D"])],
        reference=lambda s, Q, K, V: _window(Q, K, V, s["window"]),
        tile=lambda s: (64, 32), pass_configs=FAST_MATH,
        mistakes={
            "The window is missing: that is causal attention over all keys before.":
                lambda s, Q, K, V: _window(Q, K, V, s["S"]),
            "The window is one key too wide: `window` keys, the query's own included.":
                lambda s, Q, K, V: _window(Q, K, V, s["window"] + 1),
            "The window is one key too narrow: the query's own counts as one of them.":
                lambda s, Q, K, V: _window(Q, K, V, s["window"] - 1),
            "Keys after the query are seen: the mask lacks its causal side.":
                lambda s, Q, K, V: _window_to_end(Q, K, V, s["window"]),
            "The scores were not divided by sqrt(D).":
                lambda s, Q, K, V: _window(Q, K, V, s["window"], scale=False),
        },
        figures=(_skips, compiles(("T4", "A100"), dict(heads=2, S=512, D=64, window=128), "",
                                  FAST_MATH))))


def _window_to_end(Q: Any, K: Any, V: Any, window: int, block: int = 64) -> Any:
    """Without the causal side, up to the end of the last tile that the kernel visits: beyond the
    last key it holds zeros."""
    import torch
    import torch.nn.functional as F

    S = Q.shape[1]
    i, j = torch.arange(S)[:, None], torch.arange(S + -S % block)
    hidden = (i - j >= window) | (j >= (i // block + 1) * block)
    K, V = (F.pad(x.float(), (0, 0, 0, -S % block)) for x in (K, V))
    scores = Q.float() @ K.mT / math.sqrt(Q.shape[-1])
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ V


EXERCISES = (TILES, LSE, WINDOW)
