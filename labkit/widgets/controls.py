"""The sliders and lists of the explorer: one for each knob that the builder takes.

Only what both ipywidgets 7.7 and 8 have: sliders over a list of values, drop-down lists, buttons.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit.errors import BadArgument
from labkit.gpus import ALL, Gpu, lookup

WIDTHS = ("84px", "304px")  # of a description, and of a control with it
STAYS = "blocks"  # the knob of a kernel whose blocks stay and walk from tile to tile
_MAY_BE_ZERO = ("num_stages", "panel", "group")
_EXPLAINED = {
    "block_M": "rows of the tile", "block_N": "columns of the tile", "block_K": "depth of a step",
    "num_stages": "stages", "threads": "threads", "panel": "swizzle panel", "warps": "warps",
}


@dataclass(frozen=True)
class Choice:
    """What the controls say: a schedule (as sorted pairs, so that it can be a key) of a problem on
    a GPU."""

    problem: Any
    knobs: tuple[tuple[str, Any], ...]
    gpu: Gpu

    @property
    def schedule(self) -> dict[str, Any]:
        return dict(self.knobs)


class Signature:
    """Which arguments a builder takes, and which of them are knobs. Raises BadArgument."""

    def __init__(self, build: Callable[..., Any], problem: Any, space: dict[str, Any] | None,
                 start: dict[str, Any] | None) -> None:
        try:
            parameters = inspect.signature(build).parameters
        except (TypeError, ValueError):
            raise BadArgument(f"build is of type {type(build).__name__}; give the function that "
                              "makes the program, such as gemm.") from None
        for what, given in (("space", space), ("start", start)):
            if given is not None and not isinstance(given, dict):
                raise BadArgument(f"{what} is of type {type(given).__name__}; give a dictionary "
                                  "from a knob's name to its value"
                                  f"{'s' if what == 'space' else ''}.")
            for knob in set(given or {}) & set(problem.arguments()):
                raise BadArgument(f"{knob} belongs to the problem, not to the schedule; give it "
                                  f"there and take it out of {what}.")
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        named = {k for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD,
                                                                p.KEYWORD_ONLY)}
        offered = problem.space() if space is None else dict(space)
        for knob in {**offered, **(start or {})}:
            if knob not in named and not takes_any and (space is not None or knob in (start or {})):
                raise BadArgument(f"build has no knob {knob!r}; it takes {', '.join(named)}.")
        self.given = {k: v for k, v in problem.arguments().items() if k in named}
        self.defaults = {k: p.default for k, p in parameters.items()
                         if p.default is not inspect.Parameter.empty}
        self.values: dict[str, list[Any]] = {}
        for knob, values in offered.items():
            if (knob in named or takes_any) and knob not in problem.arguments():
                first = (start or {}).get(knob, self.defaults.get(knob, None))
                self.values[knob] = _options(knob, values, first)
                for value in self.values[knob]:
                    _check_value(knob, value, problem.space())
        for knob, value in (start or {}).items():
            _check_value(knob, value, problem.space())
        if not self.values:
            raise BadArgument(f"build takes none of the knobs {', '.join(offered)}, so there is "
                              "nothing to turn; give space={knob: values}.")
        self.start = {knob: (start or {}).get(knob, self.defaults.get(knob, _middle(values)))
                      for knob, values in self.values.items()}
        # knobs that nobody turns: what `start` says, else the builder's own defaults
        self.fixed = {k: v for k, v in {**self.defaults, **(start or {})}.items()
                      if k not in self.values
                      and (k in problem.space() or k in (start or {}) or k == STAYS)}

    def arguments(self, choice: Choice) -> dict[str, Any]:
        """All arguments of the builder for a choice."""
        sizes = {k: v for k, v in choice.problem.arguments().items() if k in self.given}
        return {**sizes, **choice.schedule}


def _check_value(knob: str, value: Any, known: dict[str, list[Any]]) -> None:
    """Raises BadArgument for a value that no kernel's knob of this name takes."""
    values = known.get(knob, [1] if knob == STAYS else [])
    if values and isinstance(values[0], str):
        if value not in values:
            raise BadArgument(f"{knob} is {value!r}; it takes {', '.join(map(repr, values))}.")
    elif values:
        least = 0 if knob in _MAY_BE_ZERO else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise BadArgument(f"{knob} is {value!r}; give a whole number of at least {least}.")
    elif not isinstance(value, (int, str)):
        raise BadArgument(f"{knob} is {value!r}; give a whole number or a text.")


