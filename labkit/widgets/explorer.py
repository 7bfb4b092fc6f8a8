"""The schedule explorer: move a slider, and see what the schedule does.

Three answers, each as soon as it is there, none of which keeps the page waiting:

1. at once, by arithmetic: shared memory, blocks, waves, bytes, the place under the roofline;
2. after TileLang has lowered the program: its source, the exact shared memory, the threads;
3. after nvcc: registers, spills, occupancy and what limits it.

A newer move supersedes an older one. What was compiled once comes back at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from labkit.crosscompile import plain_options
from labkit.errors import BadArgument, LabError, NeedsGPU, first_line
from labkit.gpus import Gpu, sheet_of
from labkit.pictures import Picture, stack
from labkit.widgets import compiled as compilers
from labkit.widgets import panels, recordings, words
from labkit.widgets.background import Latest, Superseded, Ticket
from labkit.widgets.compiled import Compiled
from labkit.widgets.controls import Choice, Controls, Signature
from labkit.widgets.instant import Instant, instant
from labkit.widgets.layout import Page

_BURST_SECONDS = 0.06  # moves closer together than this are one move to the compilers
_MOST_KEPT = 500  # answers in memory, some 20 KB each; the disk has them all


class ScheduleExplorer:
    """Sliders for the schedule of a kernel, and what each position does.

    build: the lesson's own function that makes the program; it is called with the knobs and, by
        name, with those of the problem's sizes and dtype that it takes.
    problem: `lab.Gemm(M, N, K)` or `lab.Attention(batch, heads, seq, dim)`.
    space: knob -> values that its slider offers; None: the problem's own.
    start: the schedule to begin with; a knob outside `space` is kept as it is given here.
    gpu: the GPU to begin with, a name or a data sheet; None: the machine's own, else the H100.
    pass_configs: TileLang's compiler options, as for `lab.compile`.
    sweeps: names of recorded sweeps to look a schedule up in; None: those of the problem.
    reference, baseline: for measuring, instead of the problem's; reference(*inputs) returns
        float32, baseline is (name, function of the inputs).

    `schedule` is what the sliders say. Raises BadArgument for what does not fit together.
    """

    def __init__(self, build: Callable[..., Any], problem: Any,
                 space: dict[str, Sequence[Any]] | None = None,
                 start: dict[str, Any] | None = None, gpu: str | Gpu | None = None,
                 pass_configs: dict[str, Any] | None = None, sweeps: Sequence[str] | None = None,
                 reference: Callable[..., Any] | None = None,
                 baseline: tuple[str, Callable[..., Any]] | None = None) -> None:
        from labkit.machine import own_gpu, resolve_device

        if not hasattr(problem, "through_l2"):
            raise BadArgument(f"problem is of type {type(problem).__name__}; give "
                              "lab.Gemm(M, N, K) or lab.Attention(batch, heads, seq, dim).")
        plain_options(pass_configs)
        self._build, self._pass_configs = build, pass_configs
        self._signature = Signature(build, problem, space, start)
        self._own = own_gpu() if resolve_device("auto") == "gpu" else None
        sheet = sheet_of(gpu) if gpu is not None else self._own or sheet_of("H100")
        self.controls = Controls(problem, self._signature, sheet, self._own)
        own = problem.name
        self._sweeps = (f"{own}_explored", f"{own}_skinny", own) if sweeps is None else \
            tuple([sweeps] if isinstance(sweeps, str) else sweeps)
        self._reference, self._baseline = reference, baseline
        self._kept: dict[Choice, Compiled] = {}
        self._bench: Any = None
        self._measured: dict[Choice, Any] = {}
        self._worker = Latest("labkit-explorer")
        self._drawing = threading.RLock()
        self._holding = False
        self.found = Compiled()
        self.page = Page(self.controls, self._own, self._measure_clicked, self._redraw)
        self.controls.observe(self._moved)
        self._draw(self.choice, self._known(self.choice))

    # --- what it says

    @property
    def choice(self) -> Choice:
        """Schedule, problem and GPU as the controls say."""
        return self.controls.choice

    @property
    def schedule(self) -> dict[str, Any]:
        """The schedule that the sliders say, to build the program with."""
        return {k: self.choice.schedule[k] for k in
                [*self.controls.knobs, *self._signature.fixed]}

    def set(self, **values: Any) -> None:
        """Moves controls by name, as in set(block_M=128, gpu="T4"). Raises BadArgument."""
        self._holding = True
        try:
            self.controls.set(**values)
        finally:
            self._holding = False
            self._moved()

    def settle(self, timeout: float = 300) -> Compiled:
        """Waits for the compilers, and returns what they say about the present choice. Raises
        LabError after `timeout` seconds."""
        if not self.found.final and not self._worker.busy:
            self._submit(self.choice)
        if not self._worker.settle(timeout):
            raise LabError(f"The compilers took longer than {timeout:g} s.")
        return self.found

    def close(self) -> None:
        """Ends what runs in the background."""
        self._worker.cancel()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """One output: the widgets, and for where they cannot run a picture and its words."""
        if not self.found.final:
            self._submit(self.choice)
        now = self._instant(self.choice, Compiled())
        picture = self._still(self.choice, now)
        return {"application/vnd.jupyter.widget-view+json": {
                    "version_major": 2, "version_minor": 0, "model_id": self.page.box.model_id},
                "image/svg+xml": picture.svg,
                "text/plain": f"{words.still(self.choice, now)}\n{picture.text}"}

    # --- a move

    def _moved(self, _: Any = None) -> None:
        if self._holding:
            return
        choice = self.choice
        self._worker.revoke()
        with self._drawing:
            self._draw(choice, self._known(choice))
        if not self.found.final:
            self._submit(choice)

    def _redraw(self, _: Any = None) -> None:
        """Another picture of the same choice; the compilers go on."""
        with self._drawing:
            self._draw(self.choice, self.found)

    def _known(self, choice: Choice) -> Compiled:
        if choice.problem.illegal(choice.schedule, choice.gpu):
            return Compiled(final=True)
        return self._kept.get(choice, Compiled())

    def _submit(self, choice: Choice) -> None:
        self._worker.submit(lambda ticket: self._compile(choice, ticket))

    def _compile(self, choice: Choice, ticket: Ticket) -> None:
        """In the background: lowers, then counts registers."""
        ticket.wait(_BURST_SECONDS)
        try:
            found = self._kept.get(choice) or compilers.lowered(
                self._build, self._signature.arguments(choice), choice.gpu, self._pass_configs)
            self._deliver(choice, found, ticket)
            if not found.final:
                self._deliver(choice, compilers.counted(found, ticket.run), ticket)
        except Superseded:
            raise
        except (Exception, SystemExit) as error:  # in a thread nobody else would see it
            self.found = Compiled(failure=f"The explorer failed: {error!r}", final=True)
            self.page.fail(self.found.failure)

    def _deliver(self, choice: Choice, found: Compiled, ticket: Ticket) -> None:
        self._kept[choice] = found  # right also if nobody waits for it any more
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        with self._drawing:
            ticket.check()
            self._draw(choice, found)

    # --- drawing

    def _instant(self, choice: Choice, found: Compiled) -> Instant:
        blocks = found.occupied.blocks if found.occupied else None
        return instant(choice.problem, choice.schedule, choice.gpu, blocks, found.shared_bytes)

    def _draw(self, choice: Choice, found: Compiled) -> None:
        self.found = found
        now, page = self._instant(choice, found), self.page
        measured = self._measured.get(choice)
        recorded = None if measured else recordings.find(self._sweeps, choice,
                                                         self._signature.defaults)
        more, points = "", []
        if measured and measured.ms:
            points = [("measured now", measured.ms)]
        elif recorded:
            more = recordings.line(recorded, choice.problem)
            points = [("RECORDED", recorded.ms)] if recorded.ms else []
        broken = choice.problem.illegal(choice.schedule, choice.gpu)
        page.show(
            status=words.status_html(choice, now, found, more),
            memory=panels.html(panels.memory(choice, now, found), "memory"),
            grid=panels.html(panels.grid(choice, now), "grid"),
            roof=panels.html(panels.roof(choice, now, points), "roof"),
            figures=words.figures_html(choice, now, found),
            detail=panels.detail(page.detail_kind, choice, now, found, broken, page.step(now)))
        page.allow_measuring(self._own is not None and choice.gpu.name == self._own.name
                             and not broken)

    def _still(self, choice: Choice, now: Instant) -> Picture:
        drawn = [panels.memory(choice, now, Compiled()), panels.grid(choice, now),
                 panels.roof(choice, now, [])]
        return stack([picture for picture in drawn if isinstance(picture, Picture)])

    # --- measuring

    def measure(self) -> Any:
        """Checks and times the present schedule on this machine's GPU, and adds it to the
        history. Raises NeedsGPU without one, or with another GPU chosen."""
        from labkit.tuning_space import trace
        from labkit.widgets.measure import Bench, measure

        choice = self.choice
        if self._own is None or choice.gpu.name != self._own.name:
            raise NeedsGPU("Measuring needs the GPU that is chosen, and it is not in this machine.")
        self._worker.cancel()  # so that no compiler disturbs the timing
        if self._bench is None or self._bench.problem != choice.problem:
            self._bench = None  # gives its memory back first
            self._bench = Bench(choice.problem, self._reference, self._baseline)
        program = trace(self._build, self._signature.arguments(choice))
        result = measure(choice, self._bench, program, self._pass_configs)
        self._measured[choice] = result
        self.page.show_history(self._measured, choice.problem)
        self._moved()
        return result

    def _measure_clicked(self, _: Any) -> None:
        self.page.allow_measuring(False)
        self.page.say("Compiling, checking and timing …")
        try:
            result = self.measure()
        except Exception as error:
            self.page.say(first_line(error))
            self._redraw()
        else:
            self.page.say(result.failure or f"Right (relative error {result.error:.1e}) and timed: "
                                            f"{result.ms:.4g} ms.")
