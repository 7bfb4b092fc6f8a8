"""Which GPUs have a plan for a graph: asked of libcudnn, GPU by GPU, without the GPUs.

Most plans here are compiled when they are built, so cuDNN names them only where there is an NVIDIA
driver. Where there is none, or no libcudnn, a listing that was made with both is shown, with the
version of cuDNN that was asked.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from labkit import results
from labkit.cudnn_graph import Target, build, target
from labkit.cudnn_loader import load_cudnn
from labkit.errors import LabError, NotSupported
from labkit.gpus import lookup
from labkit.results import record_path
from labkit.table import Table

GPUS = ("T4", "A100", "L4", "H100", "B200")  # one of each generation


@dataclass(frozen=True)
class Support:
    """plans: variant of the graph -> GPU -> how many plans cuDNN names, 0 if it refuses; reasons:
    variant -> GPU -> the first reason of a refusal."""

    name: str
    cudnn: str
    date: str
    listed_now: bool
    plans: dict[str, dict[str, int]]
    reasons: dict[str, dict[str, str]]

    def table(self) -> Table:
        gpus = list(next(iter(self.plans.values())))
        columns = [f">{gpu} (sm_{lookup(gpu).sm})" for gpu in gpus]
        rows = [[variant, *(counts[gpu] or "no" for gpu in gpus)]
                for variant, counts in self.plans.items()]
        origin = "listed now" if self.listed_now else "RECORDED, not listed here"
        return Table(f"{self.name}: plans that cuDNN {self.cudnn} names, {self.date} ({origin})",
                     ["graph", *columns], rows,
                     "Listed from each GPU's description, without the GPU.")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def support(name: str, here: Any, variants: dict[str, Callable[[Target], Any]],
            gpus: Sequence[str] = GPUS) -> Support:
    """Asks for the plans of each variant of a graph on each GPU; nothing is built or run.

    variants: what to call it -> a function that returns the graph for a target. Raises LabError
    where nothing can be asked and no listing was recorded as `name`.
    """
    loaded = load_cudnn()
    if not (loaded.found and _driver()):
        return _recorded(name)
    plans: dict[str, dict[str, int]] = {variant: {} for variant in variants}
    reasons: dict[str, dict[str, str]] = {variant: {} for variant in variants}
    log = logging.getLogger("cudnn.pygraph")
    level = log.level
    log.setLevel(logging.ERROR)  # each refusal is a warning there, and a row of the table here
    try:
        for variant, make in variants.items():
            for gpu in gpus:
                there = target(here, gpu)
                try:
                    plans[variant][gpu] = build(make(there), there, until="check_support").count
                except NotSupported as error:
                    plans[variant][gpu], reasons[variant][gpu] = 0, str(error)
    finally:
        log.setLevel(level)
    found = Support(name, loaded.version, str(datetime.date.today()), True, plans, reasons)
    path = record_path(name, "listed-support")
    if path is not None:
        content = asdict(found)
        del content["listed_now"]
        path.write_text(json.dumps(content, indent=1) + "\n")
    return found


def _driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _recorded(name: str) -> Support:
    path = results.FOLDER / f"listed-support-{name}.json"
    if not path.exists():
        raise LabError("To list plans that are compiled takes a libcudnn and an NVIDIA driver, one "
                       f"of them is not here, and no listing was recorded as {name!r}.")
    try:
        found = Support(**json.loads(path.read_text()), listed_now=False)
        found.table()
        return found
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
        raise LabError(f"{path.name} is not a listing of labkit ({type(error).__name__}: {error}); "
                       "list it again with a libcudnn and a driver.") from error
