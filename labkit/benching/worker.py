"""A process that runs cases: the cells of the lessons, without a notebook.

    python -m labkit.benching.worker FD

reads requests from standard input, one line of JSON each, and writes an answer for each to the
file descriptor FD; what the lessons print goes to standard output. A request is

    {"name", "places": [[lesson, cell], …], "parameters", "device", "quick", "mode", "part": [i, n]}

with the mode "measure" (timed by `lab.bench`), "prepare" (everything is compiled and run once,
nothing is timed; of several shapes every n-th) or "check" (a kernel's output is compared, nothing
is timed: without a GPU). With a `kind` it is for a file of its own, of that kind; with a true
`cost`, for one of `labkit.benching.costs`. The answer holds `status` ("done", "left out" where the
lesson does not time this name on this GPU, or "failed"), `reason`, `seconds`, `lines` (what
`labkit.results.append` wrote), `files` (kind-name -> content), `checks`, and `broken`: whether the
GPU's context is lost.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import math
import os
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit import benchmark, environment, lessons
from labkit.benching import slicing
from labkit.errors import LabError, WrongAnswer, first_line
from labkit.results import Measurement


def main(descriptor: int) -> None:
    """Answers requests until standard input ends."""
    for module in ("torch", "tilelang"):  # in this order, while other processes still compile
        importlib.import_module(module)
    environment.versions = functools.cache(environment.versions)  # they stay while it runs
    with os.fdopen(descriptor, "w") as answers:
        for line in sys.stdin:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Runs one case; nothing that it does raises."""
    start, found = time.perf_counter(), {"status": "done", "reason": "", "lines": [], "checks": []}
    with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
        record = Path(folder, "lines.jsonl")
        os.environ["LABKIT_RECORD"] = str(record)
        try:
            if request.get("cost"):
                from labkit.benching import costs

                found["cost"] = costs.measure(request["name"], request["device"])
            else:
                found["status"] = _run(request, record, found["checks"])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            traceback.print_exc()
            found.update(status="failed", reason=_reason(error))
        if record.exists():
            found["lines"] = record.read_text().splitlines()
        found["files"] = {path.stem: path.read_text() for path in Path(folder).glob("*.json")}
    found["broken"] = _clean_up(request["device"])
    found["seconds"] = time.perf_counter() - start
    sys.stdout.flush()
    return found


def _reason(error: BaseException) -> str:
    kind = "" if isinstance(error, LabError) else f"{type(error).__name__}: "
    return kind + first_line(error)[:500]


def _run(request: dict[str, Any], record: Path, checks: list[dict[str, Any]]) -> str:
    """Runs the cells that may measure the name until one has; returns the status. Raises what a
    cell raises, and LabError if none measures it."""
    skipped: list[str] = []
    for lesson, cell in request["places"]:
        reported: list[str] = []
        _run_cell(lesson, cell, request, checks, reported, skipped)
        if record.exists():
            reported += [json.loads(line)["measurement"]["name"]
                         for line in record.read_text().splitlines()]
        if kind := request.get("kind"):
            reported = [request["name"]] * (
                record.with_name(f"{kind}-{request['name']}.json").exists())
        if request["mode"] == "check":
            reported = [check["name"] for check in checks]
        if request["name"] in reported:
            return "done"
    if request["name"] in skipped:
        return "left out"
    if request["mode"] == "prepare":  # a part without a shape
        return "done"
    where = ", ".join(f"{cell} of {lesson}" for lesson, cell in request["places"])
    did = {"measure": "measured", "check": "compared"}[request["mode"]]
    raise LabError(f"{where} {did} nothing called {request['name']!r}; call lab.bench with "
                   "that name there, also where there is no GPU.")


