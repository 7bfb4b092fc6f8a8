"""Runs lessons one after another, survives what they do, and reports.

Each lesson runs in a process of its own (`worker.py`). Its failure, time-out or kernel death is
its result; the others go on, and the report on disk is valid after each one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from labkit import __version__, gpus, lessons, machine, worker
from labkit.errors import BadArgument, LabError, NeedsGPU
from labkit.report import Result, RunReport

TIMEOUT = 900.0  # seconds a lesson


def run(names: Sequence[str] = (), *, device: str = "auto", gpu: str = "", quick: bool = False,
        out: str | Path | None = None, timeout: float = TIMEOUT,
        folder: Path | None = None) -> RunReport:
    """Runs the lessons called `names` (none: all) and returns the report, which is on disk too.

    `timeout` is in seconds a lesson; `out` is made if it is not there. Raises LabError for bad
    input. Nothing that a lesson does raises, and after Ctrl-C the report says what was left out.
    """
    folder = folder or lessons.directory()
    found = [lessons.find(name, folder) for name in names] or lessons.all_lessons(folder)
    chosen = list(dict.fromkeys(found))
    if not chosen:
        raise LabError(f"There are no lessons in {folder}; set LABKIT_NOTEBOOKS to the folder "
                       "that holds them.")
    used = resolve_device(device)
    if gpu:
        gpus.lookup(gpu)
    report = RunReport(_output_folder(out, folder), _now(), used, gpu, quick, __version__,
                       _versions())
    options = {"device": used, "gpu": gpu, "quick": quick}
    # disable=None: a bar on a terminal only
    with tqdm(total=len(chosen), unit="lesson", leave=False, disable=None) as bar:
        for lesson in chosen:
            bar.set_description(lesson.stem)
            result = Result(lesson.stem, device=used)
            if report.interrupted:
                result.status, result.reason = "skipped", "interrupted"
            else:
                report.interrupted = _run_one(lesson, result, options, report.folder, timeout,
                                              bar.refresh)
            report.lessons.append(result)
            report.write()
            bar.update()
            if bar.disable:
                print(result.line, flush=True)
    report.finished = _now()
    report.write()
    return report


def _run_one(lesson: lessons.Lesson, result: Result, options: dict[str, Any], out: Path,
             timeout: float, tick: Callable[[], Any]) -> bool:
    """Runs one lesson and fills in its result; True if Ctrl-C was pressed meanwhile."""
    start = time.monotonic()
    interrupted = False
    try:
        result.reason = _skip_reason(lesson, options["device"])
        result.title = str(lesson.front_matter["title"])
        if result.reason:
            result.status = "skipped"
            return False
        _require_parameters(lesson)
        copy = out / lesson.path.name
        copy.unlink(missing_ok=True)
        ended = worker.execute(lesson.path, copy, options, timeout, tick)
        result.status, result.error = ended.status, ended.error
        result.notebook = copy.name if copy.exists() else None
        interrupted = ended.interrupted
    except KeyboardInterrupt:
        interrupted = True
        result.status, result.error = "failed", worker.problem("KeyboardInterrupt", "Interrupted.")
    except Exception as error:  # whatever a broken notebook raises must not stop the others
        message = (str(error) if isinstance(error, LabError) else
                   f"{lesson.path.name} cannot be run ({type(error).__name__}: {error}); "
                   "restore it from the repository.")
        result.status, result.error = "failed", worker.problem(type(error).__name__, message)
    result.seconds = round(time.monotonic() - start, 2)
    return interrupted


def _skip_reason(lesson: lessons.Lesson, device: str) -> str | None:
    matter = lesson.front_matter
    if device == "cpu":
        return "needs a GPU, and this run is on the CPU" if matter["gpu"] == "required" else None
    here = capability() if matter["min_sm"] else None
    if here is not None and here < matter["min_sm"]:
        return f"needs sm_{matter['min_sm']}, and the GPU here is sm_{here}"
    return None


def _require_parameters(lesson: lessons.Lesson) -> None:
    # papermill only warns, and the lesson would run with other settings than the report says
    if not any(cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", [])
               for cell in lesson.notebook.cells):
        raise LabError(f"{lesson.path.name} has no code cell tagged 'parameters'; "
                       "tag the cell that sets device, gpu and quick.")


def resolve_device(device: str) -> str:
    """What `device` ("auto", "gpu", "cpu") means here: "gpu" or "cpu", without importing torch.

    Raises NeedsGPU for "gpu" where nvidia-smi lists none that CUDA_VISIBLE_DEVICES lets through.
    """
    device = machine.asked(device)
    there = device != "cpu" and _has_gpu()
    if device == "gpu" and not there:
        raise NeedsGPU("device is 'gpu', but nvidia-smi shows no GPU that this process may use; "
                       "run with device 'auto' or 'cpu', or see `labkit doctor`.")
    if device == "auto" and there and not _torch_sees_it():
        print("labkit: nvidia-smi lists a GPU, but torch cannot use it, so the lessons run on the "
              "CPU; `labkit doctor` says why.", file=sys.stderr)
        return "cpu"
    return "gpu" if there else "cpu"


def _torch_sees_it() -> bool:
    """In a process of its own, so that this one need not import torch."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return not subprocess.run([sys.executable, "-c", code], capture_output=True).returncode


def _has_gpu() -> bool:
    listing, first = machine.nvidia_smi("-L"), _first_visible()
    if first.isdigit():
        return int(first) < len(re.findall(r"^GPU \d", listing, re.MULTILINE))
    return first.startswith(("GPU-", "MIG-")) and first in listing


def capability() -> int | None:
    """The first visible GPU's compute capability, as in 90; None where nvidia-smi won't say."""
    shown = machine.nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader",
                               "-i", _first_visible())
    found = re.match(r"(\d+)\.(\d)", shown)
    return int(found[1] + found[2]) if found else None


def _first_visible() -> str:
    """An index or a UUID; "" or "-1" hide all GPUs."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def _output_folder(out: str | Path | None, notebooks: Path) -> Path:
    """The folder for the report, made and proved writable. Raises BadArgument."""
    folder = Path(out or Path("runs") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".labkit-probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise BadArgument(f"The output folder {folder} cannot be written ({error.strerror}); "
                          "choose another one with --out.") from error
    if folder.resolve() == notebooks.resolve():
        raise BadArgument(f"The output folder {folder} is the lessons' own, and would overwrite "
                          "them; choose another one with --out.")
    return folder


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    try:
        from labkit.environment import versions

        return versions()
    except Exception as error:  # a broken package belongs in the report, and must not prevent it
        return {"unknown": f"{type(error).__name__}: {error}"}
