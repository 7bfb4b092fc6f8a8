"""The kit's tuner: filter, compile in parallel, check, measure with early stop, keep every result.

    tuning = lab.tune("gemm_tuned", here, build, space, [A, B], reference, shape=..., ...)
    tuning.winner

The compilers' own figures say what cannot run or spills. All kernels compile before the first is
timed, so that no compiler disturbs a measurement. Every output is compared before its kernel is
timed; a wrong one is dropped and named. A short round times each schedule. Only those close to the
fastest are timed at length, interleaved, and their outputs compared once more.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from labkit import benchmark
from labkit.errors import BadArgument
from labkit.results import recorded_sweep
from labkit.tuning_check import Checker
from labkit.tuning_filter import COMPILES_HERE, RIGHT, RIGHT_AFTER, progress
from labkit.tuning_result import Tuning, from_recording, write_record
from labkit.tuning_space import Candidate
from labkit.tuning_store import Store, key

_SHORT_MS = 10  # about how long the short round measures one schedule
_MOST_FINALISTS = 12


def tune(name: str, here: Any, build: Callable[..., Any], space: Any, inputs: Sequence[Any],
         reference: Any, *, shape: dict[str, int], dtype: str, flops: float,
         legal: Callable[[dict[str, Any]], bool] | None = None,
         hand_picked: dict[str, Any] | None = None,
         build_for_gpu: Callable[..., Any] | None = None,
         tile: tuple[str, str] = ("block_M", "block_N"),
         pass_configs: dict[str, Any] | None = None, allow_spills: bool = False,
         count_registers: int | None = None, check_on_cpu: int = 4, within: float = 1.15,
         fresh: bool = False) -> Tuning:
    """Finds the fastest schedule of `space` that is right.

    build(**schedule) returns the program for the sizes of `inputs`, its last parameter the output;
        build_for_gpu the one for the sizes to tune, where the inputs are smaller (on the CPU).
    space: knob -> list of values, or a list of schedules. legal(schedule): whether to try it.
    hand_picked: a schedule that is tried and timed to the end in any case.
    reference: what the output should be, float32 or float64. shape, dtype, flops: what is tuned.
    allow_spills: try also what spills registers. count_registers: for how many schedules nvcc
        counts registers (None: all). check_on_cpu: how many run on the CPU where there is no GPU.
    within: those up to this factor slower than the fastest of the short round are timed at length.
    fresh: measure again what is on disk.

    On a GPU each result is on disk as soon as it is there, by GPU, program (so by shape, dtype and
    source), options and version: what was interrupted goes on where it stopped. Without a GPU it
    filters and compiles for `here.gpu`, checks a few schedules on the CPU, and ranks the recorded
    sweep called `name`, if there is one. Raises BadArgument for a bad space, LabError if nothing is
    left, and WrongAnswer if every schedule is wrong.
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w-]*", name):
        raise BadArgument(f"name is {name!r}; give letters, digits, _ and -, as in 'gemm_tuned'.")
    if not isinstance(within, (int, float)) or not within >= 1:
        raise BadArgument(f"within is {within!r}; give a factor of at least 1, such as 1.15.")
    run = _Run(name, here, build, build_for_gpu or build, inputs, reference, tile, pass_configs)
    with run.timed("filter"):
        run.expand(run.build_for_gpu, space, legal, hand_picked)
        run.filter(allow_spills, count_registers)
    if here.device == "cpu":
        recording = recorded_sweep(name) if _is_recorded(name) else None
        with run.timed("check"):
            run.check_on_cpu(check_on_cpu, recording)
        return from_recording(run, recording, shape, dtype, flops)
    store = Store(name, run.gpu_name)
    if fresh:
        store.forget()
    with run.timed("compile"):
        run.compile_missing(store)
    with run.timed("measure"):
        run.short_round(store)
        date, kept = run.full_round(store, within)
    result = Tuning(name, run.gpu_name, date, "measured here before" if kept else "measured now",
                    dict(shape), dtype, flops, run.candidates, run.steps, run.hand_picked,
                    run.seconds, run.new)
    write_record(result)
    return result


def _is_recorded(name: str) -> bool:
    from labkit.results import FOLDER

    return (FOLDER / f"h200-sweep-{name}.json") in set(FOLDER.glob("*-sweep-*.json"))


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name()


