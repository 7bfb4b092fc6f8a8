"""Compiles schedules where they run, and drops those whose output is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from labkit import tuning_space
from labkit.errors import BadArgument, LabError, MissingTool, NeedsGPU, first_line
from labkit.schedules import text
from labkit.tuning_filter import COMPILES_HERE, RIGHT, Selection, parallel, spread_out
from labkit.tuning_space import Candidate, identity
from labkit.tuning_store import Store


class Checker(Selection):
    """The selected schedules, and which of them are right."""

    def __init__(self, name: str, here: Any, build: Callable[..., Any],
                 build_for_gpu: Callable[..., Any], inputs: Sequence[Any], reference: Any,
                 tile: tuple[str, str], pass_configs: dict[str, Any] | None) -> None:
        from labkit.machine import own_gpu

        super().__init__(name, here.gpu if here.device == "cpu" else own_gpu(), pass_configs)
        self.device = here.device
        self.build, self.build_for_gpu = build, build_for_gpu
        self.inputs, self.reference, self.tile = inputs, reference, tile
        self.kernels: dict[Candidate, Any] = {}
        self.keys: dict[Candidate, str] = {}
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[step] = time.perf_counter() - start

    def check_reference(self) -> None:
        """Raises BadArgument if the reference has another shape than the output of the programs for
        `inputs`, so far as the shape is known before anything runs."""
        for candidate in self.left[:1]:
            try:
                program = self._program(candidate)
                shape = [int(n) for n in program.buffer_map[program.params[-1]].shape]
            except Exception:
                return  # a size that the tensors give, or no program: the steps to come say which
            if shape != list(self.reference.shape):
                raise BadArgument(f"reference has shape {list(self.reference.shape)}, but the "
                                  f"program's last parameter {shape}; give the reference for the "
                                  "sizes that build has.")

    def _program(self, candidate: Candidate) -> Any:
        return (candidate.program if self.build is self.build_for_gpu
                else tuning_space.trace(self.build, candidate.schedule))

    def _compiled(self, candidate: Candidate, step: str) -> Any:
        """The kernel; None, and the candidate dropped, if it cannot be made."""
        from labkit import compiler

        try:
            return compiler.compile(self._program(candidate), out_idx=-1, device=self.device,
                                    pass_configs=self.pass_configs)
        except (MissingTool, NeedsGPU):
            raise  # no other schedule would compile
        except Exception as problem:
            candidate.drop(step, first_line(problem))
            return None

    def compile(self, candidates: Sequence[Candidate], step: str = COMPILES_HERE) -> None:
        missing = [c for c in candidates if c not in self.kernels]
        made = (parallel(lambda c: self._compiled(c, step), missing, "compiling") if missing
                else [])
        self.kernels.update({c: k for c, k in zip(missing, made, strict=True) if k})

    def judge(self, candidate: Candidate, output: Any, step: str) -> None:
        """Drops the candidate if `output` is wrong."""
        from labkit.verify import compare

        verdict = compare(output, self.reference, name=self.name,
                          tile=tuple(candidate.schedule.get(side, 128) for side in self.tile))
        candidate.error = verdict.error
        if not verdict.ok:
            candidate.drop(step, repr(verdict).splitlines()[0])

    @contextmanager
    def failures(self, candidate: Candidate, store: Store | None, step: str) -> Iterator[None]:
        """Drops the candidate if the block fails, other than by an argument that does not fit."""
        try:
            yield
        except (BadArgument, NeedsGPU):
            raise
        except Exception as problem:
            candidate.drop(step, first_line(problem))
            if store is not None:
                self._need_a_living_gpu(candidate, store)

    def run_once(self, candidate: Candidate, store: Store | None = None,
                 step: str = RIGHT) -> list[Any]:
        """Runs the kernel and judges its output. Returns its arguments, or an empty list, and the
        candidate dropped, if it failed or was wrong."""
        kernel = self.kernels[candidate]
        with self.failures(candidate, store, step):
            arguments = kernel.arguments(*self.inputs)
            kernel.launch(*arguments)
            self.judge(candidate, arguments[-1], step)
        return [] if candidate.dropped else arguments

    def _need_a_living_gpu(self, candidate: Candidate, store: Store) -> None:
        """Raises LabError if the candidate's failure left no way to run anything in this process;
        the next call then leaves it out."""
        import torch

        try:
            torch.cuda.synchronize()
        except Exception as error:
            store.add(stage="broke", key=self.keys[candidate], why=candidate.dropped)
            raise LabError(f"{self.name}, {text(candidate.schedule)}: {candidate.dropped}. After "
                           "that the GPU runs nothing more for this process. Restart the kernel "
                           "and call again: what was measured is kept, and this schedule is left "
                           "out.") from error

    def check_on_cpu(self, count: int | None, recording: dict[str, Any] | None) -> None:
        """Runs a few schedules on the CPU: the hand-picked, the recorded winner, and others."""
        timed = [t for t in (recording or {"schedules": []})["schedules"] if t.get("kernel_ms")]
        best = min(timed, key=lambda t: t["kernel_ms"])["schedule"] if timed else None
        winner = next((c for c in self.left if identity(c.schedule) == identity(best)), None)
        chosen = spread_out(self.left, count, [self.hand_picked, winner])
        self.compile(chosen)
        for candidate in chosen:
            if not candidate.dropped:
                self.run_once(candidate)
        ran = [c for c in chosen if c.step != COMPILES_HERE]
        right = sum(not c.dropped for c in ran)
        if not right:
            step, why = (RIGHT, "wrong") if ran else (COMPILES_HERE, "one that does not compile")
            for candidate in self.left:
                candidate.drop(step, f"not run; every schedule that was tried is {why}")
        if any(c.step == COMPILES_HERE for c in self.candidates):
            self.report(COMPILES_HERE)
        self.report(RIGHT, f"{right} of {len(ran)} that ran on the CPU are right")
