"""The bench's processes, watched from outside: a case that hangs or dies costs only itself."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_TAIL = 12  # lines of a worker's output that are shown where it failed


class Worker:
    """One process of `labkit.benching.worker`. log: the file that takes what it prints."""

    command = (sys.executable, "-m", "labkit.benching.worker")

    def __init__(self, log: Path, environment: dict[str, str] | None = None) -> None:
        self.log, self._environment = log, environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._answers = -1

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """The worker's answer. If it dies or takes longer than `timeout` seconds, the answer is
        that it failed, and the next request gets a new process."""
        start = time.monotonic()
        before = self.log.stat().st_size if self.log.exists() else 0
        self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._read(start + timeout)
        except BrokenPipeError:
            line = ""
        if line is None:
            reason = f"took longer than {timeout:.0f} s and was stopped"
        elif not line.endswith("\n"):
            reason = f"its process died ({_ending(self._process)})"
        else:
            found: dict[str, Any] = json.loads(line)
            if found["status"] == "failed":
                found["tail"] = self._tail(before)
            if found["broken"]:
                self.close()
            return found
        self.close()
        return {"status": "failed", "reason": reason, "lines": [], "checks": [], "files": {},
                "seconds": time.monotonic() - start, "tail": self._tail(before)}

    def close(self) -> None:
        """Ends the process and what it started."""
        if self._process is None:
            return
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()
        os.close(self._answers)
        self._process = None

    def start(self) -> None:
        """Starts the process, which then imports what it needs, unless it runs already."""
        if self._process is not None:
            return
        self._answers, theirs = os.pipe()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [*self.command, str(theirs)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=[theirs],
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | self._environment,
                start_new_session=True)  # Ctrl-C reaches the bench alone, which ends it
        os.close(theirs)

    def _read(self, until: float) -> str | None:
        """One line, less if the process died, None if it did not answer in time."""
        line = b""
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                return None
            piece = os.read(self._answers, 1 << 16)
            if not piece:
                break
            line += piece
        return line.decode()

    def _tail(self, before: int) -> list[str]:
        with self.log.open("rb") as file:
            file.seek(before)
            return file.read().decode(errors="replace").splitlines()[-_TAIL:]


def _ending(process: subprocess.Popen[str]) -> str:
    with suppress(subprocess.TimeoutExpired):
        code = process.wait(5)
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return "it closed its pipe"


def ask_all(chains: Sequence[Sequence[dict[str, Any]]], count: int, folder: Path, timeout: float,
            environment: dict[str, str],
            tell: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Answers to all requests from `count` processes at once, those of one chain one after the
    other; tell(request, answer) is called for each, one at a time."""
    left: queue.SimpleQueue[Sequence[dict[str, Any]]] = queue.SimpleQueue()
    for chain in chains:
        left.put(chain)
    lock, over = threading.Lock(), threading.Event()
    workers = [Worker(folder / f"prepare-{i}.log", environment) for i in range(count)]

    def serve(worker: Worker) -> None:
        with suppress(queue.Empty):
            while True:
                for request in left.get_nowait():
                    if over.is_set():
                        return
                    found = worker.ask(request, timeout)
                    with lock:
                        tell(request, found)
        worker.close()

    threads = [threading.Thread(target=serve, args=[worker], daemon=True) for worker in workers]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        over.set()
        for worker in workers:
            with suppress(OSError, AttributeError):
                worker.close()
