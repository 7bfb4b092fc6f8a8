"""What arithmetic alone says about a schedule: no compiler, well under a millisecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.gpus import Gpu
from labkit.occupancy import occupancy
from labkit.widgets.problems import Grid, Part, all_threads


@dataclass(frozen=True)
class Instant:
    """shared_bytes: of a block, by the formula of the lesson's kernel. threads: with the group
    that the compiler adds. blocks_per_sm: None if a block does not fit; `bound` says whether that
    is the compilers' figure (False) or what shared memory, threads and the accumulators alone
    would allow (True). stays: blocks walk from tile to tile, as many as the schedule's `blocks`;
    what is counted in waves is tiles then. slots: blocks that the GPU runs at once. waves: blocks
    over slots, and last_wave: blocks in the last one; wasted: the share of the slots' time that
    they idle if all blocks take equally long. intensities: operations per byte, if each input is
    read once from memory (`ideal`) and for what the blocks ask of the L2 cache (`asked`)."""

    grid: Grid
    parts: tuple[Part, ...]
    shared_bytes: int
    shared_limit: int
    threads: int
    blocks_per_sm: int | None
    bound: bool
    stays: bool
    slots: int | None
    waves: int | None
    last_wave: int | None
    wasted: float | None
    moved: int
    asked_bytes: int
    ideal: float
    asked: float
    useful: float
    ceiling_tflops: float | None

    @property
    def unit(self) -> str:
        """What comes in waves: "block", or "tile" where blocks stay."""
        return "tile" if self.stays else "block"

    @property
    def fits(self) -> bool:
        return self.shared_bytes <= self.shared_limit


def aligned(parts: Sequence[Part], gpu: Gpu) -> tuple[Part, ...]:
    """From 9.0 on each buffer begins at a multiple of 1 KiB, as its copy engine wants it."""
    ahead = gpu.sm >= 90
    unit = 1024 if ahead else 1
    return tuple(replace(part, bytes=-(-part.bytes // unit) * unit,
                         later=part.later and not (ahead and part.overtaken)) for part in parts)


def shared_bytes(parts: Sequence[Part]) -> int:
    """Buffers that come later take the place of the earlier ones."""
    return max(sum(p.bytes for p in parts if p.later == later) for later in (False, True))


def instant(problem: Any, schedule: dict[str, Any], gpu: Gpu, blocks_per_sm: int | None = None,
            exact_shared: int | None = None) -> Instant:
    """blocks_per_sm, exact_shared: the compilers' figures, where they are known already."""
    grid = problem.grid(schedule)
    parts = aligned(problem.shared(schedule), gpu)
    shared = shared_bytes(parts) if exact_shared is None else exact_shared
    threads = all_threads(schedule, gpu)
    bound = blocks_per_sm is None
    if bound:
        blocks_per_sm = _at_most(problem, schedule, gpu, threads, shared)
    blocks_per_sm = blocks_per_sm or None
    slots = gpu.sms * blocks_per_sm if gpu.sms and blocks_per_sm else None
    stays = "blocks" in schedule
    if stays and slots:
        slots = min(slots, schedule["blocks"])
    waves = -(-grid.blocks // slots) if slots else None
    last = grid.blocks - (waves - 1) * slots if waves else None
    asked = problem.through_l2(schedule)
    peak = (gpu.tensor_tflops or {}).get(problem.dtype)
    ideal = problem.flops / problem.moved
    roof = min(peak, ideal * gpu.bandwidth_gb_s / 1e3) if peak and gpu.bandwidth_gb_s else None
    return Instant(
        grid, parts, shared, gpu.shared_per_block, threads, blocks_per_sm, bound, stays,
        slots, waves, last, 1 - grid.blocks / (waves * slots) if waves else None, problem.moved,
        asked, ideal, problem.flops / asked, problem.useful(schedule), roof)


def _at_most(problem: Any, schedule: dict[str, Any], gpu: Gpu, threads: int, shared: int) -> int:
    """Blocks that shared memory, threads and the tiles in registers allow on a multiprocessor."""
    if threads > schedule.get("threads", 128):  # the compiler shares out all registers then
        return int(shared <= gpu.shared_per_block)
    registers = min(int(problem.accumulators(schedule)), gpu.registers_per_thread)
    return occupancy(gpu, threads, registers, shared).blocks
