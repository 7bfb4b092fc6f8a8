"""When an epilogue pays: the figures of every op, taken apart.

Three ratios of times measured in one run make the gain, and the product is exact:

    gain = room x main loop x exposed
    room       baseline / cuBLAS alone: what the kernel behind cuBLAS costs
    main loop  cuBLAS alone / own GEMM alone: below 1 the own main loop is slower
    exposed    own GEMM alone / own GEMM with epilogue: below 1 by what the epilogue costs

`room_of` predicts the first from bytes alone: a kernel that moves `after` bytes behind a GEMM of
2 M N K operations takes after / bandwidth, beside operations / rate.
"""

from __future__ import annotations

from typing import Any

from labkit.epilogue import workloads
from labkit.epilogue.compare import ALONE, BASELINE, OWN_ALONE
from labkit.epilogue.traffic import account
from labkit.results import RECORDED, Measurement, Recording, recorded
from labkit.table import Table

_PRODUCT = ("A, read", "B, read", "product, written")


def room_of(after: float, M: int, N: int, K: int, bytes_s: float, flops_s: float) -> float:
    """1 + the time of a kernel that moves `after` bytes over that of the GEMM, at `bytes_s` bytes
    and `flops_s` operations a second. Independent of M if `after` grows with M N."""
    return 1 + (after / bytes_s) / (2 * M * N * K / flops_s)


def ratios(m: Measurement) -> dict[str, float]:
    """room, main loop, exposed and gain of one comparison (`compare.run`)."""
    alone, own, baseline = m.references[ALONE], m.references[OWN_ALONE], m.baselines[BASELINE]
    return {"room": baseline / alone, "main loop": alone / own, "exposed": own / m.kernel_ms,
            "gain": baseline / m.kernel_ms}


def verdict(found: dict[str, float]) -> str:
    """In words: whether the fusion wins, and what it spends most of its room on."""
    loop, epilogue = (1 / found[factor] - 1 for factor in ("main loop", "exposed"))
    room = found["room"] - 1
    if found["gain"] >= 1:
        return f"wins: {found['gain'] - 1:.1%} of {room:.1%}"
    cause = (f"main loop {loop:.1%} slower than cuBLAS" if loop > epilogue
             else f"epilogue exposed for {epilogue:.1%}")
    return f"loses: {cause}, room {room:.1%}"


def after_bytes(name: str, shape: dict[str, int], dtype: str) -> int:
    """Bytes that the kernel behind cuBLAS moves for the workload `name`."""
    work = workloads.make(name, workloads.CPU, _torch_dtype(dtype), "cpu")
    lines = account(work.epilogue, **shape, dtype=dtype, kept=work.kept).lines
    return sum(before for what, before, _ in lines if what not in _PRODUCT)


def table(recording: Recording | None = None) -> Table | str:
    """Every recorded comparison of `workloads.NAMES`: room predicted and measured, the three
    ratios, bytes saved, and the verdict. A sentence where nothing is recorded."""
    recording = recording or recorded()
    rows = []
    for name in workloads.NAMES:
        shape = workloads.shape(name, workloads.LARGE)
        for m in recording.find(name.split(",")[0]):
            if m.shape == shape:
                rows.append(_row(name, m, recording))
    if not rows:
        return f"No comparison of an op was recorded on the {recording.gpu} yet."
    return Table(f"Every op on {recording.gpu}, {recording.date} ({RECORDED})",
                 ["op", ">M x N x K", ">room by bytes", ">room", ">main loop", ">exposed",
                  ">gain", ">MB saved", "verdict"], rows,
                 "gain = room x main loop x exposed. Room by bytes: the law, with the bandwidth "
                 "and the tensor rate that were recorded on that GPU, the highest of all runs.")


def _row(name: str, m: Measurement, recording: Recording) -> list[Any]:
    found = ratios(m)
    tile = {side: m.schedule[side] for side in ("block_M", "block_N") if side in m.schedule}
    work = workloads.make(name, workloads.CPU, _torch_dtype(m.dtype), "cpu")
    saved = account(work.epilogue, **m.shape, dtype=m.dtype, kept=work.kept, **tile).saved
    by_bytes = room_of(after_bytes(name, m.shape, m.dtype), **m.shape,
                       bytes_s=recording.floors["copy_gb_s"] * 1e9,
                       flops_s=recording.floors["tensor_tflops"][m.dtype] * 1e12)
    return [name, " x ".join(f"{n:,}" for n in m.shape.values()), f"{by_bytes:.3f}",
            *(f"{found[ratio]:.3f}" for ratio in ("room", "main loop", "exposed", "gain")),
            f"{saved / 1e6:,.0f}", verdict(found)]


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
