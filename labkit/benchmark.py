"""Times a kernel beside its baselines, so that the comparison means something.

* Interleaved: every round runs each candidate once, so a change of the clock meets them all; each
  round starts with another one, so none always runs in the wake of the same neighbour.
* Cold: before each call a buffer twice as large as the L2 cache is overwritten.
* Median over the rounds, and the range from the 10th to the 90th percentile as the spread.
* On the device: CUDA events around the call; the overwrite before it hides the launch.
* Checked: the output is filled with NaN before the first round and compared after the last one.

Without a GPU nothing is timed. What is shown then was recorded on a named GPU and says so.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument, LabError, NeedsGPU, WrongAnswer
from labkit.machine import clock_mhz
from labkit.results import RECORDED, Measurement, Recording, append, recorded
from labkit.table import Table
from labkit.verify import Comparison

_ROUNDS = (10, 500)  # at least, at most
OWN = "this kernel"  # what a table calls the kernel beside its baselines
_stand_in: tuple[Callable[..., Any], Callable[[list], list]] | None = None  # see `standing_in`


@dataclass(frozen=True)
class Times:
    """Milliseconds of one candidate. spread: from the 10th to the 90th percentile; clock_mhz: the
    multiprocessors' clock half way through the rounds, None where the driver does not tell."""

    median: float
    spread: float
    rounds: int
    clock_mhz: float | None = None


def time_each(candidates: dict[str, Callable[[], Any]], milliseconds: float = 200,
              warm: bool = False) -> dict[str, Times]:
    """Times each candidate on the GPU, all of them interleaved.

    candidates: name -> a call without arguments that launches work on the current stream.
    milliseconds: about how long to measure each one. warm: leave the L2 cache as it is.
    Raises NeedsGPU, or BadArgument if there is nothing to time.
    """
    import torch

    if not torch.cuda.is_available():
        raise NeedsGPU("Timing needs a CUDA GPU, and torch sees none here.")
    if not candidates:
        raise BadArgument("Nothing to time: give at least one candidate.")
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    eraser = torch.empty(max(2 * l2, 64 << 20), dtype=torch.int8, device="cuda")

    def once(call: Callable[[], Any]) -> tuple[Any, Any]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if not warm:
            eraser.zero_()
        start.record()
        call()
        end.record()
        return start, end

    slowest = 0.0
    for call in candidates.values():
        call()  # compiles, allocates, fills caches
        torch.cuda.synchronize()
        trial = [once(call) for _ in range(3)]
        torch.cuda.synchronize()
        slowest = max(slowest, min(start.elapsed_time(end) for start, end in trial))
    rounds = int(min(max(milliseconds / max(slowest, 1e-3), _ROUNDS[0]), _ROUNDS[1]))
    names, events, clock = list(candidates), [], None
    for turn in range(rounds):
        first = turn % len(names)
        events.append({name: once(candidates[name]) for name in names[first:] + names[:first]})
        if turn == rounds // 2:
            clock = clock_mhz()  # the GPU is at work on the rounds queued so far
    torch.cuda.synchronize()
    result = {}
    for name in candidates:
        times = sorted(start.elapsed_time(end) for start, end in (row[name] for row in events))
        low, high = times[round(0.1 * (rounds - 1))], times[round(0.9 * (rounds - 1))]
        result[name] = Times(statistics.median(times), high - low, rounds, clock)
    return result


