"""One op, four ways, in one run: what its epilogue brings, what it costs, and whether it is right.

    compared = compare.run("gemm_swiglu", here)     # a table; .bars(), .account, .room, .gain

* cuBLAS alone: no op can be faster than its product, if that library's product cannot;
* own GEMM alone: the same main loop and schedule, its epilogue a plain store;
* own GEMM + epilogue: the op, with the small kernels that end its statistics where the baseline has
  the finished ones, too;
* cuBLAS + one kernel that torch.compile makes of everything elementwise, autotuned where that is
  faster: the baseline.

All outputs are compared after the timing: the op's with its function in float32 or higher, from the
same inputs, the baseline's with the same. Without a GPU the op runs at small sizes on the CPU
against float64, and the times are recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from labkit.benchmark import Result, bench
from labkit.epilogue import workloads
from labkit.epilogue.accuracy import error_rows, errors, fitting
from labkit.epilogue.arms import Arms
from labkit.epilogue.bars import bars_of
from labkit.epilogue.checking import ALLOWED
from labkit.epilogue.declare import Epilogue
from labkit.epilogue.run import own_schedule
from labkit.epilogue.traffic import Account, account
from labkit.epilogue.workloads import Workload
from labkit.pictures import Picture
from labkit.results import recorded
from labkit.table import Table
from labkit.verify import Comparison

__all__ = ["ALONE", "BASELINE", "OWN_ALONE", "Compared", "bars", "error_rows", "errors", "measure",
           "run", "table"]

ALONE, OWN_ALONE, BASELINE = "cuBLAS alone", "own GEMM alone", "cuBLAS + one compiled kernel"


@dataclass(frozen=True)
class Compared:
    """One op's comparison. verdicts: of each output that is stored; statistics: relative Frobenius
    error of each reduction; result: the times, None where there are none to show."""

    name: str
    epilogue: Epilogue
    shape: dict[str, int]
    dtype: str
    verdicts: tuple[Comparison, ...]
    statistics: dict[str, float]
    account: Account
    result: Result | None

    def _ratio(self, of: str, over: float | None) -> float | None:
        m = self.result.measurement if self.result else None
        return (m.baselines | m.references)[of] / (over or m.kernel_ms) if m else None

    @property
    def room(self) -> float | None:
        """The baseline's time over that of cuBLAS alone: the most that an epilogue can gain on a
        main loop as fast as cuBLAS's. None without times."""
        return (self._ratio(BASELINE, self.result.measurement.references[ALONE])
                if self.result else None)

    @property
    def gain(self) -> float | None:
        """The baseline's time over the op's: above 1 the op is faster. None without times."""
        return self._ratio(BASELINE, None)

    @property
    def main_loop(self) -> float | None:
        """cuBLAS's time alone over the own GEMM's alone. None without times."""
        if self.result is None:
            return None
        times = self.result.measurement.references
        return times[ALONE] / times[OWN_ALONE]

    def bars(self) -> Picture:
        """The four times as bars, the room marked."""
        return bars([self])

    @property
    def correct(self) -> str:
        """What was checked, in a sentence."""
        worst = max(v.error for v in self.verdicts) if self.verdicts else 0.0
        names = ", ".join([v.name for v in self.verdicts] + list(self.statistics))
        at = " x ".join(str(size) for size in self.shape.values())
        allowed = max((v.allowed for v in self.verdicts), default=ALLOWED)
        bound = f"errors within the {allowed:.0e} that {self.dtype} allows" if worst else "exact"
        return f"{self.epilogue.name} at {at}: {names} correct, {bound}."

    def __repr__(self) -> str:
        return "\n".join([self.correct, repr(self.result) if self.result else _NO_TIMES])

    def _repr_html_(self) -> str:
        shown = self.result._repr_html_() if self.result else f"<div>{_NO_TIMES}</div>"
        return f"<div>{self.correct}</div>{shown}"


_NO_TIMES = "No times: there is no GPU in this run, and none were recorded yet."


