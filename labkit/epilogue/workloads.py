"""The ops of a Transformer block at the sizes at which they are compared, each with its baseline.

    op = workloads.make("gemm_swiglu", workloads.sizes(here), torch.bfloat16, "cuda")

Shapes are those of Llama 3 8B (arXiv 2407.21783): width d, hidden width f, 32 heads of queries and
8 of keys and of values of 128 columns each, V words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit.epilogue import catalogue, finalize, pairs, unfused
from labkit.epilogue.declare import Epilogue
from labkit.errors import BadArgument

LARGE = dict(M=8192, d=4096, f=14336, kv=1024, V=128256, head=128)
# float32 references of these fit the 16 GB of a T4
SMALL = dict(M=4096, d=2048, f=5632, kv=512, V=32768, head=128)
QUICK = dict(M=1024, d=1024, f=2816, kv=256, V=8192, head=128)
CPU = dict(M=72, d=96, f=112, kv=32, V=200, head=16)


def sizes(here: Any) -> dict[str, int]:
    """The sizes that suit a run: `LARGE` on a GPU with 40 GB or more, `SMALL` below."""
    if here.device == "cpu":
        return dict(CPU)
    if here.quick:
        return dict(QUICK)
    memory = torch.cuda.get_device_properties(0).total_memory
    return dict(LARGE if memory >= 40e9 else SMALL)


@dataclass
class Workload:
    """One op: a GEMM with its epilogue, and the same without.

    name: in the results files. epilogue, A, B, transpose_B, operands: as `matmul` takes them.
    baseline_A, baseline_B [K, N]: the baseline's product is theirs. after: the baseline's kernel, a
    function of that product and `extras`; eager: the same as a model has it.
    finish: output -> what ends its partial results, timed with the kernel because the baseline does
    it, too. first: operand -> (function, partial results) that makes it, timed likewise.
    view: outputs of the epilogue, reductions whole -> the outputs that the baseline has.
    kept: outputs that a model without epilogues has from its forward pass; the baseline does not
    make them again.
    exact_A: makes the float64 matrix of which A is the rounding; None where A is given as it is.
    """

    name: str
    epilogue: Epilogue
    A: Any
    B: Any
    transpose_B: bool
    operands: dict[str, Any]
    after: Callable[..., dict[str, Any]]
    eager: Callable[..., dict[str, Any]]
    extras: tuple = ()
    baseline_A: Any = None
    baseline_B: Any = None
    finish: dict[str, Callable[[Any], Any]] = field(default_factory=dict)
    first: dict[str, tuple[Callable[[Any], Any], Any]] = field(default_factory=dict)
    view: Callable[[dict[str, Any]], dict[str, Any]] = dict
    kept: frozenset[str] = frozenset()
    exact_A: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        if self.baseline_A is None:
            self.baseline_A = self.A
        if self.baseline_B is None:
            self.baseline_B = self.B.t() if self.transpose_B else self.B

    @property
    def shape(self) -> dict[str, int]:
        M, K = self.A.shape
        return dict(M=M, N=self.B.shape[0 if self.transpose_B else 1], K=K)


class _Inputs:
    """Random tensors of one dtype on one device."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        self.dtype, self.device = dtype, device

    def randn(self, *shape: int) -> Any:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def weight(self, rows: int, columns: int, K: int) -> Any:
        return (torch.randn(rows, columns, device=self.device) / K**0.5).to(self.dtype)

    def stream(self, M: int, d: int) -> tuple[Any, Any, Any]:
        """x [M, d] with rows of unequal size, gamma [d], and 1 / rms of the rows, float32."""
        x = self.randn(M, d) * (0.5 + 2 * torch.rand(M, 1, device=self.device)).to(self.dtype)
        gamma = (1 + 0.2 * torch.randn(d, device=self.device)).to(self.dtype)
        return x, gamma, _rstd(x.float())

    def normed(self, M: int, d: int) -> dict[str, Any]:
        """A GEMM's left operand behind a norm: not divided by the rms for the kernel, which
        multiplies by `rstd` afterwards; divided for the baseline, whose norm stands before."""
        x, gamma, rstd = self.stream(M, d)
        scaled = x.float() * gamma.float()
        return dict(A=scaled.to(self.dtype), operands=dict(rstd=rstd),
                    baseline_A=(scaled * rstd[:, None]).to(self.dtype),
                    exact_A=lambda: x.double() * gamma.double())


