"""What the comparison of several ways to compute one layer needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabError
from labkit.measured import MeasuredTable, measured_table, recorded_table


def launches(call: Callable[[], Any]) -> int | None:
    """How many kernels `call()` launches on the GPU, as torch's profiler counts them; None where
    it sees none, as without the right to profile."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    seen = 0
    for _ in range(2):  # the first profile of a process may begin too late
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            call()
            torch.cuda.synchronize()
        seen = max(seen, sum(event.device_type == torch.autograd.DeviceType.CUDA
                             and not event.name.startswith(("Memcpy", "Memset"))
                             for event in found.events()))
    return seen or None


@dataclass(frozen=True)
class NotMeasured:
    """Stands where a table would: nothing was measured here, and nothing recorded elsewhere."""

    text: str
    rows: list[list[Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        return self.text


def table_or_none(name: str, here: Any, *, title: str, columns: Sequence[str],
                  measure: Callable[[], Sequence[Sequence[Any]]], note: str = "",
                  ) -> MeasuredTable | NotMeasured:
    """`lab.measured_table`; where nothing is measured and nothing was recorded, a sentence that
    says so, without rows. Raises what `lab.measured_table` raises, except for that."""
    if here.device != "gpu":
        try:
            return recorded_table(name, note=note)
        except LabError as error:
            return NotMeasured(str(error))
    return measured_table(name, here, title=title, columns=columns, measure=measure, note=note)
