"""A Transformer block from GEMMs with epilogues, for use in a PyTorch model.

    rms norm -> QKV with RoPE -> attention -> output projection + residual
             -> rms norm -> SwiGLU -> down projection + residual

Six kernels forward: three GEMMs hold both norms, RoPE, SwiGLU and both residuals, besides the down
projection, attention and two small sums. Attention is torch's.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from labkit.epilogue import functions
from labkit.epilogue.functions import Stream
from labkit.epilogue.pairs import GROUP, join, split
from labkit.errors import BadArgument


class Block(nn.Module):
    """A pre-norm block with causal attention: width d, `heads` heads, hidden width f.

    The stream (see `functions`) goes in and comes out; the block holds the norms that read it, and
    gets the weight of the norm that comes after it. Weights are kept in the order the kernels want,
    `reference` computes the same in plain torch. dtype: of the products (float16, bfloat16,
    float32); the parameters stay float32.
    """

    def __init__(self, d: int, heads: int, f: int, dtype: torch.dtype = torch.bfloat16,
                 base: float = 10000.0, eps: float = 1e-6) -> None:
        super().__init__()
        if d % heads or d // heads % (2 * GROUP) or f % GROUP:
            raise BadArgument(f"d is {d} with {heads} heads, f is {f}; give heads of a multiple of "
                              f"{2 * GROUP} columns and f a multiple of {GROUP}.")
        self.heads, self.head, self.dtype, self.eps = heads, d // heads, dtype, eps
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.ones(d)) for _ in range(2))
        self.W_qkv = nn.Parameter(torch.randn(3 * d, d) / d**0.5)
        self.W_o = nn.Parameter(torch.randn(d, d) / d**0.5)
        self.W_in = nn.Parameter(torch.randn(2 * f, d) / d**0.5)
        self.W_out = nn.Parameter(torch.randn(d, f) / f**0.5)
        half = self.head // 2
        turn = base ** (-torch.arange(half, dtype=torch.float64) / half)
        turn = torch.cat([turn.repeat(2 * heads), torch.zeros(half * heads)])  # values stay
        self.register_buffer("frequency", turn.float())

    def forward(self, stream: Stream, next_gamma: torch.Tensor, batch: int) -> Stream:
        """stream of batch * length rows; next_gamma [d] of the norm after this block."""
        x, scaled, rstd = stream
        cast = self.dtype
        qkv, x = functions.NormRope.apply(
            x, scaled, rstd, self.gamma_1.to(cast), self.W_qkv.to(cast), self._position(x, batch),
            self.frequency)
        mixed = self._attend(qkv, batch)
        x, scaled, rstd = functions.ProjectResidual.apply(
            mixed, x, self.W_o.to(cast), self.gamma_2.detach().to(cast), self.eps)
        return functions.NormSwiGLU.apply(
            x, scaled, rstd, self.gamma_2.to(cast), self.W_in.to(cast), self.W_out.to(cast),
            next_gamma.detach().to(cast), self.eps)

    def reference(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        """The same function of x [T, d] in plain torch, in x's dtype."""
        z = self._norm(x, self.gamma_1) @ self.W_qkv.to(x.dtype).t()
        angle = self._position(x, batch)[:, None].to(x.dtype) * self.frequency.to(x.dtype)
        a, b = split(z)
        z = join(a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
        x = x + self._attend(z, batch) @ self.W_o.to(x.dtype).t()
        gate, up = split(self._norm(x, self.gamma_2) @ self.W_in.to(x.dtype).t())
        return x + (F.silu(gate) * up) @ self.W_out.to(x.dtype).t()

    def _norm(self, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], gamma.to(x.dtype), self.eps)

    def _position(self, x: torch.Tensor, batch: int) -> torch.Tensor:
        length = x.shape[0] // batch
        return torch.arange(length, device=x.device, dtype=torch.float32).repeat(batch)

    def _attend(self, qkv: torch.Tensor, batch: int) -> torch.Tensor:
        """Causal attention: [T, 3 d] -> [T, d]."""
        q, k, v = qkv.view(batch, -1, 3, self.heads, self.head).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(qkv.shape[0], -1)


class Model(nn.Module):
    """A language model of such blocks, from token numbers to the mean cross-entropy."""

    def __init__(self, vocabulary: int, d: int, heads: int, f: int, layers: int,
                 dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.dtype = dtype
        self.embedding = nn.Parameter(torch.randn(vocabulary, d))
        self.blocks = nn.ModuleList(Block(d, heads, f, dtype) for _ in range(layers))
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

    def reference(self, tokens: torch.Tensor, target: torch.Tensor,
                  dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The same loss in plain torch."""
        x = F.embedding(tokens.flatten(), self.embedding).to(dtype)
        for block in self.blocks:
            x = block.reference(x, tokens.shape[0])
        x = F.rms_norm(x, x.shape[-1:], self.gamma.to(dtype), 1e-6)
        return F.cross_entropy(x @ self.head.to(dtype).t(), target.flatten())
