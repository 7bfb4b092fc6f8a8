"""One schedule, checked against float32 and timed beside its baseline on the GPU that is here."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import first_line
from labkit.schedules import text
from labkit.widgets.controls import Choice


@dataclass(frozen=True)
class Measured:
    """One schedule. ms: median, None if it was not timed; failure: why, in a sentence; error:
    relative Frobenius error after the timing; baseline: (name, ms) of the same run."""

    label: str
    ms: float | None = None
    failure: str = ""
    error: float | None = None
    baseline: tuple[str, float] | None = None


@dataclass(frozen=True)
class Prepared:
    """A kernel that ran once and was right. launch: to be timed; judge: compares its output, which
    is filled with NaN until it is launched again."""

    launch: Callable[[], Any]
    judge: Callable[[], Any]


@dataclass
class Bench:
    """The inputs, the reference and the baselines of one problem on the GPU, made once.

    reference, baseline: those of the lesson instead of the problem's; `reference(*inputs)` returns
    float32, `baseline` is (name, function of the inputs).
    """

    problem: Any
    reference: Callable[..., Any] | None = None
    baseline: tuple[str, Callable[..., Any]] | None = None
    device: str = "cuda"
    inputs: list[Any] = field(init=False)
    wanted: Any = field(init=False)

    def __post_init__(self) -> None:
        self.inputs = self.problem.inputs(self.device)
        self.wanted = (self.reference or self.problem.reference)(*self.inputs)

    def baselines(self) -> dict[str, Callable[[], Any]]:
        if self.baseline is None:
            return self.problem.baselines(*self.inputs)
        name, call = self.baseline
        return {name: functools.partial(call, *self.inputs)}

    def compile(self, program: Any, pass_configs: dict[str, Any] | None) -> Any:
        """The program for this device, to call with `launch`. Raises LabError."""
        from labkit.compiler import compile

        return compile(program, out_idx=-1, device="gpu" if self.device == "cuda" else "cpu",
                       pass_configs=pass_configs)

    def prepare(self, kernel: Any, schedule: dict[str, Any]) -> Prepared:
        """Runs it once, and compares. Raises WrongAnswer with where it is wrong."""
        from labkit.verify import check, compare

        arguments = kernel.arguments(*self.inputs)
        kernel.launch(*arguments)
        tile = (schedule.get("block_M", 128), schedule.get("block_N", 128))
        judge = functools.partial(compare, arguments[-1], self.wanted, name=text(schedule),
                                  tile=tile)
        check(arguments[-1], self.wanted, name=text(schedule), tile=tile)
        arguments[-1].fill_(math.nan)  # so that a check after the timing sees what was timed
        return Prepared(functools.partial(kernel.launch, *arguments), judge)


def measure(choice: Choice, bench: Bench, program: Any, pass_configs: dict[str, Any] | None
            ) -> Measured:
    """Checks, times beside the baseline, and checks what was timed. Never raises for a schedule
    that does not work: the failure says why. Call it in the main thread: it uses the GPU."""
    from labkit.benchmark import time_each

    label = text(choice.schedule)
    try:
        ready = bench.prepare(bench.compile(program, pass_configs), choice.schedule)
        baselines = bench.baselines()
        times = time_each({label: ready.launch, **baselines}, milliseconds=100)
        verdict = ready.judge()
    except Exception as error:
        return Measured(label, failure=first_line(error))
    if not verdict.ok:
        return Measured(label, failure=repr(verdict).splitlines()[0], error=verdict.error)
    name = next(iter(baselines), None)
    return Measured(label, times[label].median, "", verdict.error,
                    (name, times[name].median) if name else None)
