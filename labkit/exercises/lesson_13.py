"""Exercises of lesson 13: a plan under a workspace limit, a key for a kept plan, a tuner's loop."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.cudnn_plans import Plan
from labkit.exercises.exercise import Exercise, Outcome
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


# --- 13.1

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


def _judge_pick(pick: Any) -> Outcome:
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


PICK = Exercise(
    key="13.1", title="The fastest that fits", statement="eng-ex-1", answer="fastest_within",
    stub='''
def fastest_within(plans, limit):
    """The fastest of the plans with at most `limit` bytes of workspace; None if there is none.

    plans: as `plans.plans` above. A plan that was not timed has None as its kernel_ms.
    """
    ...
''',
    solution='''
def fastest_within(plans, limit):
    """The fastest of the plans with at most `limit` bytes of workspace; None if there is none.

    plans: as `plans.plans` above. A plan that was not timed has None as its kernel_ms.
    """
    # whether it ran comes first: a plan that did not build has no workspace to compare either
    fitting = [p for p in plans if p.kernel_ms is not None and p.workspace <= limit]
    return min(fitting, key=lambda p: p.kernel_ms, default=None)
''',
    hints=(
        "Two steps: leave out what did not run or takes too much, then take the fastest.",
        "None cannot be compared with a number, so ask for `kernel_ms is not None` before you look "
        "at the workspace. A plan that takes exactly `limit` bytes fits.",
        "min(..., key=lambda p: p.kernel_ms, default=None) of the plans with kernel_ms not None "
        "and workspace <= limit.",
    ),
    judge=_judge_pick)


# --- 13.2

_CONTEXT = dict(graph="conv_bias_relu", gpu="NVIDIA H200", libcudnn="9.19.0",
                shape={"N": 1, "C": 12, "H": 8, "K": 64}, dtype="bfloat16")
_OTHER = {  # what differs -> another context, whose plan may be another one
    "the graph": {"graph": "conv_bias"},
    "the GPU": {"gpu": "NVIDIA A100-SXM4-80GB"},
    "cuDNN's release": {"libcudnn": "9.24.0"},
    "the dtype": {"dtype": "float16"},
    "one size": {"shape": {"N": 1, "C": 12, "H": 8, "K": 128}},
    "which axis has which size": {"shape": {"N": 1, "C": 64, "H": 8, "K": 12}},
    "where one number ends (12 and 8, or 1 and 28)":
        {"shape": {"N": 1, "C": 1, "H": 28, "K": 64}},
    "the names of the axes": {"shape": {"N": 1, "C": 12, "W": 8, "K": 64}},
}
_SAME = {"shape": {"K": 64, "H": 8, "C": 12, "N": 1}}  # in another order


def _judge_key(key: Any) -> Outcome:
    if not callable(key):
        return Outcome(False, ("The answer is no function; it returns a text.",))

    def of(**changes: Any) -> Any:
        context = {**_CONTEXT, **changes}
        return key(*({**value} if isinstance(value, dict) else value for value in context.values()))

    try:
        first = of()
        if not isinstance(first, str):
            return Outcome(False, (f"The key is of type {type(first).__name__}; a text can be "
                                   "written to a file, so return a str.",))
        if of() != first:
            return Outcome(False, ("Asked twice for the same, it returns two keys.",))
        if of(**_SAME) != first:
            return Outcome(False, ("The same shape with its axes in another order has another key: "
                                   "the order of a dictionary says nothing, so sort it.",))
        seen = {what: of(**changes) for what, changes in _OTHER.items()}
    except Exception as error:  # whatever a learner's code raises is told, not raised
        return Outcome(False, (failure(error, key),))
    for what, other in seen.items():
        if other == first:
            return Outcome(False, (f"Two contexts that differ in {what} have the same key, so a "
                                   "plan would be taken for the wrong one.",))
    if first.lstrip("-").isdigit():
        return Outcome(False, ("A key that is only a number tells nobody what it is for, and "
                               "Python's hash of a text is another one in each process.",))
    return Outcome(True, (f"Another key for each of {len(seen)} other contexts, the same one for "
                          "the same.",))


KEY = Exercise(
    key="13.2", title="What a kept plan is for", statement="eng-ex-2", answer="plan_key",
    stub='''
import json


def plan_key(graph, gpu, libcudnn, shape, dtype):
    """A text that is the same if and only if a plan that was kept may be used again.

    graph, gpu, libcudnn, dtype: texts. shape: axis -> size, in any order.
    """
    ...
''',
    solution='''
import json


def plan_key(graph, gpu, libcudnn, shape, dtype):
    """A text that is the same if and only if a plan that was kept may be used again.

    graph, gpu, libcudnn, dtype: texts. shape: axis -> size, in any order.
    """
    # JSON keeps names beside sizes and marks where each ends, so that no two contexts run into
    # one; sorted, since a dictionary's order says nothing
    return json.dumps([graph, gpu, libcudnn, dtype, shape], sort_keys=True)
''',
    hints=(
        "All five belong into it. Which two different shapes could become the same text?",
        'Sizes that are only joined run together: 1, 12 and 11, 2 are both "112". And two '
        "dictionaries can be equal and list their axes in another order.",
        "json.dumps of a list of all five; its argument sort_keys puts the axes in order.",
    ),
    judge=_judge_key)


# --- 13.3


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


def _judge_search(search: Any) -> Outcome:
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
            return Outcome(False, (*lines, f"{what}: {failure(error, search)}"))
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


SEARCH = Exercise(
    key="13.3", title="A search that knows when to stop", statement="eng-ex-3",
    answer="tune",
    stub='''
def tune(graph, time_ms, floor_ms):
    """The place of the first plan within 5 % of the floor; if there is none, of the fastest.

    time_ms(index, workspace) -> milliseconds; workspace in bytes. It raises RuntimeError for a
    plan that does not run. None if none runs.
    """
    ...
''',
    solution='''
def tune(graph, time_ms, floor_ms):
    """The place of the first plan within 5 % of the floor; if there is none, of the fastest.

    time_ms(index, workspace) -> milliseconds; workspace in bytes. It raises RuntimeError for a
    plan that does not run. None if none runs.
    """
    best, best_ms = None, float("inf")
    for index in range(graph.get_execution_plan_count()):
        try:
            # every plan wants a workspace of its own; that of another may be too small
            ms = time_ms(index, graph.get_workspace_size_plan_at_index(index))
        except RuntimeError:
            continue  # one that does not run says nothing about the next
        if ms < best_ms:
            best, best_ms = index, ms
        # nothing can be more than 5 % faster than this: the rest is not worth its time
        if best_ms <= 1.05 * floor_ms:
            break
    return best
''',
    hints=(
        "The loop of the section *Run them all*, with a best so far, a `try` and a way out.",
        "For each index: the workspace's size from get_workspace_size_plan_at_index, the time in a "
        "`try`. Keep the index and the time of the best.",
        "except RuntimeError: continue. After an improvement: if ms <= 1.05 * floor_ms, break. "
        "Start with best = None and an infinite time.",
    ),
    judge=_judge_search)

EXERCISES = (PICK, KEY, SEARCH)
