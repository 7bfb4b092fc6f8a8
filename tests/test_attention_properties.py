"""FlashAttention on the CPU: any shape, mask, group, dtype and tile give attention in float64."""

from __future__ import annotations

import os

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import labkit as lab

EXAMPLES = int(os.environ.get("LABKIT_EXAMPLES", "20"))
# (block_M, block_N, num_stages): tiles that few of the lengths are a multiple of
TILES = [(16, 16, 1), (32, 48, 2), (64, 32, 1), (48, 80, 2)]
# What the scores are like: ordinary, one key far ahead of the rest, all equal, ever larger. The
# huge ones are whole numbers, which float32 holds: else two close keys could not be told apart.
FILLS = {
    "normal": lambda Q, K: (Q, K),
    "wide": lambda Q, K: (30 * Q, K),
    "huge": lambda Q, K: ((30 * Q).round(), (30 * K).round()),
    "equal": lambda Q, K: (Q, torch.zeros_like(K)),
    "rising": lambda Q, K: (torch.ones_like(Q), K / 8 + torch.arange(K.shape[2])[:, None] / 16),
}


def attention(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, causal: bool, past: int
              ) -> torch.Tensor:
    """By the formula, in float64."""
    group = Q.shape[1] // K.shape[1]
    Q, K, V = Q.double(), *(x.double().repeat_interleave(group, 1) for x in (K, V))
    scores = Q @ K.mT / Q.shape[-1] ** 0.5
    if causal:
        query, key = torch.arange(Q.shape[2])[:, None], torch.arange(K.shape[2])
        scores = scores.masked_fill(key > query + past, -torch.inf)
    return scores.softmax(-1) @ V


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True,
          phases=[Phase.explicit, Phase.generate])  # each smaller example is one more to compile
@given(batch=st.integers(1, 2), kv_heads=st.integers(1, 3), group=st.integers(1, 4),
       Sq=st.integers(1, 150), Sk=st.integers(1, 200), D=st.integers(1, 8).map(lambda n: 16 * n),
       causal=st.booleans(), past=st.integers(0, 120), tile=st.sampled_from(TILES),
       ahead=st.booleans(), blocks=st.integers(1, 9),
       dtype=st.sampled_from(["float16", "bfloat16"]), fill=st.sampled_from(sorted(FILLS)),
       seed=st.integers(0, 999))
def test_attention_equals_the_formula(batch, kv_heads, group, Sq, Sk, D, causal, past, tile, ahead,
                                      blocks, dtype, fill, seed):
    """ahead: of the kernel that starts scores ahead, with so many blocks that stay."""
    torch.manual_seed(seed)
    heads = kv_heads * group
    block_M, block_N, num_stages = tile
    Q, K, V = (torch.randn(batch, h, S, D) for h, S in
               ((heads, Sq), (kv_heads, Sk), (kv_heads, Sk)))
    Q, K, V = (x.to(getattr(torch, dtype)) for x in (*FILLS[fill](Q, K), V))
    kernel, more = ("flash_attention_ahead", {"blocks": blocks}) if ahead else (
        "flash_attention", {})
    program = lab.kernel("06", kernel)(
        batch, heads, kv_heads, Sq, Sk, D, causal, past, block_M=block_M, block_N=block_N,
        num_stages=num_stages, dtype=dtype, **more)
    run = lab.compile(program, out_idx=-1, device="cpu", pass_configs=lab.kernel("06", "FAST_MATH"))
    lab.check(run(Q, K, V), attention(Q, K, V, causal, past), tile=(block_M, D),
              name=f"{batch} x {heads}/{kv_heads}, {Sq} x {Sk} x {D} {dtype}")
