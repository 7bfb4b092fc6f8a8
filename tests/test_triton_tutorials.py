"""Triton's tutorial kernels: left out where they cannot run, right where Triton interprets them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

import labkit as lab
from labkit import triton_tutorials
from labkit.errors import BadArgument

INTERPRETED = """
import torch
from labkit.benching import triton_kernels as kernels

def near(call, wanted):
    assert ((call().float() - wanted).norm() / wanted.norm()).item() < 1e-3

torch.manual_seed(0)
A, B = torch.randn(100, 72).half(), torch.randn(72, 90).half()
near(kernels.gemm(A, B, torch.empty(100, 90).half(),
                  dict(BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, GROUP=2)), A.float() @ B.float())
X = (4 * torch.randn(37, 100)).half()
near(kernels.softmax(X, torch.empty_like(X), dict(A_MULTIPROCESSOR=4, STAGES=2)),
     X.float().softmax(-1))
Q, K, V = (torch.randn(2, 3, 128, 64).half() for _ in range(3))
for causal in (False, True):
    near(kernels.attention(Q, K, V, torch.empty_like(Q), causal, dict(BLOCK_M=64, BLOCK_N=32)),
         torch.nn.functional.scaled_dot_product_attention(
             Q.float(), K.float(), V.float(), is_causal=causal))
print("right")
"""


def test_left_out_without_a_gpu():
    A = torch.randn(4, 4)
    assert lab.triton_baselines("gemm", A, A) == {}
    with pytest.raises(BadArgument, match="gemm, softmax, attention"):
        lab.triton_baselines("conv", A)


@pytest.mark.parametrize(("shape", "takes"), [((4, 32768), True), ((4, 32769), False)])
def test_rows_that_do_not_fit_registers_are_left_out(monkeypatch, shape, takes):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert triton_tutorials._takes("softmax", (torch.empty(shape, device="meta"),)) == takes


def test_what_is_taken_depends_on_the_gpu(monkeypatch):
    X = torch.empty(2, 4, 256, 128, device="meta")
    ragged = torch.empty(2, 4, 200, 128, device="meta")
    for sm, gemm, attention in (((7, 5), False, False), ((8, 9), True, False),
                                ((9, 0), True, True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, sm=sm: sm)
        assert triton_tutorials._takes("gemm", (X, X)) == gemm
        assert triton_tutorials._takes("attention", (X, X, X)) == attention
        assert not triton_tutorials._takes("attention", (ragged,) * 3)
        assert not triton_tutorials._takes("attention", (X, X[:, :2], X[:, :2]))


def test_the_kernels_are_right():
    """Interpreted, so without a GPU; its interpreter has no bfloat16."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs Triton")
    done = subprocess.run([sys.executable, "-c", INTERPRETED], capture_output=True, text=True,
                          env=os.environ | {"TRITON_INTERPRET": "1"})
    assert done.stdout == "right\n", done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu(cuda, dtype):
    if cuda.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a CUDA GPU of compute capability 8.0 or later")
    A = cuda.randn(512, 512, device="cuda").to(dtype)
    Q = cuda.randn(2, 4, 512, 128, device="cuda").to(dtype)
    assert list(lab.triton_baselines("gemm", A, A)) == ["Triton tutorial"]  # compared when made
    assert list(lab.triton_baselines("softmax", A)) == ["Triton tutorial"]
    newer = cuda.cuda.get_device_capability() >= (9, 0)
    for causal in (False, True):
        assert bool(lab.triton_baselines("attention", Q, Q, Q, causal=causal)) == newer
