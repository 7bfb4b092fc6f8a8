"""Recorded measurements: what was measured on a named GPU on a named day.

`results/<gpu>.json` is one machine's run: `gpu`, `date`, `versions`, `floors`
and `measurements`, a list of {name, shape, dtype, kernel_ms, spread_ms, floor_ms, error,
schedule, baselines: {name: ms}, references: {name: ms}, spreads: {name: ms}, moved, flops,
clock_mhz, date}. A baseline computes the whole same function; a reference computes less. Times are
medians in milliseconds; spread_ms is the kernel's range from the 10th to the 90th percentile,
spreads the others'; moved is in bytes, each input read once and each output written once;
clock_mhz is the multiprocessors' clock during the runs; a measurement has a `date` of its own where
it was not made on the file's, the last one. `results/<gpu>-sweep-<kernel>.json` is one
sweep, with the baselines' times of the same runs as `baselines` where
`python -m labkit.widgets.record` wrote it; `results/<gpu>-plans-<graph>.json` the plans of one
cuDNN graph (see `labkit.cudnn_plans`), `results/<gpu>-table-<name>.json` a table of other figures
(see `labkit.measured`). `labkit bench` writes such files, with `bench` and `costs` beside
(see `labkit.benching.report`).
"""

from __future__ import annotations

import datetime
import json
import math
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from labkit.errors import BadArgument, LabError

RECORDED = "RECORDED there, not measured here"  # in the title of what was not measured now
# other kernels of the lessons, as baselines
OWN_KERNELS = {"a block a tile", "with stores that wait", "the kernel before", "every op fused"}
FOLDER = Path(__file__).with_name("results")


@dataclass(frozen=True)
class Measurement:
    """One kernel beside its baselines, timed in one run. Milliseconds."""

    name: str
    shape: dict[str, int]
    dtype: str
    kernel_ms: float
    spread_ms: float
    floor_ms: float | None
    error: float | None
    schedule: dict[str, Any] = field(default_factory=dict)
    baselines: dict[str, float] = field(default_factory=dict)
    references: dict[str, float] = field(default_factory=dict)
    spreads: dict[str, float] = field(default_factory=dict)
    moved: float = 0
    flops: float = 0
    clock_mhz: float | None = None
    date: str = ""

    @property
    def fastest_other(self) -> tuple[str, float] | None:
        """(name, its time over the kernel's) of the fastest baseline, the lessons' own simpler
        kernels apart; None without one."""
        others = {name: ms for name, ms in self.baselines.items() if name not in OWN_KERNELS}
        best = min(others, key=others.__getitem__, default=None)
        return None if best is None else (best, others[best] / self.kernel_ms)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Recording:
    """One results file."""

    gpu: str
    date: str
    versions: dict[str, str]
    floors: dict[str, Any]
    measurements: list[Measurement]

    def find(self, name: str) -> list[Measurement]:
        return [m for m in self.measurements if m.name == name]


_DAMAGE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


def _check(name: str, value: Any, *, zero: bool = False, missing: bool = False) -> None:
    """Raises ValueError unless `value` is a finite number above 0, or one of the exceptions."""
    if missing and value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not (0 < value < math.inf or (zero and value == 0)):
        raise ValueError(f"{name} is {value!r}, where a finite number "
                         f"{'of at least' if zero else 'above'} 0 belongs")


def _check_all(name: str, values: dict[str, Any]) -> None:
    for key, value in values.items():
        _check(f"{name} {key}", value)


def _check_measurement(m: Measurement) -> None:
    for key in ("name", "dtype", "date"):
        if not isinstance(getattr(m, key), str):
            raise ValueError(f"{key} is {getattr(m, key)!r}, where a text belongs")
    _check("kernel_ms", m.kernel_ms)
    _check("spread_ms", m.spread_ms, zero=True)
    _check("floor_ms", m.floor_ms, missing=True)
    _check("error", m.error, zero=True, missing=True)
    _check("clock_mhz", m.clock_mhz, missing=True)
    _check("moved", m.moved, zero=True)
    _check("flops", m.flops, zero=True)
    for name in ("shape", "baselines", "references"):
        _check_all(name, getattr(m, name))
    for name, spread in m.spreads.items():
        _check(f"spreads {name}", spread, zero=True)
    dict(m.schedule)


