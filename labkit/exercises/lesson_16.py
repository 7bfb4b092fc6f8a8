"""Exercises of lesson 16: when a cache pays, buckets of batch sizes, the stream, a replay."""

from __future__ import annotations

import functools
import math
from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.launches import judge_launcher, judge_server
from labkit.exercises.trial import FunctionCheck, failure

# --- 16.1


def _pays_from(build_ms: float, first_ms: float, hit_ms: float, *, hits_from: int = 1,
               equal: bool = False) -> int | None:
    """The right answer, or one with a mistake. hits_from: how many of the shapes miss the cache;
    equal: whether equal costs count as a gain."""
    # first + (n - hits_from) * hit < n * build, solved for n
    behind, saved = first_ms - hits_from * hit_ms, build_ms - hit_ms
    if saved <= 0:  # then the first shape is the best chance
        return 1 if saved > behind or (equal and saved == behind) else None
    least = math.ceil(behind / saved) if equal else math.floor(behind / saved) + 1
    return max(1, least)


@functools.cache
def _builds() -> list[tuple[float, float, float]]:
    """(a build without a cache, the first with one, a later one), in ms, of each graph of the
    lesson's table."""
    from labkit.measured import recorded_table

    table = recorded_table("cudnn_kernel_cache")
    batches = [place for place, name in enumerate(table.columns) if "batch" in name]
    times: dict[str, dict[str, list[float]]] = {}
    for row in table.rows:
        times.setdefault(row[0], {})[row[1]] = [float(row[place]) for place in batches]
    return [(sum(t["no"]) / len(t["no"]), t["yes"][0], sum(t["yes"][1:]) / len(t["yes"][1:]))
            for t in times.values()]


def _judge_pays(answer: Any) -> Outcome:
    return FunctionCheck(
        cases=((40.0, 300.0, 5.0), (10.0, 30.0, 0.0), (4.0, 700.0, 5.0), (5.0, 20.0, 5.0),
               (50.0, 40.0, 4.0), (100.0, 150.0, 50.0), (3.0, 100.0, 2.0), *_builds()),
        wanted=_pays_from,
        mistakes={
            "The first shape misses the cache: of n shapes only n - 1 are found in it.":
                lambda b, f, h: _pays_from(b, f, h, hits_from=0),
            "Equal is no gain: with the cache it has to be less.":
                lambda b, f, h: _pays_from(b, f, h, equal=True),
            "What a later shape costs with the cache is left out.":
                lambda b, f, h: _pays_from(b, f, 0.0),
            "That is one shape early.":
                lambda b, f, h: None if (n := _pays_from(b, f, h)) is None else n - 1,
            "That is how many shapes are found in the cache; the first one counts, too.":
                lambda b, f, h: None if (n := _pays_from(b, f, h)) is None else n + 1,
        })(answer)


PAYS = Exercise(
    key="16.1", title="From how many shapes on", statement="prod-ex-1", answer="pays_from",
    stub='''
def pays_from(build_ms, first_ms, hit_ms):
    """The least number of shapes that take less time to build with one cache than without.

    build_ms: a build without a cache. With one: first_ms for the first shape, hit_ms for each
    later one. None if it never pays.
    """
    ...
''',
    solution='''
def pays_from(build_ms, first_ms, hit_ms):
    """The least number of shapes that take less time to build with one cache than without.

    build_ms: a build without a cache. With one: first_ms for the first shape, hit_ms for each
    later one. None if it never pays.
    """
    if first_ms < build_ms:
        return 1
    saved_ms = build_ms - hit_ms  # by each shape that is found in the cache
    if saved_ms <= 0:
        return None  # a later build is no cheaper, so nothing makes up for the first
    # n * build > first + (n - 1) * hit: the first whole n above the break-even, not on it
    return int((first_ms - hit_ms) // saved_ms) + 1
''',
    hints=(
        "Write down both totals for n shapes. When is the one with the cache smaller?",
        "Without: n * build_ms. With: first_ms + (n - 1) * hit_ms. If a later shape saves nothing, "
        "no n is large enough, unless the first is cheaper already.",
        "n has to be greater than (first_ms - hit_ms) / (build_ms - hit_ms). A loop that counts n "
        "up will do as well, but ask first whether it can end.",
    ),
    judge=_judge_pays)


# --- 16.2


LAUNCHER = Exercise(
    key="16.2", title="The stream, only when it changes", statement="prod-ex-2",
    answer="launcher",
    stub='''
def launcher(set_stream, current_stream, execute):
    """A function launch() that runs the plan on PyTorch's current stream.

    set_stream(stream) sets the handle's stream, current_stream() returns PyTorch's as a number,
    execute() runs the plan on the handle's stream.
    """
    ...
''',
    solution='''
def launcher(set_stream, current_stream, execute):
    """A function launch() that runs the plan on PyTorch's current stream.

    set_stream(stream) sets the handle's stream, current_stream() returns PyTorch's as a number,
    execute() runs the plan on the handle's stream.
    """
    last = None  # no stream yet: the first call sets it, whatever the handle had before

    def launch():
        nonlocal last
        stream = current_stream()
        # asked at every call, since a capture or a `with torch.cuda.stream` changes it; set only
        # when it did change, since that costs as much as a good part of the launch
        if stream != last:
            set_stream(stream)
            last = stream
        execute()

    return launch
''',
    hints=(
        "Something has to be remembered from one call to the next. Where does it live, if there "
        "are two launchers?",
        "A variable of `launcher` that `launch` changes: nonlocal. Ask for the current stream at "
        "each call, and compare.",
        "last = None outside; in launch: stream = current_stream(); if stream != last, set it and "
        "remember it; then execute(). Return launch.",
    ),
    judge=judge_launcher)


