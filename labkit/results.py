"""Recorded measurements: what was measured on a named GPU on a named day.

`results/<gpu>.json` is one machine's run; DESIGN of the file: `gpu`, `date`, `versions`, `floors`
and `measurements`, a list of {name, shape, dtype, kernel_ms, spread_ms, floor_ms, error,
schedule, baselines: {name: ms}, references: {name: ms}, moved, flops}. A baseline computes the
whole same function; a reference computes less. Times are medians in milliseconds; moved is in
bytes, each input read once and each output written once.
"""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from labkit.errors import BadArgument, LabError

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
    moved: float = 0
    flops: float = 0

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


def load(path: Path) -> Recording:
    """Reads one results file. Raises LabError, naming the file, if it is not as described."""
    known = {f.name for f in fields(Measurement)}
    try:
        data = json.loads(path.read_text())
        measurements = [Measurement(**{k: v for k, v in m.items() if k in known})
                        for m in data["measurements"]]
        for m in measurements:
            float(m.kernel_ms), dict(m.baselines), dict(m.references), dict(m.shape)
        return Recording(str(data["gpu"]), str(data["date"]), dict(data["versions"]),
                         dict(data["floors"]), measurements)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
    the last measurement, of the floors the highest. Raises BadArgument if GPUs are mixed."""
    entries = [json.loads(line) for line in lines if line.strip()]
    if len({entry["gpu"] for entry in entries}) != 1:
        raise BadArgument("A results file holds the measurements of one GPU; these come from "
                          f"{sorted({entry['gpu'] for entry in entries}) or 'none'}.")
    last = {(m["name"], str(m["shape"]), m["dtype"]): m for m in
            (entry["measurement"] for entry in entries)}
    rates: dict[str, float] = {}
    for entry in entries:
        for dtype, rate in entry["floors"]["tensor_tflops"].items():
            rates[dtype] = max(rate, rates.get(dtype, 0))
    copy = max(entry["floors"]["copy_gb_s"] for entry in entries)
    return {**{key: entries[-1][key] for key in ("gpu", "date", "versions")},
            "floors": {"copy_gb_s": copy, "tensor_tflops": rates},
            "measurements": list(last.values())}


def recorded(gpu: str = "h200") -> Recording:
    """The recording shipped for `gpu` (a results file's stem). Raises LabError if there is none."""
    path = FOLDER / f"{gpu.lower().replace(' ', '')}.json"
    if not path.exists():
        have = ", ".join(p.stem for p in sorted(FOLDER.glob("*.json"))) or "none"
        raise LabError(f"No recorded measurements for {gpu}; recorded are: {have}.")
    return load(path)