class _Run(Checker):
    """One call of `tune` on a GPU, and how fast each schedule is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.gpu_name = "" if self.device == "cpu" else _gpu_name()
        self.confirmed: set[Candidate] = set()  # right after they were timed, in this process
        self.new = 0  # results that were not on disk

    def compile_missing(self, store: Store) -> None:
        """Compiles what has no result on disk."""
        self.keys = {c: key(c.program, self.options, self.gpu_name) for c in self.left}
        for candidate in self.left:
            if (why := store.broke.get(self.keys[candidate])) is not None:
                candidate.drop(COMPILES_HERE, f"broke the GPU's context before: {why}")
        missing = [c for c in self.left if self.keys[c] not in store.short]
        known = len(self.left) - len(missing)
        self.compile(missing)
        self.report(COMPILES_HERE, f"{known} were measured before" if known else "")

    def short_round(self, store: Store) -> None:
        """Checks and times one schedule after the other, and keeps each result at once."""
        for candidate in progress(self.left, "checking and timing"):
            name = self.keys[candidate]
            if name not in store.short:
                arguments = self.run_once(candidate, store)
                if not arguments:
                    continue
                call = functools.partial(self.kernels[candidate].launch, *arguments)
                took = benchmark.time_each({"": call}, milliseconds=_SHORT_MS)[""]
                store.add(stage="short", key=name, ms=took.median, spread_ms=took.spread,
                          error=candidate.error, schedule=candidate.schedule)
                self.new += 1
            entry = store.short[name]
            candidate.error = entry.get("error")
            candidate.time(entry, "short")
        self.report(RIGHT)

    def full_round(self, store: Store, within: float) -> tuple[str, bool]:
        """Times those close to the fastest, interleaved. Returns the date, and whether the times
        were on disk."""
        ranked = sorted(self.left, key=lambda c: c.ms)
        chosen = [c for c in ranked if c.ms <= within * ranked[0].ms][:_MOST_FINALISTS]
        if self.hand_picked in ranked and self.hand_picked not in chosen:
            chosen.append(self.hand_picked)
        found = store.round_of({self.keys[c] for c in chosen})
        times = found or self._interleaved(chosen, store)
        for candidate in chosen:
            if not candidate.dropped:
                candidate.time(times["times"][self.keys[candidate]], "full")
        self.steps.append(("timed at length", sum(c.round == "full" for c in self.left),
                           f"at most {within - 1:.0%} behind in the short round, no more than "
                           f"{_MOST_FINALISTS}, and the hand-picked one"))
        self._confirm_winner(store)
        self.report(RIGHT_AFTER, "the winner's output, compared once more")
        return times["date"], found is not None

    def _interleaved(self, chosen: Sequence[Candidate], store: Store) -> dict[str, Any]:
        """Times `chosen` in one run, judges what was timed, and keeps the times of the right."""
        self.compile(chosen)
        arguments = {c: self.run_once(c, store) for c in chosen if not c.dropped}
        right = {str(place): c for place, c in enumerate(chosen) if not c.dropped}
        calls = {place: functools.partial(self.kernels[c].launch, *arguments[c])
                 for place, c in right.items()}
        took = benchmark.time_each(calls) if calls else {}
        for candidate in right.values():
            self.judge(candidate, arguments[candidate][-1], RIGHT_AFTER)
            self.confirmed.add(candidate)
        times = {self.keys[c]: {"ms": took[place].median, "spread_ms": took[place].spread}
                 for place, c in right.items() if not c.dropped}
        entry = {"stage": "full", "date": str(datetime.date.today()), "times": times,
                 "clock_mhz": next(iter(took.values())).clock_mhz if took else None}
        if times:
            store.add(**entry)
            self.new += len(times)
        return entry

    def _confirm_winner(self, store: Store) -> None:
        """Runs the fastest once more, if it was not timed in this process; drops it if it is wrong,
        and then tries the next."""
        while self.left:
            winner = min(self.left, key=Candidate.place)
            if winner in self.confirmed:
                return
            self.compile([winner])
            if not winner.dropped and self.run_once(winner, store, RIGHT_AFTER):
                return
