"""Python's parser, one thread at a time.

Up to Python 3.12 two threads that parse at once may disturb each other: "SystemError: AST
constructor recursion depth mismatch" (python/cpython#106905). Compiling ahead in threads builds
programs, and TileLang parses each one's source.
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
