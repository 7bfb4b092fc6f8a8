"""Runs a GEMM with an epilogue on tensors: compiles for their shapes once, then launches."""

from __future__ import annotations

import functools
from typing import Any

from labkit.epilogue.declare import Epilogue, check_names
from labkit.epilogue.gemm import KNOBS, gemm
from labkit.epilogue.schedules import CPU, OPTIONS, plain_schedule, schedule
from labkit.errors import BadArgument


def matmul(chosen: Epilogue, A: Any, B: Any, transpose_B: bool = False,
           knobs: dict[str, Any] | None = None, **operands: Any) -> dict[str, Any]:
    """A B with the epilogue `chosen`: output name -> tensor, reductions as partials [tiles, n].

    A [M, K], B [K, N] (transpose_B: [N, K]), both float16, bfloat16 or float32, contiguous, on one
    device; operands: the epilogue's, by name, in the dtypes it declares (colvec float32, the
    selected column of each row int32). knobs: the schedule, None for this device's own.
    A row whose selected column lies outside the product gets no value there.
    Raises BadArgument for a tensor that does not fit; else what `lab.compile` raises.
    """
    check_names(chosen, operands)
    for name, matrix in dict(A=A, B=B).items():
        if getattr(matrix, "ndim", None) != 2:
            raise BadArgument(f"{name} is no matrix; give a torch tensor with two axes.")
    kernel = kernel_for(chosen, A, B, transpose_B, knobs)
    given = [A, B, *(operands[name] for name in chosen.inputs)]
    return dict(zip((o.name for o in chosen.outputs), _launch(kernel, given), strict=True))


def kernel_for(chosen: Epilogue, A: Any, B: Any, transpose_B: bool = False,
               knobs: dict[str, Any] | None = None) -> Any:
    """The compiled kernel that `matmul` launches for these matrices, compiled once."""
    M, K = A.shape
    N = B.shape[0] if transpose_B else B.shape[1]
    return _compiled(chosen, M, N, K, str(A.dtype).removeprefix("torch."), transpose_B,
                     A.device.type, None if knobs is None else tuple(sorted(knobs.items())))


def own_schedule(chosen: Epilogue, N: int, K: int, dtype: str, device: str) -> dict[str, Any]:
    """The schedule with which `matmul` runs a product of N columns, with sums of K, of `dtype`, on
    "cpu" or on the GPU that is there."""
    import torch

    if device == "cpu":
        return dict(CPU)
    if not _for_the_copy_engine(chosen, N, K, dtype):
        return _that_runs(plain_schedule(_sm(), dtype), K)
    knobs = schedule(_sm(), chosen, dtype)
    if "blocks" in knobs:
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        knobs["blocks"] = gpu.multi_processor_count * max(1, knobs["per_sm"])
    return _that_runs(knobs, K)


def _one_step(knobs: dict[str, Any], K: int) -> bool:
    return knobs.get("block_K", KNOBS["block_K"]) >= K


def _that_runs(knobs: dict[str, Any], K: int) -> dict[str, Any]:
    """A GPU's schedule without the knobs that need several steps along K, where there is one."""
    return knobs | {knob: 0 for knob in ("per_sm", "in_flight")
                    if knob in knobs and _one_step(knobs, K)}


def _sm() -> int:
    import torch

    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def _launch(kernel: Any, given: list[Any]) -> list[Any]:
    """Like calling the kernel, but outputs start as they are, not as NaN: it saves a pass."""
    import torch

    device = given[0].device
    expected = _expected(kernel)
    for (parameter, shape, dtype), value in zip(expected, given, strict=False):
        if shape is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise BadArgument(f"{kernel.name}: {parameter} is a tensor, but got "
                              f"{type(value).__name__}; pass a torch tensor.")
        if (value.shape != shape or value.dtype != dtype or value.device != device
                or not value.is_contiguous()):
            raise BadArgument(f"{kernel.name}: {parameter} is expected, contiguous, on {device}, "
                              f"but got {str(value.dtype)[6:]}{list(value.shape)} on "
                              f"{value.device}{'' if value.is_contiguous() else ', strided'}.")
    given = [value.detach() if isinstance(value, torch.Tensor) else value for value in given]
    made = [torch.empty(shape, dtype=dtype, device=device)
            for _, shape, dtype in expected[len(given):]]
    kernel.launch(*given, *made)
    return made


@functools.lru_cache(maxsize=256)
def _expected(kernel: Any) -> list[tuple[Any, Any, Any]]:
    """Of each parameter: itself, its shape (None: a number), torch's dtype. Made once, so that a
    call costs little."""
    import torch

    return [(p, p.shape if p.shape is None else torch.Size(p.shape), getattr(torch, p.dtype))
            for p in kernel.parameters]


def compile_all(products: list[tuple[Epilogue, int, int, int, bool]], dtype: Any,
                device: Any) -> None:
    """Compiles the kernels of many products, several at a time: (epilogue, M, N, K, transpose_B),
    as `matmul` will ask for them on torch's `device` with `dtype`."""
    import os
    from concurrent.futures import ThreadPoolExecutor

    kind = str(dtype).removeprefix("torch.")
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for made in [pool.submit(_compiled, chosen, M, N, K, kind, transpose_B, device.type, None)
                     for chosen, M, N, K, transpose_B in products]:
            made.result()


def _for_the_copy_engine(chosen: Epilogue, N: int, K: int, dtype: str) -> bool:
    """Whether the rows of all matrices take a multiple of 16 bytes, as Hopper's copies of tiles
    need (CUDA driver API, cuTensorMapEncodeTiled: globalStrides)."""
    size = 4 if dtype == "float32" else 2
    columns = N // 2 if chosen.takes_pairs else N
    return all(length * size % 16 == 0 for length in (N, K, columns))


@functools.lru_cache(maxsize=256)
def _compiled(chosen: Epilogue, M: int, N: int, K: int, dtype: str, transpose_B: bool,
              device: str, knobs: tuple | None) -> Any:
    import labkit as lab

    chosen_knobs = own_schedule(chosen, N, K, dtype, device) if knobs is None else dict(knobs)
    options = OPTIONS
    if device != "cpu" and _one_step(chosen_knobs, K):
        # a producer warp of its own has nothing to run ahead of, and such kernels were reported to
        # hang on an H100 (tile-ai/tilelang #2566)
        options = OPTIONS | {"tl.disable_warp_specialized": True}
        chosen_knobs = _that_runs(chosen_knobs, K)
    builder = gemm(chosen)
    return lab.compile(builder(M, N, K, dtype=dtype, transpose_B=transpose_B, **chosen_knobs),
                       out_idx=builder.out_idx, device="cpu" if device == "cpu" else "gpu",
                       pass_configs=options)
