"""Three ops that the catalogue lacks, as they were asked of people and of a language model, each
with its baseline: what the same comparison needs (`compare.measure`).

    squared_reglu          gate squared, and each row's largest value for an FP8 scale
    capped_cross_entropy   logits under a soft cap, with the sums for label smoothing
    dgelu_bias             the backward pass of a bias and an exact GELU
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from labkit.epilogue import finalize, pairs
from labkit.epilogue.declare import Epilogue
from labkit.epilogue.run import compile_all
from labkit.epilogue.workloads import Workload, _halves, _Inputs
from labkit.errors import BadArgument

CAP = 30.0


def reglu_after(z):
    gate, up = (t.float() for t in z.chunk(2, 1))
    y = gate.relu().square() * up
    return dict(y=y.to(z.dtype), amax=y.abs().amax(1))


def eager_reglu(z):
    gate, up = z.chunk(2, 1)
    y = F.relu(gate).square() * up
    return dict(y=y, amax=y.abs().amax(1).float())


def capped_after(z, target):
    logits = CAP * (z.float() / CAP).tanh()
    return dict(logits=logits.to(z.dtype), lse=logits.logsumexp(1), total=logits.sum(1),
                picked=logits.gather(1, target[:, None])[:, 0])


def eager_capped(z, target):
    logits = CAP * torch.tanh(z / CAP)
    wide = logits.float()
    return dict(logits=logits, lse=wide.logsumexp(1), total=wide.sum(1),
                picked=wide.gather(1, target[:, None])[:, 0])


def dgelu_after(dh, z):
    wide = z.float()
    cdf = 0.5 * (1 + torch.erf(wide * 0.5**0.5))
    density = torch.exp(-0.5 * wide * wide) * (2 * torch.pi) ** -0.5
    dz = dh.float() * (cdf + wide * density)
    return dict(dz=dz.to(z.dtype), h=(wide * cdf).to(z.dtype), dbias=dz.sum(0))


def eager_dgelu(dh, z):
    z = z.detach().requires_grad_()
    with torch.enable_grad():
        h = F.gelu(z)
    (dz,) = torch.autograd.grad(h, z, dh)
    return dict(dz=dz, h=h.detach(), dbias=dz.sum(0))


def expected(name: str, product: Any, **operands: Any) -> dict[str, Any]:
    """The task's outputs in float64, for `check`: whole-matrix torch, written apart from any
    epilogue."""
    if name == "dgelu_bias":
        return eager_dgelu(product, operands["z"])
    z = product * operands["rstd"][:, None]
    if name == "squared_reglu":
        return eager_reglu(torch.cat(pairs.split(z), 1))
    logits = CAP * torch.tanh(z / CAP)
    return dict(logits=logits, lse=logits.logsumexp(1), total=logits.sum(1),
                picked=logits.gather(1, operands["target"].long()[:, None])[:, 0])


def make(name: str, chosen: Epilogue, by: str, sizes: dict[str, int], dtype: torch.dtype,
         device: str) -> Workload:
    """The workload of a task with somebody's epilogue; recorded as "<name> by <by>". Raises
    BadArgument for a name that is none of the three."""
    own, s = _Inputs(dtype, device), sizes
    called = f"{name} by {by}"
    if name == "squared_reglu":
        W = own.weight(2 * s["f"], s["d"], s["d"])
        return Workload(called, chosen, B=W, transpose_B=True, after=reglu_after,
                        eager=eager_reglu, baseline_B=_halves(W, 0).t(),
                        finish=dict(amax=finalize.maximum), **own.normed(s["M"], s["d"]))
    if name == "capped_cross_entropy":
        target, given = torch.randint(0, s["V"], (s["M"],), device=device), own.normed(s["M"],
                                                                                       s["d"])
        given["operands"]["target"] = target.to(torch.int32)
        W = own.weight(s["V"], s["d"], s["d"])
        return Workload(called, chosen, B=W, transpose_B=True, after=capped_after,
                        eager=eager_capped, extras=(target,),
                        finish=dict(lse=finalize.logsumexp, total=finalize.total), **given)
    if name == "dgelu_bias":
        z = own.randn(s["M"], s["f"])
        return Workload(called, chosen, own.randn(s["M"], s["d"]),
                        own.weight(s["d"], s["f"], s["d"]), False, dict(z=z), dgelu_after,
                        eager_dgelu, (z,), finish=dict(dbias=finalize.total))
    raise BadArgument(f"There is no task {name!r}; there are squared_reglu, capped_cross_entropy, "
                      "dgelu_bias.")


def shape(name: str, s: dict[str, int]) -> dict[str, int]:
    """M, N and K of a task at sizes `s`."""
    N = {"squared_reglu": 2 * s["f"], "capped_cross_entropy": s["V"], "dgelu_bias": s["f"]}[name]
    return dict(M=s["M"], N=N, K=s["d"])


def prepare(epilogues: list[Epilogue], s: dict[str, int], dtype: torch.dtype,
            device: str) -> None:
    """Compiles the kernels of the tasks' epilogues at sizes `s`, several at a time."""
    compile_all([(chosen, *shape(chosen.name, s).values(), chosen.name != "dgelu_bias")
                 for chosen in epilogues], dtype, torch.device(device))
