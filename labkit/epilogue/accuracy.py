"""How far an op lies from float64, beside the same op in eager 16-bit PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from labkit.epilogue import workloads
from labkit.epilogue.checking import finished
from labkit.epilogue.declare import Epilogue
from labkit.epilogue.gemm import gemm
from labkit.epilogue.run import matmul
from labkit.errors import BadArgument
from labkit.table import Table


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
    dtype = torch.bfloat16 if here.sm >= 80 else torch.float16
    sizes = sizes or dict(workloads.CPU if here.device == "cpu" else workloads.QUICK)
    rows = []
    for seed in seeds:
        torch.manual_seed(seed)
        work = workloads.make(name, sizes, dtype, here.torch_device)
        used = work.epilogue if chosen is None else fitting(chosen, work.epilogue)
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
            rows.append((output, seed, distance(mine, want),
                         distance(eager[output], want)))
    return sorted(rows, key=lambda row: list(exact).index(row[0]))


def whole(chosen: Epilogue, outputs: dict[str, Any]) -> dict[str, Any]:
    """Outputs of `matmul` with their reductions ended: name -> store [M, C] or vector."""
    return {o.name: finished(o, outputs[o.name]) for o in chosen.outputs}


def fitting(chosen: Epilogue, usual: Epilogue) -> Epilogue:
    """`chosen`, if it has the operands and outputs of `usual`; else raises BadArgument."""
    gemm(chosen)  # raises for what no @epilogue declared
    for what in ("inputs", "outputs"):
        have, want = ({getattr(x, "name", x) for x in getattr(e, what)} for e in (chosen, usual))
        if have != want:
            raise BadArgument(f"{chosen.name} has the {what} {', '.join(sorted(have))}; this "
                              f"comparison needs {', '.join(sorted(want))}.")
    return chosen


def distance(value: Any, wanted: Any) -> float:
    """Relative Frobenius error; inf where something is not finite."""
    off = norm = 0.0
    for v, w in zip(value.split(1024), wanted.split(1024), strict=True):
        off += (v.double() - w.double()).square().sum().item()
        norm += w.double().square().sum().item()
    return math.sqrt(off / norm) if math.isfinite(off) and norm else math.inf
