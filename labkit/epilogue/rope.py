"""Rotary position embedding as the kernels take it: tables for a batch of sequences.

Forward it is an epilogue (`catalogue.rstd_rope`): the angle of a pair is position * frequency, in
registers. Backward attention makes its input, not a GEMM, so it is a pass of its own, and reads
its cosines and sines from a table. (Su and others, arXiv 2104.09864.)
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from labkit.epilogue.pairs import GROUP, join


@dataclass(frozen=True, eq=False)
class Rope:
    """For `batch` sequences of `length` tokens, `heads` of queries, `kv_heads` of keys and values,
    `head` columns each, the columns of a head arranged by `pairs.join` of its halves.

    position [T], frequency [n / 2]: float32, radians are their product, values have frequency 0;
    cosine, sine [length, head]: float32, arranged as a head, the sine signed to turn back.
    """

    batch: int
    length: int
    heads: int
    kv_heads: int
    head: int
    position: torch.Tensor
    frequency: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor

    @property
    def columns(self) -> tuple[int, int, int]:
        """How many columns of the product are queries, keys and values."""
        return self.heads * self.head, self.kv_heads * self.head, self.kv_heads * self.head

    def views(self, qkv: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Queries, keys and values [batch, length, heads, head] of qkv [T, n]; no copies."""
        return tuple(part.view(self.batch, self.length, -1, self.head)
                     for part in qkv.split(self.columns, 1))


@functools.lru_cache(maxsize=32)
def rope(batch: int, length: int, heads: int, kv_heads: int, head: int, base: float,
         device: torch.device) -> Rope:
    """The tables, made once for each shape and device; the frequency of pair i is
    base ** (-2 i / head)."""
    half = head // 2
    turn = base ** (-torch.arange(half, dtype=torch.float64) / half)
    place = torch.arange(length, dtype=torch.float64)
    angle = place[:, None] * turn
    rotated = turn.repeat(heads + kv_heads)
    tables = [place.repeat(batch), torch.cat([rotated, torch.zeros(half * kv_heads)]),
              join(angle.cos(), angle.cos()), join(angle.sin(), -angle.sin())]
    return Rope(batch, length, heads, kv_heads, head, *(t.to(device, torch.float32)
                                                        for t in tables))


def turn_back(g: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """g [batch, length, heads, head] with each pair turned by the negative angle; float32."""
    g = g.float()
    other = g.unflatten(-1, (-1, 2, GROUP)).flip(-2).flatten(-3)  # each pair's other member
    return g * cosine[:, None] + other * sine[:, None]
