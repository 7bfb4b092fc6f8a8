"""The calls that a comparison times, on tensors made once, and the check of what they write."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from labkit.benchmark import time_each
from labkit.epilogue.accuracy import distance, whole
from labkit.epilogue.checking import ALLOWED, compare_reduction
from labkit.epilogue.gemm import plain
from labkit.epilogue.run import kernel_for
from labkit.epilogue.workloads import Workload
from labkit.errors import WrongAnswer
from labkit.verify import UNIT_ROUNDOFF, Comparison, compare

# how the baseline's kernel is compiled; the faster one is the baseline
COMPILED = ({}, {"mode": "max-autotune-no-cudagraphs"})


class Arms:
    """The op, the same main loop with a plain store, and the baseline, for one workload."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self._on_gpu = work.A.is_cuda
        kernel = kernel_for(work.epilogue, work.A, work.B, work.transpose_B)
        given = [work.A, work.B, *(work.operands[n] for n in work.epilogue.inputs)]
        arguments = kernel.arguments(*given)
        self._launch, self._arguments = kernel.launch, arguments
        self.outputs = dict(zip((o.name for o in work.epilogue.outputs), arguments[len(given):],
                                strict=True))
        place = {name: 2 + i for i, name in enumerate(work.epilogue.inputs)}
        self._first = [(place[n], self._fast(f), p) for n, (f, p) in work.first.items()]
        self._finish = {n: self._fast(f) for n, f in work.finish.items()}
        self.finished: dict[str, Any] = {}
        self.verdicts: tuple[Comparison, ...] = ()
        self.statistics: dict[str, float] = {}
        self._after = self._fastest() if self._on_gpu else work.after

    def _fastest(self) -> Callable[..., dict[str, Any]]:
        """The baseline's kernel as torch.compile makes it, or as its autotuning does: the faster
        one behind this product."""
        product = torch.mm(self.work.baseline_A, self.work.baseline_B)
        made = {str(options): torch.compile(self.work.after, dynamic=False, **options)
                for options in COMPILED}
        times = time_each({key: partial(fn, product, *self.work.extras)
                           for key, fn in made.items()}, milliseconds=30)
        return made[min(times, key=lambda key: times[key].median)]

    def _fast(self, fn: Any) -> Any:
        return torch.compile(fn, dynamic=False) if self._on_gpu else fn

    def kernel(self) -> None:
        for place, fn, partials in self._first:
            self._arguments[place] = fn(partials)
        self._launch(*self._arguments)
        for name, fn in self._finish.items():
            self.finished[name] = fn(self.outputs[name])

    def new_product(self) -> Any:
        shape = self.work.shape
        return torch.empty(shape["M"], shape["N"], dtype=self.work.A.dtype,
                           device=self.work.A.device)

    def own_alone(self, schedule: dict[str, Any], product: Any) -> Callable[[], None]:
        """The same main loop at the same schedule, which only stores its product."""
        work = self.work
        launch = kernel_for(plain, work.A, work.B, work.transpose_B, schedule).launch
        return lambda: launch(work.A, work.B, product)

    def baseline(self) -> dict[str, Any]:
        work = self.work
        return self._after(torch.mm(work.baseline_A, work.baseline_B), *work.extras)

    def fill_(self, value: float) -> None:
        """Every output starts as `value`, so that what was not written is seen."""
        for output in self.outputs.values():
            output.fill_(value)

    def check(self) -> Comparison:
        """The worst verdict; every output of the op and of the baseline is compared."""
        work, chosen = self.work, self.work.epilogue
        wide = torch.float32 if self._on_gpu else torch.float64
        product = work.A.to(wide) @ (work.B.t() if work.transpose_B else work.B).to(wide)
        reference = chosen.reference(product, **work.operands)
        del product
        found = whole(chosen, self.outputs)
        verdicts, statistics = [], {}
        for o in chosen.outputs:
            if o.kind == "store":
                verdicts.append(compare(found[o.name], reference[o.name], name=o.name,
                                        tile=(128, 128)))
                if not verdicts[-1].ok:
                    raise WrongAnswer(f"{chosen.name}, {verdicts[-1]!r}")
                continue
            statistics[o.name] = distance(found[o.name], reference[o.name])
            _demand(f"{chosen.name}, {o.name}", statistics[o.name], ALLOWED)
        for name, value in self.finished.items():
            wanted = self.work.finish[name](reference[name][None])
            _demand(f"{chosen.name}, {name} finished", distance(value, wanted), ALLOWED)
        self.verdicts, self.statistics = tuple(verdicts), statistics
        kind = str(work.A.dtype).removeprefix("torch.")
        wanted = work.view(reference)
        for name, value in self.baseline().items():
            _demand(f"{chosen.name} and the baseline of {work.name} differ in {name}",
                    distance(value, wanted[name]), 2 * UNIT_ROUNDOFF[kind])
        if not verdicts:  # nothing but reductions
            name = next(iter(statistics))
            return compare_reduction(found[name], reference[name], name)
        return max(verdicts, key=lambda v: v.error / v.allowed)


def _demand(what: str, error: float, allowed: float) -> None:
    if not error <= allowed:
        raise WrongAnswer(f"{what}: relative error {error:.1e}, where {allowed:.0e} would pass.")
