"""What an op is compared with: the same mathematics without an epilogue.

`*_after` is one elementwise kernel behind cuBLAS: a function of the product that torch.compile
turns into one kernel, two where it has to sum over rows. `eager_*` is what a PyTorch model runs as
it is written, 16-bit numbers between the operators. Both use the layouts that suit them: gate and
up in halves, and the two halves of each head for RoPE.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

Tensors = dict[str, Any]
EPS = 1e-6  # of RMSNorm


def residual_after(h, residual, gamma) -> Tensors:
    x = h.float() + residual.float()
    r = (x.square().mean(1, keepdim=True) + EPS).rsqrt()
    return dict(x=x.to(h.dtype), normed=(x * r * gamma.float()).to(h.dtype))


def eager_residual(h, residual, gamma) -> Tensors:
    x = residual + h
    return dict(x=x, normed=F.rms_norm(x, x.shape[-1:], gamma, EPS))


def swiglu_after(z) -> Tensors:
    gate, up = (t.float() for t in z.chunk(2, 1))
    return dict(y=(gate * gate.sigmoid() * up).to(z.dtype))


def eager_swiglu(z) -> Tensors:
    gate, up = z.chunk(2, 1)
    return dict(y=F.silu(gate) * up)


def rope_after(z, cosine, sine, heads) -> Tensors:
    """cosine, sine [M, half a head]; the first `heads` heads are queries and keys."""
    turned = z.view(z.shape[0], -1, 2, cosine.shape[1])
    a, b = turned[:, :heads, 0].float(), turned[:, :heads, 1].float()
    co, si = cosine[:, None], sine[:, None]
    qk = torch.stack([a * co - b * si, a * si + b * co], 2).to(z.dtype)
    return dict(z=torch.cat([qk.flatten(1), turned[:, heads:].flatten(1)], 1))


def eager_rope(z, cosine, sine, heads) -> Tensors:
    """As model code has it: cosine and sine in the model's dtype, half a head turned by `cat`."""
    co, si = (torch.cat([t, t], 1)[:, None].to(z.dtype) for t in (cosine, sine))
    split = z.view(z.shape[0], -1, co.shape[2])
    qk, v = split[:, :heads], split[:, heads:]
    a, b = qk.chunk(2, 2)
    turned = qk * co + torch.cat([-b, a], 2) * si
    return dict(z=torch.cat([turned, v], 1).flatten(1))


def loss_after(logits, target) -> Tensors:
    logits = logits.float()
    return dict(lse=logits.logsumexp(1), picked=logits.gather(1, target[:, None])[:, 0])


eager_loss = loss_after  # models, too, take the loss of float32 logits


def dswiglu_after(dy, z) -> Tensors:
    gate, up = (t.float() for t in z.chunk(2, 1))
    wide, s = dy.float(), gate.sigmoid()
    dgate, dup = wide * up * (s + gate * s * (1 - s)), wide * gate * s
    return dict(dz=torch.cat([dgate, dup], 1).to(z.dtype), y=(gate * s * up).to(z.dtype))


def eager_dswiglu(dy, z) -> Tensors:
    z = z.detach().requires_grad_()
    with torch.enable_grad():
        y = eager_swiglu(z)["y"]
    return dict(dz=torch.autograd.grad(y, z, dy)[0], y=y.detach())


def drms_after(da, x, gamma, rstd, dresidual) -> Tensors:
    unit = x.float() * rstd[:, None]
    dn = da.float() * gamma.float()
    s = (dn * unit).mean(1, keepdim=True)
    dx = (dn - unit * s) * rstd[:, None] + dresidual.float()
    return dict(dx=dx.to(da.dtype), dgamma=(da.float() * unit).sum(0))


def eager_drms(da, x, gamma, rstd, dresidual) -> Tensors:
    x, gamma = x.detach().requires_grad_(), gamma.detach().requires_grad_()
    with torch.enable_grad():
        normed = F.rms_norm(x, x.shape[-1:], gamma, EPS)
    dx, dgamma = torch.autograd.grad(normed, (x, gamma), da)
    return dict(dx=dx + dresidual, dgamma=dgamma)
