"""What the bench measures: each name in the lessons that have it, and at which further sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.benching import places
from labkit.errors import BadArgument

# Name -> the lesson's parameters that differ from its own, each a case of its own after the one
# with none. The square sizes are where libraries differ most; 8192 x 28672 x 4096 is the up
# projection of a Llama 3 8B (arXiv 2407.21783) with gate and up in one matrix.
_GEMMS: list[dict[str, Any]] = [
    *({"M_gpu": size, "N_gpu": size, "K_gpu": size} for size in (2048, 8192)),
    {"M_gpu": 8192, "N_gpu": 28672, "K_gpu": 4096}]
_ATTENTIONS: list[dict[str, Any]] = [
    {"batch_gpu": 1, "S_gpu": 16384}, {"D_gpu": 64}, {"batch_gpu": 1, "S_gpu": 16384, "D_gpu": 64}]
FURTHER: dict[str, list[dict[str, Any]]] = {
    "gemm": [{"dtype": "bfloat16"}, *(case | {"dtype": "bfloat16"} for case in _GEMMS)],
    "gemm_persistent": _GEMMS,
    "gemm_in_flight": _GEMMS,
    "gemm_bias_gelu": [{"M_gpu": size, "N_gpu": size, "K_gpu": size} for size in (4096, 8192)],
    "flash_attention_ahead": _ATTENTIONS,
    "flash_attention_ahead_causal": _ATTENTIONS,
}
# Cases that compile for several shapes: so many processes prepare them.
PARTS = {"softmax": 4, "softmax_online": 3, "softmax_kept": 3}
# Their references take tens of GB in float32: prepared one after the other.
HEAVY_KEYS = 16384
COSTS = ("cost_import", "cost_autotune")  # what learning costs, in seconds (labkit.benching.costs)
ASKED = ("cost_run",)  # takes minutes: measured where it is asked for


@dataclass(frozen=True)
class Case:
    """One name at the sizes that a lesson's parameters give; places: the cells to run, the first
    that measures the name is the one. kind: of the file of its own that it is kept in, if any."""

    name: str
    places: tuple[places.Place, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)
    kind: str = ""

    @property
    def key(self) -> str:
        what = f"{self.kind} {self.name}" if self.kind else self.name
        return f"{what} {json.dumps(self.parameters, sort_keys=True)}"

    @property
    def heavy(self) -> bool:
        """Whether its reference takes so much memory that two of them are not made at once."""
        return self.parameters.get("S_gpu", 0) >= HEAVY_KEYS

    @property
    def cost(self) -> bool:
        return self.name in (*COSTS, *ASKED)

    def __str__(self) -> str:
        changed = ", ".join([*([self.kind] if self.kind else []), *(
            f"{key} = {value}" for key, value in self.parameters.items())])
        return f"{self.name} ({changed})" if changed else self.name


def chosen(only: Sequence[str] = (), *, quick: bool = False, device: str = "gpu",
           everything: bool = False) -> list[Case]:
    """The cases of the names in `only`, of all names if there is none.

    everything: also the tables, plans and sweeps that lessons keep in files of their own; these are
    measured on a GPU only. quick: each name once, with the lessons' own parameters. Sizes that
    differ on a GPU only are left out where `device` is "cpu". Raises BadArgument for a name that no
    lesson measures.
    """
    known, files = places.find(), places.find_files()
    names = [*known, *COSTS]
    unknown = [name for name in only if name not in [*names, *ASKED, *files]]
    if unknown:
        raise BadArgument(f"No lesson measures {unknown[0]!r}; the names are: "
                          f"{', '.join([*names, *ASKED, *(n for n in files if n not in names)])}.")
    cases = []
    for name in dict.fromkeys([*(only or names), *(files if everything else [])]):
        if name in files and (everything or name not in names) and device == "gpu":
            kind, place = files[name]
            cases.append(Case(name, (place,), kind=kind))
        if name not in [*names, *ASKED]:
            continue
        if name in (*COSTS, *ASKED):
            if device == "gpu" or name != "cost_autotune":
                cases.append(Case(name))
            elif only:
                raise BadArgument("cost_autotune times schedules, which needs a CUDA GPU; "
                                  "leave it out with --device cpu.")
            continue
        sizes = [] if quick or device == "cpu" else FURTHER.get(name, [])
        cases += [Case(name, tuple(known[name]), changed) for changed in [{}, *sizes]]
    return cases
