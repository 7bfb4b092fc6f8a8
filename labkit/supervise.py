"""Runs one lesson in a process of its own, keeps its time, and ends all that it leaves running.

The process is `python -m labkit.worker JOB`; it writes down what came of the lesson. A hang, an
`os._exit` or a dead kernel stays inside. Should the runner die, the worker sees its standard input
close, and ends the lesson itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from labkit import processes
from labkit.executed import UNKNOWN, exit_code, last_started, problem
from labkit.run_folder import MEASURED

_LOG_BYTES = 1_000_000  # what is kept of a log's beginning, and of its end


@dataclass(frozen=True)
class Job:
    """One lesson to run.

    source: the lesson. copy: where its executed copy goes. log: where its kernel's standard
    output and error go. timeout: seconds. run: the run's id. gpu: the GPU that this lesson has to
    itself, as CUDA_VISIBLE_DEVICES takes it; None leaves that as it is. threads: how many of the
    processor's it takes where the environment does not say; None: as many as it likes.
    """

    source: Path
    copy: Path
    log: Path
    parameters: dict[str, Any]
    timeout: float
    run: str
    gpu: str | None = None
    threads: int | None = None


@dataclass
class Stop:
    """What ends a run early. interrupted: how often that was asked for; at the second time
    nothing is waited for. deadline: of the whole run, in seconds of `time.monotonic`."""

    interrupted: int = 0
    total: float | None = None
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = float("inf") if self.total is None else time.monotonic() + self.total

    @property
    def reason(self) -> str | None:
        """Why no further lesson starts; None while they may."""
        if self.interrupted:
            return "interrupted"
        if time.monotonic() >= self.deadline:
            return f"the time limit of the whole run, {self.total:g} s, was up"
        return None


@dataclass
class Ended:
    """How a lesson ended: passed, failed, timed_out or crashed."""

    status: str
    error: dict[str, Any] | None


def execute(job: Job, stop: Stop) -> Ended:
    """Runs the lesson and saves its executed copy and its log, if that is not empty."""
    mark = processes.new_mark(job.run)
    limit = min(job.timeout, stop.deadline - time.monotonic())
    try:
        job.copy.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as base:
            return _execute(job, stop, mark, limit, Path(base))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return Ended("crashed", problem(
            type(error).__name__, f"The lesson could not be started ({error.strerror}{where}); "
            "make room there, and run again with --resume."))
    finally:
        _shorten(job.log)


def _execute(job: Job, stop: Stop, mark: str, limit: float, base: Path) -> Ended:
    (work := base / "work").mkdir()
    (base / "job").write_text(json.dumps({
        "source": str(job.source.resolve()), "copy": str(job.copy), "base": str(base),
        "parameters": job.parameters}))
    with job.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "labkit.worker", str(base / "job")], cwd=work,
            env=_environment(job, base, mark), stdin=subprocess.PIPE, stdout=log, stderr=log,
            start_new_session=True)
    family: set[psutil.Process] = set()
    try:
        why = _wait(process, family, limit, stop)
    finally:
        processes.end(process, family, mark, lambda: stop.interrupted > 1)
        with suppress(OSError):
            process.stdin.close()  # not before: it would tell the worker that nobody waits
    try:
        outcome = json.loads((base / "outcome").read_text())
    except (OSError, ValueError):
        outcome = _died(job, process.returncode)
    if outcome["status"] == "crashed":
        _mend(job)
    cell = outcome["cell"]
    when = ", before any cell had started" if cell is None else ""
    if why == "timed_out":
        whole = limit < job.timeout
        text = (f"Not finished when the time limit of the whole run, {stop.total:g} s, was up"
                if whole else f"Not finished after {job.timeout:g} s")
        return Ended(why, problem("Timeout", f"{text}{when}.", cell))
    if why == "interrupted":
        return Ended("failed", problem("KeyboardInterrupt", f"Interrupted{when}.", cell))
    if outcome["status"] == "crashed":
        outcome["error"]["message"] += f"{when}." + (_last_words(job.log) if cell is None else "")
    return Ended(outcome["status"], outcome["error"])


def _died(job: Job, code: int) -> dict[str, Any]:
    """The outcome of a worker that could not write one."""
    cell = last_started(job.copy)
    return {"cell": cell, "status": "crashed", "error": problem(
        "ProcessDied", f"The lesson's process ended with {exit_code(code)} before it could report",
        cell)}


def _mend(job: Job) -> None:
    """Puts the lesson itself in the place of a copy that was cut off while it was written."""
    if last_started(job.copy) == UNKNOWN:
        with suppress(OSError):
            job.copy.unlink()  # first, as it may hold the last of the room
            shutil.copyfile(job.source, job.copy)


def _environment(job: Job, base: Path, mark: str) -> dict[str, str]:
    """What a lesson inherits: this Python, labkit and folder of lessons, whatever is installed."""
    spec = base / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (base / "runtime").mkdir()
    (spec / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher",
                 "--log-level=ERROR", "-f", "{connection_file}"],
        "display_name": "Python 3", "language": "python"}))
    first = {"JUPYTER_PATH": base / "jupyter"}
    package = Path(__file__).resolve().parents[1]
    if package.name not in ("site-packages", "dist-packages"):  # those are found, and in order
        first["PYTHONPATH"] = package
    mine = {} if job.gpu is None else {"CUDA_VISIBLE_DEVICES": job.gpu}
    threads = {} if job.threads is None else {"OMP_NUM_THREADS": str(job.threads)}
    # what a lesson measures on a GPU is kept with the run, if it goes nowhere else
    kept = ({"LABKIT_RECORD": str(job.copy.parent / MEASURED)}
            if job.parameters.get("device") == "gpu" else {})
    return {**threads, **kept, **os.environ, **mine, processes.MARK: mark,
            "LABKIT_RUN_FOLDER": str(job.copy.parent),
            "LABKIT_NOTEBOOKS": str(job.source.resolve().parent),
            "JUPYTER_RUNTIME_DIR": str(base / "runtime"),
            **{name: os.pathsep.join(filter(None, [str(path), os.environ.get(name)]))
               for name, path in first.items()}}


def _wait(process: subprocess.Popen, family: set[psutil.Process], limit: float,
          stop: Stop) -> str:
    """Waits, and notes the descendants in `family`. "" when the worker has ended, else why not:
    "timed_out" or "interrupted"."""
    deadline = time.monotonic() + limit
    look = 0.0
    while not stop.interrupted:
        if (left := deadline - time.monotonic()) <= 0:
            return "" if process.poll() is not None else "timed_out"
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(0.25, left))
            return ""
        if time.monotonic() >= look:
            with suppress(psutil.Error):
                family.update(psutil.Process(process.pid).children(recursive=True))
            look = time.monotonic() + 0.5
    return "interrupted"


def _shorten(log: Path) -> None:
    """Removes an empty log, and keeps of an endless one the beginning and the end."""
    with suppress(OSError):
        size = log.stat().st_size
        if not size:
            log.unlink()
        elif size > 2 * _LOG_BYTES:
            with log.open("r+b") as file:
                file.seek(size - _LOG_BYTES)
                end = file.read(_LOG_BYTES)
                file.seek(_LOG_BYTES)
                file.write(f"\n[... {size - 2 * _LOG_BYTES} bytes left out ...]\n".encode() + end)
                file.truncate()


def _last_words(log: Path) -> str:
    """What a kernel that did not start said last, as in "No module named ipykernel_launcher"."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line]
    return f" Last words: {lines[-1].strip()}" if lines else ""