def _run_cell(lesson: str, target: str, request: dict[str, Any], checks: list[dict[str, Any]],
              reported: list[str], skipped: list[str]) -> None:
    found = lessons.find(lesson)
    space: dict[str, Any] = {"__name__": f"labkit.bench_{found.stem}", "display": print}
    part, parts = request.get("part", [0, 1])
    stand_in = {
        "measure": lambda: benchmark.standing_in(functools.partial(_measure, skipped)),
        "check": lambda: benchmark.standing_in(functools.partial(_check, checks)),
        "prepare": lambda: benchmark.standing_in(functools.partial(_prepare, reported),
                                                 lambda shapes: shapes[part::parts]),
    }[request["mode"]]
    for cell in slicing.cells_for(found, target):
        with stand_in() if cell.id == target else benchmark.standing_in(_no_times, lambda _: []):
            lessons.execute(cell.source, f"<{found.stem} {cell.id}>", space)
        if "parameters" in cell.metadata.get("tags", []):
            _set(space, request, found.stem)
    if request["mode"] == "check":
        _own_verdicts(space, checks)


def _set(space: dict[str, Any], request: dict[str, Any], stem: str) -> None:
    unknown = [name for name in request["parameters"] if name not in space]
    if unknown:
        raise LabError(f"Lesson {stem} has no parameter {unknown[0]!r}; correct "
                       "labkit/benching/cases.py.")
    space.update(request["parameters"], device=request["device"], quick=request["quick"])


def _result(asked: dict[str, Any]) -> benchmark.Result:
    """What a cell gets where nothing was timed: no figure in it is a number."""
    nan = math.nan
    m = Measurement(asked["name"], dict(asked["shape"]), asked["dtype"], nan, nan, nan, nan,
                    baselines=dict.fromkeys(asked["baselines"], nan),
                    references=dict.fromkeys(asked["references"], nan))
    return benchmark.Result(m, "", "", measured_now=False)


def _no_times(**asked: Any) -> benchmark.Result:
    return _result(asked)


def _measure(skipped: list[str], **asked: Any) -> benchmark.Result:
    """`lab.bench` itself, unless the lesson asks it for the recorded figures."""
    if asked["here"].device != "gpu":
        skipped.append(asked["name"])
        return _result(asked)
    with benchmark.standing_in(None):
        return benchmark.bench(asked.pop("name"), asked.pop("here"), **asked)


def _prepare(reported: list[str], **asked: Any) -> benchmark.Result:
    """Runs each candidate once, which compiles what is not compiled yet."""
    reported.append(asked["name"])
    if asked["here"].device == "gpu":
        import torch

        for call in (asked["kernel"], *asked["baselines"].values(),
                     *asked["references"].values()):
            call()
        torch.cuda.synchronize()
    return _result(asked)


def _check(checks: list[dict[str, Any]], **asked: Any) -> benchmark.Result:
    """Runs the kernel alone and compares its output. Raises WrongAnswer."""
    asked["output"].fill_(math.nan)
    asked["kernel"]()
    verdict = asked["check"]()
    if not verdict.ok:
        raise WrongAnswer(repr(verdict))
    checks.append(_line(asked["name"], "", verdict))
    return _result(asked)


def _own_verdicts(space: dict[str, Any], checks: list[dict[str, Any]]) -> None:
    """What the cells compared without `lab.bench`, which times on a GPU only: the verdicts of
    `labkit.epilogue.compare`'s results, alone or in a list."""
    for value in list(space.values()):
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(verdicts := getattr(one, "verdicts", None), tuple):
                checks += [_line(one.name, verdict.name, verdict) for verdict in verdicts]


def _line(name: str, output: str, verdict: Any) -> dict[str, Any]:
    return {"name": name, "output": output, "dtype": verdict.dtype, "elements": verdict.size,
            "error": verdict.error, "allowed": verdict.allowed}


def _clean_up(device: str) -> bool:
    """Frees what the case held; True if the GPU can no longer be used by this process."""
    gc.collect()
    if "torch" not in sys.modules:
        return False
    import torch

    if device != "gpu":
        return False
    if "torch._dynamo" in sys.modules:
        with suppress(Exception):
            torch._dynamo.reset()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    except Exception:  # an illegal access, say, and all that follows fails, too
        traceback.print_exc()
        return True
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]))
