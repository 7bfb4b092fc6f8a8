"""Small tables of figures that no kernel's timing holds: what a build, a load or a launch costs.

    costs = lab.measured_table("cudnn_launch", here, title="...", columns=["call", ">us"],
                               measure=measure)      # measure() -> rows

On a GPU the rows are measured. Without one, those that were recorded on a named GPU are shown and
say so: `results/<gpu>-table-<name>.json`, with gpu, date, versions, title, columns and rows.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import results
from labkit.errors import BadArgument, LabError
from labkit.table import Table


@dataclass(frozen=True)
class MeasuredTable:
    """The figures and where they come from. columns: names, one that starts with ">" set flush
    right; rows: text, numbers, or None where a figure does not exist; the first is the label."""

    name: str
    title: str
    gpu: str
    date: str
    measured_now: bool
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""

    def row(self, label: str) -> dict[str, Any]:
        """Column -> value of the row that is called `label`. Raises BadArgument."""
        for row in self.rows:
            if row[0] == label:
                return {column.removeprefix(">"): value
                        for column, value in zip(self.columns, row, strict=True)}
        raise BadArgument(f"The table {self.name} has no row {label!r}; it has "
                          f"{', '.join(str(row[0]) for row in self.rows)}.")

    def table(self) -> Table:
        origin = "measured now" if self.measured_now else results.RECORDED
        if not self.rows:
            return Table(f"{self.title}: not recorded yet. A run on a GPU measures it.",
                         self.columns, [], self.note)
        return Table(f"{self.title}, on {self.gpu}, {self.date} ({origin})", self.columns,
                     [[_text(value) for value in row] for row in self.rows], self.note)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _text(value: Any) -> str | None:
    if isinstance(value, float):
        size = abs(value)
        return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2}f}"
    return f"{value:,}" if isinstance(value, int) else value


def measured_table(name: str, here: Any, *, title: str, columns: Sequence[str],
                   measure: Callable[[], Sequence[Sequence[Any]]],
                   note: str = "", required: bool = True) -> MeasuredTable:
    """Measures the rows on the GPU of this run; without one, shows the recorded table `name`.

    here: the result of `lab.here`. title: with the sizes, kept with the rows.
    measure() returns the rows, each as long as `columns`; it is called on a GPU only. The rows are
    kept beside the file that `$LABKIT_RECORD` names, if set.
    Raises LabError if there is no GPU and no such recording (with required = False: returns a
    table without rows that says so), BadArgument if a row does not fit.
    """
    if here.device != "gpu":
        if not (required or _path(name).exists()):
            return MeasuredTable(name, title, "", "", False, list(columns), [], note)
        return recorded_table(name, note=note)
    import torch

    from labkit.environment import versions

    rows = [list(row) for row in measure()]
    found = {"gpu": torch.cuda.get_device_name(), "date": str(datetime.date.today()),
             "versions": versions(), "title": title, "columns": list(columns), "rows": rows}
    try:
        _check(found)
    except ValueError as error:
        raise BadArgument(f"The rows of {name} do not make a table: {error}.") from error
    path = results.record_path(name, "table")
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")
    return _made(name, note, found, measured_now=True)


def recorded_table(name: str, gpu: str = "h200", *, note: str = "") -> MeasuredTable:
    """The recorded table `results/<gpu>-table-<name>.json`. Raises LabError if there is none, or
    if the file is not as described."""
    path = _path(name, gpu)
    if path not in set(results.FOLDER.glob("*-table-*.json")):
        raise LabError(f"No GPU in this run, and no table {name!r} was recorded on the "
                       f"{gpu.upper()}; run this lesson on a GPU to measure it.")
    try:
        data = json.loads(path.read_text())
        _check(data)
        return _made(name, note, data, measured_now=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LabError(f"{path.name} is not a table of labkit "
                       f"({type(error).__name__}: {error}); measure it again.") from error


def _path(name: str, gpu: str = "h200") -> Path:
    return results.FOLDER / f"{gpu.lower()}-table-{name}.json"


def _made(name: str, note: str, data: dict[str, Any], measured_now: bool) -> MeasuredTable:
    return MeasuredTable(name, *(str(data[key]) for key in ("title", "gpu", "date")), measured_now,
                         list(data["columns"]), [list(row) for row in data["rows"]], note)


def _check(data: dict[str, Any]) -> None:
    """Raises ValueError unless the rows are full and their numbers finite."""
    columns = [str(column) for column in data["columns"]]
    if not data["rows"]:
        raise ValueError("there are no rows")
    for row in data["rows"]:
        if len(row) != len(columns):
            raise ValueError(f"{row!r} has {len(row)} cells and there are {len(columns)} columns")
        for value in row:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (value is None or isinstance(value, str) or (number and math.isfinite(value))):
                raise ValueError(f"{value!r} is neither text nor a finite number")