def _rstd(x: Any) -> Any:
    return (x.square().mean(1) + unfused.EPS).rsqrt()


def _halves(joined: Any, dim: int = 1) -> Any:
    return torch.cat(pairs.split(joined, dim), dim)


def _heads(joined: Any, half: int, dim: int) -> Any:
    """From pairs to heads whose two halves lie one after the other."""
    first, second = (t.unflatten(dim, (-1, half)) for t in pairs.split(joined, dim))
    return torch.stack([first, second], dim + 1).flatten(dim, dim + 2)


def _residual(s: dict[str, int], own: _Inputs, K: int) -> Workload:
    residual, gamma, _ = own.stream(s["M"], s["d"])
    given = dict(residual=residual, gamma=gamma)

    def rstd(partials: Any) -> Any:
        return finalize.rstd(partials, s["d"], unfused.EPS)

    return Workload(
        "gemm_residual_rms", catalogue.residual_rms, own.randn(s["M"], K),
        own.weight(s["d"], K, K), True, given, unfused.residual_after, unfused.eager_residual,
        (residual, gamma), finish=dict(sumsq=rstd),
        view=lambda o: dict(x=o["x"], normed=o["scaled"] * rstd(o["sumsq"][None])[:, None]))


def _swiglu(s: dict[str, int], own: _Inputs) -> Workload:
    W = own.weight(2 * s["f"], s["d"], s["d"])
    return Workload("gemm_swiglu", catalogue.rstd_swiglu, B=W, transpose_B=True,
                    after=unfused.swiglu_after, eager=unfused.eager_swiglu,
                    baseline_B=_halves(W, 0).t(), view=lambda o: dict(y=o["y"]),
                    **own.normed(s["M"], s["d"]))


