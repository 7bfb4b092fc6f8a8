"""All lessons' results: those of the last run on this machine, and the recorded ones beside them.

A run on a GPU keeps what its lessons measure in its folder, beside its report. Without a GPU there
is nothing measured, and only the recorded figures stand here, marked as such.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from labkit import lessons, results
from labkit.benching import places
from labkit.errors import LabError
from labkit.pictures import BLUE, GREY, ORANGE, Picture, _Canvas
from labkit.run_folder import MEASURED, RUNS
from labkit.table import Table


@dataclass(frozen=True)
class Everything:
    """folder: of the last run, None if there was none here. ran: lesson's stem -> (status,
    seconds). measured: the run's own recording, None without one; recorded: the kit's."""

    folder: Path | None
    ran: dict[str, tuple[str, float]]
    measured: results.Recording | None
    recorded: results.Recording
    places: dict[str, list[str]] = field(repr=False)
    note: str = ""

    def table(self) -> Table:
        """One row a lesson, and one more for each further kernel that it measures."""
        rows = []
        for stem, names in self.places.items():
            status, seconds = self.ran.get(stem, ("", None))
            head = [stem, status, None if seconds is None else f"{seconds:.0f}"]
            for name in names or [""]:
                rows.append([*head, name, *_figures(self.measured, name),
                             *_figures(self.recorded, name)])
                head = ["", "", ""]
        here = f"here, {self.measured.gpu}" if self.measured else "here"
        there = f"{self.recorded.gpu}, {self.recorded.date} (RECORDED)"
        return Table("All lessons", ["lesson", "last run", ">s", "kernel", f">ms {here}",
                     ">of the floor", ">fastest other", f">ms {there}", ">of the floor ",
                     ">fastest other "], rows,
                     f"{self.note} Of each kernel the largest size. Fastest other: the time of the "
                     "fastest baseline over the kernel's, so above 1 the kernel is faster.")

    def picture(self) -> Picture:
        """How much of the floor's speed each kernel reaches, and its fastest baseline."""
        return _bars(self)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def everything() -> Everything:
    """The last run's results and the recorded ones. The last run is the one that this lesson is
    part of, else the newest in `runs`, here or one folder up. Raises LabError where the kit's own
    recording is damaged; a damaged report is said in `note`."""
    folder = _last_run()
    ran, measured, note = {}, None, "No run was found here: `labkit run` makes one."
    if folder is not None:
        try:
            report = json.loads((folder / "report.json").read_text())
            ran = {str(entry["lesson"]): (str(entry["status"]), float(entry.get("seconds", 0)))
                   for entry in report["lessons"]}
            note = f"The run of {str(report['started']).replace('T', ' ')[:16]}."
            measured = _measured(folder / MEASURED)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, LabError) as error:
            note = f"The last run's results cannot be read ({' '.join(str(error).split())[:120]})."
    recorded = results.recorded()
    return Everything(folder, ran, measured, recorded, _places(recorded, measured), note)


def _last_run() -> Path | None:
    mine = os.environ.get("LABKIT_RUN_FOLDER")
    if mine and (Path(mine) / "report.json").is_file():
        return Path(mine)
    found = [path for base in (Path.cwd(), Path.cwd().parent)
             for path in (base / RUNS).glob("*/report.json")]
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


def _measured(path: Path) -> results.Recording | None:
    if not path.is_file():
        return None
    found = results.assemble(path.read_text().splitlines())
    return results.Recording(found["gpu"], found["date"], found["versions"], found["floors"],
                             [results.measurement(m) for m in found["measurements"]])


