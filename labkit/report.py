"""What a run of the lessons found: one result a lesson, as JSON, as JUnit XML, as a page and as a
table.

`report.json` holds `id`, `started`, `resumed` (when the run was taken up again), `finished`,
`device`, `gpu`, `quick`, `parameters` (of each lesson, where a file gave some), `limits`, `labkit`,
`versions`, `chosen` (the lessons of the run, in order), `waiting` (those not yet done) and
`lessons`: a list of `Result.as_dict()`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from labkit import junit
from labkit.report_page import STATUSES, label, page

BAD = {"failed", "timed_out", "crashed"}
_PARTS = ("id", "started", "resumed", "finished", "device", "gpu", "quick", "parameters", "limits",
          "labkit", "versions", "chosen", "waiting")


@dataclass
class Result:
    """What became of one lesson."""

    lesson: str                          # the file's stem, as in 02_gemm
    status: str = "passed"               # one of STATUSES
    seconds: float = 0.0                 # of all attempts together
    device: str = "cpu"                  # what the lesson ran on: "gpu" or "cpu"
    title: str = ""
    error: dict[str, Any] | None = None  # cell (from 0, or None), cell_id, name, message
    reason: str | None = None            # of a skip
    notebook: str | None = None          # the executed copy, relative to the report
    log: str | None = None               # what its kernel wrote to standard output and error
    source: str | None = None            # the SHA-256 of the lesson's file
    attempts: list[dict[str, Any]] | None = None  # the errors of attempts before the last one
    left_out: bool = False               # skipped because the run ended before it

    def as_dict(self) -> dict[str, Any]:
        found = {key: value for key, value in asdict(self).items() if value is not None}
        del found["left_out"]  # `reason` says it
        return found

    @property
    def note(self) -> str:
        """One line: the reason of a skip, or the cell, name and message of a failure."""
        before = f"attempt {len(self.attempts) + 1}" if self.attempts else ""
        if not self.error:
            return plain(self.reason or before)
        return plain(": ".join(filter(None, [before, one_line(self.error)])))

    @property
    def line(self) -> str:
        note = f"  {self.note}" if self.note else ""
        return (f"{plain(self.lesson):<24} {label(self.status):<9} {self.seconds:>7.1f} s  "
                f"{self.device}{note}")


def one_line(error: dict[str, Any]) -> str:
    """As in "cell 3: ValueError: no such tile"."""
    message = (error["message"].strip().splitlines() or [""])[0]
    where = "" if error["cell"] is None else f"cell {error['cell']}: "
    return f"{where}{error['name']}: {message}"


def plain(text: str) -> str:
    """`text` with what a terminal would obey, or could not show, written as its code."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


@dataclass
class RunReport:
    """All results of one run; `folder` holds report.json, report.html, report.xml, the executed
    copies and, in `logs`, the kernels' logs."""

    folder: Path
    started: str
    device: str
    gpu: str
    quick: bool
    labkit: str
    versions: dict[str, str]
    lessons: list[Result] = field(default_factory=list)
    finished: str | None = None
    interrupted: bool = False
    id: str = ""
    resumed: list[str] = field(default_factory=list)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)  # timeout, total (s), retries, jobs
    chosen: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    unwritten: str = ""  # why the files do not hold what this object holds; "" if they do

    @property
    def exit_code(self) -> int:
        """0: none failed; 1: a lesson failed, timed out, crashed or was left out, or the report
        could not be written; 130: interrupted."""
        if self.interrupted:
            return 130
        return int(bool(self.unwritten)
                   or any(result.status in BAD or result.left_out for result in self.lessons))

    @property
    def summary(self) -> str:
        """As in "3 passed, 1 failed"."""
        count = Counter(result.status for result in self.lessons)
        return ", ".join(f"{count[s]} {label(s)}" for s in STATUSES if count[s]) or "nothing ran"

    def as_dict(self) -> dict[str, Any]:
        return {**{key: getattr(self, key) for key in _PARTS},
                "lessons": [result.as_dict() for result in self.lessons]}

    def write(self) -> bool:
        """Writes report.json, report.html and report.xml, each whole or not at all; whether all
        could be written. If not, `unwritten` says why."""
        try:
            _replace(self.folder / "report.json", json.dumps(self.as_dict(), indent=1) + "\n")
            _replace(self.folder / "report.html", page(self))
            _replace(self.folder / "report.xml", junit.document(self))
            self.unwritten = ""
        except OSError as error:
            self.unwritten = (f"The report cannot be written to {self.folder} ({error.strerror}), "
                              "so it lacks what happened since; make room there, and run again "
                              "with --resume.")
        return not self.unwritten

    def table(self, width: int = 120) -> str:
        """The results as plain text, notes cut to `width` columns."""
        lines = [result.line for result in self.lessons]
        lines = [line if len(line) <= width else line[: width - 1] + "…" for line in lines]
        return "\n".join([*lines, "", f"{self.summary}; report: {self.folder / 'report.html'}"])


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # else a power cut could leave the new name without content
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
