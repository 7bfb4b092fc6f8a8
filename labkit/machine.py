"""Which device a lesson runs on, and the sizes that suit it.

    here = lab.here(device, gpu, quick)
    M = here.pick(gpu=4096, cpu=200)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument, NeedsGPU

DEVICES = ("auto", "gpu", "cpu")


def resolve_device(device: str) -> str:
    """ "gpu" or "cpu" for what the learner asked. Raises BadArgument or NeedsGPU."""
    if device not in DEVICES:
        raise BadArgument(f"device is {device!r}; it takes 'auto', 'gpu' or 'cpu'.")
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "gpu"
    if device == "gpu":
        raise NeedsGPU("device is 'gpu', but torch sees no CUDA GPU here; use device = 'auto' or "
                       "'cpu', or run `labkit doctor` to see what is missing.")
    return "cpu"
