"""One op, four ways, in one run: what its epilogue brings, what it costs, and whether it is right.

    compared = compare.run("gemm_swiglu", here)     # a table; .bars(), .account, .room, .gain

* cuBLAS alone: no op can be faster than its product, if that library's product cannot;
* own GEMM alone: the same main loop and schedule, its epilogue a plain store;
* own GEMM + epilogue: the op, with the small kernels that end its statistics where the baseline has
  the finished ones, too;
* cuBLAS + one kernel that torch.compile makes of everything elementwise: the baseline.

All outputs are compared after the timing: the op's with its function in float32 or higher, from the
same inputs, the baseline's with the same. Without a GPU the op runs at small sizes on the CPU
against float64, and the times are recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.benchmark import Result, bench
from labkit.epilogue import finalize, workloads
from labkit.epilogue.bars import bars_of
from labkit.epilogue.declare import Epilogue
from labkit.epilogue.gemm import gemm, plain
from labkit.epilogue.run import kernel_for, own_schedule
from labkit.epilogue.traffic import Account, account
from labkit.epilogue.workloads import Workload
from labkit.errors import BadArgument, WrongAnswer
from labkit.pictures import Picture
from labkit.results import recorded
from labkit.table import Table
from labkit.verify import UNIT_ROUNDOFF, Comparison, compare

ALONE, OWN_ALONE, BASELINE = "cuBLAS alone", "own GEMM alone", "cuBLAS + one compiled kernel"
# of a float32 statistic: the fast exponential and division err by more than float32's rounding
STATISTIC = 1e-5
_WHOLE = {"sum": finalize.total, "max": finalize.maximum, "lse": finalize.logsumexp}


@dataclass(frozen=True)
class Compared:
    """One op's comparison. verdicts: of each output that is stored; statistics: relative Frobenius
    error of each reduction; result: the times, None where there are none to show."""

    name: str
    epilogue: Epilogue
    shape: dict[str, int]
    dtype: str
    verdicts: tuple[Comparison, ...]
    statistics: dict[str, float]
    account: Account
    result: Result | None

    def _ratio(self, of: str, over: float | None) -> float | None:
        m = self.result.measurement if self.result else None
        return (m.baselines | m.references)[of] / (over or m.kernel_ms) if m else None

    @property
    def room(self) -> float | None:
        """The baseline's time over that of cuBLAS alone: the most that an epilogue can gain on a
        main loop as fast as cuBLAS's. None without times."""
        return (self._ratio(BASELINE, self.result.measurement.references[ALONE])
                if self.result else None)

    @property
    def gain(self) -> float | None:
        """The baseline's time over the op's: above 1 the op is faster. None without times."""
        return self._ratio(BASELINE, None)

    @property
    def main_loop(self) -> float | None:
        """cuBLAS's time alone over the own GEMM's alone. None without times."""
        if self.result is None:
            return None
        times = self.result.measurement.references
        return times[ALONE] / times[OWN_ALONE]

    def bars(self) -> Picture:
        """The four times as bars, the room marked."""
        return bars([self])

    @property
    def correct(self) -> str:
        """What was checked, in a sentence."""
        worst = max(v.error for v in self.verdicts) if self.verdicts else 0.0
        names = ", ".join([v.name for v in self.verdicts] + list(self.statistics))
        at = " x ".join(str(size) for size in self.shape.values())
        allowed = max((v.allowed for v in self.verdicts), default=STATISTIC)
        bound = f"errors within the {allowed:.0e} that {self.dtype} allows" if worst else "exact"
        return f"{self.epilogue.name} at {at}: {names} correct, {bound}."

    def __repr__(self) -> str:
        return "\n".join([self.correct, repr(self.result) if self.result else _NO_TIMES])

    def _repr_html_(self) -> str:
        shown = self.result._repr_html_() if self.result else f"<div>{_NO_TIMES}</div>"
        return f"<div>{self.correct}</div>{shown}"


_NO_TIMES = "No times: there is no GPU in this run, and none were recorded yet."


def run(name: str, here: Any, chosen: Epilogue | None = None, *,
        sizes: dict[str, int] | None = None) -> Compared:
    """Compares the workload `name` of `workloads.NAMES` as the module says; on a GPU the times go
    to the file that `$LABKIT_RECORD` names, under the name up to a comma.

    here: the result of `lab.here`. chosen: another epilogue with the same operands and outputs as
    the catalogue's, such as one just written. sizes: None for those that suit the run.
    Raises WrongAnswer, naming the output, if an output is wrong; BadArgument for a name or an
    epilogue that does not fit.
    """
    import torch

    dtype = torch.bfloat16 if here.sm >= 80 else torch.float16  # a T4 has no bfloat16 tensor cores
    made = workloads.make(name, sizes or workloads.sizes(here), dtype, here.torch_device)
    if chosen is not None:
        made.epilogue = _fitting(chosen, made.epilogue)
    timed = None if here.device == "gpu" else workloads.shape(name, workloads.LARGE)
    return measure(made, here, recorded_shape=timed)


