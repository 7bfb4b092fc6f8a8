"""The kit's tuner: filter, compile in parallel, check, measure with early stop, keep every result.

    tuning = lab.tune("gemm_tuned", here, build, space, [A, B], reference, shape=..., ...)
    tuning.winner

The compilers' own figures say what cannot run or spills. All kernels compile before the first is
timed, so that no compiler disturbs a measurement. Every output is compared before its kernel is
timed; a wrong one is dropped and named. Then it is filled with NaN, and compared again after the
timing. A short round times each schedule. Only those close to the fastest are timed at length,
interleaved.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from labkit import benchmark
from labkit.errors import BadArgument
from labkit.results import record_path, recorded_sweep, sweep_path
from labkit.tuning_check import Checker
from labkit.tuning_filter import COMPILES_HERE, RIGHT, RIGHT_AFTER, progress
from labkit.tuning_result import Tuning, from_recording, write_record
from labkit.tuning_space import Candidate
from labkit.tuning_store import Store, key, same_session

_SHORT_MS = 10  # about how long the short round measures one schedule
_WITHIN = 1.15  # up to this factor slower than the fastest of the short round, timed at length
_MOST_FINALISTS = 12


def tune(name: str, here: Any, build: Callable[..., Any], space: Any, inputs: Sequence[Any],
         reference: Any, *, shape: dict[str, int], dtype: str, flops: float,
         legal: Callable[[dict[str, Any]], bool] | None = None,
         hand_picked: dict[str, Any] | None = None,
         build_for_gpu: Callable[..., Any] | None = None,
         tile: tuple[str, str] = ("block_M", "block_N"),
         pass_configs: dict[str, Any] | None = None, count_registers: int | None = None,
         check_on_cpu: int | None = 4, fresh: bool = False) -> Tuning:
    """Finds the fastest schedule of `space` that is right.

    build(**schedule) returns the program for the sizes of `inputs`, its last parameter the output;
        build_for_gpu the one for the sizes to tune, where the inputs are smaller (on the CPU).
    space: knob -> list of values, or a list of schedules. legal(schedule): whether to try it.
    hand_picked: a schedule that is tried and timed to the end in any case.
    reference: what the output should be, float32 or float64. shape, dtype, flops: what is tuned.
    tile: the knobs that are the tile's sides, for the report on a wrong output.
    count_registers: for how many schedules nvcc counts registers (None: all). check_on_cpu: how
        many run on the CPU where there is no GPU (None: all).
    fresh: measure again what is on disk.

    On a GPU each result is on disk as soon as it is there, by GPU, program (so by shape, dtype and
    source), options and versions. A call that was interrupted goes on where it stopped when it is
    made again on that day; one that lacks a result on a later day measures all of them again, since
    times of two days do not compare. Without a GPU it filters and compiles for `here.gpu`, checks a
    few schedules on the CPU, and ranks the recorded sweep called `name`, if there is one.

    Raises BadArgument for a bad argument or a folder that cannot be written, LabError if no
    schedule is left or the GPU runs nothing more, WrongAnswer if every schedule that ran is wrong,
    NeedsGPU if `here` names a GPU that torch does not see, and MissingTool without a compiler.
    """
    _check(name, reference, shape, dtype, flops, count_registers, check_on_cpu)
    run = _Run(name, here, build, build_for_gpu or build, inputs, reference, tile, pass_configs)
    store = None
    if here.device != "cpu":
        record_path(name)
        store = Store(name, run.gpu_name)
        if fresh:
            store.forget()
    with run.timed("filter"):
        run.expand(run.build_for_gpu, space, legal, hand_picked)
        run.check_reference()
        run.filter(count_registers)
    if store is None:
        recording = recorded_sweep(name) if sweep_path(name) else None
        with run.timed("check"):
            run.check_on_cpu(check_on_cpu, recording)
        return from_recording(run, recording, shape, dtype, flops)
    with run.timed("compile"):
        run.prepare(store)
    with run.timed("measure"):
        run.short_round(store)
        session = run.full_round(store)
    result = Tuning(name, run.gpu_name, session["date"], run.origin(), dict(shape), dtype, flops,
                    run.candidates, run.steps, run.hand_picked, run.seconds, run.new,
                    versions=session["versions"])
    write_record(result)
    return result


def _check(name: Any, reference: Any, shape: Any, dtype: Any, flops: Any, count_registers: Any,
           check_on_cpu: Any) -> None:
    """Raises BadArgument for what can be seen to be wrong before anything is built."""
    import torch

    def whole(value: Any, least: int) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    if not isinstance(name, str) or not re.fullmatch(r"\w[\w-]*", name):
        raise BadArgument(f"name is {name!r}; give letters, digits, _ and -, as in 'gemm_tuned'.")
    if not isinstance(reference, torch.Tensor):
        raise BadArgument(f"reference is of type {type(reference).__name__}; give a torch tensor, "
                          "what the output should be.")
    if reference.dtype not in (torch.float32, torch.float64):
        raise BadArgument(f"reference has dtype {str(reference.dtype)[6:]}; compute it in float32 "
                          "or float64 (upcast the inputs with .float()).")
    if not isinstance(shape, dict) or not shape or not all(
            isinstance(axis, str) and whole(size, 1) for axis, size in shape.items()):
        raise BadArgument(f"shape is {shape!r}; give the size of each axis, as in {{\"M\": 4096}}.")
    if not isinstance(dtype, str):
        raise BadArgument(f"dtype is {dtype!r}; give its name, as in 'float16'.")
    if isinstance(flops, bool) or not isinstance(flops, (int, float)) or not 0 < flops < math.inf:
        raise BadArgument(f"flops is {flops!r}; give the number of operations of one call, above "
                          "0, as in 2 * M * N * K.")
    for what, value, least in (("count_registers", count_registers, 0),
                               ("check_on_cpu", check_on_cpu, 1)):
        if value is not None and not whole(value, least):
            raise BadArgument(f"{what} is {value!r}; give a number of schedules of at least "
                              f"{least}, or None for all.")


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name()


class _Run(Checker):
    """One call of `tune` on a GPU, and how fast each schedule is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gpu_name = "" if self.device == "cpu" else _gpu_name()
        self.confirmed: set[Candidate] = set()  # right after timing, or run again, in this call
        self.timed_now: set[Candidate] = set()  # whose time that is shown is of this call
        self.new = 0  # results that were not on disk

    def prepare(self, store: Store) -> None:
        """Compiles what has to be measured: what has no result on disk, and where that leaves
        results of different sessions, also what was measured in another one than this."""
        self.keys = {c: key(c.program, self.options, self.gpu_name) for c in self.left}
        for candidate in self.left:
            if (why := store.broke.get(self.keys[candidate])) is not None:
                candidate.drop(COMPILES_HERE, f"broke the GPU's context before: {why}")
        missing = [c for c in self.left if self.keys[c] not in store.short]
        self.compile(missing)
        old = [c for c in self.left if self.keys[c] in store.short
               and not same_session(store.short[self.keys[c]], store.session)]
        if old:
            for candidate in missing:  # what is wrong is not missing in the old results
                if not candidate.dropped:
                    self.run_once(candidate, store)
            if not self._complete(store):
                for candidate in old:
                    del store.short[self.keys[candidate]]
                self.compile(old)
        known = sum(self.keys[c] in store.short for c in self.left)
        self.report(COMPILES_HERE, f"{known} were measured before" if known else "")

    def _complete(self, store: Store) -> bool:
        """Whether one session measured all that are left, the finalists at length."""
        entries = {c: store.short.get(self.keys[c]) for c in self.left}
        first = next(iter(entries.values()), None)
        if not all(entry and same_session(entry, first) for entry in entries.values()):
            return False
        chosen = self._finalists({c: entry["ms"] for c, entry in entries.items()})
        return store.round_of({self.keys[c] for c in chosen}, first) is not None

    def short_round(self, store: Store) -> None:
        """Checks and times one schedule after the other, and keeps each result at once."""
        for candidate in progress(self.left, "checking and timing"):
            name = self.keys[candidate]
            if name not in store.short:
                self._time_alone(candidate, store)
            if not candidate.dropped:
                candidate.error = store.short[name].get("error")
                candidate.time(store.short[name], "short")
        self.report(RIGHT)

    def _time_alone(self, candidate: Candidate, store: Store) -> None:
        arguments = self.run_once(candidate, store)
        if not arguments:
            return
        arguments[-1].fill_(math.nan)  # so that the check after the timing sees what was timed
        call = functools.partial(self.kernels[candidate].launch, *arguments)
        with self.failures(candidate, store, RIGHT_AFTER):
            took = benchmark.time_each({"": call}, milliseconds=_SHORT_MS)[""]
            self.judge(candidate, arguments[-1], RIGHT_AFTER)
        if candidate.dropped:
            return
        self.confirmed.add(candidate)
        self.timed_now.add(candidate)
        store.add(stage="short", key=self.keys[candidate], ms=took.median,
                  spread_ms=took.spread, error=candidate.error, schedule=candidate.schedule)
        self.new += 1

    def _finalists(self, ms: dict[Candidate, float]) -> list[Candidate]:
        """Those close to the fastest, and the hand-picked one."""
        ranked = sorted(ms, key=ms.get)
        chosen = [c for c in ranked if ms[c] <= _WITHIN * ms[ranked[0]]][:_MOST_FINALISTS]
        if self.hand_picked in ms and self.hand_picked not in chosen:
            chosen.append(self.hand_picked)
        return chosen

    def full_round(self, store: Store) -> dict[str, Any]:
        """Times the finalists, interleaved. Returns the session that measured all there is."""
        session = store.session
        if self.left:
            session = store.short[self.keys[self.left[0]]]
            chosen = self._finalists({c: c.ms for c in self.left})
            found = store.round_of({self.keys[c] for c in chosen}, session)
            times = found["times"] if found else self._interleaved(chosen, store)
            for candidate in chosen:
                if not candidate.dropped:
                    candidate.time(times[self.keys[candidate]], "full")
                    (self.timed_now.discard if found else self.timed_now.add)(candidate)
            self.steps.append(("timed at length", sum(c.round == "full" for c in self.left),
                               f"at most {_WITHIN - 1:.0%} behind in the short round, no more than "
                               f"{_MOST_FINALISTS}, and the hand-picked one"))
            self._confirm(store)
        others = sum(c not in self.confirmed for c in self.left)
        note = (f"compared once more now; the other {others} were checked when they were measured"
                if others else "each output compared once more, after the timing")
        self.report(RIGHT_AFTER, note, len(self.left) - others)
        return session

    def _interleaved(self, chosen: Sequence[Candidate], store: Store) -> dict[str, Any]:
        """Times `chosen` in one run, judges what was timed, and keeps the times of the right."""
        self.compile(chosen, RIGHT_AFTER)
        arguments = {c: self.run_once(c, store, RIGHT_AFTER) for c in chosen if not c.dropped}
        right = {str(place): c for place, c in enumerate(chosen) if not c.dropped}
        for candidate in right.values():
            arguments[candidate][-1].fill_(math.nan)
        calls = {place: functools.partial(self.kernels[c].launch, *arguments[c])
                 for place, c in right.items()}
        took = benchmark.time_each(calls) if calls else {}
        for candidate in right.values():
            self.judge(candidate, arguments[candidate][-1], RIGHT_AFTER)
            self.confirmed.add(candidate)
        times = {self.keys[c]: {"ms": took[place].median, "spread_ms": took[place].spread}
                 for place, c in right.items() if not c.dropped}
        if times:
            store.add(stage="full", times=times, clock_mhz=next(iter(took.values())).clock_mhz)
            self.new += len(times)
        return times

    def _confirm(self, store: Store) -> None:
        """Runs the finalists once more, if they were not timed in this call, and drops what is
        wrong; if none of them is right, then the fastest of the others until one is."""
        again = [c for c in self.left if c.round == "full" and c not in self.confirmed]
        while again:
            self.compile(again, RIGHT_AFTER)
            self.confirmed.update(c for c in again if not c.dropped
                                  and self.run_once(c, store, RIGHT_AFTER))
            best = min(self.left, key=Candidate.place, default=None)
            again = [best] if best and best not in self.confirmed else []

    def origin(self) -> str:
        """When the times that are shown were measured."""
        now = sum(c in self.timed_now for c in self.left)
        if now in (0, len(self.left)):
            return "measured now" if now else "measured here before"
        return f"measured today, {now} of {len(self.left)} times in this call"
