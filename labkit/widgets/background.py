"""Work beside the notebook, of which only the newest counts.

`Latest` runs one job at a time in a thread. A new job supersedes the one that runs: its
compiler is ended, and what it still delivers is dropped. The thread ends when there is nothing
to do, and with the interpreter, so nothing is left to clean up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

_POLL_SECONDS = 0.02


class Superseded(Exception):
    """A newer job has taken over; what this one was doing does not matter any more."""


class Ticket:
    """What a job holds to know whether it still counts. `pid`: of the compiler it waits for."""

    def __init__(self) -> None:
        self._gone = threading.Event()
        self.pid: int | None = None

    def revoke(self) -> None:
        self._gone.set()

    @property
    def valid(self) -> bool:
        """False too when the interpreter is about to end."""
        return not self._gone.is_set() and threading.main_thread().is_alive()

    def check(self) -> None:
        """Raises Superseded if the job does not count any more."""
        if not self.valid:
            raise Superseded

    def wait(self, seconds: float) -> None:
        """Waits, so that a burst of moves becomes one job. Raises Superseded."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._gone.wait(min(left, _POLL_SECONDS))
            self.check()

    def run(self, command: list[str], env: dict[str, str] | None = None, **_: Any
            ) -> subprocess.CompletedProcess:
        """`subprocess.run` with captured text, whose process and its children are ended when the
        job is superseded. Raises Superseded."""
        self.check()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env=env,
                                   start_new_session=True)
        self.pid = process.pid
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=_POLL_SECONDS)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    self.check()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # nvcc and the compilers that it started
                process.communicate()
            self.pid = None


class Latest:
    """A slot for one job. `submit` puts a job there, and revokes the one that was there."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._next: tuple[Callable[[Ticket], None], Ticket] | None = None
        self._running: Ticket | None = None
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[Ticket], None]) -> Ticket:
        """Runs `job(ticket)` as soon as the one that runs has ended."""
        ticket = Ticket()
        with self._changed:
            self._revoke()
            self._next = (job, ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name)
                self._thread.start()
        return ticket

    def revoke(self) -> None:
        """Ends what runs and drops what waits, without waiting for it."""
        with self._changed:
            self._revoke()
            self._next = None

    @property
    def busy(self) -> bool:
        return self._thread is not None

    def cancel(self) -> None:
        """Drops all there is to do; returns when nothing runs any more."""
        self.revoke()
        self.settle()

    def settle(self, timeout: float = 60) -> bool:
        """Waits until there is nothing to do; whether that came within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    @property
    def pid(self) -> int | None:
        """The process of the compiler that runs now."""
        running = self._running
        return running.pid if running else None

    def _revoke(self) -> None:
        for ticket in (self._running, self._next and self._next[1]):
            if ticket:
                ticket.revoke()

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._next is None:
                    self._running = self._thread = None
                    self._changed.notify_all()
                    return
                job, self._running = self._next
                self._next = None
            try:
                job(self._running)
            except Superseded:
                continue
            except BaseException:
                with self._changed:
                    self._running = self._thread = self._next = None
                    self._changed.notify_all()
                raise
