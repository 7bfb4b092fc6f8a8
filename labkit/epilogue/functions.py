"""Parts of a Transformer block as `torch.autograd.Function`s, each a few GEMMs with epilogues.

Between the parts a stream of three travels:

    x       [T, d], the residual stream,
    scaled  [T, d], x times the weight `gamma` of the norm that comes next,
    rstd    [T], float32, 1 / rms of the rows of x.

The GEMM that makes x writes `scaled` and the sums for `rstd` too, and the GEMM that reads `scaled`
multiplies its rows by `rstd`: so a norm costs no pass over memory. Gradients flow through x and
gamma alone. The part that reads the stream returns the whole gradient of x, through the norm and
past it, so the parts pass x on.

The norm's backward needs s = sum_k D_k gamma_k unit_k / d for each row, D being the gradient that
comes back through the weight. It equals sum_n z_n dz_n / d over the columns of the product z, and
those are in registers one GEMM earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from labkit.epilogue import catalogue, finalize
from labkit.epilogue.rope import turn_back
from labkit.epilogue.run import matmul

Stream = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def fused(fn: Callable) -> Callable:
    """`fn` of tensors, what no GEMM's epilogue can hold; on a GPU torch.compile makes one kernel of
    it, or a few."""
    compiled: list[Callable] = []

    @wraps(fn)
    def call(first: torch.Tensor, *rest: Any) -> Any:
        if not first.is_cuda:
            return fn(first, *rest)
        if not compiled:
            compiled.append(torch.compile(fn))
        return compiled[0](first, *rest)

    return call


_rstd, _total = fused(finalize.rstd), fused(finalize.total)
_logsumexp, _cross_entropy = fused(finalize.logsumexp), fused(finalize.cross_entropy)


@fused
def _mean(partials, d):
    return partials.sum(0) / d


@fused
def _entry(x, gamma, eps):
    wide = x.float()
    return (wide * gamma.float()).to(x.dtype), (wide.square().mean(1) + eps).rsqrt()


@fused
def _rope_backward(q, k, v, dq, dk, dv, cosine, sine, d):
    """From the parts of z = rope(...) and their gradients, all [batch, length, heads, head]: the
    gradient before the rotation [T, n], and the rows' s, which a rotation does not change."""
    # a sum for each part, so that one kernel reads a part once, for both results
    s = sum((z.float() * g.float()).sum((2, 3)) for z, g in ((q, dq), (k, dk), (v, dv))) / d
    turned = [turn_back(g, cosine, sine).to(q.dtype).flatten(2) for g in (dq, dk)]
    return torch.cat([*turned, dv.flatten(2)], 2).flatten(0, 1), s.flatten()


@fused
def _cross_entropy_backward(logits, lse, target, scale, d):
    """The gradient of the logits and the rows' s. scale [T]: of a row's loss, 0 if ignored."""
    z = logits.float()
    hit = torch.arange(z.shape[1], device=z.device) == target[:, None]
    dz = ((z - lse[:, None]).exp() - hit.float()) * scale[:, None]
    return dz.to(logits.dtype), (z * dz).sum(1) / d


def enter(x: torch.Tensor, gamma: torch.Tensor, eps: float = 1e-6) -> Stream:
    """The stream at its start, where no GEMM stands in front: x [T, d], gamma [d]."""
    x = x.contiguous()
    with torch.no_grad():
        scaled, rstd = _entry(x, gamma, eps)
    return x, scaled, rstd


def _norm_backward(dz: torch.Tensor, W: torch.Tensor, x: torch.Tensor, gamma: torch.Tensor,
                   rstd: torch.Tensor, s: torch.Tensor, dx: torch.Tensor | None,
                   trained: bool) -> tuple:
    """From the gradient of z = norm(x) W^T: the gradients of x (`dx` past the norm is added), gamma
    and, where it is trained, W. dz [T, n], W [n, d]."""
    if dx is None:
        found = matmul(catalogue.drms, dz, W, x=x, rstd=rstd, s=s, gamma=gamma)
    else:
        found = matmul(catalogue.drms_residual, dz, W, x=x, dresidual=dx.contiguous(), rstd=rstd,
                       s=s, gamma=gamma)
    dgamma = _total(found["dgamma"]).to(gamma.dtype)
    return found["dx"], dgamma, dz.t() @ found["normed"] if trained else None


def _no_gradient(ctx: Any, *outputs: torch.Tensor) -> None:
    """Gradients do not flow through these, and none are made of zeros for the backward pass."""
    ctx.mark_non_differentiable(*outputs)
    ctx.set_materialize_grads(False)


