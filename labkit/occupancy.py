"""How many blocks of a kernel fit on one multiprocessor at once, and what limits that.

The rules are those of `cuda_occupancy.h` in the CUDA toolkit, for capability 7.5 and later.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.gpus import Gpu


@dataclass(frozen=True)
class Occupancy:
    """blocks: per multiprocessor. warps: per multiprocessor. share: of the warps it can hold.
    limits: what -> blocks that it alone would allow. limited_by: what allows the fewest."""

    blocks: int
    warps: int
    share: float
    limits: dict[str, int]
    limited_by: str


def occupancy(gpu: Gpu, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """threads and shared_bytes (dynamic plus static) are per block, registers per thread."""
    warps = -(-threads // 32)
    limits = {
        "registers": _by_registers(gpu, warps, registers),
        "shared memory": _by_shared(gpu, shared_bytes),
        "threads": gpu.warps_per_sm // warps if threads <= gpu.threads_per_block else 0,
        "blocks": gpu.blocks_per_sm,
    }
    blocks = min(limits.values())
    limited_by = " and ".join(what for what, allowed in limits.items() if allowed == blocks)
    return Occupancy(blocks, blocks * warps, blocks * warps / gpu.warps_per_sm, limits, limited_by)


def _by_registers(gpu: Gpu, warps: int, registers: int) -> int:
    if registers > gpu.registers_per_thread:
        return 0
    per_warp = _up(registers * 32, gpu.register_granularity)
    if not per_warp:
        return gpu.blocks_per_sm
    if per_warp * _up(warps, gpu.sm_partitions) > gpu.registers_per_sm:
        return 0  # the hardware's check assumes that every partition takes its part
    per_partition = gpu.registers_per_sm // gpu.sm_partitions // per_warp
    return per_partition * gpu.sm_partitions // warps


def _by_shared(gpu: Gpu, shared_bytes: int) -> int:
    if shared_bytes > gpu.shared_per_block:
        return 0
    taken = _up(shared_bytes + gpu.shared_reserved, gpu.shared_granularity)
    return gpu.shared_per_sm // taken if taken else gpu.shared_per_sm  # none: no limit


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