def measurement(found: dict[str, Any]) -> Measurement:
    """A measurement as a file holds it; keys that this version does not know are left out."""
    return Measurement(**{f.name: found[f.name] for f in fields(Measurement) if f.name in found})


def load(path: Path) -> Recording:
    """Reads one results file. Raises LabError, naming the file, if it is not as described."""
    try:
        data = json.loads(path.read_text())
        if data.get("device") == "cpu":
            raise LabError(f"{path.name} was made without a GPU: it says what is right, and holds "
                           "no times.")
        measurements = [measurement(m) for m in data["measurements"]]
        for m in measurements:
            _check_measurement(m)
        _check("copy_gb_s", data["floors"]["copy_gb_s"])
        _check_all("tensor_tflops", data["floors"]["tensor_tflops"])
        return Recording(str(data["gpu"]), str(data["date"]), dict(data["versions"]),
                         dict(data["floors"]), measurements)
    except _DAMAGE as error:
        raise LabError(f"{path.name} is not a results file of labkit "
                       f"({type(error).__name__}: {error}); measure it again.") from error


def append(measurement: Measurement, floors: Any) -> None:
    """Adds a line to the file that `$LABKIT_RECORD` names; does nothing where it is unset.

    So the figures that a lesson shows on a GPU are kept as they were measured, with the floors
    of the same process. `assemble` makes a results file of such lines.
    """
    path = os.environ.get("LABKIT_RECORD")
    if path:
        from labkit.environment import versions

        line = {"gpu": floors.gpu, "date": str(datetime.date.today()), "versions": versions(),
                "floors": {"copy_gb_s": floors.copy_gb_s, "tensor_tflops": floors.tensor_tflops},
                "measurement": measurement.as_dict()}
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")


def assemble(lines: list[str]) -> dict[str, Any]:
    """A results file's content from the lines that `append` wrote: of each name, shape and dtype
    the last measurement with the day it was made on, of the floors the highest. Raises
    BadArgument if GPUs or versions are mixed."""
    try:
        entries = [json.loads(line) for line in lines if line.strip()]
        for entry in entries:
            entry["measurement"]["name"], entry["floors"]["copy_gb_s"]
    except _DAMAGE as error:
        raise BadArgument(f"These are not lines that a measurement wrote "
                          f"({type(error).__name__}: {error}).") from error
    for key in ("gpu", "versions"):
        found = sorted({str(entry.get(key)) for entry in entries})
        if len(found) != 1:
            raise BadArgument(f"A results file holds the measurements of one {key}; these come "
                              f"from {' and '.join(found) or 'none'}. Measure them in one go.")
    day = max(str(entry["date"]) for entry in entries)
    last = {}
    for entry in entries:
        m = {k: v for k, v in entry["measurement"].items() if k != "date"}
        if (made := entry["measurement"].get("date") or str(entry["date"])) != day:
            m["date"] = made
        last[m["name"], str(m["shape"]), m["dtype"]] = m
    rates: dict[str, float] = {}
    for entry in entries:
        for dtype, rate in entry["floors"]["tensor_tflops"].items():
            rates[dtype] = max(rate, rates.get(dtype, 0))
    copy = max(entry["floors"]["copy_gb_s"] for entry in entries)
    return {"gpu": entries[-1]["gpu"], "date": day, "versions": entries[-1]["versions"],
            "floors": {"copy_gb_s": copy, "tensor_tflops": rates},
            "measurements": list(last.values())}


def record_path(name: str, kind: str = "sweep") -> Path | None:
    """The sweep file beside the file that `$LABKIT_RECORD` names, None where that is not set;
    with kind "plans" or "table", a file of cuDNN's plans or of a table.
    Raises BadArgument if its folder is not there."""
    chosen = os.environ.get("LABKIT_RECORD")
    if not chosen:
        return None
    path = Path(chosen).with_name(f"{kind}-{name}.json")
    if not path.parent.is_dir():
        raise BadArgument(f"LABKIT_RECORD names a file in {path.parent}, which is not a folder; "
                          "make it, or unset LABKIT_RECORD.")
    return path