@dataclass(frozen=True)
class Result:
    """A measurement with what is needed to show it: on which GPU, when, and whether just now."""

    measurement: Measurement
    gpu: str
    date: str
    measured_now: bool

    @property
    def unit(self) -> str:
        return "TFLOP/s" if self.measurement.flops else "GB/s"

    def rate(self, ms: float) -> float:
        """TFLOP/s, or GB/s where there are no operations to count, at `ms` milliseconds."""
        m = self.measurement
        return (m.flops / 1e9 if m.flops else m.moved / 1e6) / ms

    def table(self) -> Table:
        m = self.measurement
        ours = OWN if self.measured_now else "the lesson's kernel"
        whole = [(ours, m.kernel_ms), *m.baselines.items()]
        if m.floor_ms:
            whole.append(("floor", m.floor_ms))
        spreads = {ours: m.spread_ms, **m.spreads}

        def spread(name: str) -> str:
            return f"{spreads[name]:.4f}" if name in spreads else ""

        rows = [[name, f"{ms:.4f}", spread(name), f"{self.rate(ms):,.0f}",
                 f"{m.floor_ms / ms:.0%}" if m.floor_ms else "", f"{ms / m.kernel_ms:.2f}"]
                for name, ms in whole]
        after = 1 + len(m.baselines)
        rows[after:after] = [
            [f"({name})", f"{ms:.4f}", spread(name), "", "", f"{ms / m.kernel_ms:.2f}"]
            for name, ms in m.references.items()]
        shape = ", ".join(f"{axis} = {size:,}" for axis, size in m.shape.items())
        origin = "measured now" if self.measured_now else RECORDED
        note = ("Medians of interleaved runs from a cold cache; spread: from the 10th to the 90th "
                "percentile. Time ratio: over the kernel's time, so above 1 the kernel is faster.")
        if m.clock_mhz:
            note += f" Multiprocessors' clock meanwhile: {m.clock_mhz:,.0f} MHz."
        if m.references:
            note += " In brackets: computes less than the kernel does."
        if not self.measured_now:
            chosen = ", ".join(f"{knob} = {value}" for knob, value in m.schedule.items())
            note += "\nRecorded with the kernel as the lesson has it"
            note += f": {chosen}. " if chosen else ". "
            note += "What you change is checked here, not timed."
        return Table(f"{m.name}: {shape}, {m.dtype}, on {self.gpu}, {self.date} ({origin})",
                     ["what", ">ms", ">spread", f">{self.unit}", ">of the floor", ">time ratio"],
                     rows, note)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


@contextmanager
def standing_in(call: Callable[..., Any] | None,
                shapes: Callable[[list[dict[str, int]]], list[dict[str, int]]] = list,
                ) -> Iterator[None]:
    """While this context lasts, `bench` times and shows nothing: it returns what `call` returns,
    which gets all arguments of `bench` by name, and `bench_shapes` goes over the shapes that
    `shapes` leaves of its own. call None: both do their own work again. `labkit bench` prepares and
    checks so."""
    global _stand_in
    before, _stand_in = _stand_in, (call, shapes) if call else None
    try:
        yield
    finally:
        _stand_in = before


def is_stood_in() -> bool:
    """Whether `bench` shows no figures now: see `standing_in`."""
    return _stand_in is not None


def bench(name: str, here: Any, *, kernel: Callable[[], Any],
          baselines: dict[str, Callable[[], Any]],
          references: dict[str, Callable[[], Any]] | None = None,
          shape: dict[str, int], dtype: str, moved: float, flops: float = 0,
          output: Any, check: Callable[[], Comparison],
          schedule: dict[str, Any] | None = None) -> Result:
    """Times `kernel` beside its baselines on the GPU of this run; without one, shows the
    recorded measurement called `name`.

    here: the result of `lab.here`. kernel, baselines, references: calls without arguments that
    launch work on the current stream; a baseline computes the same whole function, a reference
    less. shape: axis -> size. moved: bytes read once plus written once. flops: operations.
    output: the tensor that `kernel` writes; it is filled with NaN before the timing. check: called
    after it, compares `output` and returns `lab.check`'s verdict, whose error is kept.
    schedule: what was chosen.
    Raises LabError if there is no GPU and nothing is recorded under `name`, WrongAnswer if the
    output is wrong after the timing, BadArgument if two candidates share a name.
    """
    references = references or {}
    names = [OWN, *baselines, *references]
    if len(set(names)) < len(names):
        raise BadArgument(f"Two candidates share a name: {', '.join(names)}. Give each its own; "
                          f"{OWN!r} is the kernel's.")
    if _stand_in is not None:
        return _stand_in[0](name=name, here=here, kernel=kernel, baselines=baselines,
                            references=references, shape=shape, dtype=dtype, moved=moved,
                            flops=flops, output=output, check=check, schedule=schedule)
    if here.device != "gpu":
        recording = recorded()
        named = recording.find(name)
        found = ([m for m in named if m.dtype == dtype and m.shape == shape]
                 or [m for m in named if m.dtype == dtype] or named)
        if not found:
            raise LabError(f"No GPU in this run, and nothing recorded as {name!r} on the "
                           f"{recording.gpu}; run this lesson on a GPU to measure it.")
        return _recorded(found[0], recording)
    import torch

    from labkit.roofline import measured

    output.fill_(math.nan)
    times = time_each({OWN: kernel, **baselines, **references})
    verdict = check()
    if not isinstance(verdict, Comparison):
        raise BadArgument(f"check returned {type(verdict).__name__}; return the verdict of "
                          "lab.check, so that its error is kept with the times.")
    if not verdict.ok:
        raise WrongAnswer(f"After the timing, {verdict!r}")
    own = times[OWN]
    m = Measurement(name=name, shape=dict(shape), dtype=dtype,
                    kernel_ms=own.median, spread_ms=own.spread,
                    floor_ms=measured().ms(moved, flops, dtype),
                    error=verdict.error,
                    schedule=schedule or {},
                    baselines={key: times[key].median for key in baselines},
                    references={key: times[key].median for key in references},
                    spreads={key: times[key].spread for key in (*baselines, *references)},
                    moved=moved, flops=flops, clock_mhz=own.clock_mhz)
    append(m, measured())
    return Result(m, torch.cuda.get_device_name(), str(datetime.date.today()), measured_now=True)