def run(name: str, here: Any, chosen: Epilogue | None = None, *,
        sizes: dict[str, int] | None = None) -> Compared:
    """Compares the workload `name` of `workloads.NAMES` as the module says; on a GPU the times go
    to the file that `$LABKIT_RECORD` names, under the name up to a comma.

    here: the result of `lab.here`. chosen: another epilogue with the same operands and outputs as
    the catalogue's, such as one just written. sizes: None for those that suit the run.
    Raises WrongAnswer, naming the output, if an output is wrong; BadArgument for a name or an
    epilogue that does not fit.
    """
    dtype = torch.bfloat16 if here.sm >= 80 else torch.float16  # a T4 has no bfloat16 tensor cores
    made = workloads.make(name, sizes or workloads.sizes(here), dtype, here.torch_device)
    if chosen is not None:
        made.epilogue = fitting(chosen, made.epilogue)
    timed = None if here.device == "gpu" else workloads.shape(name, workloads.LARGE)
    return measure(made, here, recorded_shape=timed)


def measure(work: Workload, here: Any, recorded_shape: dict[str, int] | None = None) -> Compared:
    """Compares a workload, also one of your own. recorded_shape: of the recorded times that are
    shown without a GPU. Raises what `run` raises."""
    timed = Arms(work)
    kind = str(work.A.dtype).removeprefix("torch.")
    schedule = own_schedule(work.epilogue, work.shape["N"], work.shape["K"], kind,
                            work.A.device.type)
    result, tile = None, {side: schedule[side] for side in ("block_M", "block_N")}
    # recorded in another dtype is better than not at all; the table names it
    dtypes = [kind] if here.device == "gpu" else sorted(
        (m.dtype for m in recorded().find(work.name) if m.shape == recorded_shape),
        key=lambda dtype: dtype != kind)
    if dtypes:
        product, own_alone = None, timed.kernel  # without a GPU nothing of this is called
        if here.device == "gpu":
            product = timed.new_product()
            own_alone = timed.own_alone(schedule, product)
        result = bench(
            work.name, here, kernel=timed.kernel, baselines={BASELINE: timed.baseline},
            references={
                ALONE: lambda: torch.mm(work.baseline_A, work.baseline_B, out=product),
                OWN_ALONE: own_alone},
            shape=work.shape if here.device == "gpu" else recorded_shape,
            dtype=dtypes[0],
            moved=account(work.epilogue, **work.shape, dtype=kind, **tile).fused,
            flops=2 * math.prod(work.shape.values()), output=timed, check=timed.check,
            schedule=schedule)
    if here.device != "gpu":  # the account of the shape that is shown, with its own tile
        recorded_knobs = result.measurement.schedule if result else {}
        tile = {side: recorded_knobs[side] for side in tile if side in recorded_knobs}
        timed.kernel()
        timed.check()
    return Compared(work.name, work.epilogue, work.shape, kind, timed.verdicts, timed.statistics,
                    account(work.epilogue, **(recorded_shape or work.shape), dtype=kind,
                            kept=work.kept, **tile), result)


def bars(compared: Sequence[Compared]) -> Picture:
    """The four times of each op as bars, its room marked."""
    return bars_of([(c.name, c.result) for c in compared if c.result], OWN_ALONE, ALONE, BASELINE,
                   _NO_TIMES)


def table(compared: Sequence[Compared]) -> Table:
    """All ops in one table: room, gain, the main loop's share in it, and the bytes saved."""
    rows = []
    for c in compared:
        rows.append([c.name, " x ".join(f"{n:,}" for n in c.account.shape.values()),
                     *(f"{r:.3f}" if r else "" for r in (c.room, c.gain, c.main_loop)),
                     f"{c.account.saved / 1e6:,.0f}"])
    origin = sorted({f"{c.result.gpu}, {c.result.date}" + (
        "" if c.result.measured_now else " (RECORDED there, not measured here)")
        for c in compared if c.result})
    return Table(f"Times on {'; '.join(origin)}" if origin else _NO_TIMES,
                 ["op", ">M x N x K", ">room", ">gain", ">own GEMM / cuBLAS", ">MB saved"], rows,
                 "Room: baseline over cuBLAS alone. Gain: baseline over the op with its epilogue; "
                 "below 1 the fusion loses. Own GEMM / cuBLAS: speed of the main loop.")
