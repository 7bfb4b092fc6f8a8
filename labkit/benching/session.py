"""One run of `labkit bench`: prepare in many processes, measure in one, keep after each case."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labkit import environment, machine
from labkit.benching import cases
from labkit.benching.cases import Case
from labkit.benching.report import GOOD, Report, read, replace
from labkit.benching.workers import Worker, ask_all
from labkit.devices import resolve_device, visible_gpus
from labkit.errors import BadArgument

TIMEOUT = 300.0  # seconds a case
_ALL_LESSONS = 3600.0  # seconds for `labkit run`
_MEMORY = 8 << 10  # MiB of the GPU's memory for each process that prepares
# Processes that prepare compile at once already
_QUIET = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TILELANG_PRINT_ON_COMPILATION": "0"}


def run(only: Sequence[str] = (), *, out: str | Path, device: str = "auto", quick: bool = False,
        everything: bool = False, resume: bool = False, jobs: int | None = None,
        timeout: float = TIMEOUT, tell: Callable[[str], None] = print) -> int:
    """Measures the names in `only` (none: all) and writes `out` after each case. Without a GPU each
    kernel is checked at a small size, and nothing is timed.

    quick: small sizes, each name once. everything: also the lessons' tables, plans and sweeps, each
    into a file beside `out`. resume: what `out` has of an earlier run is not measured again. jobs:
    processes that compile ahead (None: one a core; 0: none). timeout: seconds a case.
    With `only`, what `out` has of the same GPU and versions stays in it.
    Returns 0, or 1 if a case failed or a cost is above its limit. Raises BadArgument for bad input.
    """
    device = resolve_device(device)
    todo = cases.chosen(only, quick=quick, device=device, everything=everything)
    path = Path(out).absolute()
    if not path.parent.is_dir():
        raise BadArgument(f"--out names a file in {path.parent}, which is not a folder; make it, "
                          "or choose another.")
    report = _begin(path, device, quick, bool(only), resume)
    left = [case for case in todo if not (resume and report.done(case))]
    if len(left) < len(todo):
        tell(f"{len(todo) - len(left)} of {len(todo)} cases are in {path.name} already")
    start, before = time.monotonic(), report.seconds

    def write() -> None:
        report.seconds = before + time.monotonic() - start
        report.write()

    failed = []
    with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
        worker = Worker(Path(folder, "measure.log"), _QUIET)
        try:
            if device == "gpu" and jobs != 0:
                worker.start()
                _prepare(left, quick, _processes(jobs), Path(folder), timeout, tell)
            for place, case in enumerate(left, 1):
                if report.measured_already(case):
                    write()
                    tell(f"[{place}/{len(left)}] {case}: {report.cases[case.key]['status']}, "
                         "in the cell of another name")
                    continue
                limit = max(timeout, _ALL_LESSONS) if case.name == "cost_run" else timeout
                answer = worker.ask(_request(case, device, quick), limit)
                status = report.add(case, answer)
                for stem, content in answer["files"].items():
                    if case.kind:
                        replace(path.with_name(f"{path.stem}-{stem}.json"), content)
                write()
                tell(f"[{place}/{len(left)}] {case}: {status}, {answer['seconds']:.0f} s"
                     + (f"\n    {answer['reason']}" if status == "failed" else ""))
                if status == "failed":
                    failed.append((case, answer))
        finally:
            worker.close()
    report.complete = all(case["status"] in GOOD for case in report.cases.values())
    write()
    tell(f"\n{report.table()}")
    for case, answer in failed:
        tell(f"\nFAILED {case}: {answer['reason']}")
        for line in answer.get("tail", []):
            tell(f"    {line}")
    asked, over = {case.name for case in todo}, False
    for cost in report.costs:
        above = cost["seconds"] > cost["limit"]
        over |= above and cost["name"] in asked
        tell(f"\n{'ABOVE ITS LIMIT ' if above else ''}{cost['name']}: {cost['seconds']:.2f} s, "
             f"limit {cost['limit']:g} s ({cost['note']})")
    tell(f"\n{len(todo) - len(failed)} of {len(todo)} cases in {report.seconds:.0f} s; {path}")
    return 1 if failed or over else 0


def _begin(path: Path, device: str, quick: bool, part: bool, resume: bool) -> Report:
    """The report to go on with. Raises BadArgument if `path` holds what must not be lost."""
    report = Report(path, device, quick, environment.versions())
    there = read(path)
    if there is None:
        return report
    theirs = "cpu" if there.get("device") == "cpu" else "gpu"
    if theirs != device:
        kind = "the times of a GPU" if theirs == "gpu" else "checks on a CPU"
        raise BadArgument(f"{path} holds {kind}; choose another --out.")
    if not (part or resume):
        return report
    changed = [name for name in {**there["versions"], **report.versions}
               if there["versions"].get(name) != report.versions.get(name)]
    if changed:
        raise BadArgument(f"{path} was measured with another {changed[0]} "
                          f"({there['versions'].get(changed[0])!r}), and one file holds one set of "
                          "versions; choose another --out, or measure all names anew.")
    if resume and there.get("bench", {}).get("quick", quick) != quick:
        raise BadArgument(f"{path} was {'' if quick else 'not '}measured at full sizes; "
                          f"{'leave out' if quick else 'add'} --quick, or leave out --resume.")
    report.take_up(there)
    return report


def _request(case: Case, device: str, quick: bool, mode: str = "") -> dict[str, Any]:
    return {"name": case.name, "places": [[p.lesson, p.cell] for p in case.places],
            "parameters": case.parameters, "device": device, "quick": quick, "cost": case.cost,
            "kind": case.kind,
            "mode": mode or ("measure" if device == "gpu" else "check")}


def _prepare(left: Sequence[Case], quick: bool, jobs: int, folder: Path, timeout: float,
             tell: Callable[[str], None]) -> None:
    """Compiles everything into the caches of TileLang, PyTorch and Triton. What fails here fails
    again, and is reported, where it is measured."""
    chains: list[list[dict[str, Any]]] = [[]]
    seen = set()
    for case in left:
        cells = (case.places, str(case.parameters))
        if case.cost or case.kind or cells in seen:
            continue
        seen.add(cells)
        request = _request(case, "gpu", quick, "prepare")
        parts = cases.PARTS.get(case.name, 1)
        if case.heavy:
            chains[0].append(request)
        else:
            chains += [[request | {"part": [i, parts]}] for i in range(parts)]
    chains = [chain for chain in chains if chain]
    jobs = min(jobs, len(chains))
    if not jobs:
        return
    total, start, count = sum(map(len, chains)), time.monotonic(), [0, 0]

    def told(request: dict[str, Any], answer: dict[str, Any]) -> None:
        count[0] += 1
        count[1] += answer["status"] == "failed"

    tell(f"compiling ahead: {total} cases in {jobs} processes")
    ask_all(chains, jobs, folder, timeout, _QUIET, told)
    tell(f"compiled in {time.monotonic() - start:.0f} s"
         + (f"; {count[1]} of {total} did not get to the end" if count[1] else ""))


def _processes(jobs: int | None) -> int:
    """How many processes the cores and the GPU's memory carry, or as asked for."""
    if jobs is not None:
        return jobs
    gpu = next(iter(visible_gpus()), "0")
    shown = machine.nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i",
                               gpu)
    found = re.match(r"\s*(\d+)", shown)
    most = int(found[1]) // _MEMORY if found else 1
    return max(1, min(os.cpu_count() or 1, most))


