"""A lock for building programs in threads.

In Python 3.11 and the first releases of 3.12 two threads that parse at once may disturb each other:
"SystemError: AST constructor recursion depth mismatch" (python/cpython#106905). Compiling ahead in
threads builds programs, and TileLang parses each one's source. The lock orders labkit's own
threads; a cell that is run meanwhile is parsed without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

LOCK = threading.RLock()


def built(build: Callable[..., Any], schedule: dict[str, Any]) -> Any:
    """`build(**schedule)`, which makes a program: TileLang parses the builder's source."""
    with LOCK:
        return build(**schedule)
