"""Several schedules of one kernel: what each costs, whether each is right, and how fast it is.

`schedule_table` asks the compilers only and needs no GPU. `sweep` checks every schedule and times
them on the GPU of this run, interleaved; without one it checks them on the CPU at a small size and
shows recorded times.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from labkit import parsing
from labkit.errors import BadArgument, LabError, WrongAnswer, first_line
from labkit.results import RECORDED, record_path, recorded_sweep
from labkit.table import Table


def text(schedule: dict[str, Any]) -> str:
    """A schedule in short, as in "128x128x32 s2 t128 p10"."""
    rest = dict(schedule)
    tile = "x".join(str(rest.pop(key)) for key in ("block_M", "block_N", "block_K") if key in rest)
    names = {"num_stages": "s", "threads": "t", "panel": "p"}
    return " ".join([tile] * bool(tile) + [f"{names.get(k, k + '=')}{v}" for k, v in rest.items()])


def schedule_table(build: Callable[..., Any], schedules: Sequence[dict[str, Any]], gpu: Any,
                   pass_configs: dict[str, Any] | None = None) -> Table:
    """What each schedule takes on `gpu`, by the compilers' own figures.

    build(**schedule) returns the `@T.prim_func`. A schedule that does not compile gets its reason
    in the last column. Raises MissingTool without nvcc.
    """
    from labkit.crosscompile import cross_compile
    from labkit.gpus import sheet_of

    sheet = sheet_of(gpu)

    def row(schedule: dict[str, Any]) -> list[Any]:
        try:
            compiled = cross_compile(parsing.built(build, schedule), sheet, pass_configs)
            used, occupied = compiled.resources, compiled.occupancy
        except LabError as error:
            return [text(schedule), *[""] * 6, str(error)]
        spilled = used.spill_stores + used.spill_loads
        shared = f"{compiled.shared_bytes / 1024:.0f} KiB"
        return [text(schedule), compiled.threads, shared, used.registers,
                f"{spilled} B" if spilled else "", occupied.blocks, occupied.limited_by,
                "" if compiled.launches else compiled.obstacle]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(row, schedules))
    columns = ["schedule", ">threads", ">shared", ">registers", ">spilled", ">blocks/SM",
               "limited by", "cannot run because"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(f"On {sheet.name} ({sheet.arch})", columns, rows,
                 "Threads with the producer warps that the compiler adds; registers and spills a "
                 "thread; blocks/SM: how many fit on one multiprocessor at once.")


@dataclass(frozen=True)
class Trial:
    """One schedule of a sweep. kernel_ms: median, None if it was not timed; spread_ms: from its
    10th to its 90th percentile; failure: why it did not run, in a sentence; error: relative
    Frobenius error of what was checked."""

    schedule: dict[str, Any]
    kernel_ms: float | None = None
    error: float | None = None
    failure: str = ""
    spread_ms: float | None = None


@dataclass(frozen=True)
class Sweep:
    """The trials of one sweep; `ranked` are the timed ones, the fastest first."""

    name: str
    gpu: str
    date: str
    measured_now: bool
    shape: dict[str, int]
    dtype: str
    flops: float
    trials: list[Trial]
    checked: list[Trial]
    clock_mhz: float | None = None

    @property
    def ranked(self) -> list[Trial]:
        return sorted((t for t in self.trials if t.kernel_ms is not None),
                      key=lambda t: t.kernel_ms)

    @property
    def winner(self) -> dict[str, Any]:
        """The fastest schedule. Raises LabError if none ran."""
        if not self.ranked:
            raise LabError(f"No schedule of {self.name} ran; read the failures in the table.")
        return self.ranked[0].schedule

    def verify(self) -> str:
        """How many schedules ran here and gave the right result, in a sentence; one that did not
        compile or fit is counted apart. Raises WrongAnswer if one ran and was wrong."""
        for trial in self.checked:
            if trial.failure and trial.error is not None:
                raise WrongAnswer(f"{self.name}, {text(trial.schedule)}: {trial.failure}")
        right = sum(not trial.failure for trial in self.checked)
        if not right:
            raise WrongAnswer(f"{self.name}: none of {len(self.checked)} schedules ran here. The "
                              f"first: {self.checked[0].failure}")
        rest = len(self.checked) - right
        return (f"{right} schedules ran here, and all of them gave the right result"
                + (f"; {rest} could not run" if rest else ""))

    def pick(self, schedules: Sequence[dict[str, Any]]) -> Table:
        """The ranking among `schedules`."""
        return self._table([t for t in self.trials if t.schedule in list(schedules)])

    def table(self) -> Table:
        return self._table(self.trials)

    def _table(self, trials: list[Trial]) -> Table:
        timed = sorted((t for t in trials if t.kernel_ms is not None), key=lambda t: t.kernel_ms)
        best = self.ranked[0].kernel_ms if self.ranked else None
        rows = [[place, text(t.schedule), f"{t.kernel_ms:.4f}",
                 "" if t.spread_ms is None else f"{t.spread_ms:.4f}",
                 f"{self.flops / t.kernel_ms / 1e9:,.0f}", f"{best / t.kernel_ms:.0%}"]
                for place, t in enumerate(timed, 1)]
        rows += [["", text(t.schedule), "", "", "", t.failure] for t in trials if t.failure]
        shape = ", ".join(f"{axis} = {size:,}" for axis, size in self.shape.items())
        origin = "measured now" if self.measured_now else RECORDED
        return Table(f"{self.name}: {shape}, {self.dtype}, on {self.gpu}, {self.date} ({origin})",
                     [">rank", "schedule", ">ms", ">spread", ">TFLOP/s", ">of the best"], rows,
                     "Every schedule's output was checked before it was timed and after. Spread: "
                     "from the 10th to the 90th percentile of the runs."
                     + (f" Multiprocessors' clock meanwhile: {self.clock_mhz:,.0f} MHz."
                        if self.clock_mhz else "")
                     + ("" if self.measured_now else "\nRecorded with the kernel as the lesson has "
                        "it. What you change is checked here, not timed."))

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def sweep(name: str, here: Any, build: Callable[..., Any], schedules: Sequence[dict[str, Any]],
          inputs: Sequence[Any], reference: Any, *, shape: dict[str, int], dtype: str,
          flops: float, tile: tuple[str, str] = ("block_M", "block_N"),
          pass_configs: dict[str, Any] | None = None) -> Sweep:
    """Checks every schedule's output, and times those that are right.

    build(**schedule) returns the program for the sizes of `inputs`, its last parameter the output.
    reference: what it should be, float32 or float64. On the GPU all right schedules are timed in
    one interleaved run; without one they are checked on the CPU, and the times are the recorded
    sweep's called `name`. A schedule that does not compile, launch or give the right answer is a
    failure with its reason, never left out.
    """
    from labkit.benchmark import time_each
    from labkit.compiler import compile
    from labkit.verify import compare

    if not schedules:
        raise BadArgument("Nothing to sweep: give at least one schedule.")

    def prepare(schedule: dict[str, Any]) -> Any:
        try:
            return compile(parsing.built(build, schedule), out_idx=-1, device=here.device,
                           pass_configs=pass_configs)
        except Exception as error:  # the builder's own, too
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = list(pool.map(prepare, schedules))
    checked, calls, verdicts = [], {}, {}
    for place, (schedule, kernel) in enumerate(zip(schedules, kernels, strict=True)):
        failure, error = "", None
        if isinstance(kernel, Exception):
            failure = first_line(kernel)
        else:
            try:
                arguments = kernel.arguments(*inputs)
                kernel.launch(*arguments)
                verdicts[place] = functools.partial(
                    compare, arguments[-1], reference, name=text(schedule),
                    tile=tuple(schedule.get(side, 128) for side in tile))
                verdict = verdicts[place]()
                error = verdict.error
                failure = "" if verdict.ok else repr(verdict).splitlines()[0]
                calls[place] = functools.partial(kernel.launch, *arguments)
            except Exception as problem:
                failure = first_line(problem)
        checked.append(Trial(dict(schedule), None, error, failure))
    if here.device == "cpu":
        found = recorded_sweep(name)
        trials = [Trial(t["schedule"], t.get("kernel_ms"), t.get("error"), t.get("failure", ""),
                        t.get("spread_ms")) for t in found["schedules"]]
        wrong = {text(t.schedule): t for t in checked if t.failure}
        trials = [wrong.get(text(t.schedule), t) for t in trials]  # no rank for what failed here
        first = found["schedules"][0]
        return Sweep(name, found["gpu"], found["date"], False, first["shape"], first["dtype"],
                     found["flops"], trials, checked, found.get("clock_mhz"))
    import torch

    right = {place: call for place, call in calls.items() if not checked[place].failure}
    for call in right.values():
        call.args[-1].fill_(math.nan)  # so that the check after the timing sees what was timed
    times = time_each({str(place): call for place, call in right.items()}) if right else {}
    trials = []
    for place, trial in enumerate(checked):
        if str(place) in times:
            verdict, took = verdicts[place](), times[str(place)]  # what was timed, once more
            trial = (replace(trial, kernel_ms=took.median, spread_ms=took.spread) if verdict.ok else
                     replace(trial, error=verdict.error,
                             failure=f"wrong after timing: {repr(verdict).splitlines()[0]}"))
            checked[place] = trial
        trials.append(trial)
    result = Sweep(name, torch.cuda.get_device_name(), str(datetime.date.today()), True,
                   dict(shape), dtype, flops, trials, checked,
                   next((took.clock_mhz for took in times.values()), None))
    _record(result)
    return result


def _record(result: Sweep) -> None:
    """Writes the sweep beside the file that `$LABKIT_RECORD` names, where that is set."""
    path = record_path(result.name)
    if path is None:
        return
    from labkit.environment import versions

    entries = []
    for t in result.trials:
        entry = {"schedule": t.schedule, "shape": result.shape, "dtype": result.dtype}
        entries.append({**entry, **({"failure": t.failure} if t.failure else
                                    {"kernel_ms": t.kernel_ms, "spread_ms": t.spread_ms,
                                     "error": t.error})})
    content = {"gpu": result.gpu, "date": result.date, "versions": versions(),
               "flops": result.flops, "clock_mhz": result.clock_mhz, "schedules": entries}
    path.write_text(json.dumps(content, indent=1))
