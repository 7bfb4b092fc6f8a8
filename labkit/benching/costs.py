"""What learning costs, in seconds: importing the kit, an autotuning of 40 schedules, all lessons.

Limits: `import labkit` 0.3 s; the search of lesson 07, compiled anew, 60 s on an H200; `make run`
without a GPU 480 s on two cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from labkit.errors import LabError

LIMITS = {"cost_import": 0.3, "cost_autotune": 60.0, "cost_run": 480.0}
WORDS = {"cost_import": "`import labkit`",
         "cost_autotune": "the search of lesson 07, compiled anew",
         "cost_run": "`labkit run`, all lessons on the CPU"}
_IMPORTS = 5


def measure(name: str, device: str) -> dict[str, Any]:
    """{"name", "seconds", "limit", "note"} of one cost. Raises LabError if it could not be
    measured."""
    seconds, note = {"cost_import": _import, "cost_autotune": _autotune,
                     "cost_run": _run}[name](device)
    return {"name": name, "seconds": seconds, "limit": LIMITS[name], "note": note,
            "cores": os.cpu_count()}


def _import(device: str) -> tuple[float, str]:
    code = "import time; t = time.perf_counter(); import labkit; print(time.perf_counter() - t)"
    times = []
    for _ in range(_IMPORTS):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        if done.returncode:
            raise LabError(f"import labkit failed: {done.stderr.strip().splitlines()[-1]}")
        times.append(float(done.stdout))
    return statistics.median(times), f"median of {_IMPORTS} new processes"


def _autotune(device: str) -> tuple[float, str]:
    """In a process of its own, since TileLang finds its cache when it is imported."""
    with tempfile.TemporaryDirectory(prefix="labkit-tune-") as folder:
        result = Path(folder, "result")
        fresh = {"TILELANG_CACHE_DIR": f"{folder}/tilelang", "LABKIT_CACHE_DIR": f"{folder}/labkit"}
        code = ("import sys; from labkit.benching.costs import search; "
                "open(sys.argv[1], 'w').write(search())")
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code, str(result)],
                              env=os.environ | fresh, stdout=sys.stdout, stderr=sys.stderr)
        whole = time.perf_counter() - start
        if done.returncode:
            raise LabError("The search of lesson 07 failed; its output above says why.")
        steps, timed = json.loads(result.read_text())
    words = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in steps.items())
    return sum(steps.values()), (f"{timed} schedules timed: {words}; {whole:.0f} s with the start "
                                 "of Python and the imports")


def search() -> str:
    """Lesson 07's search on the GPU: seconds of each step, and how many schedules were timed, as
    JSON."""
    from labkit import lessons
    from labkit.benching import slicing

    lesson = lessons.find("07")
    target = next(cell.id for cell in lesson.notebook.cells if cell.cell_type == "code"
                  and "lab.tune" in cell.source and "gemm_tuned" in cell.source)
    space: dict[str, Any] = {"__name__": "labkit.bench_tune", "display": print}
    for cell in slicing.cells_for(lesson, target):
        lessons.execute(cell.source, f"<{lesson.stem} {cell.id}>", space)
        if "parameters" in cell.metadata.get("tags", []):
            space["device"] = "gpu"
    found = space["tuning"]
    return json.dumps([found.seconds, len(found.ranked)])


def _run(device: str) -> tuple[float, str]:
    with tempfile.TemporaryDirectory(prefix="labkit-run-") as folder:
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "labkit", "run", "--device", "cpu", "--out",
                               f"{folder}/run"], stdout=sys.stdout, stderr=sys.stderr)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise LabError("A lesson failed; the output above says which.")
        lessons = len(list(Path(folder, "run").glob("*.ipynb")))
    return seconds, f"{lessons} lessons on {os.cpu_count()} cores"
