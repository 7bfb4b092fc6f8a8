"""What a tuning found: the steps, the ranking, the plot, and whether it beat the hand-picked
schedule."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabError
from labkit.pictures import Picture
from labkit.ranking import Bar, ranking
from labkit.results import RECORDED, record_path
from labkit.schedules import text
from labkit.table import Table
from labkit.tuning_filter import COMPILES_HERE, RIGHT, Selection
from labkit.tuning_space import Candidate, identity


@dataclass(frozen=True)
class Tuning:
    """The result of `lab.tune`. gpu, date: where and when it was timed, "" if it was not; origin:
    "measured now", "measured here before", how much of today's was measured now, RECORDED or "".
    seconds: of each step, where it was timed. new: how many results that call measured, and did not
    find on disk. versions: of what the times were measured with."""

    name: str
    gpu: str
    date: str
    origin: str
    shape: dict[str, int]
    dtype: str
    flops: float
    candidates: list[Candidate]
    steps: list[tuple[str, int, str]]
    hand_picked: Candidate | None
    seconds: dict[str, float] = field(default_factory=dict)
    new: int = 0
    timed: list[Candidate] = field(default_factory=list)  # of the recording
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Candidate]:
        """The timed schedules, the fastest first; empty if nothing was timed or recorded."""
        chosen = self.timed or self.candidates
        return sorted((c for c in chosen if c.ms is not None and not c.dropped),
                      key=Candidate.place)

    @property
    def winner(self) -> dict[str, Any]:
        """The fastest schedule that is right. Raises LabError if nothing was timed."""
        if not self.ranked:
            raise LabError(f"{self.name} has no winner: there is no GPU in this run, and no "
                           "recorded sweep of it. Run this on a GPU to measure it.")
        return self.ranked[0].schedule

    def verdict(self) -> str:
        """How the winner compares with the hand-picked schedule, in a sentence."""
        ranked = self.ranked
        own = next(filter(self._is_own, ranked), None)
        if own is None:
            return ("Nothing to compare: the hand-picked schedule was not timed"
                    + (f" on the {self.gpu}." if ranked else "."))
        best = ranked[0]
        if best is own:
            return (f"No schedule beat the hand-picked one ({text(own.schedule)}, {own.ms:.4f} ms) "
                    f"on the {self.gpu}.")
        if own.round != best.round:
            return (f"Nothing to compare: on the {self.gpu}, the hand-picked {text(own.schedule)} "
                    f"was timed in the short round only, and the winner {text(best.schedule)} at "
                    "length.")
        within = max(best.spread_ms or 0, own.spread_ms or 0)
        close = "; that is less than the spread of the runs" if own.ms - best.ms < within else ""
        return (f"On the {self.gpu}, {text(best.schedule)} takes {best.ms:.4f} ms and the "
                f"hand-picked {text(own.schedule)} {own.ms:.4f} ms: {own.ms / best.ms - 1:.1%} "
                f"more{close}.")

    def report(self) -> Table:
        """What each step left, and why it dropped the others."""
        return Table(f"{self.name}: from all combinations to the fastest",
                     ["step", ">left", "why"], self.steps)

    def table(self, top: int | None = None) -> Table:
        """The ranking, the fastest `top` of it; without times, what each schedule takes."""
        if not self.ranked:
            return self._costs(top)
        best = self.ranked[0].ms
        rows = [[place if c.round == "full" else "",
                 text(c.schedule) + (" (hand-picked)" if self._is_own(c) else ""),
                 f"{c.ms:.4f}", "" if c.spread_ms is None else f"{c.spread_ms:.4f}",
                 f"{self.flops / c.ms / 1e9:,.0f}",
                 f"{best / c.ms:.0%}" if c.round == self.ranked[0].round else "", c.round]
                for place, c in enumerate(self.ranked, 1)]
        shown = rows[:top]
        shown += [row for row in rows[len(shown):] if row[1].endswith("(hand-picked)")]
        note = ("Full round: interleaved, each output checked before its timing and after; these "
                "are ranked. Short round: alone, on a cooler GPU, and not among the fastest there; "
                "its times do not compare with the full round's. Spread: from the 10th to the 90th "
                "percentile of the runs.")
        if len(shown) < len(rows):
            note = f"{len(rows) - len(shown)} others are not shown. {note}"
        size = ", ".join(f"{axis} = {n:,}" for axis, n in self.shape.items())
        return Table(f"{self.name}: {size}, {self.dtype}, on {self.gpu}, {self.date} "
                     f"({self.origin})", [">rank", "schedule", ">ms", ">spread", ">TFLOP/s",
                                          ">of the best", "round"], shown, note)

    def _costs(self, top: int | None) -> Table:
        left = [c for c in self.candidates if not c.dropped]
        rows = [[text(c.schedule) + (" (hand-picked)" if self._is_own(c) else ""),
                 f"{c.shared_bytes / 1024:.0f} KiB",
                 "not counted" if c.registers is None else c.registers] for c in left[:top]]
        more = f" {len(left) - len(rows)} more." if len(left) > len(rows) else ""
        return Table(f"{self.name}: NOT TIMED. There is no GPU in this run, and no recorded sweep",
                     ["schedule", ">shared", ">registers"], rows,
                     "In the order of the space; the compilers' figures say what can run, not what "
                     f"is fast.{more}")

    def _is_own(self, candidate: Candidate) -> bool:
        return (self.hand_picked is not None
                and identity(candidate.schedule) == identity(self.hand_picked.schedule))

    @property
    def plot(self) -> Picture:
        """The ranking as bars of TFLOP/s. Raises LabError if nothing was timed."""
        self.winner  # noqa: B018  raises where there is nothing to draw
        bars = [Bar(text(c.schedule), self.flops / c.ms / 1e9, c.round != "full", self._is_own(c))
                for c in self.ranked]
        when = f"{self.gpu}, {self.date}" + (", recorded" if self.origin == RECORDED else "")
        return ranking(f"{self.name} on {when}", "TFLOP/s", bars)

    def __repr__(self) -> str:
        return f"{self.report()!r}\n\n{self.table(12)!r}"

    def _repr_html_(self) -> str:
        drawn = self.plot.svg if self.ranked else ""
        return f"{self.report()._repr_html_()}<br>{self.table(12)._repr_html_()}<br>{drawn}"


def from_recording(run: Selection, recording: dict[str, Any] | None, shape: dict[str, int],
                   dtype: str, flops: float) -> Tuning:
    """What the steps without a GPU left, ranked by the recorded sweep, if there is one. A schedule
    that failed or was wrong here is not in the ranking."""
    if recording is None:
        return Tuning(run.name, "", "", "", dict(shape), dtype, flops, run.candidates, run.steps,
                      run.hand_picked)
    here = {identity(c.schedule): c for c in run.candidates}
    timed = []
    for entry in recording["schedules"]:
        own = here.get(identity(entry["schedule"]))
        wrong = own is not None and own.step in (COMPILES_HERE, RIGHT)
        if entry.get("kernel_ms") is not None and not wrong:
            timed.append(Candidate(entry["schedule"], error=entry.get("error"),
                                   ms=entry["kernel_ms"], spread_ms=entry.get("spread_ms"),
                                   round=entry.get("round", "full")))
    first = recording["schedules"][0]
    return Tuning(run.name, recording["gpu"], recording["date"], RECORDED, first["shape"],
                  first["dtype"], recording["flops"], run.candidates, run.steps, run.hand_picked,
                  recording.get("seconds", {}), recording.get("new", 0), timed)


def write_record(result: Tuning) -> None:
    """Writes the tuning as a sweep file where `record_path` says: {gpu, date, versions, flops,
    steps, seconds, new, schedules}; date and versions are those of the times, seconds are there if
    this call measured some."""
    path = record_path(result.name)
    if path is None or (path.exists() and not result.new):
        return  # it has the seconds of the call that measured
    entries = []
    for c in result.candidates:
        figures = ({"failure": f"{c.step}: {c.dropped}"} if c.dropped else
                   {"kernel_ms": c.ms, "spread_ms": c.spread_ms, "error": c.error,
                    "round": c.round})
        entries.append({"schedule": c.schedule, "shape": result.shape, "dtype": result.dtype,
                        "shared_bytes": c.shared_bytes, "registers": c.registers, **figures})
    content = {"gpu": result.gpu, "date": result.date, "versions": result.versions,
               "flops": result.flops, "steps": result.steps,
               "seconds": result.seconds if result.new else {}, "new": result.new,
               "schedules": entries}
    path.write_text(json.dumps(content, indent=1))
