"""README's table and plot of the recorded measurements, from the results file of one GPU.

    labkit bench --readme      # rewrites README.md between its marks, and docs/bench-h200.svg
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import results
from labkit.benching import costs, places
from labkit.errors import BadArgument
from labkit.pictures import BLUE, GREEN, GREY, ORANGE, Picture, _Canvas
from labkit.results import Measurement

GPU = "h200"
BEGIN, END = "<!-- labkit bench --readme -->", "<!-- labkit bench --readme: to here -->"
PLOT = f"docs/bench-{GPU}.svg"
_NOT_A_KERNEL = {"torch_add"}  # PyTorch against itself, to show the benchmark
_LEFT, _WIDTH, _ROW, _TOP = 190, 460, 30, 84


@dataclass(frozen=True)
class Row:
    """One name: its measurements, and for each the fastest other and the ratio to it."""

    name: str
    measurements: list[Measurement]

    @property
    def fastest(self) -> list[tuple[str, float]]:
        """(name, its time over the kernel's) of the fastest other at each size."""
        return [m.fastest_other for m in self.measurements if m.fastest_other]

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        logs = [math.log(ratio) for _, ratio in self.fastest]
        return math.exp(sum(logs) / len(logs))


def rows(measurements: list[Measurement]) -> list[Row]:
    """A row for each name that lessons measure beside a baseline, in the lessons' order."""
    lessons = _lessons()
    names = sorted({m.name: None for m in measurements if m.name in lessons}, key=lessons.get)
    found = [Row(name, [m for m in measurements if m.name == name]) for name in names
             if name not in _NOT_A_KERNEL]
    return [row for row in found if row.fastest]


def _lessons() -> dict[str, str]:
    """Name -> the stem of the lesson that measures it."""
    return {name: found[0].lesson for name, found in places.find().items()}


def text(root: Path) -> str:
    """The part of README between its marks."""
    path = results.FOLDER / f"{GPU}.json"
    recording = results.load(path)
    where = _lessons()
    lines = ["| kernel | sizes | time of the fastest other over the kernel's | the fastest other | "
             "of the floor |", "|---|---|---|---|---|"]
    for row in rows(recording.measurements):
        lesson = where.get(row.name)
        name = f"`{row.name}`" + (f" ([{lesson[:2]}](notebooks/{lesson}.ipynb))" if lesson else "")
        ratios = [ratio for _, ratio in row.fastest]
        shown = f"**{row.mean:.2f}**"
        if len(ratios) > 1:
            shown += f" ({min(ratios):.2f} to {max(ratios):.2f})"
        others = ", ".join(dict.fromkeys(best for best, _ in row.fastest))
        reached = [m.floor_ms / m.kernel_ms for m in row.measurements if m.floor_ms]
        floor = f"{min(reached):.0%}" if reached else ""
        if reached and f"{max(reached):.0%}" != floor:
            floor += f" to {max(reached):.0%}"
        lines.append(f"| {name} | {len(row.measurements)} | {shown} | {others} | {floor} |")
    versions = recording.versions
    dates = sorted({recording.date, *(m.date for m in recording.measurements if m.date)})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    note = (f"{recording.gpu}, {when}, torch {versions.get('torch', '?')}, TileLang "
            f"{versions.get('tilelang', '?')}, driver {versions.get('driver', '?')}. Medians of "
            "interleaved runs from a cold cache, every output compared after the timing; with "
            "several sizes the geometric mean, the lowest and the highest. Above 1 the kernel is "
            f"faster. The highest floors of these runs: {recording.floors['copy_gb_s']:,.0f} GB/s, "
            + ", ".join(f"{rate:,.0f} TFLOP/s in {dtype}" for dtype, rate
                        in recording.floors["tensor_tflops"].items())
            + f". All figures: [`labkit/results/{GPU}.json`](labkit/results/{GPU}.json).")
    parts = [f"![For each kernel, the time of the fastest other over its own]({PLOT})",
             "\n".join(lines), note]
    if learning := _costs(json.loads(path.read_text())):
        parts.append(learning)
    return "\n\n".join(parts)


def _costs(data: dict[str, Any]) -> str:
    """What learning costs, a line each, as far as it was measured."""
    found = [(cost, data["gpu"]) for cost in data.get("costs", [])]
    other = results.FOLDER / "cpu-costs.json"
    if other.exists():
        found += [(cost, f"{cost['cores']} cores, no GPU")
                  for cost in json.loads(other.read_text())["costs"]]
    lines = [f"- {costs.WORDS[cost['name']]}: {_seconds(cost['seconds'])}, limit "
             f"{_seconds(cost['limit'])} ({machine}, {cost['date']}; {cost['note']})"
             for cost, machine in found]
    return "\n".join(["What learning costs:", "", *lines]) if lines else ""


def _seconds(value: float) -> str:
    if value < 0.1:
        return f"{1e3 * value:.1f} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def plot(measurements: list[Measurement], gpu: str, date: str) -> Picture:
    """A line for each name, a dot for each size: the fastest other's time over the kernel's."""
    found = rows(measurements)
    ratios = [ratio for row in found for _, ratio in row.fastest]
    low, high = min([*ratios, 0.9]), max([*ratios, 1.1])
    low, high = math.floor(low * 10) / 10, math.ceil(high * 10) / 10

    def across(ratio: float) -> float:
        return _LEFT + _WIDTH * math.log(ratio / low) / math.log(high / low)

    bottom = _TOP + _ROW * len(found)
    canvas = _Canvas(_LEFT + _WIDTH + 76, bottom + 52)
    canvas.label(16, 26, f"The fastest other's time over the kernel's, {gpu}, {date}", 13, "start",
                 weight="bold")
    x = 16.0
    for colour, words in ((GREEN, "the kernel leads"), (BLUE, "within 3 %"),
                          (ORANGE, "the other leads"), (GREY, "bar: geometric mean")):
        canvas.box(x, 41, 10, 10, colour, colour)
        canvas.label(x + 16, 50, words, 11, "start")
        x += 34 + 6.4 * len(words)
    for place in range(len(found)):
        y = _TOP + place * _ROW + _ROW / 2
        canvas.line(_LEFT, y, _LEFT + _WIDTH, y, "#eef1f5", 1)
    for tick in (0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2, 3, 4, 5):
        if low <= tick <= high:
            canvas.line(across(tick), _TOP - 8, across(tick), bottom,
                        "#1f2430" if tick == 1 else "#d9dee6", 1.5 if tick == 1 else 1)
            canvas.label(across(tick), bottom + 15, f"{tick:g}", 10, colour=GREY)
    canvas.label(_LEFT + _WIDTH / 2, bottom + 36, "above 1 the kernel is faster; a dot a size", 11,
                 colour=GREY)
    for place, row in enumerate(found):
        y = _TOP + place * _ROW + _ROW / 2
        canvas.label(_LEFT - 12, y + 4, row.name, 11, "end")
        for _, ratio in row.fastest:
            canvas.dot(across(ratio), y, _colour(ratio))
        canvas.line(across(row.mean), y - 9, across(row.mean), y + 9, GREY, 2.5)
        canvas.label(_LEFT + _WIDTH + 14, y + 4, f"{row.mean:.2f}", 11, "start", weight="bold")
    words = ", ".join(f"{row.name} {row.mean:.2f}" for row in found)
    return canvas.done(f"The fastest other's time over the kernel's on {gpu}: {words}.")


def _colour(ratio: float) -> str:
    return GREEN if ratio > 1.03 else ORANGE if ratio < 0.97 else BLUE


def write(root: Path | None = None) -> list[Path]:
    """Rewrites README and its plot; returns both. Raises BadArgument outside the repository."""
    root = root or Path(__file__).resolve().parents[2]
    file = root / "README.md"
    before = file.read_text() if file.is_file() else ""
    if before.count(BEGIN) != 1 or before.count(END) != 1:
        raise BadArgument(f"{file} is not the kit's README with its marks; run this in the "
                          "repository.")
    recording = results.load(results.FOLDER / f"{GPU}.json")
    head, tail = before.split(BEGIN)[0], before.split(END)[1]
    file.write_text(f"{head}{BEGIN}\n{text(root)}\n{END}{tail}")
    picture = root / PLOT
    picture.parent.mkdir(exist_ok=True)
    picture.write_text(plot(recording.measurements, recording.gpu, recording.date).svg + "\n")
    return [file, picture]
