"""Exercises of lesson 13: a plan under a workspace limit, a key for a kept plan, a tuner's loop."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.plan_lists import judge_pick, judge_search
from labkit.exercises.trial import failure

# --- 13.1

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
    judge=judge_pick)


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
    judge=judge_search)

EXERCISES = (PICK, KEY, SEARCH)
