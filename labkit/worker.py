"""One lesson in a process of its own.

`execute` is the runner's side: it starts `python -m labkit.worker JOB`, keeps the time, and ends
all that the lesson leaves running. `main` is the worker's side: papermill runs the lesson there,
and the worker writes down what came of it. A hang, an `os._exit` or a dead kernel stays inside.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from labkit.executed import UNKNOWN, first_error, last_started, problem

_GRACE = 10.0         # seconds in which a stopped lesson saves its copy
_MARK = "LABKIT_RUN"  # the environment variable by which a lesson's processes are known


@dataclass
class Ended:
    """How a lesson ended: passed, failed, timed_out or crashed."""

    status: str
    error: dict[str, Any] | None
    interrupted: bool = False


# The runner's side

def execute(source: Path, copy: Path, parameters: dict[str, Any], timeout: float,
            tick: Callable[[], Any]) -> Ended:
    """Runs the lesson at `source`, saves the executed `copy`, calls `tick` while waiting."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="labkit-", ignore_cleanup_errors=True) as temporary:
        base = Path(temporary)
        work = base / "work"
        work.mkdir()
        job = {"source": str(source.resolve()), "copy": str(copy), "work": str(work),
               "outcome": str(base / "outcome"), "parameters": parameters, "timeout": timeout}
        (base / "job").write_text(json.dumps(job))
        with (base / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "labkit.worker", str(base / "job")], cwd=work,
                env=_environment(base, source.resolve().parent, mark), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True)
        family: set[psutil.Process] = set()
        why = ""
        try:
            if not _wait(process, family, timeout, tick):
                why = "timed_out"
        except KeyboardInterrupt:
            why = "interrupted"
        finally:
            _end(process, family, mark)
        last_words = _last_words(base / "log")
        try:
            outcome = json.loads((base / "outcome").read_text())
        except (OSError, ValueError):
            outcome = {"cell": last_started(copy), "status": "crashed"}
            if outcome["cell"] == UNKNOWN:
                shutil.copyfile(source, copy)  # better than one cut off while it was written
            outcome["error"] = problem(
                "ProcessDied", f"The lesson's process ended with {_code(process.returncode)} "
                "before it could report", outcome["cell"])
    cell = outcome["cell"]
    when = ", before any cell had started" if cell is None else ""
    if why == "timed_out":
        return Ended(why, problem("Timeout", f"Not finished after {timeout:g} s{when}.", cell))
    if why == "interrupted":
        return Ended("failed", problem("KeyboardInterrupt", f"Interrupted{when}.", cell), True)
    if outcome["status"] == "crashed":
        outcome["error"]["message"] += f"{when}." + (last_words if cell is None else "")
    return Ended(outcome["status"], outcome["error"])


def _environment(base: Path, notebooks: Path, mark: str) -> dict[str, str]:
    """What a lesson inherits: this Python, labkit and folder of lessons, whatever is installed."""
    spec = base / "jupyter" / "kernels" / "python3"
    spec.mkdir(parents=True)
    (base / "runtime").mkdir()
    (spec / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, "-Xfrozen_modules=off", "-m", "ipykernel_launcher",
                 "-f", "{connection_file}"],
        "display_name": "Python 3", "language": "python"}))
    first = {"JUPYTER_PATH": base / "jupyter"}
    package = Path(__file__).resolve().parents[1]
    if package.name not in ("site-packages", "dist-packages"):  # those are found, and in order
        first["PYTHONPATH"] = package
    return {**os.environ, _MARK: mark, "LABKIT_NOTEBOOKS": str(notebooks),
            "JUPYTER_RUNTIME_DIR": str(base / "runtime"),
            **{name: os.pathsep.join(filter(None, [str(path), os.environ.get(name)]))
               for name, path in first.items()}}


