"""Floors: no kernel moves its bytes faster than memory, or computes faster than the tensor cores.

    time >= max(bytes / copy bandwidth, operations / tensor-core rate)

S. Williams, A. Waterman, D. Patterson, Roofline, CACM 52(4), 2009. Bytes count each input read
once and each output written once. Both ceilings are measured on the GPU that is there, in the
same process as the kernel that is compared with them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import BadArgument, NeedsGPU
from labkit.gpus import Gpu, lookup
from labkit.table import Table

_COPY_BYTES = 1 << 30
_MATRICES = (4096, 6144, 8192)


@dataclass(frozen=True)
class Floors:
    """copy_gb_s: bytes read plus written per second of a 1 GiB device copy, in 1e9.
    tensor_tflops: dtype -> 1e12 operations per second of torch.mm on random data (torch._scaled_mm
    with fast accumulation for float8_e4m3fn), the best of M = N = K = 4096, 6144 and 8192.
    origin: where the figures come from."""

    gpu: str
    origin: str
    copy_gb_s: float
    tensor_tflops: dict[str, float] = field(default_factory=dict)

    def ms(self, moved: float = 0, flops: float = 0, dtype: str = "float16") -> float | None:
        """The floor in milliseconds for `moved` bytes and `flops` operations; None for operations
        in a dtype whose rate is not known."""
        memory = moved / self.copy_gb_s / 1e6
        if not flops:
            return memory
        rate = self.tensor_tflops.get(dtype)
        return max(memory, flops / rate / 1e9) if rate else None

    @property
    def sheet(self) -> Gpu:
        """The data sheet of the GPU whose floors these are."""
        from labkit.machine import own_gpu

        try:
            return lookup(self.gpu)
        except BadArgument:
            return own_gpu()

    def table(self) -> Table:
        rows = [["memory: copy of 1 GiB", f"{self.copy_gb_s:,.0f} GB/s"]]
        rows += [[f"tensor cores: matrix product, {dtype}", f"{rate:,.0f} TFLOP/s"]
                 for dtype, rate in self.tensor_tflops.items()]
        return Table(f"Floors of the {self.gpu} ({self.origin})", ["what", ">rate"], rows)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def floors(here: Any) -> Floors:
    """The floors to compare with: measured on the GPU of this run, else those recorded with
    the kit's measurements (`here` is the result of `lab.here`)."""
    if here.device == "gpu":
        return measured()
    from labkit.results import recorded

    recording = recorded()
    return Floors(gpu=recording.gpu, origin=f"recorded on {recording.date}; none measured here",
                  **{key: recording.floors[key] for key in ("copy_gb_s", "tensor_tflops")})


@functools.cache
def measured() -> Floors:
    """Measures this GPU's floors, once a process. Raises NeedsGPU."""
    import torch

    if not torch.cuda.is_available():
        raise NeedsGPU("Floors are measured on a CUDA GPU, and torch sees none here.")
    dtypes = ["float16"]
    if torch.cuda.get_device_capability() >= (8, 0):
        dtypes.append("bfloat16")
    if torch.cuda.get_device_capability() >= (8, 9):
        dtypes.append("float8_e4m3fn")
    rates = {dtype: max(_matmul_tflops(getattr(torch, dtype), size) for size in _MATRICES)
             for dtype in dtypes}
    return Floors(torch.cuda.get_device_name(), "measured in this run", _copy_gb_s(), rates)


def _copy_gb_s() -> float:
    import torch

    from labkit.benchmark import time_each

    source = torch.randn(_COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    times = time_each({"copy": lambda: target.copy_(source)}, milliseconds=100)
    return 2 * _COPY_BYTES / times["copy"].median / 1e6


def _matmul_tflops(dtype: Any, size: int) -> float:
    import torch

    from labkit.benchmark import time_each

    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    if dtype == torch.float8_e4m3fn:
        one = torch.ones((), device="cuda")

        def product() -> Any:
            return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16,
                                    use_fast_accum=True)
    else:
        out = torch.empty_like(a)

        def product() -> Any:
            return torch.mm(a, b, out=out)

    times = time_each({"mm": product}, milliseconds=100)
    return 2 * size**3 / times["mm"].median / 1e9
