"""Exercises of lesson 16: when a cache pays, buckets of batch sizes, the stream, a replay."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.trial import FunctionCheck, _several, failure

# --- 16.1


def _pays_from(build_ms: float, first_ms: float, hit_ms: float, *, hits_from: int = 1,
               equal: bool = False) -> int | None:
    """The right answer, or one with a mistake. hits_from: how many of the shapes miss the cache;
    equal: whether equal costs count as a gain."""
    for shapes in range(1, 10_000):
        shared, alone = first_ms + (shapes - hits_from) * hit_ms, shapes * build_ms
        if shared < alone or (equal and shared == alone):
            return shapes
    return None


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


class _Device:
    """A handle and PyTorch's current stream, and what was done with them."""

    def __init__(self) -> None:
        self.handle, self.current = 99, 99  # the handle stands on another stream at first
        self.set, self.ran = 0, []  # calls of set_stream; (stream it ran on, current stream)

    def set_stream(self, stream: Any) -> None:
        self.handle, self.set = stream, self.set + 1

    def current_stream(self) -> int:
        return self.current

    def execute(self) -> None:
        self.ran.append((self.handle, self.current))


_STREAMS = (7, 7, 7, 12, 12, 7, 7, 3)  # PyTorch's current stream at each call


def _launch_fault(devices: tuple[_Device, ...], changes: int) -> str:
    for device in devices:
        if len(device.ran) != len(_STREAMS):
            return (f"{_several(len(_STREAMS), 'call')} of launch ran the plan "
                    f"{len(device.ran)} times.")
        call, (on, current) = next(((n, ran) for n, ran in enumerate(device.ran, 1)
                                    if ran[0] != ran[1]), (0, (0, 0)))
        if call:
            return (f"At call {call} the current stream is {current}, and the plan ran on stream "
                    f"{on}: beside PyTorch's work, not after it.")
        if device.set > changes:
            return (f"Right streams, but set_stream was called {device.set} times in "
                    f"{len(_STREAMS)} calls; the stream changed {changes} times.")
    return ""


def _judge_launcher(launcher: Any) -> Outcome:
    if not callable(launcher):
        return Outcome(False, ("The answer is no function; it returns one.",))
    changes = 1 + sum(a != b for a, b in itertools.pairwise(_STREAMS))
    devices = (_Device(), _Device())  # two plans with a handle each, called in turn
    try:
        calls = [launcher(d.set_stream, d.current_stream, d.execute) for d in devices]
        if not all(callable(call) for call in calls):
            return Outcome(False, (f"It returns {type(calls[0]).__name__}, where a function "
                                   "without arguments belongs.",))
        for device in devices:
            if device.ran:
                return Outcome(False, ("It runs the plan at once; it should return a function "
                                       "that does.",))
        for stream in _STREAMS:
            for device, call in zip(devices, calls, strict=True):
                device.current = stream
                call()
    except Exception as error:  # whatever a learner's code raises is told, not raised
        return Outcome(False, (failure(error, launcher),))
    said = _launch_fault(devices, changes)
    if said:
        return Outcome(False, (said,))
    return Outcome(True, (f"Two handles, {len(_STREAMS)} calls each: always on the current stream, "
                          f"with {changes} calls of set_stream.",))


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
    judge=_judge_launcher)


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

_ROWS, _WIDTH = 8, 6


class _Replay:
    """A graph's meaning computed from and into fixed memory, as a replay does it."""

    def __init__(self) -> None:
        import torch

        from labkit.cudnn_graph import Target, describe, evaluate, infer
        from labkit.cudnn_loader import load_cudnn

        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(_ROWS, 1, _WIDTH, generator=generator)
        self.w = torch.randn(_ROWS, _WIDTH, _WIDTH, generator=generator)
        self.w[1:] = self.w[0]
        self.y = torch.full((_ROWS, 1, _WIDTH), math.nan)
        graph = Target("H100", 90, load_cudnn()).graph("replayed", torch.float32)
        X, W = (graph.tensor(name=name, **describe(t)) for name, t in
                (("X", self.x), ("W", self.w)))
        Y = graph.relu(input=graph.matmul(A=X, B=W))
        Y.set_name("Y").set_output(True).set_dim(list(self.y.shape))
        Y.set_stride(list(self.y.stride()))
        infer(graph)
        pack = {X: self.x, W: self.w, Y: self.y}
        self.run = lambda: evaluate(graph, pack)
        self.first = self.x.clone()  # what lies in x before the first call
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.run()

    def wanted(self, batch: Any) -> Any:
        return (batch.double() @ self.w[0].double()).relu()


def _serve_fault(results: list[tuple[Any, Any]], replay: _Replay) -> str:
    """results: (batch, what was returned), in order, looked at after all calls."""
    import torch

    from labkit.verify import compare

    def right(result: Any, batch: Any) -> bool:
        return result.shape == batch.shape and compare(result, replay.wanted(batch)).ok

    for call, (batch, result) in enumerate(results, 1):
        at = f"Call {call}, a batch of {len(batch)}: "
        if not isinstance(result, torch.Tensor):
            return f"{at}it returns {'nothing' if result is None else type(result).__name__}."
        if result.untyped_storage().data_ptr() == replay.y.untyped_storage().data_ptr():
            return (f"{at}it returns memory of y, which the next replay overwrites: return a copy "
                    "of the rows.")
        if result.dtype != batch.dtype or result.device != batch.device:
            return (f"{at}it returns {result.dtype} on {result.device}, where {batch.dtype} on "
                    f"{batch.device} belongs.").replace("torch.", "")
        if result.shape != batch.shape:
            return (f"{at}it returns the dims {list(result.shape)}, where {list(batch.shape)} "
                    "belong: as many rows as came in.")
        if not right(result, batch):
            before = results[call - 2][0][:len(batch)] if call > 1 else replay.first
            if before.shape == batch.shape and right(result, before):
                return (f"{at}that is the result of what lay in x before: copy the batch into x, "
                        "and only then replay.")
            verdict = compare(result, replay.wanted(batch))
            return f"{at}wrong result: {repr(verdict).splitlines()[1]}"
    if replay.count != len(results):
        return f"{len(results)} calls made {replay.count} replays; one each will do."
    return ""


def _judge_server(server: Any) -> Outcome:
    import torch

    if not callable(server):
        return Outcome(False, ("The answer is no function; it returns one.",))
    replay = _Replay()
    generator, results = torch.Generator().manual_seed(4), []
    try:
        serve = server(replay.x, replay.y, replay)
        if not callable(serve):
            return Outcome(False, (f"It returns {type(serve).__name__}, where a function that "
                                   "takes a batch belongs.",))
        for rows in (_ROWS, 3, 1, 5, _ROWS):
            batch = torch.randn(rows, 1, _WIDTH, generator=generator)
            kept = batch.clone()
            results.append((kept, serve(batch)))
            if not torch.equal(batch, kept):
                return Outcome(False, ("It changes the batch that it was given; only x and y are "
                                       "yours to write.",))
    except Exception as error:  # whatever a learner's code raises is told, not raised
        return Outcome(False, (f"Call {len(results) + 1}: {failure(error, server)}",))
    said = _serve_fault(results, replay)
    if said:
        return Outcome(False, (said,))
    return Outcome(True, (f"Right for batches of {', '.join(str(len(b)) for b, _ in results)}, and "
                          "what was returned first is still there after the last.",))


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
    judge=_judge_server)

EXERCISES = (PAYS, LAUNCHER, BUCKETS, SERVER)
