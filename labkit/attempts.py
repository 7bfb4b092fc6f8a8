"""One lesson of a run: whether it can run here, its attempts, and the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import devices, earlier_run, lessons, supervise
from labkit.errors import LabError
from labkit.executed import problem
from labkit.report import BAD, Result


@dataclass(frozen=True)
class Plan:
    """What all lessons of a run have in common. options: device, gpu and quick; own: the
    parameters of single lessons, by stem; timeout: seconds a lesson; threads: of the processor's,
    for each of several lessons at once."""

    run: str
    options: dict[str, Any]
    own: dict[str, dict[str, Any]]
    folder: Path
    timeout: float
    retries: int
    threads: int | None


def attempt(lesson: lessons.Lesson, plan: Plan, gpu: str | None, stop: supervise.Stop,
            started: Callable[[str], None]) -> Result:
    """Runs one lesson, again where it fails and the plan allows it, and never raises."""
    result = Result(lesson.stem, device=plan.options["device"])
    if stop.reason:
        result.status, result.reason, result.left_out = "skipped", stop.reason, True
        return result
    started(lesson.stem)
    start = time.monotonic()
    for number in range(1, plan.retries + 2):
        _run(lesson, result, plan, gpu, stop)
        if result.status not in BAD or stop.reason or number > plan.retries:
            break
        result.attempts = [*(result.attempts or []), result.error]
        for path in (plan.folder / lesson.path.name, _log(plan, lesson)):
            with suppress(OSError):
                path.rename(path.with_name(f"{path.stem}.attempt-{number}{path.suffix}"))
        result.status, result.error = "passed", None
    if result.status != "skipped":
        result.seconds = round(time.monotonic() - start, 2)
    return result


def _run(lesson: lessons.Lesson, result: Result, plan: Plan, gpu: str | None,
         stop: supervise.Stop) -> None:
    try:
        result.source = earlier_run.digest(lesson.path)
        result.title = str(lesson.front_matter["title"])
        result.reason = _skip_reason(lesson, plan.options["device"], gpu)
        if result.reason:
            result.status = "skipped"
            return
        _require_name(lesson)
        _require_parameters(lesson)
        _require_python(lesson)
        copy, log = plan.folder / lesson.path.name, _log(plan, lesson)
        ended = supervise.execute(supervise.Job(
            lesson.path, copy, log, {**plan.own.get(lesson.stem, {}), **plan.options},
            plan.timeout, plan.run, gpu, plan.threads), stop)
        result.status, result.error = ended.status, ended.error
        result.notebook = copy.name if copy.exists() else None
        result.log = f"logs/{log.name}" if log.exists() else None
    except Exception as error:  # whatever a broken notebook raises must not stop the others
        message = (str(error) if isinstance(error, LabError) else
                   f"{lesson.path.name} cannot be run ({type(error).__name__}: {error}); "
                   "restore it from the repository.")
        result.status, result.error = "failed", problem(type(error).__name__, message)


def _log(plan: Plan, lesson: lessons.Lesson) -> Path:
    return plan.folder / "logs" / f"{lesson.stem}.log"


def _skip_reason(lesson: lessons.Lesson, device: str, gpu: str | None) -> str | None:
    matter = lesson.front_matter
    if device == "cpu":
        return "needs a GPU, and this run is on the CPU" if matter["gpu"] == "required" else None
    here = devices.capability(gpu) if matter["min_sm"] else None
    if here is not None and here < matter["min_sm"]:
        return f"needs sm_{matter['min_sm']}, and the GPU here is sm_{here}"
    return None


def _require_name(lesson: lessons.Lesson) -> None:
    try:
        lesson.stem.encode()
    except UnicodeEncodeError as error:
        raise LabError(f"{lesson.path.name!a} cannot be written into its copy, as its name "
                       "is not UTF-8; rename it.") from error


def _require_parameters(lesson: lessons.Lesson) -> None:
    # papermill only warns, and the lesson would run with other settings than the report says
    if not any(cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", [])
               for cell in lesson.notebook.cells):
        raise LabError(f"{lesson.path.name} has no code cell tagged 'parameters'; "
                       "tag the cell that sets device, gpu and quick.")


def _require_python(lesson: lessons.Lesson) -> None:
    """A kernel of another name is no matter, for all lessons run in this Python."""
    spec = lesson.notebook.metadata.get("kernelspec", {})
    info = lesson.notebook.metadata.get("language_info", {})
    for language in (spec.get("language"), info.get("name")):
        if language is not None and str(language).lower() not in ("python", "ipython"):
            raise LabError(f"{lesson.path.name} is written in {str(language)[:40]!r}; lessons are "
                           "Python notebooks, so choose a Python kernel for it.")
