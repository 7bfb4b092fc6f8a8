"""Judges how a plan is launched: on which stream, and from and into which memory."""

from __future__ import annotations

import itertools
import math
from typing import Any

from labkit.exercises.exercise import Outcome
from labkit.exercises.trial import _several, failure

# --- the stream


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


def judge_launcher(launcher: Any) -> Outcome:
    """launcher(set_stream, current_stream, execute) -> launch()."""
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


# --- a replay

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


def judge_server(server: Any) -> Outcome:
    """server(x, y, replay) -> serve(batch)."""
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
