"""Which device a lesson runs on, and the sizes that suit it.

    here = lab.here(device, gpu, quick)
    M = here.pick(gpu=4096, cpu=200)
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument, NeedsGPU
from labkit.gpus import Gpu, lookup

DEVICES = ("auto", "gpu", "cpu")


def asked(device: str) -> str:
    """`device`, checked; for "auto", `$LABKIT_DEVICE` where it is set. Raises BadArgument."""
    if device == "auto":
        device = os.environ.get("LABKIT_DEVICE", "auto")
    if device not in DEVICES:
        raise BadArgument(f"device is {device!r}; it takes 'auto', 'gpu' or 'cpu'.")
    return device


def resolve_device(device: str) -> str:
    """ "gpu" or "cpu" for what the learner asked. Raises BadArgument or NeedsGPU."""
    device = asked(device)
    if device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "gpu"
    if device == "gpu":
        raise NeedsGPU("device is 'gpu', but torch sees no CUDA GPU here; use device = 'auto' or "
                       "'cpu', or run `labkit doctor` to see what is missing.")
    return "cpu"


def nvidia_smi(*arguments: str) -> str:
    """What the driver's own tool prints for `arguments`; "" where it is not there or hangs."""
    try:
        return subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True,
                              timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def clock_mhz() -> float | None:
    """The multiprocessors' clock of the GPU that torch uses, now; None where the driver's
    management library is not there or does not tell. Takes well under a millisecond."""
    import ctypes

    import torch

    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}".encode()
    except (OSError, AttributeError):
        return None
    device, mhz, sm = ctypes.c_void_p(), ctypes.c_uint(), 1  # NVML_CLOCK_SM
    if (nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(device))
            or nvml.nvmlDeviceGetClockInfo(device, sm, ctypes.byref(mhz))):
        return None  # each returns 0 where it succeeds
    return float(mhz.value)


@dataclass(frozen=True)
class Machine:
    """What a lesson runs on. device: "gpu" or "cpu"; torch_device: "cuda" or "cpu"; gpu: the GPU
    to compile for, as a data sheet; quick: shrink sizes and sweeps."""

    device: str
    gpu: Gpu
    quick: bool

    @property
    def sm(self) -> int:
        """The compute capability that kernels of this run must suit: that of the GPU they run on,
        or of the GPU to compile for where they run on the CPU."""
        return (own_gpu() if self.device == "gpu" else self.gpu).sm

    @property
    def torch_device(self) -> str:
        return "cuda" if self.device == "gpu" else "cpu"

    def pick(self, *, gpu: Any, cpu: Any, quick: Any = None) -> Any:
        """The value that suits this run: `quick` on a GPU in a quick run, if given."""
        if self.device == "cpu":
            return cpu
        return quick if self.quick and quick is not None else gpu

    def __repr__(self) -> str:
        if self.device == "gpu":
            import torch

            return (f"Running on the GPU: {torch.cuda.get_device_name()} ({self.gpu.arch}).\n"
                    "Kernels are checked and timed here.")
        return ("Running on the CPU through TileLang's C backend.\nKernels are checked at small "
                "sizes; timings are recorded ones, from another machine.\n"
                f"Compiling for: {self.gpu.name} ({self.gpu.arch}).")


def here(device: str = "auto", gpu: str = "", quick: bool = False) -> Machine:
    """The machine of this run.

    device: "auto" (the GPU if torch sees one), "gpu" or "cpu". gpu: a GPU to compile for, such
    as "T4" or "sm_90"; empty: the machine's own, else the H100. quick: small sizes.
    Raises BadArgument for a name it does not know, NeedsGPU for "gpu" without one.
    """
    device = resolve_device(device)
    if not gpu and device == "gpu":
        return Machine(device, own_gpu(), quick)
    return Machine(device, lookup(gpu or "H100"), quick)


def own_gpu() -> Gpu:
    """The data sheet of the GPU that torch sees; one the kit does not list by its capability."""
    import torch

    try:
        return lookup(torch.cuda.get_device_name())
    except BadArgument:
        major, minor = torch.cuda.get_device_capability()
        return lookup(f"sm_{major}{minor}")
