"""Which GPUs have a plan for a graph: asked of libcudnn, GPU by GPU, without the GPUs.

Most plans here are compiled when they are built, and cuDNN names them only where it can open the
driver's library. Beside a real GPU it is not asked about another one, since it crashed over that.
So a listing is made on a machine without a GPU, with a libcudnn and a stand-in for the driver, and
everywhere else that listing is shown, with the version of cuDNN that was asked.
"""

from __future__ import annotations

import ctypes
import datetime
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit import cudnn_listing, results
from labkit.cudnn_graph import Target, candidates, target
from labkit.cudnn_loader import load_cudnn
from labkit.errors import NotSupported
from labkit.gpus import lookup
from labkit.machine import nvidia_smi
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
    if not (loaded.found and _stand_in()):
        return _recorded(name)
    import cudnn

    modes = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
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
                    plans[variant][gpu] = candidates(make(there), there, modes)
                except NotSupported as error:
                    plans[variant][gpu], reasons[variant][gpu] = 0, str(error)
    finally:
        log.setLevel(level)
    found = Support(name, loaded.version, str(datetime.date.today()), True, plans, reasons)
    cudnn_listing.keep(found, "listed-support")
    return found


def _stand_in() -> bool:
    """Whether there is a driver's library and no GPU behind it."""
    import torch

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return not torch.cuda.is_available() and not nvidia_smi("-L").strip()


def _recorded(name: str) -> Support:
    return cudnn_listing.shipped(
        results.FOLDER / f"listed-support-{name}.json", Support,
        f"No listing was recorded as {name!r}, and to make one takes a libcudnn and a stand-in for "
        "the driver, on a machine without a GPU.", "a listing", "a libcudnn and a driver")
