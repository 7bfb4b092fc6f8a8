"""Two results files side by side: what became faster, what slower, and whether that means anything.

The ratio of a kernel is its time in A over its time in B: above 1 it is faster in B. It is marked
where the medians lie further apart than half of both spreads together, so that the ranges from the
10th to the 90th percentile, centred, do not touch. The others' ratio, the geometric mean over the
baselines and references that both files have at that size, says what changed about the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from labkit import results
from labkit.errors import BadArgument, LabError
from labkit.results import Measurement, Recording
from labkit.table import Table

_FLOOR = 0.03  # a floor that differs by more is a warning


@dataclass(frozen=True)
class Line:
    """One kernel at one size in both files."""

    a: Measurement
    b: Measurement

    @property
    def ratio(self) -> float:
        return self.a.kernel_ms / self.b.kernel_ms

    @property
    def beyond(self) -> bool:
        """Whether the times differ by more than their spreads."""
        apart = abs(self.a.kernel_ms - self.b.kernel_ms)
        return apart > (self.a.spread_ms + self.b.spread_ms) / 2

    @property
    def others(self) -> float | None:
        mine, theirs = ({**m.baselines, **m.references} for m in (self.a, self.b))
        logs = [math.log(mine[name] / theirs[name]) for name in mine if name in theirs]
        return math.exp(sum(logs) / len(logs)) if logs else None


@dataclass(frozen=True)
class Compared:
    """The lines of both files, what only one has, and what makes the comparison doubtful."""

    names: tuple[str, str]
    lines: list[Line]
    only: dict[str, list[str]]
    warnings: list[str]

    def holds(self, ratio: float) -> bool:
        """Whether no kernel's ratio is below `ratio`."""
        return all(line.ratio >= ratio for line in self.lines)

    def table(self) -> Table:
        rows = []
        for line in self.lines:
            a, b = line.a, line.b
            mark = ("faster" if line.ratio > 1 else "SLOWER") if line.beyond else ""
            rows.append([a.name, _shape(a), a.dtype, f"{a.kernel_ms:.4f}", f"{a.spread_ms:.4f}",
                         f"{b.kernel_ms:.4f}", f"{b.spread_ms:.4f}", f"{line.ratio:.3f}", mark,
                         f"{line.others:.3f}" if line.others else ""])
        return Table(f"A: {self.names[0]}. B: {self.names[1]}.",
                     ["name", "shape", "dtype", ">A, ms", ">spread", ">B, ms", ">spread",
                      ">A / B", "beyond the spreads", ">others' A / B"], rows,
                     "A / B above 1: B is faster. Others: that line's baselines and references.")

    def __repr__(self) -> str:
        text = [*(f"WARNING: {warning}" for warning in self.warnings), repr(self.table())]
        text += [f"only in {where}: {', '.join(names)}" for where, names in self.only.items()
                 if names]
        return "\n".join(text)


def files(a: str | Path, b: str | Path) -> Compared:
    """Compares two results files. Raises BadArgument if one cannot be read, or if they have no
    kernel at one size in common."""
    first, second = (_load(Path(path)) for path in (a, b))
    mine, theirs = ({_key(m): m for m in r.measurements} for r in (first, second))
    lines = [Line(m, theirs[key]) for key, m in mine.items() if key in theirs]
    if not lines:
        raise BadArgument(f"{a} and {b} have no kernel at one size in common, so there is nothing "
                          "to compare; measure both with the same names.")
    only = {"A": [_words(m) for key, m in mine.items() if key not in theirs],
            "B": [_words(m) for key, m in theirs.items() if key not in mine]}
    return Compared((_head(Path(a), first), _head(Path(b), second)), lines, only,
                    _warnings(first, second))


def _load(path: Path) -> Recording:
    if not path.is_file():
        raise BadArgument(f"{path} is not a file; give two files that labkit bench wrote.")
    try:
        return results.load(path)
    except LabError as error:
        raise BadArgument(str(error)) from error


def _key(m: Measurement) -> tuple[str, str, str]:
    return m.name, str(sorted(m.shape.items())), m.dtype


def _shape(m: Measurement) -> str:
    return " x ".join(f"{size:,}" for size in m.shape.values())


def _words(m: Measurement) -> str:
    return f"{m.name} {_shape(m)} {m.dtype}"


def _head(path: Path, recording: Recording) -> str:
    return f"{path.name}, {recording.gpu}, {recording.date}"


def _warnings(a: Recording, b: Recording) -> list[str]:
    found = []
    if a.gpu != b.gpu:
        found.append(f"two GPUs: {a.gpu} and {b.gpu}.")
    for name in sorted({*a.versions, *b.versions} - {"gpu"}):
        if (mine := a.versions.get(name, "")) != (theirs := b.versions.get(name, "")):
            found.append(f"another {name}: {mine or 'none'} and {theirs or 'none'}.")
    rates = {"copy bandwidth": (a.floors["copy_gb_s"], b.floors["copy_gb_s"])}
    for dtype, rate in a.floors["tensor_tflops"].items():
        if dtype in b.floors["tensor_tflops"]:
            rates[f"tensor rate in {dtype}"] = (rate, b.floors["tensor_tflops"][dtype])
    found += [f"the {what} differs: {mine:,.0f} and {theirs:,.0f}."
              for what, (mine, theirs) in rates.items() if abs(mine / theirs - 1) > _FLOOR]
    return found