def sweep_path(name: str, gpu: str = "h200") -> Path | None:
    """The file `results/<gpu>-sweep-<name>.json`, None if there is none."""
    path = FOLDER / f"{gpu}-sweep-{name}.json"
    return path if path in set(FOLDER.glob("*-sweep-*.json")) else None


def recorded_sweep(name: str, gpu: str = "h200") -> dict[str, Any]:
    """The recorded sweep `results/<gpu>-sweep-<name>.json`: gpu, date, flops, schedules.

    Raises LabError if there is none, or if the file is not as described.
    """
    path = sweep_path(name, gpu)
    if path is None:
        raise LabError(f"No recorded sweep of {name!r} on the {str(gpu).upper()}; run this "
                       "lesson on a GPU to measure it.")
    try:
        data = json.loads(path.read_text())
        for trial in data["schedules"]:
            trial["schedule"].items(), str(trial["dtype"])
            _check_all("shape", trial["shape"])
            _check("kernel_ms", trial.get("kernel_ms"), missing="failure" in trial)
            _check("error", trial.get("error"), zero=True, missing=True)
            _check("spread_ms", trial.get("spread_ms"), zero=True, missing=True)
        _check("flops", data["flops"])
        str(data["gpu"]), str(data["date"]), data["schedules"][0]
        return data
    except _DAMAGE as error:
        raise LabError(f"{path.name} is not a sweep file of labkit "
                       f"({type(error).__name__}: {error}); measure it again.") from error


def recorded_plans(name: str, gpu: str = "h200") -> dict[str, Any]:
    """The file `results/<gpu>-plans-<name>.json`: gpu, date, versions, shape, dtype, flops, plans
    and others, name -> milliseconds.

    Raises LabError if there is none, or if the file is not as described.
    """
    path = FOLDER / f"{str(gpu).lower()}-plans-{name}.json"
    if path not in set(FOLDER.glob("*-plans-*.json")):
        raise LabError(f"No recorded plans of {name!r} on the {str(gpu).upper()}; run this lesson "
                       "on a GPU to measure them.")
    try:
        data = json.loads(path.read_text())
        for plan in data["plans"]:
            str(plan["name"]), int(plan["engine"]), plan["knobs"].items(), list(plan["notes"])
            _check("workspace", plan["workspace"], zero=True, missing="failure" in plan)
            _check("kernel_ms", plan.get("kernel_ms"), missing="failure" in plan)
            _check("error", plan.get("error"), zero=True, missing=True)
            _check("spread_ms", plan.get("spread_ms"), zero=True, missing=True)
        _check("flops", data["flops"])
        _check_all("shape", data["shape"])
        _check_all("others", data["others"])
        str(data["gpu"]), str(data["date"]), str(data["dtype"]), data["plans"][0]
        data["versions"].items()
        return data
    except _DAMAGE as error:
        raise LabError(f"{path.name} is not a file of plans of labkit "
                       f"({type(error).__name__}: {error}); measure it again.") from error


def is_recorded(name: str, gpu: str = "h200") -> bool:
    """Whether the recording shipped for `gpu` has a measurement called `name`: a lesson can leave
    out what nobody has measured yet, though not where `labkit bench` checks it and shows nothing.
    Raises what `recorded` raises."""
    from labkit import benchmark

    return benchmark.is_stood_in() or bool(recorded(gpu).find(name))


def recorded(gpu: str = "h200") -> Recording:
    """The recording shipped for `gpu` (a results file's stem). Raises LabError if there is none."""
    name = str(gpu).lower().replace(" ", "")
    have = {path.stem: path for path in sorted(FOLDER.glob("*.json"))
            if not any(kind in path.stem for kind in ("-sweep-", "-plans-", "-table-", "-costs"))}
    if name not in have:
        raise LabError(f"No recorded measurements for {gpu}; recorded are: "
                       f"{', '.join(have) or 'none'}.")
    return load(have[name])
