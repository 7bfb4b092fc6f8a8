"""Exercises of lesson 07: autotuning. Times are those of a recorded search on an H200."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.trial import FunctionCheck, failure

Times = dict[tuple[int, ...], float]
KNOBS = ("block_M", "block_N", "block_K", "num_stages", "threads", "panel")


@functools.cache
def _recorded() -> tuple[Times, str]:
    """Schedule -> milliseconds, for those that ran, and where and when they were recorded."""
    file = Path(__file__).parent.parent / "results" / "h200-sweep-gemm_tuned.json"
    stored = json.loads(file.read_text())
    times = {tuple(s["schedule"][knob] for knob in KNOBS): s["kernel_ms"]
             for s in stored["schedules"] if "kernel_ms" in s}
    return times, f"recorded on the {stored['gpu']} on {stored['date']}"


def _schedule(values: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(KNOBS, values, strict=True))


# --- 07.1

NEAR, MOST = 1.05, 16


def _judge_rule(rule: Any) -> Outcome:
    """A rule has to keep a schedule within 5 % of the best and leave few to be tried."""
    if not callable(rule):
        return Outcome(False, ("The answer is no function; it takes a schedule and says whether to "
                               "try it.",))
    times, where = _recorded()
    try:
        kept = {values for values in times if _said(rule(_schedule(values)))}
    except Exception as error:  # whatever a learner's code raises is told, not raised
        return Outcome(False, (failure(error, rule),))
    if not kept:
        return Outcome(False, (f"It forbids all {len(times)} schedules.",))
    best, found = min(times.values()), min(times[values] for values in kept)
    lost = f"The best one left takes {found:.4f} ms, the best of all {best:.4f} ms ({where})."
    if len(kept) > MOST:
        return Outcome(False, (f"It leaves {len(kept)} of {len(times)} schedules; at most {MOST} "
                               "are asked for.",))
    if found > NEAR * best:
        return Outcome(False, (lost, f"The rule forbids every schedule within {NEAR - 1:.0%} of "
                               "the best: it was a bad bet."))
    return Outcome(True, (f"It leaves {len(kept)} of {len(times)} schedules.", lost))


def _said(answer: Any) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"the rule gives {answer!r}, where True or False belongs")
    return answer


RULE = Exercise(
    key="07.1", title="A shorter list", statement="tune-ex-1", answer="worth_trying",
    stub='''
def worth_trying(schedule):
    """Whether to try this schedule; `schedule` is a dict of the six knobs."""
    ...
''',
    solution='''
def worth_trying(schedule):
    """Whether to try this schedule; `schedule` is a dict of the six knobs."""
    # a tile of 64 rows reads a quarter more than the square one: large tiles only
    large = schedule["block_M"] * schedule["block_N"] >= 128 * 256
    # 128 columns of K on their way hide the copies, 256 at most fit beside a large tile
    ahead = 128 <= schedule["num_stages"] * schedule["block_K"] <= 256
    # at 4096^3 most of A and B fits in the L2, so the order of the blocks cannot matter much:
    # one value of the panel is enough
    return large and ahead and schedule["panel"] == 16
''',
    hints=(
        "Lessons 02 and 03 say which knobs hardly matter at this size, and what a larger tile "
        "buys. Each is a condition.",
        "The panel did not matter at 4096 cubed: keep one of its values, and half of the list is "
        "gone. Then compare operations a byte for the tiles.",
        "Keep block_M * block_N >= 32768, one panel, and a moderate num_stages * block_K.",
    ),
    judge=_judge_rule)


# --- 07.2

def _finalists(times: dict[str, float], most: int | None = 12, within: float = 0.15,
               order: int = 1, of: Any = None, keep_nan: bool = False) -> list[str]:
    """The right answer, or one with a mistake. order: 0 as they stand, -1 the slowest first. of:
    times -> limit. keep_nan: NaN is compared like a number."""
    ran = {name: ms for name, ms in times.items() if ms == ms or keep_nan}
    if not ran and not keep_nan:
        return []
    limit = of(ran.values(), within) if of else min(ran.values()) * (1 + within)
    near = [name for name, ms in ran.items() if ms <= limit]
    return (sorted(near, key=ran.__getitem__, reverse=order < 0) if order else near)[:most]


FINALISTS = Exercise(
    key="07.2", title="Who is timed again", statement="tune-ex-2", answer="finalists",
    stub='''
def finalists(times, most=12, within=0.15):
    """Names of at most `most` schedules to time at length, the fastest first.

    times: name -> milliseconds; NaN for a schedule that did not run. within: the share that a
    schedule may be slower than the fastest.
    """
    ...
''',
    solution='''
def finalists(times, most=12, within=0.15):
    """Names of at most `most` schedules to time at length, the fastest first.

    times: name -> milliseconds; NaN for a schedule that did not run. within: the share that a
    schedule may be slower than the fastest.
    """
    # NaN compares false with everything, itself included: leave it out before min and sorted,
    # whose results would depend on where it stands
    ran = {name: ms for name, ms in times.items() if ms == ms}
    if not ran:
        return []
    limit = min(ran.values()) * (1 + within)
    near = [name for name, ms in ran.items() if ms <= limit]
    return sorted(near, key=ran.get)[:most]
''',
    hints=(
        "Three steps: drop what did not run, keep what is near the fastest, sort and cut.",
        "NaN is not equal to itself: ms == ms is false for it alone. `min` of an empty list raises "
        "an error.",
        "limit = min(ran.values()) * (1 + within); sort the names with ms <= limit by their time, "
        "and take the first `most`.",
    ),
    judge=FunctionCheck(
        cases=(({"a": 1.0, "b": math.nan, "c": 1.1, "d": 1.2, "e": 0.99},),
               ({"slow": 3.0, "fast": 1.0, "near": 1.14},),
               ({"x": 5.0, "y": 5.2, "z": 5.1, "w": 5.3}, 2),
               ({"only": math.nan},), ({"n": math.nan, "p": 2.0, "q": 2.5}, 5, 0.5), ({},)),
        wanted=_finalists,
        mistakes={
            "The limit is measured from the slowest; it belongs above the fastest.":
                lambda *a: _finalists(*a, of=lambda ms, within: max(ms) * (1 - within)),
            "The limit is measured from the mean; it belongs above the fastest.":
                lambda *a: _finalists(*a, of=lambda ms, w: sum(ms) / len(ms) * (1 + w)),
            "They are not sorted: the fastest comes first.":
                lambda *a: _finalists(*a, order=0),
            "The slowest comes first; the fastest should.":
                lambda *a: _finalists(*a, order=-1),
            "`most` has no effect.":
                lambda t, most=12, within=0.15: _finalists(t, None, within),
            "`within` has no effect: that is everything that ran.":
                lambda *a: _finalists(*a, of=lambda ms, within: math.inf),
            "NaN was not left out: the least of numbers with a NaN among them depends on their "
            "order.": lambda *a: _finalists(*a, keep_nan=True),
        }))


# --- 07.3

BUDGET = 20
SPACE = {"block_M": (64, 128, 256), "block_N": (128, 256), "block_K": (32, 64, 128),
         "num_stages": (2, 3, 4), "threads": (128, 256), "panel": (0, 16)}


def _run_search(search: Any, times: Times) -> tuple[str, str]:
    """(what is wrong, what was found) of one search on `times`."""
    measured: dict[tuple[int, ...], float] = {}

    def measure(**schedule: int) -> float:
        values = tuple(schedule.get(knob, -1) for knob in KNOBS)
        if len(measured) >= BUDGET and values not in measured:
            raise RuntimeError(f"all {BUDGET} measurements are used up")
        measured[values] = times.get(values, math.inf)
        return measured[values]

    legal = [_schedule(values) for values in times]
    try:
        found = search(measure, [dict(schedule) for schedule in legal])
    except Exception as error:  # whatever a learner's code raises is told, not raised
        return failure(error, search), ""
    if not isinstance(found, dict) or tuple(sorted(found)) != tuple(sorted(KNOBS)):
        return "It returns no schedule: return one of those in the list.", ""
    values = tuple(found[knob] for knob in KNOBS)
    if values not in measured:
        return "The schedule that it returns was never measured.", ""
    best = min(times.values())
    if measured[values] > min(measured.values()):
        return "It measured a faster schedule than the one that it returns.", ""
    share = measured[values] / best - 1
    if share > NEAR - 1:
        return (f"Its schedule is {share:.0%} slower than the best; {NEAR - 1:.0%} is asked for. "
                f"It made {len(measured)} of {BUDGET} measurements.", "")
    return "", (f"{len(measured)} of {len(times)} schedules measured, {share:.1%} behind the best "
                "of all.")


def _judge_search(search: Any) -> Outcome:
    if not callable(search):
        return Outcome(False, ("The answer is no function; it takes `measure` and a list of "
                               "schedules.",))
    times, where = _recorded()
    upside_down = {values: 1 / (10 * ms) for values, ms in times.items()}
    lines = []
    for name, landscape in (
            (f"Times {where}", times),
            ("The same upside down, so that no answer can know the winner", upside_down)):
        wrong, found = _run_search(search, landscape)
        if wrong:
            return Outcome(False, (*lines, f"{name}: {wrong}"))
        lines.append(f"{name}: {found}")
    return Outcome(True, tuple(lines))


SEARCH = Exercise(
    key="07.3", title="A search of your own", statement="tune-ex-3", answer="search_few",
    stub='''
def search_few(measure, schedules):
    """The fastest schedule found with at most 20 calls of measure(**schedule) -> milliseconds."""
    ...
''',
    solution='''
def search_few(measure, schedules):
    """The fastest schedule found with at most 20 calls of measure(**schedule) -> milliseconds."""
    def distance(a, b):
        return sum(a[knob] != b[knob] for knob in a)

    times = {}  # number of a schedule -> milliseconds
    # every sixth of the list: knobs work together, so a start in one place can end beside the best
    for number in range(0, len(schedules), 6):
        times[number] = measure(**schedules[number])
    while len(times) < min(20, len(schedules)):
        # then the untried schedule that differs least from the fastest; once its neighbours are
        # used up, those at a distance of two follow by themselves
        best = min(times, key=times.get)
        untried = [n for n in range(len(schedules)) if n not in times]
        number = min(untried, key=lambda n: distance(schedules[n], schedules[best]))
        times[number] = measure(**schedules[number])
    return schedules[min(times, key=times.get)]
''',
    hints=(
        "Spend some measurements on looking around, the rest on going on from the best one.",
        "A sample from all over the list first, about 8. Then schedules that differ from the "
        "fastest in one knob only. Return the fastest that was measured.",
        "Keep a dict of measured times. In a loop: best = the fastest so far; try the untried "
        "schedule with the fewest knobs that differ from it; stop at 20.",
    ),
    judge=_judge_search)




EXERCISES = (RULE, FINALISTS, SEARCH)
