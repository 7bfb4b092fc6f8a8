"""Reads the report of a run that is to be taken up again.

The file may have been damaged or written by hand: each part is checked before it is used, and no
path is taken from it.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from labkit.errors import BadArgument
from labkit.report import Result

_KINDS: dict[str, type] = {
    "id": str, "started": str, "resumed": list, "device": str, "gpu": str, "quick": bool,
    "parameters": dict, "labkit": str, "versions": dict, "chosen": list, "lessons": list}
_RESULT: dict[str, type | tuple[type, ...]] = {
    "lesson": str, "status": str, "seconds": (int, float), "device": str, "title": str,
    "source": str}


@dataclass(frozen=True)
class Earlier:
    """A run as its report describes it. lessons: the stems of all its lessons, in order; passed:
    the results of those that passed, by stem."""

    id: str
    started: str
    resumed: list[str]
    device: str
    gpu: str
    quick: bool
    parameters: dict[str, dict[str, Any]]
    labkit: str
    versions: dict[str, str]
    lessons: list[str]
    passed: dict[str, Result]

    def kept(self, path: Path, folder: Path) -> Result | None:
        """The result of the lesson at `path` if it passed, is still the same file, and its
        executed copy is in `folder`."""
        result = self.passed.get(path.stem)
        copy = folder / path.name
        if result and result.source == digest(path) and copy.is_file() and copy.stat().st_size:
            result.notebook = path.name
            return result
        return None


def digest(path: Path) -> str | None:
    """The SHA-256 of a lesson's file; None if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
    except OSError:
        return None


def load(folder: Path) -> Earlier | None:
    """The run in `folder`; None where there is none. Raises BadArgument if its report is not one
    that labkit wrote."""
    try:
        data = json.loads((folder / "report.json").read_text())
        return _earlier(data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadArgument(f"{folder / 'report.json'} is not a report that can be resumed "
                          f"({' '.join(str(error).split())[:200]}); leave out --resume, or choose "
                          "another folder with --out.") from error


def _earlier(data: Any) -> Earlier:
    _check(data, _KINDS, "the report")
    if not re.fullmatch("[0-9a-f]{32}", data["id"]):
        raise ValueError("its id is not one of labkit's")
    if data["device"] not in ("cpu", "gpu"):
        raise ValueError(f"its device is {data['device']!r}")
    if not all(isinstance(entry, dict) for entry in data["parameters"].values()):
        raise ValueError("its parameters are no objects")
    passed = {}
    for entry in data["lessons"]:
        _check(entry, {"lesson": str, "status": str}, "a lesson")
        if entry["status"] == "passed":
            _check(entry, _RESULT, "a lesson that passed")
            known = {f.name for f in fields(Result)} - {"error", "reason", "left_out"}
            passed[entry["lesson"]] = Result(**{k: v for k, v in entry.items() if k in known})
            _check_attempts(entry.get("attempts"))
    if not all(isinstance(text, str) for text in (*data["chosen"], *data["resumed"],
                                                  *data["versions"].values())):
        raise ValueError("a name in it is no text")
    parts = {key: data[key] for key in _KINDS if key not in ("chosen", "lessons")}
    return Earlier(**parts, lessons=data["chosen"], passed=passed)


def _check_attempts(attempts: Any) -> None:
    for error in attempts or []:
        _check(error, {"name": str, "message": str}, "an attempt")
        if not isinstance(error["cell"], int | None):
            raise ValueError(f"the cell of an attempt is {error['cell']!r}")


def _check(entry: Any, kinds: dict[str, Any], what: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{what} is a {type(entry).__name__}")
    for key, kind in kinds.items():
        if not isinstance(entry[key], kind) or (kind is not bool and isinstance(entry[key], bool)):
            raise ValueError(f"{key} of {what} is {str(entry[key])[:40]!r}")
