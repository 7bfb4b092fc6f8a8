"""What a learner has solved, in one small file.

It lies at `$LABKIT_PROGRESS`, else in `$XDG_DATA_HOME/labkit`, else in `~/.local/share/labkit`, as
`progress.json`: not in the cache, which may be deleted at any time. It is written at once or not at
all. A file that cannot be read is set aside under another name, and a new one is begun.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from labkit import cache
from labkit.errors import LabError
from labkit.table import Table

_FIELDS = {"attempts": int, "hints": int, "solution": bool, "solved": str}


def path() -> Path:
    """The file of this learner."""
    chosen = os.environ.get("LABKIT_PROGRESS")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "labkit" / "progress.json"


def read() -> dict[str, dict[str, Any]]:
    """Exercise -> attempts, hints, solution (seen) and solved (a date, or ""). What is damaged is
    left out."""
    try:
        stored = json.loads(path().read_text())["exercises"]
        return {key: _whole(entry) for key, entry in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def record(key: str, *, attempt: bool = False, solved: bool = False, hints: int = 0,
           solution: bool = False) -> str:
    """Adds to what is known of an exercise. Returns why it could not be kept, or ""."""
    try:
        with _locked():
            _set_aside_if_damaged()
            known = read()
            entry = known.setdefault(key, _whole({}))
            if attempt and not entry["solved"]:
                entry["attempts"] += 1
            if solved and not entry["solved"]:
                entry["solved"] = date.today().isoformat()
            entry["hints"] = max(entry["hints"], hints)
            entry["solution"] = entry["solution"] or solution
            text = json.dumps({"version": 1, "exercises": dict(sorted(known.items()))}, indent=1)
            cache.store(path(), (text + "\n").encode())
    except (OSError, LabError) as error:
        reason = getattr(error, "strerror", None) or str(error).split(";")[0]
        return (f"Progress was not kept ({reason}); set LABKIT_PROGRESS to a file that you may "
                "write.")
    return ""


def table() -> Table:
    """Every exercise with its state, and how many are solved."""
    from labkit.exercises.exercise import all_exercises

    known, rows, done = read(), [], 0
    for exercise in all_exercises():
        entry = known.get(exercise.key, _whole({}))
        done += bool(entry["solved"])
        state = (f"solved {entry['solved']}" if entry["solved"] else
                 "tried" if entry["attempts"] else "")
        seen = ["solution seen"] if entry["solution"] else []
        hints = [f"{entry['hints']} of 3"] if entry["hints"] else []
        rows.append([exercise.key, exercise.title, state, entry["attempts"] or "",
                     ", ".join(hints + seen)])
    return Table(f"Exercises: {done} of {len(rows)} solved",
                 ["", "exercise", "state", ">attempts", "hints"], rows, f"Kept in {path()}.")


def _whole(entry: Any) -> dict[str, Any]:
    """The entry with every field, those of another kind replaced."""
    entry = entry if isinstance(entry, dict) else {}
    return {name: entry[name] if type(entry.get(name)) is kind else kind()
            for name, kind in _FIELDS.items()}


def _set_aside_if_damaged() -> None:
    file = path()
    try:
        stored = json.loads(file.read_text())
        if isinstance(stored["exercises"], dict):
            return
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    os.replace(file, file.with_name(file.name + ".damaged"))


@contextmanager
def _locked() -> Iterator[None]:
    """One writer at a time: two notebooks may be open."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file.with_name(file.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
