"""Tuning results on disk: one line of JSON a measurement, appended as soon as it is made.

A file belongs to one GPU and one name, and each result in it to the key of its schedule, which
says what was measured: the traced program, the compiler's options and version. A line that is cut
off or damaged is passed over, so an interrupted run and two writers at once lose nothing else.
"""

from __future__ import annotations

import fcntl
import json
import math
import re
from typing import Any

from labkit import cache
from labkit.errors import BadArgument

_FIGURES = ("ms", "spread_ms")


def key(program: Any, options: str, gpu: str) -> str:
    """The key of what `program`, a `@T.prim_func`, takes on `gpu` with these compiler options."""
    import tilelang

    return cache.key(cache.program_text(program), options, gpu, tilelang.__version__)


class Store:
    """The results of tuning `name` on `gpu`.

    short: key -> {"ms", "spread_ms", "error"} of the first, short round. broke: key -> why this
    schedule broke the GPU's context. full: the interleaved rounds, the oldest first, each
    {"date", "times": {key: {"ms", "spread_ms"}}, "clock_mhz"}.
    """

    def __init__(self, name: str, gpu: str) -> None:
        slug = re.sub(r"[^a-z0-9]+", "-", f"{gpu} {name}".lower()).strip("-")[:80]
        self.path = cache.directory() / "tuning" / f"{slug}-{cache.key(gpu, name)[:8]}.jsonl"
        self.short: dict[str, dict[str, Any]] = {}
        self.broke: dict[str, str] = {}
        self.full: list[dict[str, Any]] = []
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError:
            lines = []  # nothing measured yet
        for line in lines:
            self._take(_parsed(line))

    def _take(self, entry: Any) -> None:
        """Keeps one entry; passes over what is not one."""
        if not isinstance(entry, dict):
            return
        name, stage = entry.get("key"), entry.get("stage")
        if stage == "short" and isinstance(name, str) and _timed(entry):
            self.short[name] = entry
        elif stage == "broke" and isinstance(name, str) and isinstance(entry.get("why"), str):
            self.broke[name] = entry["why"]
        elif (stage == "full" and isinstance(times := entry.get("times"), dict) and times
              and isinstance(entry.get("date"), str) and all(map(_timed, times.values()))):
            self.full.append(entry)

    def add(self, **entry: Any) -> None:
        """Appends one entry and keeps it. Raises BadArgument if it cannot be written."""
        # the first line break ends what another writer may have left unfinished
        line = f"\n{json.dumps(entry)}\n".encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.write(line)
        except OSError as error:
            raise BadArgument(f"{self.path} cannot be written ({error.strerror or error}); free "
                              "some space, or set LABKIT_CACHE_DIR to another folder that you may "
                              "write.") from error
        self._take(entry)

    def round_of(self, keys: set[str]) -> dict[str, Any] | None:
        """The newest interleaved round that timed all of `keys`, None if there is none."""
        return next((r for r in reversed(self.full) if keys <= r["times"].keys()), None)

    def forget(self) -> None:
        """Leaves the file as it is, but measures everything again."""
        self.short, self.broke, self.full = {}, {}, []


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None  # cut off or damaged


def _timed(entry: Any) -> bool:
    """Whether these are the times of one schedule: finite, the median above 0."""
    values = [entry.get(figure) for figure in _FIGURES] if isinstance(entry, dict) else [None]
    return (all(type(v) in (int, float) and math.isfinite(v) and v >= 0 for v in values)
            and values[0] > 0)
