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

from labkit.errors import LabError

PRODUCTS, ATTENTION, OTHER = "matrix products", "attention", "copies and sums of gradients"
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
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CPU]
    forward = {e.sequence_nr: name for e in events if e.sequence_nr >= 0
               for name in [_labelled(e)] if name and not _in_backward(e)}
    totals: dict[str, float] = {}
    for event in events:
        us = sum(k.duration for k in event.kernels) if gpu else event.self_cpu_time_total
        if us and (gpu or event.name.startswith("aten::")):
            name = _part_of(event, forward)
            totals[name] = totals.get(name, 0.0) + us / _REPEATS
    if not totals:
        raise LabError("torch's profiler saw no kernel; it needs the driver's permission to trace, "
                       "which another profiler may hold.")
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


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