def _places(*recordings: results.Recording | None) -> dict[str, list[str]]:
    """Lesson's stem -> the names of what it measures. "dgelu_bias by hand" belongs to the first
    lesson that defines dgelu_bias."""
    names = {m.name for r in recordings if r for m in r.measurements}
    texts = {lesson: _code(lesson) for lesson in lessons.all_lessons()}
    cells = places.find([lesson for lesson, text in texts.items() if text])
    found: dict[str, list[str]] = {}
    left = {name for name in names - cells.keys() if " by " in name}
    for lesson, text in texts.items():
        defined = re.findall(r"^def (\w+)\(", text, re.MULTILINE)
        by = [name for name in sorted(left) if name.partition(" by ")[0] in defined]
        found[lesson.stem] = [name for name, first in cells.items()
                              if name in names and first[0].lesson == lesson.stem] + by
        left -= set(by)
    return found


def _code(lesson: lessons.Lesson) -> str:
    """All code of a lesson; empty if it cannot be read."""
    try:
        return "\n".join(c.source for c in lesson.notebook.cells if c.cell_type == "code")
    except LabError:
        return ""


def _largest(recording: results.Recording | None, name: str) -> results.Measurement | None:
    found = recording.find(name) if recording else []
    return max(found, key=lambda m: (m.flops or m.moved, m.moved), default=None)


def _figures(recording: results.Recording | None, name: str) -> list[str | None]:
    m = _largest(recording, name)
    if m is None:
        return [None, None, None]
    return [f"{m.kernel_ms:.4f}", f"{m.floor_ms / m.kernel_ms:.0%}" if m.floor_ms else None,
            f"{m.fastest_other[1]:.2f}" if m.fastest_other else None]


_LEFT, _WIDTH, _ROW = 190, 420, 26


def _bars(found: Everything) -> Picture:
    rows = [(stem, name) for stem, names in found.places.items() for name in names
            if (m := _largest(found.recorded, name) or _largest(found.measured, name))
            and m.floor_ms]
    sources = [(recording, colour) for recording, colour in (
        (found.measured, BLUE), (found.recorded, GREY)) if recording]
    canvas = _Canvas(_LEFT + _WIDTH + 90, 96 + _ROW * len(rows))
    canvas.label(16, 26, "How near each kernel comes to its floor", 14, "start", weight="bold")
    x = 16
    for recording, colour in sources:
        where = ("measured here, " if recording is found.measured else "RECORDED, ") + recording.gpu
        canvas.box(x, 40, 14, 12, colour, colour, 0.85)
        canvas.label(x + 20, 51, where, 11, "start")
        x += 40 + 7 * len(where)
    canvas.line(x + 4, 38, x + 4, 54, ORANGE, 3)
    canvas.label(x + 12, 51, "fastest baseline", 11, "start")
    top, told = 70, []
    for percent in (0, 25, 50, 75, 100):
        place = _LEFT + _WIDTH * percent / 100
        canvas.line(place, top - 4, place, top + _ROW * len(rows), "#c9ced6", 1)
        canvas.label(place, top + _ROW * len(rows) + 16, f"{percent} %", 10, colour=GREY)
    for number, (stem, name) in enumerate(rows):
        y = top + number * _ROW
        canvas.label(_LEFT - 8, y + 15, f"{stem[:2]}  {name}", 11, "end")
        height = (_ROW - 8) / len(sources)
        for place, (recording, colour) in enumerate(sources):
            m = _largest(recording, name)
            if m is None or not m.floor_ms:
                continue
            share, at = m.floor_ms / m.kernel_ms, y + 2 + place * height
            canvas.box(_LEFT, at, _WIDTH * min(share, 1.15), height, colour, colour, 0.85)
            canvas.label(_LEFT + _WIDTH + 66, at + height - 2, f"{share:.0%}", 10, "end")
            if m.fastest_other:
                other = _LEFT + _WIDTH * min(share / m.fastest_other[1], 1.15)
                canvas.line(other, at - 1, other, at + height + 1, ORANGE, 3)
            told.append(f"{name}: {share:.0%} on {recording.gpu}")
    return canvas.done("How near each kernel comes to its floor. " + "; ".join(told) + ".")
