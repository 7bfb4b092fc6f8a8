"""What was measured of a schedule on a named GPU, for where it cannot be measured."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.results import RECORDED, recorded_sweep, sweep_path
from labkit.widgets.controls import Choice


@dataclass(frozen=True)
class Recorded:
    """One schedule of a recorded sweep. ms: median, None if it failed; failure: why; rank: among
    the `timed` ones, which are those of its `round` where a search had two; best: the fastest
    one's schedule and ms; baseline: (name, ms) or None."""

    gpu: str
    date: str
    ms: float | None
    failure: str
    rank: int | None
    timed: int
    best: tuple[dict[str, Any], float] | None
    baseline: tuple[str, float] | None
    round: str = ""


@functools.lru_cache(maxsize=32)
def _sweep(name: str, stem: str) -> dict[str, Any] | None:
    return recorded_sweep(name, stem) if sweep_path(name, stem) else None


def stem(gpu: Any) -> str:
    """The first part of the names of a GPU's results files."""
    return gpu.name.lower().replace(" ", "")


def find(names: Sequence[str], choice: Choice, defaults: dict[str, Any]) -> Recorded | None:
    """The recording of this choice in the first sweep of `names` that has it; None if none has.

    defaults: the builder's, for knobs that a sweep left alone. Raises LabError for a damaged file.
    """
    for name in names:
        data = _sweep(name, stem(choice.gpu))
        if data is None:
            continue
        same = [t for t in data["schedules"]
                if t["shape"] == choice.problem.shape and t["dtype"] == choice.problem.dtype]
        for trial in same:
            if _filled(trial["schedule"], defaults) == _filled(choice.schedule, defaults):
                return _place(data, trial, same)
    return None


def _place(data: dict[str, Any], trial: dict[str, Any], same: list[dict[str, Any]]) -> Recorded:
    """`trial` among those that were timed together."""
    round, ms = trial.get("round", ""), trial.get("kernel_ms")
    timed = sorted((t for t in same if t.get("kernel_ms") and t.get("round", "") == round),
                   key=lambda t: t["kernel_ms"])
    return Recorded(
        data["gpu"], data["date"], ms, trial.get("failure", ""),
        1 + sum(t["kernel_ms"] < ms for t in timed) if ms else None, len(timed),
        (timed[0]["schedule"], timed[0]["kernel_ms"]) if timed else None,
        next(iter((data.get("baselines") or {}).items()), None), round)


def _filled(schedule: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    return {**{k: v for k, v in defaults.items() if k in _KNOBS}, **schedule}


_KNOBS = ("block_M", "block_N", "block_K", "num_stages", "threads", "panel", "warps")


def line(found: Recorded, problem: Any) -> str:
    """The recording in a sentence that cannot be taken for a measurement made here."""
    origin = f"On the {found.gpu}, {found.date} ({RECORDED}): "
    if found.ms is None:
        return f"{origin}{found.failure}"
    text = (f"{origin}{found.ms:.4g} ms, {problem.flops / found.ms / 1e9:,.0f} TFLOP/s, place "
            f"{found.rank} of {found.timed}{f' in the {found.round} round' if found.round else ''}")
    if found.best and found.rank != 1:
        text += f"; the fastest took {found.best[1]:.4g} ms"
    if found.baseline:
        text += f"; {found.baseline[0]} took {found.baseline[1]:.4g} ms"
    return text + "."
