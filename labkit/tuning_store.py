"""Tuning results on disk: one line of JSON a measurement, appended as soon as it is made.

A file belongs to one GPU and one name, and each result in it to the key of its schedule, which
says what was measured, and to the day and the versions of the call that measured it. A line that is
cut off or damaged is passed over, so an interrupted run and two writers at once lose nothing else.
"""

from __future__ import annotations

import datetime
import fcntl
import functools
import json
import re
from typing import Any

from labkit import cache, environment
from labkit.errors import BadArgument

_TIMING = 2  # to be raised when the times that the tuner measures become others for one program
_MOST_MS = 1e9
_FIGURES = ("ms", "spread_ms")


@functools.cache
def _versions() -> dict[str, str]:
    return environment.versions()


def software() -> list[str]:
    """What determines a time beside the GPU, the program and its options: the versions of
    TileLang, nvcc, torch's CUDA, the driver and the tuner's own way of timing."""
    import tilelang
    import torch

    found = _versions()
    return [tilelang.__version__, found["cuda toolkit"], str(torch.version.cuda), found["driver"],
            str(_TIMING)]


def key(program: Any, options: str, gpu: str) -> str:
    """The key of what `program`, a `@T.prim_func`, takes on `gpu` with these compiler options and
    with what is installed here."""
    return cache.key(cache.program_text(program), options, gpu, *software())


def today() -> str:
    return str(datetime.date.today())


class Store:
    """The results of tuning `name` on `gpu`. Raises BadArgument if they cannot be written.

    short: key -> {"ms", "spread_ms", "error"} of the first, short round. broke: key -> why this
    schedule broke the GPU's context. full: the interleaved rounds, the oldest first, each
    {"times": {key: {"ms", "spread_ms"}}, "clock_mhz"}. Each entry has the session that measured it:
    "date" and "versions". session: this one's; its date is the day it began.
    """

    def __init__(self, name: str, gpu: str) -> None:
        slug = re.sub(r"[^a-z0-9]+", "-", f"{gpu} {name}".lower()).strip("-")[:80]
        self.path = cache.directory() / "tuning" / f"{slug}-{cache.key(gpu, name)[:8]}.jsonl"
        self.session = {"date": today(), "versions": dict(_versions())}
        self.forget()
        self._append(b"")  # says at once if it cannot
        for line in self.path.read_bytes().splitlines():
            self._take(_parsed(line))

    def _take(self, entry: Any) -> None:
        """Keeps one entry; passes over what is not one."""
        if not isinstance(entry, dict):
            return
        name, stage = entry.get("key"), entry.get("stage")
        if stage == "broke" and isinstance(name, str) and isinstance(entry.get("why"), str):
            self.broke[name] = entry["why"]
        elif not isinstance(entry.get("date"), str) or not isinstance(entry.get("versions"), dict):
            return
        elif stage == "short" and isinstance(name, str) and _timed(entry):
            self.short[name] = entry
        elif (stage == "full" and isinstance(times := entry.get("times"), dict) and times
              and all(map(_timed, times.values()))):
            self.full.append(entry)

    def add(self, **entry: Any) -> None:
        """Appends one entry and keeps it. Raises BadArgument if it cannot be written."""
        entry = {**entry, **self.session}
        # the first line break ends what another writer may have left unfinished
        self._append(f"\n{json.dumps(entry)}\n".encode())
        self._take(entry)

    def _append(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(line)
        except OSError as error:
            raise BadArgument(f"{self.path} cannot be written ({error.strerror or error}); free "
                              "some space, or set LABKIT_CACHE_DIR to another folder that you may "
                              "write.") from error

    def round_of(self, keys: set[str], session: dict[str, Any]) -> dict[str, Any] | None:
        """The newest interleaved round of `session` that timed all of `keys`, None if there is
        none."""
        return next((r for r in reversed(self.full)
                     if keys <= r["times"].keys() and same_session(r, session)), None)

    def forget(self) -> None:
        """Leaves the file as it is, but measures everything again."""
        self.short: dict[str, dict[str, Any]] = {}
        self.broke: dict[str, str] = {}
        self.full: list[dict[str, Any]] = []


def same_session(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two entries were measured on one day with the same versions."""
    return all(one[part] == other[part] for part in ("date", "versions"))


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # cut off or damaged


def _timed(entry: Any) -> bool:
    """Whether these are the times of one schedule, and its error, if there is one, a number."""
    if not isinstance(entry, dict):
        return False
    values = [entry.get(figure) for figure in _FIGURES]
    values += [entry["error"]] if entry.get("error") is not None else []
    return all(type(v) in (int, float) and 0 <= v < _MOST_MS for v in values) and values[0] > 0