def _rope(s: dict[str, int], own: _Inputs) -> Workload:
    half = s["head"] // 2
    heads = (s["d"] + s["kv"]) // s["head"]  # of queries and keys; values are not turned
    N = s["d"] + 2 * s["kv"]
    turn = 10000.0 ** (-torch.arange(half, device=own.device, dtype=torch.float32) / half)
    position = torch.arange(s["M"], device=own.device, dtype=torch.float32) % 4096
    rest = torch.zeros(N // 2 - heads * half, device=own.device)
    W, given = own.weight(N, s["d"], s["d"]), own.normed(s["M"], s["d"])
    given["operands"] |= dict(position=position, frequency=torch.cat([turn.repeat(heads), rest]))
    angle = position[:, None] * turn
    return Workload("gemm_rms_rope", catalogue.rstd_rope, B=W, transpose_B=True,
                    after=unfused.rope_after, eager=unfused.eager_rope,
                    extras=(angle.cos(), angle.sin(), heads), baseline_B=_heads(W, half, 0).t(),
                    view=lambda o: dict(z=_heads(o["z"], half, 1)), **given)


def _loss(s: dict[str, int], own: _Inputs) -> Workload:
    target, given = torch.randint(0, s["V"], (s["M"],), device=own.device), own.normed(s["M"],
                                                                                       s["d"])
    given["operands"]["target"] = target.to(torch.int32)
    return Workload("gemm_cross_entropy", catalogue.rstd_cross_entropy,
                    B=own.weight(s["V"], s["d"], s["d"]), transpose_B=True,
                    after=unfused.loss_after, eager=unfused.eager_loss, extras=(target,),
                    finish=dict(lse=finalize.logsumexp),
                    view=lambda o: dict(lse=o["lse"], picked=o["picked"]), **given)


def _dswiglu(s: dict[str, int], own: _Inputs) -> Workload:
    z = own.randn(s["M"], 2 * s["f"])
    return Workload("gemm_dswiglu", catalogue.dswiglu, own.randn(s["M"], s["d"]),
                    own.weight(s["d"], s["f"], s["d"]), False, dict(z=z), unfused.dswiglu_after,
                    unfused.eager_dswiglu, (_halves(z),),
                    view=lambda o: dict(dz=_halves(o["dz"]), y=o["y"]))


def _drms(s: dict[str, int], own: _Inputs, K: int, partial: bool) -> Workload:
    """partial: the rows' s comes as partial sums of the GEMM before, one a tile of 128 columns."""
    (x, gamma, rstd), dz = own.stream(s["M"], s["d"]), own.randn(s["M"], K)
    W, dresidual = own.weight(K, s["d"], s["d"]), own.randn(s["M"], s["d"])
    z = (x.float() * rstd[:, None] * gamma.float()) @ W.float().t()
    steps = (z * dz.float()).split(128, 1)
    zdz = torch.stack([step.sum(1) for step in steps])

    def mean(partials: Any) -> Any:
        return partials.sum(0) / s["d"]

    return Workload("gemm_drms", catalogue.drms_residual, dz, W, False,
                    dict(x=x, dresidual=dresidual, rstd=rstd, s=mean(zdz), gamma=gamma),
                    unfused.drms_after, unfused.eager_drms, (x, gamma, rstd, dresidual),
                    finish=dict(dgamma=finalize.total),
                    first=dict(s=(mean, zdz)) if partial else {}, kept=frozenset({"normed"}),
                    view=lambda o: dict(dx=o["dx"], dgamma=o["dgamma"]))


# the maker, and the shape M, N, K that it has
_MAKERS: dict[str, tuple[Callable[..., Workload], Callable[[dict], tuple[int, int, int]]]] = {
    "gemm_residual_rms": (lambda s, own: _residual(s, own, s["d"]),
                          lambda s: (s["M"], s["d"], s["d"])),
    "gemm_residual_rms, down": (lambda s, own: _residual(s, own, s["f"]),
                                lambda s: (s["M"], s["d"], s["f"])),
    "gemm_swiglu": (_swiglu, lambda s: (s["M"], 2 * s["f"], s["d"])),
    "gemm_rms_rope": (_rope, lambda s: (s["M"], s["d"] + 2 * s["kv"], s["d"])),
    "gemm_cross_entropy": (_loss, lambda s: (s["M"], s["V"], s["d"])),
    "gemm_dswiglu": (_dswiglu, lambda s: (s["M"], s["f"], s["d"])),
    "gemm_drms": (lambda s, own: _drms(s, own, s["d"] + 2 * s["kv"], False),
                  lambda s: (s["M"], s["d"], s["d"] + 2 * s["kv"])),
    "gemm_drms, in": (lambda s, own: _drms(s, own, 2 * s["f"], True),
                      lambda s: (s["M"], s["d"], 2 * s["f"])),
}
NAMES = tuple(_MAKERS)


def shape(name: str, s: dict[str, int]) -> dict[str, int]:
    """M, N and K of a workload at sizes `s`. Raises BadArgument for a name it does not know."""
    return dict(zip("MNK", _known(name)[1](s), strict=True))


def make(name: str, s: dict[str, int], dtype: torch.dtype, device: str) -> Workload:
    """The workload `name` with random tensors from torch's generator. gemm_residual_rms: the output
    projection ("…, down": the down projection); gemm_drms: behind QKV ("…, in": behind gate and
    up). Raises BadArgument for a name it does not know."""
    return _known(name)[0](s, _Inputs(dtype, device))


def _known(name: str) -> tuple:
    if name not in _MAKERS:
        raise BadArgument(f"There is no workload {name!r}; there are: {'; '.join(NAMES)}.")
    return _MAKERS[name]
