"""Which part of a model's time goes where: matrix products, attention, and everything else.

    with shares.part("norm"):           # in the model's forward pass
        x = F.rms_norm(...)
    times = shares.measure(step)        # part -> microseconds of a step

Times are those of the kernels that torch's profiler sees. A product or an attention counts as such,
whatever part it stands in; any other kernel counts for the part around the operator that launched
it, in the backward pass for the part of the operator whose gradient it makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit import results
from labkit.errors import LabError
from labkit.measured import MeasuredTable, measured_table
from labkit.table import Table

PRODUCTS, ATTENTION, OTHER = "matrix products", "attention", "other copies and sums"
MEMORY_BOUND = "neither products nor attention"
_PREFIX = "part: "
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
_REPEATS = 5


def part(name: str) -> Any:
    """A context manager: the operators in it belong to `name`."""
    from torch.profiler import record_function

    return record_function(_PREFIX + name)


def measure(step: Callable[[], Any], device: str = "cuda") -> dict[str, float]:
    """Microseconds of one call of `step` by part, the longest first. device: "cuda", or "cpu" for
    operators that run there. Raises LabError if the profiler sees no kernel."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    gpu = device == "cuda"
    for _ in range(3):
        step()
    if gpu:
        torch.cuda.synchronize()
    kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    with profile(activities=kinds) as profiler:
        for _ in range(_REPEATS):
            step()
        if gpu:
            torch.cuda.synchronize()
    totals: dict[str, float] = {}
    for _, name, us in attributed(profiler.events(), gpu):
        totals[name] = totals.get(name, 0.0) + us / _REPEATS
    if not totals:
        raise LabError("torch's profiler saw no kernel; it needs the driver's permission to trace, "
                       "which another profiler may hold.")
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def attributed(events: Any, gpu: bool) -> list[tuple[str, str, float]]:
    """(operator, part, microseconds) of each of the profiler's events that launched a kernel, or
    did work on the CPU."""
    import torch

    own = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]
    forward = {e.sequence_nr: name for e in own if e.sequence_nr >= 0
               for name in [_labelled(e)] if name and not _in_backward(e)}
    # the GPU's timeline repeats the names of the parts; these are no kernels
    found = [(e, sum(k.duration for k in e.kernels if not k.name.startswith(_PREFIX)) if gpu
              else e.self_cpu_time_total)
             for e in own if gpu or e.name.startswith("aten::")]
    return [(e.name, _part_of(e, forward), us) for e, us in found if us]


def _above(event: Any) -> Any:
    while event is not None:
        yield event
        event = event.cpu_parent


def _labelled(event: Any) -> str:
    return next((e.name.removeprefix(_PREFIX) for e in _above(event)
                 if e.name.startswith(_PREFIX)), "")


def _in_backward(event: Any) -> bool:
    return any(e.name.startswith("autograd::engine") for e in _above(event))


def _part_of(event: Any, forward: dict[int, str]) -> str:
    for e in _above(event):
        if e.name in _PRODUCTS:
            return PRODUCTS
        if "attention" in e.name:
            return ATTENTION
    numbers = [e.sequence_nr for e in _above(event)
               if e.name.startswith("autograd::engine") and e.sequence_nr in forward]
    return _labelled(event) or (forward[numbers[0]] if numbers else OTHER)


def share_table(name: str, here: Any, title: str, forward: Callable[[], Any],
                both: Callable[[], Any]) -> MeasuredTable | Table:
    """Time by part of the forward pass, and of forward and backward pass together, measured on a
    GPU and kept as the table `name`; without one the recorded table, or an empty one that says so.

    forward, both: calls of a model whose parts are named by `part`. The last row sums up what is
    neither a product nor attention. Raises what `lab.measured_table` and `measure` raise.
    """
    def rows() -> list[list[Any]]:
        times = [measure(step) for step in (forward, both)]
        totals = [sum(t.values()) for t in times]
        rest = [total - t.get(PRODUCTS, 0) - t.get(ATTENTION, 0)
                for t, total in zip(times, totals, strict=True)]
        parts = sorted({*times[0], *times[1]}, key=lambda part: -times[1].get(part, 0))
        lines = [(part, [t.get(part, 0.0) for t in times]) for part in parts]
        return [[label, us[0], f"{us[0] / totals[0]:.0%}", us[1], f"{us[1] / totals[1]:.0%}"]
                for label, us in (*lines, (MEMORY_BOUND, rest), ("all", totals))]

    columns = ["part", ">forward, us", ">of it", ">forward + backward, us", ">of it all"]
    if here.device != "gpu" and not (results.FOLDER / f"h200-table-{name}.json").exists():
        return Table(title, columns, [], "Nothing to show: there is no GPU in this run, and "
                     "nothing was recorded yet.")
    return measured_table(name, here, title=title, columns=columns, measure=rows,
                          note="Time of the kernels, from torch's profiler.")
