"""How many plans the heuristics name for a graph, by GPU and by mode; no GPU is needed for that.

Where there is no libcudnn either, a survey that was made with one is shown, with its version.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit import cudnn_listing
from labkit.cudnn_graph import candidates, target
from labkit.cudnn_loader import load_cudnn
from labkit.gpus import names
from labkit.results import FOLDER
from labkit.table import Table

MODES = {"A": ("A",), "B": ("B",), "FALLBACK": ("FALLBACK",), "A + B": ("A", "B"),
         "A + B + FALLBACK": ("A", "B", "FALLBACK")}


@dataclass(frozen=True)
class Survey:
    """counts: GPU -> mode -> number of plans; dtypes: GPU -> dtype; engines: GPU -> engine ->
    number of plans, of all modes together."""

    name: str
    cudnn: str
    date: str
    listed_now: bool
    dtypes: dict[str, str]
    counts: dict[str, dict[str, int]]
    engines: dict[str, dict[str, int]]

    def table(self) -> Table:
        rows = [[gpu, self.dtypes[gpu], *(counts[mode] for mode in MODES),
                 ", ".join(f"{engine} ({n})" for engine, n in self.engines[gpu].items())]
                for gpu, counts in self.counts.items()]
        origin = "listed now" if self.listed_now else "RECORDED, not listed here"
        return Table(f"{self.name}: plans that cuDNN {self.cudnn} names, {self.date} ({origin})",
                     ["GPU", "dtype", *(f">{mode}" for mode in MODES), "engines (plans)"], rows,
                     "Listed from each GPU's description, without the GPU. Without a driver, plans "
                     "that are compiled when they are built are missing.")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def survey(name: str, here: Any, make: Callable[[Any], tuple[Any, str]],
           gpus: Sequence[str] = ()) -> Survey:
    """Asks the heuristics for the plans of a graph on each of `gpus` (empty: all that have a
    data sheet), mode by mode.

    make(target) returns the graph for that target and the name of its dtype. Where there is no
    libcudnn, or a GPU (beside one, cuDNN crashed over the description of another), the recorded
    survey is shown. Raises LabError if it is needed and none was recorded as `name`.
    """
    import torch

    loaded = load_cudnn()
    if not loaded.found or torch.cuda.is_available():
        return _recorded(name)
    import cudnn

    dtypes, counts, engines = {}, {}, {}
    for gpu in gpus or names():
        there = target(here, gpu)
        counts[gpu] = {}
        for mode, parts in MODES.items():
            graph, dtypes[gpu] = make(there)
            counts[gpu][mode] = candidates(
                graph, there, [getattr(cudnn.heur_mode, part) for part in parts])
        found = Counter(str(graph.get_engine_and_knobs_at_index(index)[0])
                        for index in range(graph.get_execution_plan_count()))
        engines[gpu] = dict(found.most_common())
    result = Survey(name, loaded.version, str(datetime.date.today()), True, dtypes, counts, engines)
    cudnn_listing.keep(result, "listed-plans")
    return result


def _recorded(name: str) -> Survey:
    return cudnn_listing.shipped(
        FOLDER / f"listed-plans-{name}.json", Survey,
        f'No libcudnn here, and no plans were listed of {name!r}; pip install '
        '"labkit[deviceless]" brings one that needs no GPU.', "a survey", "a libcudnn")
