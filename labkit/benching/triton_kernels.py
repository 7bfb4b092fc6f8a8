"""The three kernels of Triton's own tutorials that have a lesson here, written anew from their
description: matrix multiplication (tutorial 03: blocks in groups, masked along K), fused softmax
(tutorial 02: a row a step, as many rows a block as it takes) and fused attention (tutorial 06:
forward only, keys in tiles, of a causal one the tiles below the diagonal without a mask).

Blocks, warps and stages are chosen by Triton's autotuner among those of the tutorials' sizes that
suit large inputs; the softmax's blocks a multiprocessor too, which the tutorial computes from the
occupancy. `gemm`, `softmax` and `attention` tune once and return a call that launches the chosen
one without the tuner's own time, about as long as a small kernel takes. Imports triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


def _tiles(*tiles: tuple[int, int, int, int, int]) -> list[triton.Config]:
    return [triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8},
                          num_stages=stages, num_warps=warps) for m, n, k, stages, warps in tiles]


@triton.autotune(key=["M", "N", "K"], configs=_tiles(
    (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 32, 4, 4), (128, 128, 64, 4, 8),
    (128, 64, 32, 4, 4), (64, 128, 32, 4, 4)))
@triton.jit
def _gemm(a, b, c, M, N, K, a_m, a_k, b_k, b_n, c_m, c_n, BLOCK_M: tl.constexpr,
          BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):
    block = tl.program_id(0)
    down, across = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = block // (GROUP * across) * GROUP  # this group's first row of tiles
    height = min(down - first, GROUP)
    by = first + block % (GROUP * across) % height
    bx = block % (GROUP * across) // height

    rows = (by * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (bx * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    deep = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None] * a_m + deep[None, :] * a_k
    b_at = b + deep[:, None] * b_k + columns[None, :] * b_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a_tile = tl.load(a_at, mask=deep[None, :] < left, other=0.0)
        b_tile = tl.load(b_at, mask=deep[:, None] < left, other=0.0)
        acc = tl.dot(a_tile, b_tile, acc)
        a_at += BLOCK_K * a_k
        b_at += BLOCK_K * b_k

    rows = by * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = bx * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * c_m + columns[None, :] * c_n, acc.to(c.dtype.element_ty),
             mask=inside)


def _call(kernel: Any, grid: Callable[[dict[str, Any]], tuple[int, ...]], arguments: list[Any],
          output: Any, fixed: dict[str, int] | None, **known: Any) -> Callable[[], Any]:
    """Tunes `kernel`, unless its blocks are `fixed`, and returns a call that runs it."""
    if fixed is None:
        kernel[grid](*arguments, **known)
        fixed = kernel.best_config.all_kwargs()
    launch = kernel.fn[grid(fixed)]
    options = {**known, **fixed}

    def call() -> Any:
        launch(*arguments, **options)
        return output

    return call


def gemm(A: Any, B: Any, C: Any, fixed: dict[str, int] | None = None) -> Callable[[], Any]:
    """A call that makes C = A B and returns C. A [M, K], B [K, N], C [M, N], 16 bits. fixed: the
    blocks, None to have them tuned."""
    (M, K), N = A.shape, B.shape[1]

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(M, chosen["BLOCK_M"]) * triton.cdiv(N, chosen["BLOCK_N"]),)

    return _call(_gemm, grid, [A, B, C, M, N, K, *A.stride(), *B.stride(), *C.stride()], C, fixed)


@triton.autotune(key=["rows", "columns"], configs=[
    triton.Config({"A_MULTIPROCESSOR": blocks, "STAGES": stages}, num_warps=8)
    for blocks in (2, 4, 8) for stages in (2, 4)])
@triton.jit
def _softmax(x, y, x_row, y_row, rows, columns, WIDTH: tl.constexpr, STAGES: tl.constexpr,
             A_MULTIPROCESSOR: tl.constexpr):
    j = tl.arange(0, WIDTH)
    inside = j < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        values = tl.load(x + row * x_row + j, mask=inside, other=-float("inf")).to(tl.float32)
        terms = tl.exp(values - tl.max(values, axis=0))
        result = terms / tl.sum(terms, axis=0)
        tl.store(y + row * y_row + j, result.to(y.dtype.element_ty), mask=inside)


@functools.cache
def _multiprocessors(device: Any) -> int:
    return (torch.cuda.get_device_properties(device).multi_processor_count
            if device.type == "cuda" else 2)


def softmax(X: Any, Y: Any, fixed: dict[str, int] | None = None) -> Callable[[], Any]:
    """A call that makes Y the softmax of each row of X [M, N] and returns Y; fixed as for `gemm`.
    """
    rows, columns = X.shape

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        return (min(rows, chosen["A_MULTIPROCESSOR"] * _multiprocessors(X.device)),)

    return _call(_softmax, grid, [X, Y, X.stride(0), Y.stride(0), rows, columns], Y, fixed,
                 WIDTH=triton.next_power_of_2(columns))


@triton.jit
def _attend(acc, total, top, q, keys, values, offset, scale, rows, first, last,
            MASKED: tl.constexpr, BLOCK_N: tl.constexpr):
    """The tiles of keys from `first` to `last`; scale holds log2(e)."""
    for start in tl.range(first, last, BLOCK_N):
        k = keys.load([offset + start, 0]).T
        s = tl.dot(q, k)
        if MASKED:
            hidden = rows[:, None] < start + tl.arange(0, BLOCK_N)[None, :]
            s = s * scale + tl.where(hidden, -1.0e6, 0.0)
            larger = tl.maximum(top, tl.max(s, 1))
            s = s - larger[:, None]
        else:
            larger = tl.maximum(top, tl.max(s, 1) * scale)
            s = s * scale - larger[:, None]
        p = tl.math.exp2(s)
        fade = tl.math.exp2(top - larger)
        terms = tl.sum(p, 1)
        acc = acc * fade[:, None]
        v = values.load([offset + start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc)
        total = total * fade + terms
        top = larger
    return acc, total, top


def _fit(arguments: dict[str, Any]) -> None:
    """The descriptors' tiles follow the blocks that are tried."""
    D = arguments["D"]
    for name, rows in (("q", "BLOCK_M"), ("out", "BLOCK_M"), ("k", "BLOCK_N"), ("v", "BLOCK_N")):
        arguments[name].block_shape = [arguments[rows], D]