# --- 16.3

_SETS = ((64, 0.25), (1, 0.25), (100, 0.5), (64, 0.125), (7, 0.5), (1000, 0.25))


def _fewest(largest: int, waste: float) -> list[int]:
    found, size = [], largest
    while size >= 1:
        found.append(size)
        size = math.floor(size * (1 - waste))  # the largest batch that this bucket cannot take
    return found[::-1]


def _bucket_fault(found: Any, largest: int, waste: float) -> str:
    if not isinstance(found, (list, tuple)) or not all(type(size) is int for size in found):
        return "it returns no list of whole numbers."
    if not found or max(found) < largest:
        return f"no bucket is large enough for a batch of {largest}."
    if min(found) < 1 or max(found) > largest:
        return f"a bucket of {min(found) if min(found) < 1 else max(found)} is of no use."
    if list(found) != sorted(found):
        return "the buckets are not in order, the smallest first."
    for batch in range(1, largest + 1):
        bucket = min(size for size in found if size >= batch)
        if (bucket - batch) / bucket >= waste:
            return (f"a batch of {batch} goes into the bucket of {bucket}, so "
                    f"{bucket - batch} of its {bucket} are padding, {(bucket - batch) / bucket:.1%}"
                    f" of the work; less than {waste:.1%} is asked for.")
    fewest = _fewest(largest, waste)
    if len(found) > len(fewest):
        return (f"{len(found)} buckets keep within the waste, and so do {len(fewest)}: each one "
                "more is a plan to build. Begin at the large end.")
    return ""


def _judge_buckets(buckets: Any) -> Outcome:
    if not callable(buckets):
        return Outcome(False, ("The answer is no function; it takes the largest batch and the "
                               "waste.",))
    for largest, waste in _SETS:
        try:
            said = _bucket_fault(buckets(largest, waste), largest, waste)
        except Exception as error:  # whatever a learner's code raises is told, not raised
            said = failure(error, buckets)
        if said:
            return Outcome(False, (f"buckets({largest}, {waste}): {said}",))
    largest, waste = _SETS[0]
    return Outcome(True, (f"Right for {len(_SETS)} pairs, with as few as there can be: "
                          f"{len(_fewest(largest, waste))} plans serve every batch from 1 to "
                          f"{largest} with less than {waste:.0%} of the work wasted.",))


BUCKETS = Exercise(
    key="16.3", title="As few plans as will do", statement="prod-ex-3", answer="buckets",
    stub='''
def buckets(largest, waste):
    """The fewest batch sizes, in order, that serve every batch from 1 to `largest`.

    A batch is padded to the next bucket; less than the share `waste` of a bucket may be padding.
    No bucket is above `largest`.
    """
    ...
''',
    solution='''
def buckets(largest, waste):
    """The fewest batch sizes, in order, that serve every batch from 1 to `largest`.

    A batch is padded to the next bucket; less than the share `waste` of a bucket may be padding.
    No bucket is above `largest`.
    """
    sizes, size = [], largest
    # from the large end: the largest batch needs a bucket of its own size, and each next bucket
    # is as small as it can be, that is, the largest batch that the one before cannot take
    while size >= 1:
        sizes.append(size)
        size = int(size * (1 - waste))
    return sizes[::-1]
''',
    hints=(
        "Which bucket must there be in any case? Which batches does it serve within the waste?",
        "A bucket of b serves the batches above b * (1 - waste). The largest that it does not "
        "serve needs a bucket of its own.",
        "Begin with size = largest. Append it, go on with int(size * (1 - waste)) until nothing "
        "is left, and turn the list round.",
    ),
    judge=_judge_buckets)


# --- 16.4

SERVER = Exercise(
    key="16.4", title="A replay for every batch", statement="prod-ex-4", answer="server",
    stub='''
def server(x, y, replay):
    """A function serve(batch) that answers a batch of up to len(x) rows by one replay.

    replay() reads all of x and writes all of y, always the same memory. serve returns a tensor of
    its own with as many rows as the batch has; a later call must not change it.
    """
    ...
''',
    solution='''
def server(x, y, replay):
    """A function serve(batch) that answers a batch of up to len(x) rows by one replay.

    replay() reads all of x and writes all of y, always the same memory. serve returns a tensor of
    its own with as many rows as the batch has; a later call must not change it.
    """
    def serve(batch):
        # into the memory that was captured: a new tensor called x would be read by nobody.
        # Rows beyond the batch keep what they held; their results are thrown away
        x[:len(batch)].copy_(batch)
        replay()
        return y[:len(batch)].clone()  # y itself belongs to the next replay

    return serve
''',
    hints=(
        "Three lines: the input into its place, the replay, the output out of its place.",
        "A replay knows addresses, not names: x = batch changes nothing for it. And what lies in "
        "y is overwritten by the next one.",
        "x[:len(batch)].copy_(batch); replay(); return y[:len(batch)].clone().",
    ),
    judge=judge_server)

EXERCISES = (PAYS, LAUNCHER, BUCKETS, SERVER)