def measure(work: Workload, here: Any, recorded_shape: dict[str, int] | None = None) -> Compared:
    """Compares a workload, also one of your own. recorded_shape: of the recorded times that are
    shown without a GPU. Raises what `run` raises."""
    import torch

    timed = _Timed(work)
    kind = str(work.A.dtype).removeprefix("torch.")
    schedule = own_schedule(work.epilogue, work.A.device.type)
    result, tile = None, {side: schedule[side] for side in ("block_M", "block_N")}
    if here.device == "gpu" or any(m.shape == recorded_shape for m in recorded().find(work.name)):
        product, own_alone = None, timed.kernel  # without a GPU nothing of this is called
        if here.device == "gpu":
            product = timed.new_product()
            own_alone = timed.own_alone(schedule, product)
        result = bench(
            work.name, here, kernel=timed.kernel, baselines={BASELINE: timed.baseline},
            references={
                ALONE: lambda: torch.mm(work.baseline_A, work.baseline_B, out=product),
                OWN_ALONE: own_alone},
            shape=work.shape if here.device == "gpu" else recorded_shape, dtype=kind,
            moved=account(work.epilogue, **work.shape, dtype=kind, **tile).fused,
            flops=2 * math.prod(work.shape.values()), output=timed, check=timed.check,
            schedule=schedule)
    if here.device != "gpu":  # the account of the shape that is shown, with its own tile
        recorded_knobs = result.measurement.schedule if result else {}
        tile = {side: recorded_knobs[side] for side in tile if side in recorded_knobs}
        timed.kernel()
        timed.check()
    return Compared(work.name, work.epilogue, work.shape, kind, timed.verdicts, timed.statistics,
                    account(work.epilogue, **(recorded_shape or work.shape), dtype=kind,
                            kept=work.kept, **tile), result)


class _Timed:
    """The calls that are timed, on tensors made once."""

    def __init__(self, work: Workload) -> None:
        import torch

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
        self._after = self._fast(work.after)
        self._torch = torch

    def _fast(self, fn: Any) -> Any:
        import torch

        return torch.compile(fn, dynamic=False) if self._on_gpu else fn

    def kernel(self) -> None:
        for place, fn, partials in self._first:
            self._arguments[place] = fn(partials)
        self._launch(*self._arguments)
        for name, fn in self._finish.items():
            self.finished[name] = fn(self.outputs[name])

    def new_product(self) -> Any:
        shape = self.work.shape
        return self._torch.empty(shape["M"], shape["N"], dtype=self.work.A.dtype,
                                 device=self.work.A.device)

    def own_alone(self, schedule: dict[str, Any], product: Any) -> Callable[[], None]:
        """The same main loop at the same schedule, which only stores its product."""
        work = self.work
        launch = kernel_for(plain, work.A, work.B, work.transpose_B, schedule).launch
        return lambda: launch(work.A, work.B, product)

    def baseline(self) -> dict[str, Any]:
        work = self.work
        return self._after(self._torch.mm(work.baseline_A, work.baseline_B), *work.extras)

    def fill_(self, value: float) -> None:
        """Every output starts as `value`, so that what was not written is seen."""
        for output in self.outputs.values():
            output.fill_(value)

    def check(self) -> Comparison:
        """The worst verdict; every output of the op and of the baseline is compared."""
        work, chosen = self.work, self.work.epilogue
        wide = self._torch.float32 if self._on_gpu else self._torch.float64
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
            statistics[o.name] = _distance(found[o.name], reference[o.name])
            _demand(f"{chosen.name}, {o.name}", statistics[o.name], STATISTIC)
        for name, value in self.finished.items():
            wanted = self.work.finish[name](reference[name][None])
            _demand(f"{chosen.name}, {name} finished", _distance(value, wanted), STATISTIC)
        self.verdicts, self.statistics = tuple(verdicts), statistics
        kind = str(work.A.dtype).removeprefix("torch.")
        wanted = work.view(reference)
        for name, value in self.baseline().items():
            _demand(f"{chosen.name} and the baseline of {work.name} differ in {name}",
                    _distance(value, wanted[name]), 2 * UNIT_ROUNDOFF[kind])
        return max(verdicts, key=lambda v: v.error / v.allowed)


