"""Judges choices among cuDNN's plans: by lists that were recorded, and by made-up ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.cudnn_plans import Plan
from labkit.exercises.exercise import Outcome
from labkit.exercises.trial import failure

MB = 1_000_000


@functools.cache
def _recorded() -> tuple[tuple[Plan, ...], str]:
    """The timed plans of the lesson's convolution in cuDNN's order, and where they were timed."""
    from labkit.results import recorded_plans

    data = recorded_plans("cudnn_conv_bias_relu")
    plans = tuple(Plan(**{**plan, "notes": tuple(plan["notes"])}) for plan in data["plans"])
    return plans, f"recorded on the {data['gpu']}, {data['date']}"


def _plan(index: int, us: float | None, workspace: int | None, failure: str = "") -> Plan:
    return Plan(index, f"eng{index}", index, {}, (), workspace,
                None if us is None else us / 1e3, failure=failure)


# --- the fastest within a limit

# made up, with workspaces as large as an A100's list has them; of the last two, one did not build
# and one gave a wrong result
_HUNGRY = (_plan(0, 240.0, 0), _plan(1, 170.0, 103 * MB), _plan(2, 200.0, 51 * MB),
           _plan(3, 221.0, 8 * MB), _plan(4, 190.0, 60 * MB), _plan(5, None, None, "did not build"),
           _plan(6, None, 0, "plan: WRONG."))


def _fits(plans: Sequence[Plan], limit: int) -> list[Plan]:
    return [p for p in plans if p.kernel_ms is not None and p.workspace <= limit]


def _fastest(plans: Sequence[Plan]) -> Plan | None:
    return min(plans, key=lambda p: p.kernel_ms, default=None)


_PICK_MISTAKES: dict[str, Callable[[Sequence[Plan], int], Plan | None]] = {
    "The limit has no effect: that is the fastest of all.":
        lambda plans, limit: _fastest(_fits(plans, 10**12)),
    "A plan that takes just as much as the limit fits, too.":
        lambda plans, limit: _fastest(_fits(plans, limit - 1)),
    "That is the first one in cuDNN's order that fits; look for the fastest.":
        lambda plans, limit: next(iter(_fits(plans, limit)), None),
    "That is the slowest that fits: min, not max.":
        lambda plans, limit: max(_fits(plans, limit), key=lambda p: p.kernel_ms, default=None),
    "That is the one with the least workspace; of those that fit, the fastest is asked for.":
        lambda plans, limit: min(_fits(plans, limit), key=lambda p: p.workspace, default=None),
}


def _pick_cases() -> list[tuple[str, tuple[Plan, ...], int]]:
    plans, where = _recorded()
    most = max(plan.workspace or 0 for plan in plans)
    return [(f"the {len(plans)} plans {where}", plans, most),
            (f"the {len(plans)} plans {where}", plans, max(most - 1, 0)),
            ("seven made-up plans with large workspaces", _HUNGRY, 60 * MB),
            ("seven made-up plans with large workspaces", _HUNGRY, 59 * MB),
            ("the same from back to front", _HUNGRY[::-1], 8 * MB),
            ("four of them that all take memory", _HUNGRY[1:5], 4 * MB), ("no plans", (), 0)]


def _in_words(plan: Any) -> str:
    if plan is None:
        return "None"
    if not isinstance(plan, Plan):
        return f"a {type(plan).__name__}, no plan"
    time = "not timed" if plan.kernel_ms is None else f"{plan.kernel_ms * 1e3:.1f} us"
    size = "no workspace known" if plan.workspace is None else f"{plan.workspace:,} bytes"
    return f"place {plan.index} ({time}, {size})"


def judge_pick(pick: Any) -> Outcome:
    """pick(plans, limit in bytes) -> the fastest that fits, or None."""
    if not callable(pick):
        return Outcome(False, ("The answer is no function; it takes plans and a limit in bytes.",))
    got = []
    for what, plans, limit in _pick_cases():
        try:
            got.append(pick(list(plans), limit))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (f"Of {what}, within {limit:,} bytes: {failure(error, pick)}",))
    wanted = [_fastest(_fits(plans, limit)) for _, plans, limit in _pick_cases()]
    for (what, _, limit), found, right in zip(_pick_cases(), got, wanted, strict=True):
        if found is not right and found != right:
            told = next((sentence for sentence, mistaken in _PICK_MISTAKES.items()
                         if got == [mistaken(p, most) for _, p, most in _pick_cases()]), "")
            return Outcome(False, tuple(line for line in (
                f"Of {what}, within {limit:,} bytes it takes {_in_words(found)}; "
                f"{_in_words(right)} belongs there.", told) if line))
    what, _, limit = _pick_cases()[1]
    return Outcome(True, (f"Right for {len(got)} lists and limits. Of {what}, the fastest within "
                          f"{limit:,} bytes is {_in_words(wanted[1])}, the fastest of all "
                          f"{_in_words(wanted[0])}.",))


# --- a search


class Refused(RuntimeError):
    """A plan that does not run, as cuDNN says it."""


@dataclass
class _Candidates:
    """Stands for a graph whose plans have all been built: the calls of one that a tuner needs,
    with times that were recorded. plans: in cuDNN's order."""

    plans: tuple[Plan, ...]
    timed: list[int] = field(default_factory=list)
    complaint: str = ""

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return self.plans[index].workspace or 0

    def time_ms(self, index: int, workspace: int) -> float:
        plan = self.plans[index]
        self.timed.append(index)
        if not isinstance(workspace, int):
            self.complaint = (f"time_ms got a workspace of type {type(workspace).__name__}; it "
                              "takes its size in bytes.")
            raise TypeError(self.complaint)
        if workspace < (plan.workspace or 0):
            self.complaint = (f"The plan at place {index} wants {plan.workspace:,} bytes of "
                              f"workspace and got {workspace:,}: it would write past its end.")
        if plan.kernel_ms is None:
            raise Refused(f"plan {plan.name} does not run")
        return plan.kernel_ms


