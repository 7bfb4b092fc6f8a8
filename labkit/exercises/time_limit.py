"""Ends a learner's code that does not end by itself.

The code runs in a thread of its own. What counts is the processor time of that thread: a slow or
busy machine takes nothing from a learner, and neither does a compiler, which is another process.
Only what waits, as `input()` does, is ended by the clock on the wall.
"""

from __future__ import annotations

import contextvars
import ctypes
import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from labkit.errors import BadArgument, LabError

COMPUTING = 30.0  # seconds of processor time; the longest check of the kit takes two
WAITING = 900.0  # seconds on the wall
_GRACE = 3.0  # seconds for the code to end after it was told to
_POLL = 0.05
_KIT = os.path.dirname(os.path.dirname(__file__))


class TookTooLong(LabError):
    """What was to be judged did not end in time."""


class _Stopped(BaseException):
    """Raised inside the code that is to end. Where a bare `except:` catches it, it is raised once
    more at the next line, which lies in that handler, and so leaves the `try`."""

    def __init__(self) -> None:  # runs in the thread that is to end
        super().__init__()
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(_KIT):
            frame.f_trace, frame = _again, frame.f_back
        sys.settrace(lambda *_: None)  # without a function of its own a thread traces no frame


def _again(frame: Any, event: str, argument: Any) -> Any:
    raise _Stopped


def seconds() -> float:
    """The limit on processor time: `$LABKIT_CHECK_SECONDS`, else `COMPUTING`. Raises
    BadArgument."""
    text = os.environ.get("LABKIT_CHECK_SECONDS", "")
    try:
        found = float(text or COMPUTING)
    except ValueError:
        found = 0.0
    if not 0 < found <= threading.TIMEOUT_MAX:
        raise BadArgument(f"LABKIT_CHECK_SECONDS is {text!r}; set it to a number of seconds above "
                          "0, or unset it.")
    return found


def limited(call: Callable[[], Any], code: Any = None, waiting: float = WAITING) -> Any:
    """What `call()` returns or raises, if it ends in time. code: the learner's function, whose line
    the sentence names. waiting: seconds on the wall. Raises TookTooLong."""
    limit, result = seconds(), {}
    clock: list[int] = []  # the thread's own; asked for a thread that has ended, it may crash

    def run() -> None:
        with suppress(AttributeError, OSError):
            clock.append(time.pthread_getcpuclockid(threading.get_ident()))
        try:
            result["value"] = call()
        except BaseException as error:  # raised again in the thread that asked
            result["error"] = error

    context = contextvars.copy_context()  # a notebook shows what is printed below the right cell
    thread = threading.Thread(target=context.run, args=(run,), daemon=True, name="labkit-check")
    began = time.monotonic()
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_POLL)
            used, waited = _used(clock, began), time.monotonic() - began
            if thread.is_alive() and (used > limit or waited > waiting):
                raise TookTooLong(_ended(thread, code, used > limit, limit, waiting))
    finally:
        if thread.is_alive():  # Ctrl-C, too
            _stop(thread)
    if "error" in result:
        raise result["error"]
    return result["value"]


def _used(clock: list[int], began: float) -> float:
    """Seconds of processor time; of the wall's where the system does not tell."""
    try:
        return time.clock_gettime(clock[0])
    except (IndexError, OSError):
        return time.monotonic() - began


def _ended(thread: threading.Thread, code: Any, computed: bool, limit: float,
           waiting: float) -> str:
    place, running = _place(thread, code), _stop(thread)
    what = (f"it did not end within {limit:g} seconds of computing" if computed else
            f"it did not end within {waiting:g} seconds, and waits for something")
    why = ("Look for a loop that never ends, such as a `while` whose condition stays true"
           if computed else "An answer may not wait, as `input()` or `sleep` do")
    left = (" It runs on in the compiled program, where nothing can end it: restart the notebook's "
            "kernel to get its processor core back." if running else "")
    return f"{place}{what}. {why}.{left}"


def _place(thread: threading.Thread, code: Any) -> str:
    """As in "line 3 of your cell, `while True:`: "; empty if it is not the learner's line."""
    code, frame = getattr(code, "__code__", None), sys._current_frames().get(thread.ident)
    if code is None or frame is None:
        return ""
    lines = [number for inner, number in traceback.walk_stack(frame)
             if inner.f_code.co_filename == code.co_filename]
    if not lines:
        return ""
    text = linecache.getline(code.co_filename, lines[0]).strip()
    return f"line {lines[0]} of your cell, `{text}`: "


def _stop(thread: threading.Thread) -> bool:
    """Tells the thread to end, again where its code catches everything; whether it still runs."""
    deadline = time.monotonic() + _GRACE
    while thread.is_alive() and time.monotonic() < deadline:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident),
                                                   ctypes.py_object(_Stopped))
        thread.join(0.2)
    return thread.is_alive()