@triton.autotune(key=["S", "D", "CAUSAL"], configs=[
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_stages=stages, num_warps=warps, pre_hook=_fit)
    for m, n, warps, stages in ((128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3),
                                (128, 64, 4, 3), (128, 64, 4, 4), (64, 64, 4, 3))])
@triton.jit
def _attention(q, k, v, out, scale, S, D: tl.constexpr, CAUSAL: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    first = tl.program_id(0) * BLOCK_M
    offset = tl.program_id(1) * S  # of this head's rows
    rows = first + tl.arange(0, BLOCK_M)
    top = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    q_tile = q.load([offset + first, 0])
    whole = first if CAUSAL else S
    acc, total, top = _attend(acc, total, top, q_tile, k, v, offset, scale, rows, 0, whole, False,
                              BLOCK_N)
    if CAUSAL:
        acc, total, top = _attend(acc, total, top, q_tile, k, v, offset, scale, rows, first,
                                  first + BLOCK_M, True, BLOCK_N)
    acc = acc / total[:, None]
    out.store([offset + first, 0], acc.to(q_tile.dtype))


def attention(Q: Any, K: Any, V: Any, Out: Any, causal: bool = False,
              fixed: dict[str, int] | None = None) -> Callable[[], Any]:
    """A call that makes Out the attention of Q, K, V [batch, heads, S, D] and returns Out; S a
    multiple of 128, D 64 or 128, all contiguous; fixed as for `gemm`."""
    batch, heads, S, D = Q.shape
    described = [TensorDescriptor(t, shape=[batch * heads * S, D], strides=[D, 1],
                                  block_shape=[1, D]) for t in (Q, K, V, Out)]

    def grid(chosen: dict[str, Any]) -> tuple[int, int]:
        _fit(dict(zip(("q", "k", "v", "out"), described, strict=True), D=D, **{
            side: chosen[side] for side in ("BLOCK_M", "BLOCK_N")}))
        return triton.cdiv(S, chosen["BLOCK_M"]), batch * heads

    return _call(_attention, grid, [*described, D**-0.5 * 1.4426950408889634, S], Out, fixed, D=D,
                 CAUSAL=causal)