def _middle(values: list[Any]) -> Any:
    return values[len(values) // 2]


def _options(knob: str, values: Any, first: Any) -> list[Any]:
    """The values in order, with the one that comes first among them."""
    try:
        found = list(dict.fromkeys(values))
    except TypeError:
        raise BadArgument(f"The values of {knob!r} are {values!r}; give a list of numbers or "
                          "texts.") from None
    if not found or not all(isinstance(v, (int, str)) for v in found):
        raise BadArgument(f"The values of {knob!r} are {values!r}; give a list of at least one "
                          "whole number or text.")
    if first is not None and first not in found:
        found.append(first)
    return sorted(found) if all(isinstance(v, int) for v in found) else found


class Controls:
    """The widgets. `choice` is what they say; `observe` tells of a change."""

    def __init__(self, problem: Any, signature: Signature, gpu: Gpu, own: Gpu | None) -> None:
        import ipywidgets as widgets

        self._fixed = signature.fixed
        sheets = [*([own] if own else []), gpu, *ALL]
        self._gpus = {sheet.name: sheet for sheet in sheets}
        look = {"style": {"description_width": WIDTHS[0]}, "layout": {"width": WIDTHS[1]}}
        self.gpu = widgets.Dropdown(options=list(self._gpus), value=gpu.name, description="GPU",
                                    **look)
        self._problems = {p.label: p for p in problem.others()}
        self.size = widgets.Dropdown(options=list(self._problems), value=problem.label,
                                     description="problem", **look)
        self.dtype = widgets.Dropdown(options=problem.dtypes(), value=problem.dtype,
                                      description="dtype", **look)
        self.knobs: dict[str, Any] = {}
        for knob, values in signature.values.items():
            numbers = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
            kind = widgets.SelectionSlider if numbers and len(values) > 1 else widgets.Dropdown
            more = {"continuous_update": True} if kind is widgets.SelectionSlider else {}
            self.knobs[knob] = kind(options=[(str(v), v) for v in values],
                                    value=signature.start[knob], description=knob, **more, **look)
            tooltip = "tooltip" if "tooltip" in self.knobs[knob].traits() else \
                "description_tooltip"  # ipywidgets 8, or 7
            setattr(self.knobs[knob], tooltip, _EXPLAINED.get(knob, knob))
        lists = [self.gpu]
        if set(problem.shape) & set(signature.given):
            lists.append(self.size)
        if "dtype" in signature.given:
            lists.append(self.dtype)
        self.all = [*self.knobs.values(), *lists]
        self.box = widgets.VBox(self.all)

    @property
    def choice(self) -> Choice:
        problem = replace(self._problems[self.size.value], dtype=self.dtype.value)
        knobs = {**self._fixed, **{knob: control.value for knob, control in self.knobs.items()}}
        return Choice(problem, tuple(sorted(knobs.items())), self._gpus[self.gpu.value])

    def observe(self, moved: Callable[[Any], None]) -> None:
        for control in self.all:
            control.observe(moved, names="value")

    def set(self, **values: Any) -> None:
        """Moves controls: knobs by name, gpu, dtype, size. Raises BadArgument for a control or a
        value that is not there."""
        named = {**self.knobs, "gpu": self.gpu, "dtype": self.dtype, "size": self.size}
        for name, value in values.items():
            if name not in named:
                raise BadArgument(f"There is no control {name!r}; there are {', '.join(named)}.")
            if name == "gpu" and value not in self._gpus:
                value = lookup(value).name
            try:
                if value is None:  # a list of options would take it as "none chosen"
                    raise ValueError
                named[name].value = value
            except Exception:  # ipywidgets raises its own
                options = [option[1] if isinstance(option, tuple) else option
                           for option in named[name].options]
                raise BadArgument(f"{name} is {value!r}; it offers "
                                  f"{', '.join(map(str, options))}.") from None
