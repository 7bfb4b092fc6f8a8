"""The file that `labkit bench` writes, whole after each case.

Of a GPU it is a results file as `labkit.results` describes it. Without one it has `device`: "cpu",
no times, and `checks`: a list of {name, output, dtype, elements, error, allowed}; no lesson shows
it as a GPU's. Both have

* `bench`: `device`, `quick`, `started`, `seconds` (of all runs that made the file), `complete` (the
  run came to its end, and no case is left that failed), and
  `cases`: a list of {key, name, parameters, lessons, status, reason, seconds}, the status one of
  "measured", "checked", "left out" (the lesson does not time it on this GPU) and "failed"
* `costs`: a list of {name, seconds, limit, note, cores, date} (see `labkit.benching.costs`)
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit import results
from labkit.benching.cases import Case
from labkit.errors import BadArgument, LabError
from labkit.table import Table

_WHICH = ("name", "output", "dtype", "elements")  # of a check: what was compared
GOOD = ("measured", "checked", "left out")


class Report:
    """What was measured so far; `write` brings it onto the disk."""

    def __init__(self, path: Path, device: str, quick: bool, versions: dict[str, str]) -> None:
        self.path, self.device, self.quick, self.versions = path, device, quick, versions
        self.started = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        self.lines: list[str] = []
        self.checks: list[dict[str, Any]] = []
        self.costs: list[dict[str, Any]] = []
        self.cases: dict[str, dict[str, Any]] = {}
        self.fresh: set[str] = set()  # names that this run has measured
        self.seconds = 0.0
        self.complete = False

    def take_up(self, data: dict[str, Any]) -> None:
        """Goes on from a file that a bench wrote."""
        for m in data.get("measurements", []):
            self.lines.append(json.dumps({
                "gpu": data["gpu"], "date": m.get("date") or data["date"],
                "versions": data["versions"], "floors": data["floors"], "measurement": m}))
        bench = data.get("bench", {})
        self.checks, self.costs = list(data.get("checks", [])), list(data.get("costs", []))
        self.cases = {case["key"]: case for case in bench.get("cases", [])}
        self.started = bench.get("started", self.started)
        self.seconds = float(bench.get("seconds", 0))

    def done(self, case: Case) -> bool:
        return self.cases.get(case.key, {}).get("status") in GOOD

    def measured_already(self, case: Case) -> bool:
        """Whether another case of this run, whose cell measures several names, has measured this
        one: then it is not run again."""
        if case.name not in self.fresh or case.parameters or any(p.sure for p in case.places):
            return False
        self._keep(case, "measured" if self.device == "gpu" else "checked",
                   "in the cell of another name", 0.0)
        return True

    def add(self, case: Case, answer: dict[str, Any]) -> str:
        """Keeps an answer of the worker; returns the case's status."""
        status, reason = answer["status"], answer["reason"]
        if status == "done":
            status = "checked" if answer["checks"] else "measured"
        self.lines += answer["lines"]
        self.fresh |= {json.loads(line)["measurement"]["name"] for line in answer["lines"]}
        self.fresh |= {check["name"] for check in answer["checks"]}
        made = {tuple(check[key] for key in _WHICH): check
                for check in [*self.checks, *answer["checks"]]}
        self.checks = list(made.values())
        if "cost" in answer:
            self.costs = [c for c in self.costs if c["name"] != case.name]
            self.costs.append(answer["cost"] | {"date": str(datetime.date.today())})
        self._keep(case, status, reason, answer["seconds"])
        return status

    def _keep(self, case: Case, status: str, reason: str, seconds: float) -> None:
        self.cases[case.key] = {
            "key": case.key, "name": case.name, "parameters": case.parameters,
            "lessons": sorted({place.lesson for place in case.places}), "status": status,
            "reason": reason, "seconds": round(seconds, 1)}

    def data(self) -> dict[str, Any]:
        """The file's content."""
        if self.lines:
            head = results.assemble(self.lines)
            order = list(dict.fromkeys(case["name"] for case in self.cases.values()))
            head["measurements"].sort(key=lambda m: order.index(m["name"])
                                      if m["name"] in order else len(order))
        else:
            head = {"device": self.device, "date": str(datetime.date.today()),
                    "versions": self.versions}
        if self.device == "cpu":
            head["checks"] = self.checks
        return {**head, "costs": self.costs,
                "bench": {"device": self.device, "quick": self.quick, "started": self.started,
                          "seconds": round(self.seconds, 1), "complete": self.complete,
                          "cases": list(self.cases.values())}}

    def write(self) -> None:
        """Replaces the file at once or not at all. Raises BadArgument if it cannot be written, and
        LabError if a lesson could not read it."""
        content = json.dumps(self.data(), indent=1, allow_nan=False) + "\n"
        replace(self.path, content, results.load if self.lines else None)

    def table(self) -> Table:
        """What was measured or checked, a line each."""
        data = self.data()
        if self.device == "cpu":
            rows = [[c["name"], c["output"], c["dtype"], f"{c['elements']:,}", f"{c['error']:.1e}",
                     f"{c['allowed']:.0e}"] for c in self.checks]
            return Table("Checked on the CPU; nothing was timed",
                         ["name", "output", "dtype", ">elements", ">error", ">allowed"], rows)
        rows = []
        for m in data.get("measurements", []):
            best, ratio = results.measurement(m).fastest_other or ("", None)
            rows.append([m["name"], " x ".join(f"{n:,}" for n in m["shape"].values()), m["dtype"],
                         f"{m['kernel_ms']:.4f}", f"{m['spread_ms']:.4f}",
                         f"{ratio:.3f}" if ratio else "", best, f"{m['error']:.1e}"])
        return Table(f"Measured on {data.get('gpu', 'no GPU')}",
                     ["name", "shape", "dtype", ">ms", ">spread", ">ratio", "of the fastest other",
                      ">error"], rows,
                     "Ratio: the fastest other's time over the kernel's; above 1 the kernel leads.")


def read(path: Path) -> dict[str, Any] | None:
    """A file that a bench wrote, or another results file; None if there is none. Raises BadArgument
    if it is neither."""
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text())
        if not isinstance(data, dict) or not isinstance(data["versions"], dict):
            raise ValueError("it has no versions")
        if data.get("measurements"):
            results.load(path)
        return data
    except (OSError, ValueError, KeyError, LabError) as error:
        raise BadArgument(f"{path} is no file of labkit bench ({error}); choose another --out, or "
                          "remove it.") from error


def replace(path: Path, content: str, read_back: Callable[[Path], Any] | None = None) -> None:
    """Writes `content` to `path` at once or not at all; read_back(file) must raise nothing first.
    Raises BadArgument if it cannot be written, and what `read_back` raises."""
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "w") as file:
            file.write(content)
        if read_back:
            read_back(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise BadArgument(f"{path} cannot be written ({error.strerror}); choose another "
                          "--out.") from error
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)
