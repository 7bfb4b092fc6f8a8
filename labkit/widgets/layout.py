"""Where the explorer's controls and pictures stand on the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from labkit.widgets import panels
from labkit.widgets.controls import WIDTHS, Controls
from labkit.widgets.instant import Instant

_DETAIL = "generated source"


class Page:
    """The widgets. `show` sets what changed; `box` is the whole."""

    def __init__(self, controls: Controls, own: Any, measure: Callable[[Any], None],
                 moved: Callable[[Any], None]) -> None:
        import ipywidgets as widgets

        def html(name: str) -> Any:
            made = widgets.HTML(layout=widgets.Layout(width="100%", margin="2px 0"))
            made.add_class(f"labkit-panel-{name}")
            return made

        names = ("status", "memory", "grid", "roof", "figures", "detail", "history", "message")
        self.parts = {name: html(name) for name in names}
        look = {"style": {"description_width": WIDTHS[0]}, "layout": {"width": WIDTHS[1]}}
        self._kind = widgets.Dropdown(options=list(panels.DETAILS), value=_DETAIL,
                                      description="show", **look)
        self._step = widgets.IntSlider(value=0, min=0, max=0, description="step", **look)
        self._step.layout.display = "none"
        self._button = widgets.Button(description="Measure on this GPU", disabled=True,
                                      layout=widgets.Layout(width="200px"))
        self._button.on_click(measure)
        self._kind.observe(moved, names="value")
        self._step.observe(moved, names="value")
        left = [controls.box, self._kind, self._step]
        if own is not None:
            left += [self._button, self.parts["message"]]
        column = widgets.Layout(width="310px", margin="0 10px 0 0")
        wide = widgets.Layout(flex="1 1 420px", min_width="0", width="auto")
        row = widgets.Layout(flex_flow="row wrap", align_items="flex-start")

        def beside(one: Any, other: Sequence[str]) -> Any:
            right = widgets.VBox([self.parts[name] for name in other], layout=wide)
            return widgets.HBox([widgets.VBox(one, layout=column), right], layout=row)

        self.box = widgets.VBox([
            self.parts["status"], beside(left, ("memory", "grid")),
            beside([self.parts["figures"]], ("roof", "history")), self.parts["detail"]])
        self.box.add_class("labkit-explorer")

    @property
    def detail_kind(self) -> str:
        return self._kind.value

    def step(self, now: Instant) -> int:
        """The step that the tile picture shows; adapts its slider to the steps there are."""
        walking = self._kind.value == "tiles a block reads"
        self._step.layout.display = "" if walking and now.grid.steps > 1 else "none"
        if self._step.max != now.grid.steps - 1:
            self._step.max = now.grid.steps - 1  # also brings a larger value down
        return self._step.value

    def show(self, **values: str) -> None:
        for name, value in values.items():
            if self.parts[name].value != value:
                self.parts[name].value = value

    def allow_measuring(self, allowed: bool) -> None:
        self._button.disabled = not allowed

    def say(self, message: str) -> None:
        self.show(message=f'<div role="status" aria-live="polite">{escape(message)}</div>')

    def fail(self, message: str) -> None:
        self.show(status=f'<div role="alert">{escape(message)}</div>', detail="")

    def show_history(self, measured: dict[Any, Any], problem: Any) -> None:
        """The schedules of this problem that were measured, in order, the fastest marked."""
        from labkit.widgets.view_history import history

        mine = [m for choice, m in measured.items() if choice.problem == problem]
        if not mine:
            self.show(history="")
            return
        right = [m.ms for m in mine if m.ms is not None]
        best = next((i for i, m in enumerate(mine) if right and m.ms == min(right)), None)
        baseline = next((m.baseline for m in reversed(mine) if m.baseline), None)
        picture = history([(m.label, m.ms, m.ms is not None) for m in mine], baseline, best)
        self.show(history=panels.html(picture, "history"))
