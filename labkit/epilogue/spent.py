"""What kind of kernel a step's time goes to: GEMMs, attention, everything else.

    spent = measure(step)      # {"GEMMs": ms, "attention": ms, "everything else": ms}, kernels

By the kernels' own names, so it holds for eager code, compiled code and kernels of one's own alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.epilogue import flow
from labkit.errors import LabError
from labkit.measured import MeasuredTable, measured_table
from labkit.pictures import Picture
from labkit.results import FOLDER

GEMM, ATTENTION, REST = KINDS = ("GEMMs", "attention", "everything else")
_ATTENTION = ("flash", "fmha", "sdpa", "attention")
# cuBLAS: nvjet, xmma, cutlass, splitK; torch.compile's own: triton_tem; the kit's: gemm_<epilogue>
_GEMM = ("gemm", "nvjet", "xmma", "cutlass", "splitk", "triton_tem", "cublas")
_REPEATS = 5


def kind(kernel: str) -> str:
    """The kind of a kernel, from its name."""
    name = kernel.lower()
    if any(word in name for word in _ATTENTION):
        return ATTENTION
    return GEMM if any(word in name for word in _GEMM) else REST


def measure(step: Callable[[], Any]) -> tuple[dict[str, float], int]:
    """Milliseconds of one call of `step` on the GPU by kind, and how many kernels it launches.
    Raises LabError if the profiler sees no kernel."""
    return measure_each({"": step})[""]


def measure_each(steps: dict[str, Callable[[], Any]]) -> dict[str, tuple[dict[str, float], int]]:
    """What `measure` returns for each step, interleaved: every round profiles each step once, so a
    change of the clock meets them all, and each round starts with another one."""
    names = list(steps)
    found: dict[str, list[tuple[str, float]]] = {name: [] for name in names}
    for step in steps.values():
        for _ in range(2):
            step()  # compiles, fills caches
    for turn in range(_REPEATS):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name] += _kernels(steps[name])
    return {name: add_up(events, _REPEATS) for name, events in found.items()}


def _kernels(step: Callable[[], Any]) -> list[tuple[str, float]]:
    """The kernels of one call of a step, after a call that is not looked at: name, microseconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    return [(e.name, e.time_range.elapsed_us()) for e in profiler.events()
            if e.device_type == torch.autograd.DeviceType.CUDA
            and not getattr(e, "is_user_annotation", False)]


def add_up(events: list[tuple[str, float]], repeats: int) -> tuple[dict[str, float], int]:
    """From (kernel, microseconds) of `repeats` steps: what `measure` returns."""
    if not events:
        raise LabError("torch's profiler saw no kernel; it needs the driver's permission to trace, "
                       "which another profiler may hold.")
    totals = dict.fromkeys(KINDS, 0.0)
    for name, us in events:
        totals[kind(name)] += us / 1e3 / repeats
    return totals, round(len(events) / repeats)


NO_TIMES = "No times: there is no GPU in this run, and none were recorded yet."


def of_each(name: str, here: Any, steps: dict[str, Callable[[], Any]],
            title: str) -> MeasuredTable | None:
    """A table of each step's kinds, measured in turn on a GPU and kept as `name`; without a GPU the
    recorded one, None if there is none. here: the result of `lab.here`. title: with the sizes."""
    def rows() -> list[list[Any]]:
        return [[arm, *parts.values(), kernels]
                for arm, (parts, kernels) in measure_each(steps).items()]

    return table_of(name, here, title=title, measure=rows,
                    columns=["step", *(f">{kind}, ms" for kind in KINDS), ">kernels"],
                    note="Times of the kernels alone, without the gaps between them.")


def table_of(name: str, here: Any, **more: Any) -> MeasuredTable | None:
    """`measured_table`; None without a GPU where nothing was recorded."""
    if here.device != "gpu" and not list(FOLDER.glob(f"*-table-{name}.json")):
        return None
    return measured_table(name, here, **more)


def picture(table: MeasuredTable) -> Picture:
    """The kinds of each step as one bar."""
    return flow.stacked(f"Where a step's time goes, {table.gpu}, {table.date}", [
        (row[0], dict(zip(KINDS, row[1:4], strict=True))) for row in table.rows])
