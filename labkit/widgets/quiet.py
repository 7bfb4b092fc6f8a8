"""Keeps what TileLang's C++ code logs off the notebook while it compiles beside it.

The same text comes back as an exception, which the explorer shows in its own place.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGED = re.compile(rb"^\[\d\d:\d\d:\d\d\]")  # as in "[12:34:56] : Fatal: ..."
_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def overheard() -> Iterator[list[str]]:
    """The compiler's log lines on the process's standard error end up in the list; every other
    line written there meanwhile is passed on at the end."""
    lines: list[str] = []
    with _ONE_AT_A_TIME, tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            file.seek(0)
            for line in file.read().splitlines(keepends=True):
                if _LOGGED.match(line):
                    lines.append(line.decode(errors="replace").rstrip())
                elif line.strip():
                    os.write(2, line)
            os.close(kept)
