"""lab.here: the device of a run, the GPU it compiles for, and its sizes."""

from __future__ import annotations

import pytest
import torch

import labkit as lab
from labkit.errors import BadArgument, NeedsGPU


def test_on_the_cpu():
    here = lab.here("cpu")
    assert (here.device, here.torch_device, here.gpu.name) == ("cpu", "cpu", "H100")
    assert here.pick(gpu=1, cpu=2, quick=3) == 2
    assert "CPU" in repr(here) and "H100 (sm_90a)" in repr(here)
    assert lab.here("cpu", gpu="T4").gpu.sm == 75


def test_auto_follows_torch_and_the_environment(monkeypatch):
    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert lab.here("auto").device == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert lab.here("auto", gpu="A100").device == "gpu"
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    assert lab.here("auto").device == "cpu"


@pytest.mark.parametrize(("name", "capability", "expected"), [
    ("Tesla T4", (7, 5), "sm_75"), ("NVIDIA H200", (9, 0), "sm_90a"),
    ("NVIDIA RTX 6000 Ada Generation", (8, 9), "sm_89"),
])
def test_own_gpu(monkeypatch, name, capability, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    here = lab.here("gpu", quick=True)
    assert here.gpu.arch == expected
    assert here.pick(gpu=1, cpu=2, quick=3) == 3 and here.pick(gpu=1, cpu=2) == 1


def test_bad_input(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadArgument, match="takes 'auto', 'gpu' or 'cpu'"):
        lab.here("cuda")
    with pytest.raises(NeedsGPU, match="torch sees no CUDA GPU"):
        lab.here("gpu")
    with pytest.raises(BadArgument, match="Voodoo 2"):
        lab.here("cpu", gpu="Voodoo 2")
