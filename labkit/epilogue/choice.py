"""Whether a product carries its epilogue or leaves it to a kernel behind it: measured, not guessed.

    choose([(residual_rms, M, N, K, True)], torch.bfloat16)   # on this GPU, once
    product(residual_rms, A, B, transpose_B=True, ...)        # as `matmul`, the faster way

The other way is cuBLAS and what torch.compile makes of the same epilogue's function. It rounds
the product to A's dtype in between, as eager code does. Without a choice everything is fused.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from labkit.epilogue.declare import Epilogue
from labkit.epilogue.run import matmul

Product = tuple[Epilogue, int, int, int, bool]  # epilogue, M, N, K, transpose_B

_separate: set[tuple] = set()  # products that are faster in two kernels
_all_fused = False


def product(chosen: Epilogue, A: Any, B: Any, transpose_B: bool = False,
            **operands: Any) -> dict[str, Any]:
    """What `matmul` returns, in the way that `choose` found faster for this size."""
    if _separate and not _all_fused:
        N = B.shape[0] if transpose_B else B.shape[1]
        if (chosen, A.shape[0], N, A.shape[1], transpose_B, A.dtype, A.device.type) in _separate:
            return separate(chosen, A, B, transpose_B, **operands)
    return matmul(chosen, A, B, transpose_B, **operands)


def separate(chosen: Epilogue, A: Any, B: Any, transpose_B: bool = False,
             **operands: Any) -> dict[str, Any]:
    """What `matmul` returns, by torch's product and one kernel behind it (a few where it sums over
    rows). Reductions come whole, as one row of partial results [1, n]."""
    found = A @ (B.t() if transpose_B else B)
    return _after(chosen, A.is_cuda)(found, operands)


@functools.cache
def _after(chosen: Epilogue, compiled: bool) -> Callable[..., dict[str, Any]]:
    import torch

    def after(found: Any, operands: dict[str, Any]) -> dict[str, Any]:
        results = chosen.reference(found.float(), **operands)
        return {o.name: results[o.name].to(getattr(torch, o.dtype) if o.dtype else found.dtype)
                if o.kind == "store" else
                results[o.name] if o.kind == "select" else results[o.name][None]
                for o in chosen.outputs}

    if not compiled:
        return after
    # a code object of its own: torch.compile makes eight versions of one, then gives up
    code = after.__code__.replace(co_name=f"after_{chosen.name}")
    return torch.compile(types.FunctionType(code, globals(), code.co_name, None, after.__closure__))


@contextmanager
def everything_fused() -> Iterator[None]:
    """Within it no choice counts; for measuring. Holds for all threads, as a backward pass runs in
    threads of its own."""
    global _all_fused
    before, _all_fused = _all_fused, True
    try:
        yield
    finally:
        _all_fused = before


def _ended(way: Callable[..., dict[str, Any]], chosen: Epilogue, *given: Any,
           **operands: Any) -> dict[str, Any]:
    """What `way` returns, its reductions ended, as whoever reads them has to end them."""
    found = way(chosen, *given, **operands)
    return found | {o.name: _finish(o.how, found[o.name].is_cuda)(found[o.name])
                    for o in chosen.outputs if o.kind in ("col_reduce", "row_reduce")}


@functools.cache
def _finish(how: str, compiled: bool) -> Callable[[Any], Any]:
    import torch

    from labkit.epilogue.checking import FINISH

    return torch.compile(FINISH[how]) if compiled else FINISH[how]


COLUMNS = ("epilogue", ">M x N x K", ">fused, ms", ">cuBLAS + a kernel, ms", ">ratio", "kept")
EPILOGUE, KERNEL = "the epilogue", "cuBLAS + a kernel"


def choose(products: list[Product], dtype: Any) -> list[list[Any]]:
    """Times each product both ways on the GPU that is there, interleaved, on random tensors, each
    with the kernels that end its reductions, and keeps the faster way for `product`. Returns rows
    of `COLUMNS`. Raises NeedsGPU."""
    from labkit.benchmark import time_each

    rows = []
    for chosen, M, N, K, transpose_B in dict.fromkeys(products):
        A, B, operands = _tensors(chosen, M, N, K, transpose_B, dtype)
        times = time_each({name: functools.partial(_ended, way, chosen, A, B, transpose_B,
                                                   **operands)
                           for name, way in ((EPILOGUE, matmul), (KERNEL, separate))}, 100)
        fused, two = times[EPILOGUE].median, times[KERNEL].median
        entry = (chosen, M, N, K, transpose_B, dtype, "cuda")
        _separate.discard(entry)
        if two < fused:
            _separate.add(entry)
        rows.append([chosen.name, f"{M:,} x {N:,} x {K:,}", fused, two, f"{two / fused:.3f}",
                     KERNEL if two < fused else EPILOGUE])
    return rows


def _tensors(chosen: Epilogue, M: int, N: int, K: int, transpose_B: bool, dtype: Any) -> tuple:
    import torch

    from labkit.epilogue.checking import random_operands

    A = torch.randn(M, K, device="cuda").to(dtype)
    shape = (N, K) if transpose_B else (K, N)
    B = (torch.randn(shape, device="cuda") / K**0.5).to(dtype)
    return A, B, random_operands(chosen, M, N, str(dtype)[6:], "cuda")
