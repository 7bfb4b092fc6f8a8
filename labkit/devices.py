"""Which device a run of lessons uses and which GPUs it may give out, without importing torch."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from labkit import machine
from labkit.errors import NeedsGPU


def resolve_device(device: str) -> str:
    """What `device` ("auto", "gpu", "cpu") means here: "gpu" or "cpu", without importing torch.

    Raises NeedsGPU for "gpu" where nvidia-smi lists none that CUDA_VISIBLE_DEVICES lets through.
    """
    device = machine.asked(device)
    there = device != "cpu" and bool(visible_gpus())
    if device == "gpu" and not there:
        raise NeedsGPU("device is 'gpu', but nvidia-smi shows no GPU that this process may use; "
                       "run with device 'auto' or 'cpu', or see `labkit doctor`.")
    if device == "auto" and there and not _torch_sees_it():
        print("labkit: nvidia-smi lists a GPU, but torch cannot use it, so the lessons run on the "
              "CPU; `labkit doctor` says why.", file=sys.stderr)
        return "cpu"
    return "gpu" if there else "cpu"


def _torch_sees_it() -> bool:
    """In a process of its own, so that this one need not import torch."""
    code = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    return not subprocess.run([sys.executable, "-c", code], capture_output=True).returncode


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES takes it: as they stand in
    it, else by UUID, because CUDA numbers them otherwise than nvidia-smi."""
    listing = machine.nvidia_smi("-L")
    uuids = re.findall(r"^GPU \d+:.*\(UUID: ([^)]+)\)", listing, re.MULTILINE)
    count = len(re.findall(r"^GPU \d", listing, re.MULTILINE))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return uuids if len(uuids) == count else [str(number) for number in range(count)]
    gpus: list[str] = []
    for one in map(str.strip, chosen.split(",")):
        there = (int(one) < count if one.isdecimal()
                 else one.startswith(("GPU-", "MIG-")) and one in listing)
        if not there or one in gpus:
            break  # CUDA, too, ignores what follows an entry that it does not know
        gpus.append(one)
    return gpus


def capability(gpu: str | None = None) -> int | None:
    """The compute capability of `gpu`, else of the first visible one, as in 90; None where
    nvidia-smi won't say."""
    if gpu is None:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    shown = machine.nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader", "-i", gpu)
    found = re.match(r"(\d+)\.(\d)", shown)
    return int(found[1] + found[2]) if found else None
