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
    relative Frobenius error after the timing; baseline: (name, ms) of the same run; origin: "" if
    it was measured here, else where it was recorded."""

    label: str
    ms: float | None = None
    failure: str = ""
    error: float | None = None
    baseline: tuple[str, float] | None = None
    origin: str = ""


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

    def prepare(self, program: Any, pass_configs: dict[str, Any] | None, name: str,
                schedule: dict[str, Any]) -> tuple[Callable[[], None], Callable[[], Any], Any]:
        """(launch, verdict, output): compiled, run once and right. Raises LabError."""
        from labkit.compiler import compile
        from labkit.verify import check, compare

        kernel = compile(program, out_idx=-1, device="gpu" if self.device == "cuda" else "cpu",
                         pass_configs=pass_configs)
        arguments = kernel.arguments(*self.inputs)
        kernel.launch(*arguments)
        tile = (schedule.get("block_M", 128), schedule.get("block_N", 128))
        judge = functools.partial(compare, arguments[-1], self.wanted, name=name, tile=tile)
        check(arguments[-1], self.wanted, name=name, tile=tile)
        return functools.partial(kernel.launch, *arguments), judge, arguments[-1]


def measure(choice: Choice, bench: Bench, program: Any, pass_configs: dict[str, Any] | None
            ) -> Measured:
    """Checks, times beside the baseline, and checks what was timed. Never raises for a schedule
    that does not work: the failure says why. Call it in the main thread: it uses the GPU."""
    from labkit.benchmark import time_each

    label = text(choice.schedule)
    try:
        launch, judge, output = bench.prepare(program, pass_configs, label, choice.schedule)
        baselines = bench.baselines()
        output.fill_(math.nan)  # so that the check after the timing sees what was timed
        times = time_each({label: launch, **baselines}, milliseconds=100)
        verdict = judge()
    except Exception as error:
        return Measured(label, failure=first_line(error))
    if not verdict.ok:
        return Measured(label, failure=repr(verdict).splitlines()[0], error=verdict.error)
    name = next(iter(baselines), None)
    return Measured(label, times[label].median, "", verdict.error,
                    (name, times[name].median) if name else None)
