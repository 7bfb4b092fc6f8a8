"""A Transformer block from GEMMs with epilogues, for use in a PyTorch model.

    rms norm -> QKV with RoPE -> attention -> output projection + residual
             -> rms norm -> SwiGLU -> down projection + residual

Seven kernels forward: four GEMMs hold both norms, RoPE, SwiGLU and both residuals, besides
attention and two small sums. Attention is torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from labkit.epilogue import catalogue, functions
from labkit.epilogue.functions import Stream
from labkit.epilogue.pairs import GROUP, join, split
from labkit.epilogue.rope import rope
from labkit.epilogue.run import compile_all
from labkit.errors import BadArgument


class Block(nn.Module):
    """A pre-norm block with causal attention: width d, `heads` heads, `kv_heads` of keys and values
    (None: as many; fewer are shared by groups of queries), hidden width f.

    The stream (see `functions`) goes in and comes out; the block holds the norms that read it, and
    gets the weight of the norm that comes after it. dtype: of the stream and the products
    (float16, bfloat16, float32), whatever autocast says; the parameters may have any, and are
    float32 at first. Weights are kept in the order that the kernels want: `load` takes them as a
    block written the usual way has them, `usual` gives them back so. `reference` computes the same
    in plain torch. Where gradients are off (`torch.no_grad`) nothing is stored for a backward pass.

    Raises BadArgument for sizes that do not fit.
    """

    def __init__(self, d: int, heads: int, f: int, dtype: torch.dtype = torch.bfloat16,
                 kv_heads: int | None = None, base: float = 10000.0, eps: float = 1e-6) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if d % heads or d // heads % (2 * GROUP) or f % GROUP:
            raise BadArgument(f"d is {d} with {heads} heads, f is {f}; give heads of a multiple of "
                              f"{2 * GROUP} columns and f a multiple of {GROUP}.")
        if heads % kv_heads:
            raise BadArgument(f"{heads} heads cannot share {kv_heads} heads of keys and values "
                              "evenly; give a divisor of heads.")
        self.heads, self.kv_heads, self.head = heads, kv_heads, d // heads
        self.dtype, self.base, self.eps = dtype, base, eps
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.ones(d)) for _ in range(2))
        self.W_qkv = nn.Parameter(torch.randn((heads + 2 * kv_heads) * self.head, d) / d**0.5)
        self.W_o = nn.Parameter(torch.randn(d, d) / d**0.5)
        self.W_in = nn.Parameter(torch.randn(2 * f, d) / d**0.5)
        self.W_out = nn.Parameter(torch.randn(d, f) / f**0.5)

    @torch.compiler.disable
    def forward(self, stream: Stream, next_gamma: torch.Tensor, batch: int = 1) -> Stream:
        """stream of batch * length rows; next_gamma [d] of the norm after this block. Raises
        BadArgument for a stream that does not fit."""
        x, scaled, rstd = stream
        self._check(x, batch)
        cast = self.dtype
        turns = self._turns(x, batch)
        with torch.autocast(x.device.type, enabled=False):
            q, k, v, x = functions.NormRope.apply(
                x, scaled, rstd, self.gamma_1.to(cast), self.W_qkv.to(cast), turns)
            x, scaled, rstd = functions.ProjectResidual.apply(
                self._attend(q, k, v), x, self.W_o.to(cast), self.gamma_2.detach().to(cast),
                self.eps)
            return functions.NormSwiGLU.apply(
                x, scaled, rstd, self.gamma_2.to(cast), self.W_in.to(cast), self.W_out.to(cast),
                next_gamma.detach().to(cast), self.eps, torch.is_grad_enabled())

    def prepare(self, rows: int) -> None:
        """Compiles the kernels for a stream of so many rows, several at a time. Without it each
        one is compiled when it is first needed."""
        d, n, f = self.W_o.shape[0], self.W_qkv.shape[0], self.W_out.shape[1]
        e = catalogue
        compile_all([(e.rstd_rope, rows, n, d, True), (e.residual_rms, rows, d, d, True),
                     (e.rstd_swiglu, rows, 2 * f, d, True), (e.residual_rms, rows, d, f, True),
                     (e.dswiglu, rows, f, d, False), (e.drms_residual, rows, d, 2 * f, False),
                     (e.drms_residual, rows, d, n, False)], self.dtype, self.W_o.device)

    def reference(self, x: torch.Tensor, batch: int = 1) -> torch.Tensor:
        """The same function of x [T, d] in plain torch, in x's dtype."""
        turns = self._turns(x, batch)
        z = self._norm(x, self.gamma_1) @ self.W_qkv.to(x.dtype).t()
        angle = (turns.position.double()[:, None] * turns.frequency.double()).to(x.dtype)
        a, b = split(z)
        z = join(a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
        x = x + self._attend(*turns.views(z)) @ self.W_o.to(x.dtype).t()
        gate, up = split(self._norm(x, self.gamma_2) @ self.W_in.to(x.dtype).t())
        return x + (F.silu(gate) * up) @ self.W_out.to(x.dtype).t()

    @torch.no_grad()
    def load(self, *, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor,
             gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, norm_1: torch.Tensor,
             norm_2: torch.Tensor) -> None:
        """Takes over the weights of a block written the usual way: as `nn.Linear` has them
        [rows, columns], and with RoPE that turns the first half of a head's columns against the
        second half."""
        def halves(weight: torch.Tensor) -> torch.Tensor:
            first, second = weight.unflatten(0, (-1, 2, self.head // 2)).unbind(1)
            return join(first, second, 1).flatten(0, 1)

        self.W_qkv.copy_(torch.cat([halves(q), halves(k), v]))
        self.W_in.copy_(join(gate, up, 0))
        for mine, given in ((self.W_o, o), (self.W_out, down), (self.gamma_1, norm_1),
                            (self.gamma_2, norm_2)):
            mine.copy_(given)

    def usual(self, of: Callable[[nn.Parameter], Any] = torch.Tensor.detach) -> dict[str, Any]:
        """The weights as `load` takes them, or what `of` makes of a parameter, such as its `grad`.
        """
        def halves(weight: torch.Tensor) -> torch.Tensor:
            return torch.stack(split(weight.unflatten(0, (-1, self.head)), 1), 1).flatten(0, 2)

        q, k, v = of(self.W_qkv).split([self.heads * self.head] + 2 * [self.kv_heads * self.head])
        gate, up = split(of(self.W_in), 0)
        return dict(q=halves(q), k=halves(k), v=v, o=of(self.W_o), gate=gate, up=up,
                    down=of(self.W_out), norm_1=of(self.gamma_1), norm_2=of(self.gamma_2))

    def _check(self, x: torch.Tensor, batch: int) -> None:
        d = self.W_o.shape[0]
        if x.dim() != 2 or x.shape[1] != d or x.dtype != self.dtype:
            raise BadArgument(f"The stream is {str(x.dtype)[6:]}{list(x.shape)}; this block takes "
                              f"{str(self.dtype)[6:]}[batch * length, {d}].")
        if batch < 1 or x.shape[0] % batch:
            raise BadArgument(f"The stream has {x.shape[0]} rows, and batch is {batch}; give the "
                              "number of sequences that the rows hold.")

    def _turns(self, x: torch.Tensor, batch: int) -> Any:
        return rope(batch, x.shape[0] // batch, self.heads, self.kv_heads, self.head, self.base,
                    x.device)

    def _norm(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], gamma.to(x.dtype), self.eps)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Causal attention of [batch, length, heads, head]: -> [T, d]."""
        mixed = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)),
                                               is_causal=True, enable_gqa=q.shape[2] != k.shape[2])
        return mixed.transpose(1, 2).reshape(q.shape[0] * q.shape[1], -1)


class Model(nn.Module):
    """A language model of such blocks, from token numbers to the mean cross-entropy."""

    def __init__(self, vocabulary: int, d: int, heads: int, f: int, layers: int,
                 dtype: torch.dtype = torch.bfloat16, kv_heads: int | None = None) -> None:
        super().__init__()
        self.dtype = dtype
        self.embedding = nn.Parameter(torch.randn(vocabulary, d))
        self.blocks = nn.ModuleList(Block(d, heads, f, dtype, kv_heads) for _ in range(layers))
        self.gamma = nn.Parameter(torch.ones(d))
        self.head = nn.Parameter(torch.randn(vocabulary, d) / d**0.5)

    def forward(self, tokens: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """tokens, target [batch, length] integers; a target of -100 does not count."""
        x = F.embedding(tokens.flatten(), self.embedding).to(self.dtype)
        norms = [*(block.gamma_1 for block in self.blocks), self.gamma]
        stream = functions.enter(x, norms[0].detach())
        for block, after in zip(self.blocks, norms[1:], strict=True):
            stream = block(stream, after, tokens.shape[0])
        return functions.NormCrossEntropy.apply(
            *stream, self.gamma.to(self.dtype), self.head.to(self.dtype), target.flatten(), -100)

    def prepare(self, rows: int) -> None:
        """Compiles the kernels for batches of so many tokens, several at a time."""
        for block in self.blocks[:1]:
            block.prepare(rows)
        V, d = self.head.shape
        compile_all([(catalogue.rstd_cross_entropy, rows, V, d, True),
                     (catalogue.drms, rows, d, V, False)], self.dtype, self.head.device)

    def reference(self, tokens: torch.Tensor, target: torch.Tensor,
                  dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The same loss in plain torch."""
        x = F.embedding(tokens.flatten(), self.embedding).to(dtype)
        for block in self.blocks:
            x = block.reference(x, tokens.shape[0])
        x = F.rms_norm(x, x.shape[-1:], self.gamma.to(dtype), 1e-6)
        return F.cross_entropy(x @ self.head.to(dtype).t(), target.flatten())
