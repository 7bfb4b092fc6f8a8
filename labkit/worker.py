"""The process of one lesson, `python -m labkit.worker JOB`: papermill runs the lesson here, and
what came of it is written down for `labkit.supervise`, which started it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from labkit import processes
from labkit.executed import exit_code, first_error, last_started, problem


class _Stopped(BaseException):
    """The runner wants this lesson to end."""


def main(job_file: str) -> None:
    """Runs the lesson that `job_file` describes and writes down what came of it."""
    job = json.loads(Path(job_file).read_text())
    base, copy = Path(job["base"]), Path(job["copy"])
    tempfile.tempdir = str(base)  # of this process alone: where the kernel's address is kept
    signal.signal(signal.SIGTERM, _stop)
    alone = threading.Event()
    watch = threading.Thread(target=_end_without_runner, args=(base, alone), daemon=True)
    watch.start()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")  # out of memory: the lesson goes first
    logging.disable()  # the log is for what a kernel says that does not start
    outcome: dict[str, Any] = {"status": "passed", "error": None}
    codes: list[int] = []
    try:
        error = _run(Path(job["source"]), copy, job["parameters"], str(base / "work"), codes)
        if error:
            outcome = {"status": "failed", "error": error}
    except _Stopped:
        pass  # the runner knows why
    except Exception as error:  # the kernel died, did not start, or papermill could not go on
        outcome = {"status": "crashed", "error": problem(
            type(error).__name__, _message(error, codes), last_started(copy))}
    outcome["cell"] = last_started(copy)
    if alone.is_set():
        watch.join()  # it ends this process
    (base / "outcome").write_text(json.dumps(outcome))


def _message(error: Exception, codes: list[int]) -> str:
    if codes:
        return f"The kernel died with {exit_code(codes[-1])}"
    if isinstance(error, OSError) and error.strerror:
        return (f"The executed copy could not be written ({error.strerror}); free some space, and "
                "run again with --resume")
    return str(error).rstrip(".")


def _stop(*_: Any) -> None:
    with suppress(psutil.Error):
        for child in psutil.Process().children():
            child.kill()  # the kernel; a polite request would wait for the running cell
    raise _Stopped


def _end_without_runner(base: Path, alone: threading.Event) -> None:
    """Waits for the runner's death, which closes this process's standard input; then ends all
    that the lesson started, and itself."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    alone.set()
    family: set[psutil.Process] = set()
    with suppress(psutil.Error):
        family.update(psutil.Process().children(recursive=True))
    mark = os.environ[processes.MARK]
    processes.end_all(lambda: family | set(processes.marked(mark)))
    shutil.rmtree(base, ignore_errors=True)
    os._exit(1)


def _run(source: Path, copy: Path, parameters: dict[str, Any], work: str,
         codes: list[int]) -> dict[str, Any] | None:
    """Executes the lesson; its first error, or None. A dead kernel's exit code goes to `codes`."""
    from labkit.nbformat_import import nbformat  # first: what follows imports it too

    # isort: split
    from jupyter_client.manager import AsyncKernelManager
    from papermill import PapermillExecutionError, execute_notebook

    from labkit import output_limit

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
        execute_notebook(path, path, parameters, engine_name=output_limit.engine(),
                         kernel_name="python3", language="python", cwd=work, progress_bar=False,
                         start_timeout=120, iopub_timeout=30, kernel_manager_class=Manager)
    except PapermillExecutionError as error:
        raised = problem(error.ename, error.evalue)
    return first_error(nbformat.read(copy, as_version=4)) or raised


if __name__ == "__main__":
    main(sys.argv[1])
