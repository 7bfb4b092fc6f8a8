"""Softmax on the CPU path: rows of any length, dtype and content give what PyTorch gives."""

from __future__ import annotations

import os

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import labkit as lab
from labkit.verify import compare, tolerance

EXAMPLES = int(os.environ.get("LABKIT_EXAMPLES", "20"))
DTYPES = ("float16", "bfloat16", "float32")
# what fills a part of a row: ordinary scores, equal ones, huge ones, masked ones
FILLS = {
    "normal": lambda shape: torch.randn(shape),
    "wide": lambda shape: 50 * torch.randn(shape),
    "equal": lambda shape: torch.full(shape, 3.0),
    "huge": lambda shape: 6e4 * torch.sign(torch.randn(shape)),
    "masked": lambda shape: torch.full(shape, -torch.inf),
}
lengths = st.one_of(st.integers(1, 70), st.integers(1, 3000), st.sampled_from(
    [127, 128, 129, 1024, 1025, 4095, 16384, 16385, 50257, 65536, 131071, 262144]))


def threads(N: int) -> int:
    return 128 if N < 4096 else 512


def run(X: torch.Tensor, online: bool) -> torch.Tensor:
    M, N = X.shape
    dtype = str(X.dtype)[6:]
    if online:
        schedule = dict(lab.kernel("05", "online_schedule")(N), threads=threads(N))
        program = lab.kernel("05", "softmax_online")(M, N, **schedule, dtype=dtype)
    else:
        schedule = lab.kernel("05", "softmax_schedule")(N)
        program = lab.kernel("05", "softmax")(M, N, **schedule, dtype=dtype)
    return lab.compile(program, out_idx=-1, device="cpu")(X)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True,
          phases=[Phase.explicit, Phase.generate])  # each smaller example is one more to compile
@given(M=st.integers(1, 40), N=lengths, dtype=st.sampled_from(DTYPES), seed=st.integers(0, 999),
       parts=st.lists(st.sampled_from(sorted(FILLS)), min_size=1, max_size=4), data=st.data())
def test_softmax_equals_torch(M, N, dtype, seed, parts, data):
    torch.manual_seed(seed)
    M = min(M, max(1, 400_000 // N))
    X = torch.cat([FILLS[part]((M, len(columns)))
                   for part, columns in zip(parts, torch.arange(N).tensor_split(len(parts)),
                                            strict=True)], dim=1)
    X = X[:, torch.randperm(N)] if data.draw(st.booleans(), "shuffled") else X
    X = X.to(getattr(torch, dtype))
    online = N > 16384 or data.draw(st.booleans(), "online")
    # numbers added one after the other: as many roundings, which may all go one way
    chain = -(-N // threads(N)) + threads(N) if online else N
    allowed = tolerance(dtype) + (chain * 2**-24 if dtype == "float32" else 0.0)
    verdict = compare(run(X, online), torch.softmax(X.double(), -1), allowed=allowed,
                      name=f"{M} x {N} {dtype}")
    assert verdict.ok, verdict