class NormRope(Function):
    """q, k, v = rope(norm(x) W^T), and x passed on.

    x, scaled [T, d], rstd [T]; gamma [d]; W [n, d], the rows of a head's queries and keys arranged
    by `pairs.join` of their halves; turns: the `Rope` of this batch. Returns queries, keys and
    values [batch, length, heads, head], views of one tensor, and x.
    """

    @staticmethod
    def forward(ctx: Any, x, scaled, rstd, gamma, W, turns):
        qkv = matmul(catalogue.rstd_rope, scaled, W, transpose_B=True, rstd=rstd,
                     position=turns.position, frequency=turns.frequency)["z"]
        ctx.save_for_backward(x, rstd, gamma, W, qkv)
        ctx.turns = turns
        return *turns.views(qkv), x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq, dk, dv, dx):
        x, rstd, gamma, W, qkv = ctx.saved_tensors
        # attention made these gradients, so this is a pass of its own
        turns = ctx.turns
        dz, s = _rope_backward(*turns.views(qkv), dq, dk, dv, turns.cosine, turns.sine, x.shape[1])
        dx, dgamma, dW = _norm_backward(dz, W, x, gamma, rstd, s, dx, ctx.needs_input_grad[4])
        return dx, None, None, dgamma, dW, None


class ProjectResidual(Function):
    """x + h W^T and the next norm's `scaled` and `rstd`: h [T, n], x [T, d], W [d, n], gamma [d] of
    the next norm (its gradient comes from the part that reads the stream)."""

    @staticmethod
    def forward(ctx: Any, h, x, W, gamma, eps):
        found = matmul(catalogue.residual_rms, h, W, transpose_B=True, residual=x, gamma=gamma)
        rstd = _rstd(found["sumsq"], W.shape[0], eps)
        ctx.save_for_backward(h, W)
        _no_gradient(ctx, found["scaled"], rstd)
        return found["x"], found["scaled"], rstd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx, _dscaled, _drstd):
        h, W = ctx.saved_tensors
        dW = dx.t() @ h if ctx.needs_input_grad[2] else None
        return dx @ W, dx, dW, None, None


class NormSwiGLU(Function):
    """x + swiglu(norm(x) W_in^T) W_out^T and the next norm's `scaled` and `rstd`.

    x, scaled [T, d], rstd [T]; gamma [d] of this norm; W_in [2 f, d], gate and up arranged by
    `pairs.join`; W_out [d, f]; next_gamma [d]. keep: gradients will be asked for, so gate and up
    are stored; without it they never leave the kernel.
    """

    @staticmethod
    def forward(ctx: Any, x, scaled, rstd, gamma, W_in, W_out, next_gamma, eps, keep):
        first = catalogue.rstd_swiglu if keep else catalogue.rstd_swiglu_forward
        inner = matmul(first, scaled, W_in, transpose_B=True, rstd=rstd)
        found = matmul(catalogue.residual_rms, inner["y"], W_out, transpose_B=True, residual=x,
                       gamma=next_gamma)
        next_rstd = _rstd(found["sumsq"], W_out.shape[0], eps)
        if keep:
            ctx.save_for_backward(x, rstd, gamma, W_in, W_out, inner["z"])
        _no_gradient(ctx, found["scaled"], next_rstd)
        return found["x"], found["scaled"], next_rstd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx, _dscaled, _drstd):
        x, rstd, gamma, W_in, W_out, z = ctx.saved_tensors
        dx = dx.contiguous()
        inner = matmul(catalogue.dswiglu, dx, W_out, z=z)  # y is made again, not kept
        s = _mean(inner["zdz"], x.shape[1])
        dW_out = dx.t() @ inner["y"] if ctx.needs_input_grad[5] else None
        dx, dgamma, dW_in = _norm_backward(inner["dz"], W_in, x, gamma, rstd, s, dx,
                                           ctx.needs_input_grad[4])
        return dx, None, None, dgamma, dW_in, dW_out, None, None, None


class NormCrossEntropy(Function):
    """Mean cross-entropy of norm(x) W^T: x, scaled [T, d], rstd [T], gamma [d], W [V, d], target
    [T] int; rows whose target is `ignore_index` do not count."""

    @staticmethod
    def forward(ctx: Any, x, scaled, rstd, gamma, W, target, ignore_index):
        found = matmul(catalogue.rstd_cross_entropy, scaled, W, transpose_B=True, rstd=rstd,
                       target=target.to(torch.int32))
        lse = _logsumexp(found["lse"])
        loss = _cross_entropy(lse[None], found["picked"], target, ignore_index)
        ctx.save_for_backward(x, rstd, gamma, W, target, found["logits"], lse)
        ctx.ignore_index = ignore_index
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss):
        x, rstd, gamma, W, target, logits, lse = ctx.saved_tensors
        kept = target != ctx.ignore_index
        scale = dloss * kept / kept.sum()
        # a pass of its own: it needs the whole log-sum-exp of a row
        dz, s = _cross_entropy_backward(logits, lse, target, scale, x.shape[1])
        dx, dgamma, dW = _norm_backward(dz, W, x, gamma, rstd, s, None,
                                        ctx.needs_input_grad[4])
        return dx, None, None, dgamma, dW, None, None