def whole(chosen: Epilogue, outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs of `matmul` with their reductions ended: name -> store [M, C] or vector."""
    return {o.name: _WHOLE[o.how](outputs[o.name]) if "reduce" in o.kind else outputs[o.name]
            for o in chosen.outputs}


def errors(name: str, here: Any, seeds: Sequence[int] = (0, 1, 2), *,
           sizes: dict[str, int] | None = None, chosen: Epilogue | None = None) -> Table:
    """How far the op and the same op in eager 16-bit PyTorch lie from float64, for each seed:
    relative Frobenius error of every output that the baseline has, and their ratio.

    Both start from the same 16-bit inputs, each rounds where it rounds. Arguments as for `run`.
    """
    rows = [[output, seed, f"{own:.2e}", f"{eager:.2e}", f"{own / eager:.2f}"]
            for output, seed, own, eager in error_rows(name, here, seeds, sizes=sizes,
                                                       chosen=chosen)]
    return Table(f"{name}: relative error against float64",
                 ["output", ">seed", ">own kernel", ">eager", ">ratio"], rows)


def error_rows(name: str, here: Any, seeds: Sequence[int] = (0, 1, 2), *,
               sizes: dict[str, int] | None = None,
               chosen: Epilogue | None = None) -> list[tuple[str, int, float, float]]:
    """The figures of `errors`: output, seed, own error, eager error."""
    import torch

    from labkit.epilogue.run import matmul

    dtype = torch.bfloat16 if here.sm >= 80 else torch.float16
    sizes = sizes or dict(workloads.CPU if here.device == "cpu" else workloads.QUICK)
    rows = []
    for seed in seeds:
        torch.manual_seed(seed)
        work = workloads.make(name, sizes, dtype, here.torch_device)
        used = work.epilogue if chosen is None else _fitting(chosen, work.epilogue)
        A = work.A.double() if work.exact_A is None else work.exact_A()
        B = (work.B.t() if work.transpose_B else work.B).double()
        exact = work.view(used.reference(A @ B, **work.operands))
        own = work.view(whole(used, matmul(used, work.A, work.B, work.transpose_B,
                                           **work.operands)))
        sums = {o.name for o in used.outputs if o.kind == "row_reduce"}
        eager = work.eager(work.baseline_A @ work.baseline_B, *work.extras)
        for output, want in exact.items():
            # a sum over rows, such as dgamma, ends in the dtype of its parameter
            mine = own[output].to(eager[output].dtype) if output in sums else own[output]
            rows.append((output, seed, _distance(mine, want),
                         _distance(eager[output], want)))
    return sorted(rows, key=lambda row: list(exact).index(row[0]))


def bars(compared: Sequence[Compared]) -> Picture:
    """The four times of each op as bars, its room marked."""
    return bars_of([(c.name, c.result) for c in compared if c.result], OWN_ALONE, ALONE, BASELINE,
                   _NO_TIMES)


def table(compared: Sequence[Compared]) -> Table:
    """All ops in one table: room, gain, the main loop's share in it, and the bytes saved."""
    rows = []
    for c in compared:
        rows.append([c.name, " x ".join(f"{n:,}" for n in c.account.shape.values()),
                     *(f"{r:.3f}" if r else "" for r in (c.room, c.gain, c.main_loop)),
                     f"{c.account.saved / 1e6:,.0f}"])
    origin = sorted({f"{c.result.gpu}, {c.result.date}" + (
        "" if c.result.measured_now else " (RECORDED there, not measured here)")
        for c in compared if c.result})
    return Table(f"Times on {'; '.join(origin)}" if origin else _NO_TIMES,
                 ["op", ">M x N x K", ">room", ">gain", ">own GEMM / cuBLAS", ">MB saved"], rows,
                 "Room: baseline over cuBLAS alone. Gain: baseline over the op with its epilogue; "
                 "below 1 the fusion loses. Own GEMM / cuBLAS: speed of the main loop.")


def _fitting(chosen: Epilogue, usual: Epilogue) -> Epilogue:
    gemm(chosen)  # raises for what no @epilogue declared
    for what in ("inputs", "outputs"):
        have, want = ({getattr(x, "name", x) for x in getattr(e, what)} for e in (chosen, usual))
        if have != want:
            raise BadArgument(f"{chosen.name} has the {what} {', '.join(sorted(have))}; this "
                              f"comparison needs {', '.join(sorted(want))}.")
    return chosen


def _distance(value: Any, wanted: Any) -> float:
    """Relative Frobenius error; inf where something is not finite."""
    off = norm = 0.0
    for v, w in zip(value.split(1024), wanted.split(1024), strict=True):
        off += (v.double() - w.double()).square().sum().item()
        norm += w.double().square().sum().item()
    return math.sqrt(off / norm) if math.isfinite(off) and norm else math.inf


def _demand(what: str, error: float, allowed: float) -> None:
    if not error <= allowed:
        raise WrongAnswer(f"{what}: relative error {error:.1e}, where {allowed:.0e} would pass.")
