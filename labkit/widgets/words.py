"""What the explorer says about a choice in words and figures, beside its pictures."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit.schedules import text
from labkit.table import Table
from labkit.widgets.compiled import Compiled
from labkit.widgets.controls import Choice
from labkit.widgets.instant import Instant
from labkit.widgets.view_marks import kib, moved

BAD, GOOD, WAIT = "#D55E00", "#009E73", "#0072B2"  # Okabe and Ito's
WAITING = "compiling …"


def verdict(choice: Choice, now: Instant, found: Compiled) -> tuple[str, str]:
    """(colour, sentence): whether this schedule works there, as far as is known by now."""
    schedule, gpu = choice.schedule, choice.gpu
    broken = choice.problem.illegal(schedule, gpu)
    if broken:
        return BAD, f"Not possible. {broken}"
    if found.failure and found.code is None:
        return BAD, f"Does not compile. {found.failure}"
    if found.code is None and not now.fits:
        return BAD, (f"Does not fit. A block would take {kib(now.shared_bytes)} of shared memory, "
                     f"and the {gpu.name} gives {kib(now.shared_limit)}. Use smaller tiles or "
                     "fewer stages.")
    if found.code is not None and found.shared_bytes > gpu.shared_per_block:
        return BAD, (f"Does not fit. A block takes {kib(found.shared_bytes)} of shared memory, and "
                     f"the {gpu.name} gives {kib(gpu.shared_per_block)}. Use smaller tiles or "
                     "fewer stages.")
    if found.occupied is not None and not found.occupied.blocks:
        return BAD, f"Cannot start. {found.code.obstacle}"
    if found.used is not None and found.used.spill_stores + found.used.spill_loads:
        return BAD, (f"It spills: {found.used.spill_stores + found.used.spill_loads:,} bytes a "
                     "thread do not fit the registers and go to memory and back. Use more threads "
                     "or a smaller tile.")
    warning = choice.problem.warning(schedule, gpu)
    if warning:
        return BAD, warning
    if found.failure:
        return WAIT, found.failure
    if found.occupied is not None:
        return GOOD, (f"It fits. {found.occupied.blocks} "
                      f"{'block' if found.occupied.blocks == 1 else 'blocks'} a multiprocessor, "
                      f"limited by {found.occupied.limited_by}.")
    return WAIT, ("No rule that is known here forbids it."
                  + ("" if found.final else " The compilers are at work."))


def headline(choice: Choice, now: Instant) -> str:
    blocks = f"{now.grid.blocks:,} {now.unit}{'s' if now.grid.blocks != 1 else ''}"
    waves = (f" in {now.waves:,} wave{'s' if now.waves != 1 else ''}" if now.waves else "")
    return (f"{text(choice.schedule)}, {choice.problem.dtype}, {choice.problem.label}, on the "
            f"{choice.gpu.name}: {blocks}{waves}")


def figures(choice: Choice, now: Instant, found: Compiled) -> Table:
    """All figures, those that are not there yet marked so."""
    gpu, used, occupied = choice.gpu, found.used, found.occupied
    pending = "not known" if found.final else WAITING
    at_most = "at most " if now.bound else ""
    threads = str(found.code.threads) if found.code else f"{now.threads}, expected"
    shared = (f"{kib(found.shared_bytes)}, exact" if found.code
              else f"{kib(now.shared_bytes)}, by formula")
    rows: list[list[Any]] = [
        ["tiles of the output", " x ".join(f"{n:,}" for n in now.grid.tiles)
         + (f", {now.grid.matrices:,} times" if now.grid.matrices > 1 else "")],
        ["steps of the longest block", f"{now.grid.steps:,}"],
        ["blocks a multiprocessor", f"{at_most}{now.blocks_per_sm or 0}"],
        ["waves", "not known" if now.waves is None else
         f"{'at least ' if now.bound else ''}{now.waves:,}; the last one holds {now.last_wave:,} "
         f"of {now.slots:,}"],
        ["idle in the tail", "not known" if now.wasted is None else f"{now.wasted:.0%} of the "
         f"time, if {now.unit}s take equally long"],
        ["tensor-core work that counts", f"{now.useful:.1%}"],
        ["bytes, each once", moved(now.moved)],
        ["bytes asked of the L2 cache", moved(now.asked_bytes)],
        ["operations a byte",
         f"{now.asked:,.0f} asked of L2, {now.ideal:,.0f} at best from memory"],
        ["shared memory a block", f"{shared}, of {kib(gpu.shared_per_block)}"],
        ["threads a block", threads],
        ["registers a thread", f"{used.registers} of {gpu.registers_per_thread}" if used
         else pending],
        ["spilled a thread", pending if not used else
         f"{used.spill_stores + used.spill_loads:,} bytes"],
        ["occupancy", f"{occupied.warps} of {gpu.warps_per_sm} warps ({occupied.share:.0%}), "
         f"limited by {occupied.limited_by}" if occupied else pending],
    ]
    return Table("", ["figure", "value"], rows)


def figures_html(choice: Choice, now: Instant, found: Compiled) -> str:
    """The figures as a table that is close enough to be read beside a picture."""
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left;font-weight:normal;padding:.15em .6em .15em 0;'
        f'opacity:.8;vertical-align:top">{escape(name)}</th><td style="padding:.15em 0;'
        f'text-align:left">{escape(value)}</td></tr>'
        for name, value in figures(choice, now, found).rows)
    return (f'<table style="border-collapse:collapse;line-height:1.3;font-size:12px;width:100%">'
            f"<tbody>{rows}</tbody></table>")


def still(choice: Choice, now: Instant) -> str:
    """What can be said without a compiler, for where nothing runs."""
    unknown = Compiled(final=True)
    table = figures(choice, now, unknown)
    table.rows = [row for row in table.rows if row[1] != "not known"]
    return f"{headline(choice, now)}\n{verdict(choice, now, unknown)[1]}\n{table!r}"


def status_html(choice: Choice, now: Instant, found: Compiled, more: str = "") -> str:
    """The line that screen readers announce."""
    colour, sentence = verdict(choice, now, found)
    extra = f"<div>{escape(more)}</div>" if more else ""
    return (f'<div role="status" aria-live="polite" class="labkit-status" style="border-left:6px '
            f'solid {colour};padding:.3em .8em;line-height:1.5;white-space:normal">'
            f"<div>{escape(headline(choice, now))}</div><div><b>{escape(sentence)}</b></div>"
            f"{extra}</div>")
