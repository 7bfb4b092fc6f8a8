"""The explorer's pictures for one choice, from the plain numbers of the other modules."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit.pictures import Picture
from labkit.widgets import view_grid, view_memory, view_pipeline, view_roofline
from labkit.widgets.compiled import Compiled
from labkit.widgets.controls import Choice
from labkit.widgets.instant import Instant
from labkit.widgets.words import WAITING

DETAILS = ("generated source", "tiles a block reads", "pipeline", "levels of memory")
_STEPS_SHOWN = 6
_ASSUMED = ("Drawn as if a copy took as long as two products of 128 x 128 x 32, whatever its size, "
            "and a product as long as its size says. Real ratios differ, the pattern does not.")


def memory(choice: Choice, now: Instant, found: Compiled) -> Picture:
    """The buffers of a block against what the GPU gives it."""
    first = sum(p.bytes for p in now.parts if not p.later)
    parts = {p.name: p.bytes for p in now.parts if not p.later}
    for part in now.parts:  # what reuses the space counts where it is larger
        if part.later and part.bytes > first:
            parts[f"{part.name}, the rest"] = part.bytes - first
    blocks = found.occupied.blocks if found.occupied else None
    return view_memory.shared_bar(parts, now.shared_limit, choice.gpu.name, found.shared_bytes,
                                  choice.gpu.shared_per_sm, blocks, choice.gpu.shared_reserved)


def grid(choice: Choice, now: Instant) -> Picture | str:
    """Blocks in waves over the multiprocessors."""
    if not choice.gpu.sms:
        return (f"{now.grid.blocks:,} {now.unit}s; {choice.gpu.name} stands for GPUs with "
                "different numbers of multiprocessors, so the waves are not known.")
    return view_grid.waves(now.grid.blocks, now.slots or 0, choice.gpu.name, now.unit)


def roof(choice: Choice, now: Instant, measured: list[tuple[str, float]]) -> Picture | None:
    """measured: (label, ms) of this choice. None without the GPU's figures."""
    gpu, problem = choice.gpu, choice.problem
    peak = (gpu.tensor_tflops or {}).get(problem.dtype)
    if not peak or not gpu.bandwidth_gb_s:
        return None
    points: list[tuple[str, float, float | None]] = [
        ("each input read once", now.ideal, None),
        ("tiles, if no cache held them", now.asked, None)]
    points += [(label, now.ideal, problem.flops / ms / 1e9) for label, ms in measured]
    return view_roofline.roofline(points, gpu.bandwidth_gb_s, peak, gpu.name)


def pipeline(choice: Choice, now: Instant) -> Picture:
    """Copies and products of one block, under lesson 02's assumption: see `_ASSUMED`."""
    schedule, stages = choice.schedule, max(1, choice.schedule.get("num_stages", 1))
    depth = schedule.get("block_K", 2 * getattr(choice.problem, "dim", 16))
    product = schedule.get("block_M", 128) * schedule.get("block_N", 128) * depth
    return view_pipeline.timeline(stages, max(_STEPS_SHOWN, stages + 2), 2,
                                  round(product / (128 * 128 * 32), 2) or 0.01)


def walk(choice: Choice, now: Instant, step: int = 0) -> Picture | str:
    """Which tiles one block reads at a step."""
    rows, columns = now.grid.tiles
    if "block_K" not in choice.schedule:
        return ("Each block reads one tile of Q and, step by step, tiles of K and V: "
                f"{now.grid.steps:,} steps for the longest.")
    return view_grid.tile_walk(rows, columns, now.grid.steps, block=(0, 0),
                               step=min(step, now.grid.steps - 1),
                               panel=choice.schedule.get("panel", 0),
                               group=choice.schedule.get("group", 0) if now.stays else 0,
                               concurrent=min(now.slots or 1, now.grid.blocks))


def levels(choice: Choice, now: Instant, found: Compiled) -> Picture:
    """Registers, shared memory, L2 and global memory, and what the schedule takes of each."""
    gpu, problem = choice.gpu, choice.problem
    blocks = now.blocks_per_sm or 1
    if found.used:
        registers, note = found.used.registers * 4 * found.code.threads, ""
    else:
        threads = choice.schedule.get("threads", 128)
        registers, note = int(problem.accumulators(choice.schedule) * 4 * threads), "tiles alone"
    return view_memory.hierarchy([
        view_memory.Level("global memory", problem.moved, gpu.memory_bytes, gpu.bandwidth_gb_s,
                          problem.moved, "each tensor once"),
        view_memory.Level("L2 cache", problem.moved, gpu.l2_bytes, None, now.asked_bytes,
                          "what the blocks ask for"),
        view_memory.Level("shared memory of an SM", now.shared_bytes * blocks, gpu.shared_per_sm),
        view_memory.Level("registers of an SM", registers * blocks, gpu.registers_per_sm * 4,
                          note=note),
    ])


def source(found: Compiled, broken: str) -> str:
    """The generated source as HTML, or why there is none."""
    if broken or found.code is None:
        why, state = (broken or found.failure, "none") if found.final else (WAITING, "waiting")
        return (f'<div class="labkit-source" data-state="{state}" style="padding:.6em">'
                f"{escape(why)}</div>")
    from labkit.crosscompile import LANDMARKS
    from labkit.widgets import view_source

    return ('<div class="labkit-source" data-state="source">'
            f"{view_source.source(found.code.body, LANDMARKS)}</div>")


def html(picture: Picture | str | None, name: str) -> str:
    """A picture as the value of an HTML widget. Its title says the same in words."""
    if picture is None:
        return ""
    if isinstance(picture, str):
        return f'<div class="labkit-{name}" style="padding:.4em">{escape(picture)}</div>'
    svg = picture.svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
    return f'<div class="labkit-{name}" style="line-height:0">{svg}</div>'


def detail(kind: str, choice: Choice, now: Instant, found: Compiled, broken: str, step: int
           ) -> str:
    """The picture that the list under the figures chooses, as HTML."""
    if kind == "generated source":
        return source(found, broken)
    if broken:
        return html(broken, "detail")
    drawn: dict[str, Any] = {"tiles a block reads": lambda: walk(choice, now, step),
                             "pipeline": lambda: pipeline(choice, now),
                             "levels of memory": lambda: levels(choice, now, found)}
    note = f'<div style="opacity:.8">{_ASSUMED}</div>' if kind == "pipeline" else ""
    return html(drawn[kind](), "detail") + note
