"""The CPU run's 16-bit floats, with the processor's conversions and without them."""

from __future__ import annotations

import ctypes
import platform

import pytest
import torch
from notebook_format import ROOT

from labkit import cpu_build

SOURCE = """
#include "cpu_runtime.h"
extern "C" void widen(const uint16_t *from, float *to, int n) {
  for (int i = 0; i < n; ++i) to[i] = labkit::FORMAT::widen(from[i]);
}
extern "C" void narrow(const float *from, uint16_t *to, int n) {
  for (int i = 0; i < n; ++i) to[i] = labkit::FORMAT::narrow(from[i]);
}
"""
WITHOUT = """
#if defined(__F16C__)
#error "meant to be compiled without the processor's conversions"
#endif
"""
# flags, and what must hold with them; the second is as on ARM
WAYS = [((), "")] + [(("-mno-f16c",), WITHOUT)] * (platform.machine() == "x86_64")


@pytest.mark.parametrize(("flags", "holds"), WAYS, ids=lambda value: str(value)[:12])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_conversions_are_torchs(kind, flags, holds, tmp_path):
    compiled = cpu_build._compile((*cpu_build.compiler(), *flags),
                                  holds + SOURCE.replace("FORMAT", kind),
                                  ROOT / "labkit" / "cpu_runtime.h")
    (tmp_path / "c.so").write_bytes(compiled)
    library = ctypes.CDLL(str(tmp_path / "c.so"))

    def call(function, values, dtype):
        out = torch.empty(values.numel(), dtype=dtype)
        function(ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(out.data_ptr()), len(values))
        return out

    dtype = getattr(torch, kind)
    every = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16)
    wanted = every.view(dtype).float()
    found = call(library.widen, every, torch.float32)
    assert torch.equal(found.nan_to_num(7), wanted.nan_to_num(7))
    torch.manual_seed(0)
    bits = torch.randint(-2**31, 2**31 - 1, (200_000,), dtype=torch.int64).to(torch.int32)
    near = wanted[wanted.isfinite()].repeat_interleave(2)  # and between neighbours: ties
    near = torch.cat([near, (near[1:] + near[:-1]) / 2])
    for values in (bits.view(torch.float32), near):
        found = call(library.narrow, values, torch.int16).view(dtype)
        assert torch.equal(found.nan_to_num(7), values.to(dtype).nan_to_num(7))
