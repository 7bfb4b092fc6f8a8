"""Which schedules of a space can run at all, by the compilers' own figures, and why the others
cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from labkit import cache, tuning_space
from labkit.errors import (
    BadArgument,
    CompileFailed,
    LabError,
    MissingTool,
    WrongAnswer,
    first_line,
)
from labkit.gpus import Gpu
from labkit.schedules import text
from labkit.tuning_space import Candidate, identity

# names of the steps, as the report shows them
PROGRAM, SAME, COMPILES = "a program", "each program once", "lowers"
SHARED, REGISTERS = "fits in shared memory", "fits the registers"
COMPILES_HERE = "compiles on this machine"
RIGHT, RIGHT_AFTER = "gives the right result", "still right after timing"

_MOST_SPILLED = 0  # bytes a thread


class Selection:
    """The candidates of one call of `tune`, and what each step leaves of them."""

    def __init__(self, name: str, sheet: Gpu, pass_configs: dict[str, Any] | None) -> None:
        from labkit.crosscompile import plain_options

        self.name, self.sheet, self.pass_configs = name, sheet, pass_configs
        self.options = plain_options(pass_configs)
        self.candidates: list[Candidate] = []
        self.hand_picked: Candidate | None = None
        self.steps: list[tuple[str, int, str]] = []  # step, how many it leaves, why

    @property
    def left(self) -> list[Candidate]:
        return [c for c in self.candidates if not c.dropped]

    def report(self, step: str, note: str = "", of: int | None = None) -> None:
        """Adds a line on `step`, with what it dropped; of: how many that are left it looked at, if
        not at all. Raises LabError if nothing is left, and WrongAnswer if that is because every
        result is wrong."""
        gone = [c for c in self.candidates if c.step == step]
        if gone:
            first = f"{len(gone)} dropped: {text(gone[0].schedule)}: {gone[0].dropped}"
            note = "; ".join(part for part in (note, first) if part)
            note += ", and others" if len(gone) > 1 else ""
        # a candidate that a later step dropped already is still left after this one
        reported = {step, *(name for name, _, _ in self.steps)}
        left = sum(c.step not in reported for c in self.candidates)
        self.steps.append((step, left if of is None else of, note))
        if not left:
            error = WrongAnswer if step in (RIGHT, RIGHT_AFTER) else LabError
            raise error(f"{self.name}: no schedule is left after the step '{step}'. {note}. Change "
                        f"{'the kernel' if error is WrongAnswer else 'the space'}, and call again.")

    def expand(self, build: Callable[..., Any], space: Any,
               legal: Callable[[dict[str, Any]], bool] | None,
               hand_picked: dict[str, Any] | None) -> None:
        """Traces each schedule of `space` that `legal` allows, and `hand_picked`."""
        every = tuning_space.grid(space)
        self.steps.append(("all combinations", len(every), ""))
        schedules = tuning_space.legal_ones(every, legal)
        if legal is not None:
            self.steps.append(("the lesson's rule", len(schedules),
                               f"{len(every) - len(schedules)} break it"))
        if hand_picked is not None:
            if not isinstance(hand_picked, dict):
                raise BadArgument(f"hand_picked is {hand_picked!r}; give a schedule, as in "
                                  '{"num_stages": 3}.')
            (hand_picked,) = tuning_space.grid([hand_picked])
            if identity(hand_picked) not in map(identity, schedules):
                schedules = [*schedules, hand_picked]
                self.steps.append(("with the hand-picked one", len(schedules), ""))
        for schedule in schedules:
            candidate = Candidate(schedule)
            try:
                candidate.program = tuning_space.trace(build, schedule)
            except BadArgument:
                raise
            except Exception as problem:
                candidate.drop(PROGRAM, first_line(problem))
            self.candidates.append(candidate)
            if hand_picked is not None and identity(schedule) == identity(hand_picked):
                self.hand_picked = candidate
        self._drop_the_same()
        for step in (PROGRAM, SAME):
            if any(c.step == step for c in self.candidates):
                self.report(step)

    def _drop_the_same(self) -> None:
        """Of the schedules that make one program, leaves the hand-picked, else the first."""
        first: dict[str, Candidate] = {}
        for candidate in sorted(self.left, key=lambda c: c is not self.hand_picked):
            kept = first.setdefault(cache.program_text(candidate.program), candidate)
            if kept is not candidate:
                candidate.drop(SAME, f"same program as {text(kept.schedule)}")

    def filter(self, count_registers: int | None) -> None:
        """Drops what does not lower, does not fit, spills or cannot launch. nvcc counts the
        registers of `count_registers` of those that fit (None: of all)."""
        parallel(lambda c: self._cost(c, count_registers is None), self.left,
                 f"filtering for the {self.sheet.name}")
        if count_registers is not None:
            chosen = spread_out(self.left, count_registers, [self.hand_picked])
            parallel(lambda c: self._cost(c, True), chosen, "counting registers")
        if any(c.step == COMPILES for c in self.candidates):
            self.report(COMPILES)
        self.report(SHARED, f"a block gets {self.sheet.shared_per_block / 1024:g} KiB on the "
                            f"{self.sheet.name}")
        asked = sum(c.registers is not None for c in self.candidates)
        if asked:
            self.report(REGISTERS, f"nvcc compiled {asked} for the {self.sheet.name} and counted")
        elif count_registers != 0:
            self.steps.append((REGISTERS, len(self.left), "not known: there is no nvcc here"))

    def _cost(self, candidate: Candidate, registers: bool) -> None:
        from labkit.crosscompile import cross_compile

        try:
            compiled = cross_compile(candidate.program, self.sheet, self.pass_configs)
            candidate.shared_bytes = compiled.shared_bytes
            if compiled.shared_bytes > self.sheet.shared_per_block:
                candidate.drop(SHARED, f"takes {compiled.shared_bytes / 1024:g} KiB")
            elif registers:
                used = compiled.resources
                candidate.registers = used.registers
                candidate.spilled = used.spill_stores + used.spill_loads
                if compiled.obstacle:
                    candidate.drop(REGISTERS, compiled.obstacle)
                elif candidate.spilled > _MOST_SPILLED:
                    candidate.drop(REGISTERS, f"spills {candidate.spilled} bytes a thread")
        except MissingTool:
            return  # the shared memory is known without nvcc, the registers are not
        except CompileFailed as error:
            candidate.drop(COMPILES, first_line(error))


def spread_out(candidates: Sequence[Candidate], count: int | None,
               first: Sequence[Candidate | None]) -> list[Candidate]:
    """At most `count` of them (None: all): those of `first`, then some from all over the list."""
    count = len(candidates) if count is None else count
    chosen = [c for c in dict.fromkeys(first) if c is not None and not c.dropped][:count]
    rest = [c for c in candidates if c not in chosen]
    wanted = min(count - len(chosen), len(rest))
    return chosen + [rest[i * len(rest) // wanted] for i in range(wanted)]


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterable[Any]:
    """`items` with a bar beside them that is gone when they are done. It is plain text on stderr:
    it needs no widget, and leaves nothing in a stored notebook."""
    from tqdm import tqdm

    return tqdm(items, desc=what, total=total, leave=False, file=sys.stderr, ncols=79,
                mininterval=0.3)


def parallel(work: Callable[[Candidate], Any], candidates: Sequence[Candidate], what: str
             ) -> list[Any]:
    """work(candidate) of each, one thread a core, in order. An interruption drops what has not
    begun, and waits for what has."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        futures = [pool.submit(work, candidate) for candidate in candidates]
        for future in progress(as_completed(futures), what, len(futures)):
            future.result()
        return [future.result() for future in futures]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