def _recorded(m: Measurement, recording: Recording) -> Result:
    return Result(m, recording.gpu, m.date or recording.date, measured_now=False)


@dataclass(frozen=True)
class Results:
    """One kernel at several shapes, in one table; `results` are the single ones."""

    results: list[Result]

    def table(self) -> Table:
        first = self.results[0]
        others = list(dict.fromkeys(
            name for r in self.results for name in (*r.measurement.baselines,
                                                    *r.measurement.references)))
        rows = []
        for r in self.results:
            m = r.measurement
            times = {**m.baselines, **m.references}
            rows.append([" x ".join(f"{size:,}" for size in m.shape.values()),
                         f"{m.kernel_ms:.4f}", f"{r.rate(m.kernel_ms):,.0f}",
                         f"{m.floor_ms / m.kernel_ms:.1%}" if m.floor_ms else "",
                         *(f"{times[name] / m.kernel_ms:.2f}" if name in times else ""
                           for name in others)])
        less = {name for r in self.results for name in r.measurement.references}
        origin = "measured now" if first.measured_now else RECORDED
        m = first.measurement
        return Table(f"{m.name}, {m.dtype}, on {first.gpu}, {first.date} ({origin})",
                     [f">{' x '.join(m.shape)}", ">ms", f">{first.unit}", ">of the floor",
                      *(f">({n})" if n in less else f">{n}" for n in others)], rows,
                     "The columns of the others: their time over the kernel's, so above 1 the "
                     "kernel is faster." + (" In brackets: computes less." if less else "")
                     + " Medians of interleaved runs from a cold cache.")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def bench_shapes(name: str, here: Any, shapes: Sequence[dict[str, int]],
                 make: Callable[..., dict[str, Any]]) -> Results:
    """`bench` at several shapes; without a GPU, everything that is recorded as `name`.

    shapes: axis -> size, each. make(**shape) returns the other arguments of `bench`; it is called
    for one shape after the other, so only one shape's tensors are alive at a time.
    Raises what `bench` raises, and BadArgument if there is no shape.
    """
    if not shapes:
        raise BadArgument("No shapes to measure: give at least one.")
    if _stand_in is not None:
        shapes = _stand_in[1](list(shapes))
    if here.device == "gpu" or _stand_in is not None:
        return Results([bench(name, here, shape=shape, **make(**shape)) for shape in shapes])
    recording = recorded()
    found = recording.find(name)
    found = [m for m in found if m.dtype == found[0].dtype]  # one table, one dtype
    if not found:
        raise LabError(f"No GPU in this run, and nothing recorded as {name!r} on the "
                       f"{recording.gpu}; run this lesson on a GPU to measure it.")
    return Results([_recorded(m, recording) for m in found])
