"""Runs lessons, several at once where that is asked for, survives what they do, and reports.

Each lesson runs in a process of its own (`supervise.py`). Its failure, time-out or kernel death is
its result; the others go on, and the report on disk is valid at all times: what a killed run had
reached, `resume` takes up.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from labkit import __version__, earlier_run, gpus, lessons, parameters, processes, run_folder
from labkit.attempts import Plan, attempt
from labkit.devices import resolve_device, visible_gpus
from labkit.errors import BadArgument, LabError
from labkit.live import Live
from labkit.report import Result, RunReport
from labkit.supervise import Stop

TIMEOUT = 900.0  # seconds a lesson


def run(names: Sequence[str] = (), *, device: str = "auto", gpu: str = "", quick: bool = False,
        out: str | Path | None = None, timeout: float = TIMEOUT, total: float | None = None,
        retries: int = 0, jobs: int = 1, parameter_file: str | Path | None = None,
        resume: bool = False, folder: Path | None = None) -> RunReport:
    """Runs the lessons called `names` (none: all) and returns the report, which is on disk too.

    `timeout` is in seconds a lesson, `total` for the whole run. A lesson that fails is run again
    `retries` times. `jobs` lessons run at once, on a GPU never more than there are GPUs. `out` is
    made if it is not there. `parameter_file` is described in `labkit.parameters`. With `resume`
    the run in `out` (none: the newest) is taken up with its own settings, and what passed is not
    run again; where there is none yet, it begins.

    Raises LabError for bad input. Nothing that a lesson does raises, and after Ctrl-C the report
    says what was left out.
    """
    _check_limits(timeout, total, retries, jobs)
    folder = folder or lessons.directory()
    given = {"device": device, "gpu": gpu, "quick": quick}
    file = parameters.read(parameter_file) if parameter_file is not None else None
    asked = (names, given, file, str(parameter_file))
    if not resume:
        settings = _settings(*asked, folder, None)  # bad input is said before a folder is made
    with run_folder.claimed(out, folder, resume) as target:
        earlier = _earlier(target) if resume else None
        if resume:
            settings = _settings(*asked, folder, earlier)
        chosen, options, own = settings
        stop = Stop(total=total)
        start = time.monotonic()
        slots = _slots(options["device"], jobs)
        report = RunReport(
            target, earlier.started if earlier else _now(), options["device"], options["gpu"],
            options["quick"], __version__, _versions(), parameters=own,
            chosen=[lesson.stem for lesson in chosen],
            id=earlier.id if earlier else uuid.uuid4().hex, limits={
                "timeout": timeout, "total": total, "retries": retries, "jobs": len(slots)})
        begun = datetime.now().astimezone()
        kept = _kept(earlier, report, chosen, target)
        if earlier:
            report.resumed = [*earlier.resumed, begun.isoformat(timespec="seconds")]
            processes.end_leftovers(earlier.id)
        plan = Plan(report.id, options, own, target, timeout, retries,
                    max(1, (os.cpu_count() or 1) // len(slots)) if len(slots) > 1 else None)
        _run_all(chosen, kept, plan, slots, stop, report)
        report.interrupted = bool(stop.interrupted)
        # not the clock's own time, which may have been set meanwhile
        report.finished = (begun + timedelta(seconds=time.monotonic() - start)).isoformat(
            timespec="seconds")
        report.write()
    return report


def _check_limits(timeout: float, total: float | None, retries: int, jobs: int) -> None:
    for name, value in (("timeout", timeout), ("total", total)):
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise BadArgument(f"{name} is {value!r}; it takes a number of seconds above 0.")
    for name, number, least in (("retries", retries, 0), ("jobs", jobs, 1)):
        if type(number) is not int or number < least:
            raise BadArgument(f"{name} is {number!r}; it takes a whole number of at least {least}.")


def _earlier(target: Path) -> earlier_run.Earlier | None:
    earlier = earlier_run.load(target)
    if earlier and (earlier.labkit, earlier.versions) != (__version__, versions := _versions()):
        changed = [name for name in sorted({*versions, *earlier.versions})
                   if versions.get(name) != earlier.versions.get(name)] or ["labkit"]
        raise BadArgument(f"The run in {target} was made with other versions ({changed[0]}: "
                          f"{earlier.versions.get(changed[0], earlier.labkit)!r}), and one report "
                          "cannot hold both; leave out --resume.")
    return earlier


def _settings(names: Sequence[str], given: dict[str, Any], file: dict[str, Any] | None,
              file_name: str, folder: Path, earlier: earlier_run.Earlier | None,
              ) -> tuple[list[lessons.Lesson], dict[str, Any], dict[str, dict[str, Any]]]:
    """The lessons, the options and the parameters that are each lesson's own. Raises LabError."""
    found = [lessons.find(name, folder) for name in names]
    if not found and not earlier:
        found = lessons.all_lessons(folder)
    chosen = list(dict.fromkeys(found))
    if not earlier:
        if not chosen:
            raise LabError(f"There are no lessons in {folder}; set LABKIT_NOTEBOOKS to the folder "
                           "that holds them.")
        options = {**given, "device": resolve_device(given["device"])}
        if given["gpu"]:
            gpus.lookup(given["gpu"])
        return chosen, options, parameters.check(file or {}, chosen, folder, file_name)
    there = {lesson.stem: lesson for lesson in lessons.all_lessons(folder)}
    gone = [stem for stem in earlier.lessons if stem not in there]
    if gone:
        raise BadArgument(f"The run to resume has the lesson {gone[0]!r}, which is not in {folder};"
                          " leave out --resume.")
    planned = [there[stem] for stem in dict.fromkeys(earlier.lessons)]
    own = parameters.check(earlier.parameters, planned, folder, "The report of the run to resume")
    before = {"device": earlier.device, "gpu": earlier.gpu, "quick": earlier.quick}
    told = {name: resolve_device(value) if name == "device" else value
            for name, value in given.items() if value not in ("auto", "", False)}
    differ = [name for name, value in told.items() if value != before[name]]
    if chosen and set(chosen) != set(planned):
        differ.append("choice of lessons")
    if file is not None and parameters.check(file, planned, folder, file_name) != own:
        differ.append("parameters")
    if differ:
        raise BadArgument(f"The run to resume was started otherwise ({differ[0]}); leave that out, "
                          "or leave out --resume.")
    resolve_device(earlier.device)  # its GPU must still be there
    return planned, before, own