def _wait(process: subprocess.Popen, family: set[psutil.Process], timeout: float,
          tick: Callable[[], Any]) -> bool:
    """Waits, and notes the descendants in `family`; False when time is up."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(0.5, left))
            return True
        with suppress(psutil.Error):
            family.update(psutil.Process(process.pid).children(recursive=True))
        tick()
    return process.poll() is not None


def _end(process: subprocess.Popen, family: set[psutil.Process], mark: str) -> None:
    """Lets a worker that still runs save its copy, then ends all that the lesson started."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
    finally:
        process.kill()
        process.wait()
        for _ in range(20):  # what is being ended may start more
            left = [one for one in family | set(_marked(mark)) if _alive(one)]
            if not left:
                break
            for one in left:
                with suppress(psutil.Error):
                    one.kill()
            psutil.wait_procs(left, timeout=0.5)


def _marked(mark: str) -> Iterator[psutil.Process]:
    """The processes that inherited `mark`, parent or not, session or not."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark:
                yield process


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _code(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"signal {-code} ({signal.Signals(-code).name}{hint})"


def _last_words(log: Path) -> str:
    """What a kernel that did not start said last, as in "No module named ipykernel_launcher"."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line]
    return f" Last words: {lines[-1].strip()}" if lines else ""


# The worker's side

class _Stopped(BaseException):
    """The runner wants this lesson to end."""


def main(job_file: str) -> None:
    """Runs the lesson that `job_file` describes and writes down what came of it."""
    job = json.loads(Path(job_file).read_text())
    copy = Path(job["copy"])
    signal.signal(signal.SIGTERM, _stop)
    signal.alarm(int(job["timeout"] + 2 * _GRACE) + 1)  # should the runner have been killed
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # out of memory: the lesson goes first
    logging.disable()  # the log is for what a kernel says that does not start
    outcome: dict[str, Any] = {"status": "passed", "error": None}
    codes: list[int] = []
    try:
        error = _run(Path(job["source"]), copy, job["parameters"], job["work"], codes)
        if error:
            outcome = {"status": "failed", "error": error}
    except _Stopped:
        pass  # the runner knows why
    except Exception as error:  # the kernel died, did not start, or papermill could not go on
        message = f"The kernel died with {_code(codes[-1])}" if codes else str(error).rstrip(".")
        outcome = {"status": "crashed", "error": problem(
            type(error).__name__, message, last_started(copy))}
    outcome["cell"] = last_started(copy)
    Path(job["outcome"]).write_text(json.dumps(outcome))


def _stop(*_: Any) -> None:
    with suppress(psutil.Error):
        for child in psutil.Process().children():
            child.kill()  # the kernel; a polite request would wait for the running cell
    raise _Stopped


def _run(source: Path, copy: Path, parameters: dict[str, Any], work: str,
         codes: list[int]) -> dict[str, Any] | None:
    """Executes the lesson; its first error, or None. A dead kernel's exit code goes to `codes`."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from papermill import PapermillExecutionError, execute_notebook

    class Manager(AsyncKernelManager):
        def cleanup_resources(self, *args: Any, **kwargs: Any) -> Any:
            process = getattr(getattr(self, "provisioner", None), "process", None)
            if process is not None and process.poll() is not None:
                codes.append(process.returncode)
            return super().cleanup_resources(*args, **kwargs)

    notebook = nbformat.read(source, as_version=4)
    notebook.metadata.pop("widgets", None)  # of an earlier run, perhaps with its errors
    nbformat.write(notebook, copy)
    path = str(copy).replace("{", "{{").replace("}", "}}")  # papermill formats paths
    raised = None
    try:
        execute_notebook(path, path, parameters, kernel_name="python3", language="python",
                         cwd=work, progress_bar=False, start_timeout=120, iopub_timeout=30,
                         kernel_manager_class=Manager)
    except PapermillExecutionError as error:
        raised = problem(error.ename, error.evalue)
    return first_error(nbformat.read(copy, as_version=4)) or raised


if __name__ == "__main__":
    main(sys.argv[1])