def _landscapes() -> list[tuple[str, tuple[Plan, ...], float]]:
    """(what, plans, floor in ms), each with another place to stop."""
    plans, where = _recorded()
    back = tuple(replace(p, index=n) for n, p in enumerate(reversed(plans)))
    best = min(p.kernel_ms for p in plans if p.kernel_ms is not None)
    return [(f"The plans {where}, floor {best / 1.04 * 1e3:.1f} us", plans, best / 1.04),
            ("The same, with a floor that none comes near", plans, best / 2),
            ("The same from back to front", back, best / 1.04),
            ("Made-up plans with large workspaces, two of which do not run", _HUNGRY[::-1],
             0.2 / 1.05),
            ("No plan that runs", _HUNGRY[5:], 0.1)]


def _right_search(plans: Sequence[Plan], floor: float) -> tuple[int | None, int]:
    """(the place to return, how many plans are timed)."""
    best = None
    for place, plan in enumerate(plans):
        if plan.kernel_ms is None:
            continue
        if best is None or plan.kernel_ms < plans[best].kernel_ms:
            best = place
        if plan.kernel_ms <= 1.05 * floor:
            return place, place + 1
    return best, len(plans)


def judge_search(search: Any) -> Outcome:
    """search(graph, time_ms, floor_ms) -> the place of a plan, or None."""
    if not callable(search):
        return Outcome(False, ("The answer is no function; it takes a graph, `time_ms` and a "
                               "floor.",))
    lines = []
    for what, plans, floor in _landscapes():
        graph = _Candidates(plans)
        try:
            found = search(graph, graph.time_ms, floor)
        except Refused:
            return Outcome(False, (*lines, f"{what}: a plan that does not run ends the search. "
                                   "Catch RuntimeError, and go on with the next one."))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            said = graph.complaint or failure(error, search)
            return Outcome(False, (*lines, f"{what}: {said}"))
        said = graph.complaint or _search_fault(found, graph, plans, floor)
        if said:
            return Outcome(False, (*lines, f"{what}: {said}"))
        chosen = "None" if found is None else f"place {found}"
        lines.append(f"{what}: {chosen}, {len(graph.timed)} of {len(plans)} plans timed.")
    return Outcome(True, tuple(lines))


def _search_fault(found: Any, graph: _Candidates, plans: Sequence[Plan], floor: float) -> str:
    right, most = _right_search(plans, floor)
    if len(graph.timed) > most:
        again = len(graph.timed) - len(set(graph.timed))
        if again:
            return f"it times {again} plans more than once."
        return (f"it times {len(graph.timed)} plans; place {right} is within 5 % of the floor, so "
                f"{most} will do.")
    if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
        return f"it returns {found!r}, where the place of a plan belongs, a whole number."
    if found == right:
        return ""
    if found is None:
        return f"it returns None, and place {right} runs."
    if right is None or not 0 <= found < len(plans) or plans[found].kernel_ms is None:
        return f"it returns {found}, where no plan runs."
    times = {n: plans[n].kernel_ms or math.inf for n in (found, right)}
    return (f"it returns place {found}, which takes {times[found] * 1e3:.1f} us; place {right} "
            f"takes {times[right] * 1e3:.1f} us. It timed {len(graph.timed)} of {len(plans)}.")