def _slots(device: str, jobs: int) -> list[str | None]:
    """One entry for each lesson that may run at a time: the GPU that it has to itself, or None."""
    if device == "cpu" or jobs == 1:
        return [None] * jobs
    there = visible_gpus()
    if len(there) < jobs:
        print(f"labkit: {jobs} lessons at once need {jobs} GPUs, and here are {len(there)}, so "
              f"{len(there)} run at once.", flush=True)
    return list(there[:jobs])


def _kept(earlier: earlier_run.Earlier | None, report: RunReport, chosen: Sequence[lessons.Lesson],
          target: Path) -> dict[str, Result]:
    if not earlier:
        return {}
    found = {lesson.stem: earlier.kept(lesson.path, target) for lesson in chosen}
    return {stem: result for stem, result in found.items() if result}


def _run_all(chosen: Sequence[lessons.Lesson], kept: dict[str, Result], plan: Plan,
             slots: Sequence[str | None], stop: Stop, report: RunReport) -> None:
    """Runs what is not kept, and reports after each; all of `chosen` are in the report then."""
    done = dict(kept)

    def write() -> bool:
        report.lessons = [done[one.stem] for one in chosen if one.stem in done]
        report.waiting = [one.stem for one in chosen if one.stem not in done]
        return report.write()

    if not write():
        raise LabError(report.unwritten)
    free: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for slot in slots:
        free.put(slot)
    live = Live(len(chosen))

    def one(lesson: lessons.Lesson) -> Result:
        slot = free.get()
        try:
            return attempt(lesson, plan, slot, stop, live.started)
        finally:
            free.put(slot)

    live.kept(len(kept))
    left = [lesson for lesson in chosen if lesson.stem not in done]
    with _signals(stop), futures.ThreadPoolExecutor(len(slots)) as pool:
        pending = {pool.submit(one, lesson) for lesson in left}
        try:
            while pending:
                ended, pending = futures.wait(pending, timeout=0.25,
                                              return_when=futures.FIRST_COMPLETED)
                for result in sorted((future.result() for future in ended),
                                     key=lambda result: result.lesson):
                    done[result.lesson] = result
                    write()
                    live.ended(result)
                live.tick()
        finally:
            stop.interrupted += bool(pending)  # something raised: nothing is left running
            live.close()


@contextmanager
def _signals(stop: Stop) -> Iterator[None]:
    """Ctrl-C, a polite kill and a closed terminal end the run in order, at the second time in a
    hurry. They raise nothing, so no report is cut off by them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(*_: Any) -> None:
        stop.interrupted += 1

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            before[number] = signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    try:
        from labkit.environment import versions

        return versions()
    except Exception as error:  # a broken package belongs in the report, and must not prevent it
        return {"unknown": f"{type(error).__name__}: {error}"}
