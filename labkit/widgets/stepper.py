"""A block step by step, with a slider: the source with its present line, beside it the buffers."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit import step_pictures
from labkit.pictures import _INK, ORANGE
from labkit.steps import Step, Steps

_MOST_LINES = 70  # of source; of more, those about the present one
_MAPS = (500, 128)  # pixels: how wide all of them are together, and how long one is at most

# Twice the class, so that a notebook's own rules for <pre> do not win.
_ME = ".labkit-program.labkit-program"
_STYLE = f"""<style>.labkit-step-source>.widget-html-content{{min-width:0;flex:1 1 0}}
{_ME}{{background:#fff;color:{_INK};border:1px solid #c9ced6;border-radius:6px;
color-scheme:light;overflow-x:auto;padding:8px 0;box-sizing:border-box;max-width:100%}}
{_ME} pre{{margin:0;background:none;border:0;padding:0;color:{_INK};overflow:visible;
font:11px/16px "DejaVu Sans Mono",Menlo,Consolas,monospace;white-space:pre;width:max-content;
min-width:100%}}
{_ME} .lk-row{{display:block;padding:0 10px 0 0;border-left:4px solid transparent}}
{_ME} .lk-row i{{display:inline-block;width:2.6em;margin-right:1em;text-align:right;color:#5b6270;
font-style:normal;user-select:none}}
{_ME} .lk-now{{background:#fff3d6;border-left-color:{ORANGE}}}
{_ME} hr{{border:0;border-top:1px dashed #c9ced6;margin:6px 10px}}</style>"""


class Stepper:
    """A slider, two buttons and the picture of a step. `number` is the step that is shown."""

    def __init__(self, steps: Steps, number: int = 0) -> None:
        import ipywidgets as widgets

        self.steps, self._scales = steps, step_pictures.scales(steps)
        self.slider = widgets.IntSlider(value=number, min=0, max=len(steps) - 1,
                                        description="step", continuous_update=True,
                                        style={"description_width": "40px"},
                                        layout={"width": "420px", "max_width": "100%"})
        self.back = widgets.Button(description="‹ Back", layout={"width": "84px"})
        self.next = widgets.Button(description="Next ›", layout={"width": "84px"})
        self.back.on_click(lambda _: self.go(-1))
        self.next.on_click(lambda _: self.go(1))
        self.slider.observe(self._draw, names="value")
        self.parts = {}
        for name, flex in (("title", ""), ("source", "1 1 420px"), ("maps", "1 1 440px")):
            layout = widgets.Layout(flex=flex, min_width="0", margin="2px 8px 2px 0") if flex else \
                widgets.Layout(width="100%")
            self.parts[name] = widgets.HTML(layout=layout)
            self.parts[name].add_class(f"labkit-step-{name}")
        wrap = {"flex_flow": "row wrap"}
        self.box = widgets.VBox([
            self.parts["title"],
            widgets.HBox([self.back, self.next, self.slider],
                         layout=widgets.Layout(align_items="center", **wrap)),
            widgets.HBox([self.parts["source"], self.parts["maps"]],
                         layout=widgets.Layout(align_items="flex-start", **wrap))])
        self.box.add_class("labkit-stepper")
        self._draw()

    @property
    def number(self) -> int:
        return self.slider.value

    @property
    def step(self) -> Step:
        """The step that is shown."""
        return self.steps[self.number]

    def go(self, by: int) -> None:
        """Moves by so many steps, as far as there are any."""
        self.slider.value = min(max(self.number + by, 0), len(self.steps) - 1)

    def _draw(self, _: Any = None) -> None:
        step = self.step
        self.parts["title"].value = title(self.steps, step)
        self.parts["source"].value = source(self.steps, step)
        drawn = step_pictures.maps(self.steps, step, _MAPS[0], 4, self._scales, _MAPS[1])
        svg = drawn.done(step_pictures.describe(self.steps, step)).svg
        self.parts["maps"].value = svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ',
                                               1)

    def __repr__(self) -> str:
        return step_pictures.describe(self.steps, self.step)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """One output: the widgets, and for where they cannot run the step's picture and words."""
        picture = step_pictures.picture(self.steps, self.step)
        return {"application/vnd.jupyter.widget-view+json": {
                    "version_major": 2, "version_minor": 0, "model_id": self.box.model_id},
                "image/svg+xml": picture.svg, "text/plain": picture.text}


def title(steps: Steps, step: Step) -> str:
    """Which block, which step, and what it wrote, as HTML that a screen reader says."""
    place = f", {escape(step.place)}" if step.place else ""
    wrote = "; ".join(f"{name}{steps.buffers[name].part}: {step.range(name)}"
                      for name in step.changed)
    return (f'<div style="font-weight:600">{escape(steps.title)}</div><div role="status" '
            f'aria-live="polite" data-step="{step.number}">After step {step.number}{place}. '
            f"Written: {escape(wrote)}</div>")


def source(steps: Steps, step: Step) -> str:
    """The functions that the steps stand in, the present statement marked."""
    total = sum(len(section.lines) for section in steps.sections)
    parts = []
    for section in steps.sections:
        here = section.file == step.file
        rows = []
        for at, line in enumerate(section.lines):
            number = section.first + at
            now = here and step.line is not None and \
                step.line <= number <= max(step.line, step.last or 0)
            near = here and step.line is not None and abs(number - step.line) <= _MOST_LINES // 2
            if total <= _MOST_LINES or near:
                mark = ' lk-now" aria-current="step' if now else ""
                rows.append(f'<span class="lk-row{mark}"><i>{number}</i>{escape(line)}</span>')
        if rows:
            parts.append(f"<pre>{''.join(rows)}</pre>")
    if not parts:
        parts = [f'<pre><span class="lk-row lk-now" aria-current="step">{escape(step.text)}</span>'
                 "</pre>"]
    return f'{_STYLE}<div class="labkit-program">{"<hr>".join(parts)}</div>'
