"""Ends what a lesson leaves running.

A lesson's processes are known by the environment variable `LABKIT_RUN`, which they inherit,
parent or not, session or not: `<run>-<the runner's process>-<one lesson>`.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil

MARK = "LABKIT_RUN"
GRACE = 10.0  # seconds in which a stopped lesson saves its copy


def new_mark(run: str) -> str:
    """The mark of one lesson of the run with the id `run`."""
    return f"{run}-{os.getpid()}-{uuid.uuid4().hex}"


def end(process: subprocess.Popen, family: set[psutil.Process], mark: str,
        hurry: Callable[[], bool]) -> None:
    """Lets a worker that still runs save its copy, then ends all that the lesson started.

    family: the descendants seen so far. hurry: whether to stop waiting for the copy.
    """
    try:
        if process.poll() is None:
            process.terminate()
            for _ in range(int(GRACE / 0.25)):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.25)
                    break
                if hurry():
                    break
    finally:
        process.kill()
        process.wait()
        end_all(lambda: family | set(marked(mark)))


def end_all(find: Callable[[], set[psutil.Process]]) -> None:
    """Kills what `find` finds, and again what that started meanwhile."""
    for _ in range(20):
        left = [one for one in find() if alive(one)]
        if not left:
            break
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=0.5)


def end_leftovers(run: str) -> None:
    """Ends what is left of the run with the id `run`, if the runner that started it is gone."""
    end_all(lambda: {one for one in marked(f"{run}-") if _abandoned(one)})


def _abandoned(process: psutil.Process) -> bool:
    try:
        runner = process.environ()[MARK].split("-")[1]
    except (psutil.Error, OSError, KeyError, IndexError):
        return False
    return runner.isdecimal() and not psutil.pid_exists(int(runner))


def marked(start: str) -> Iterator[psutil.Process]:
    """The other processes whose mark begins with `start`."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK, "").startswith(start):
                yield process


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
