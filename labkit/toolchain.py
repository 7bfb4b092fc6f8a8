"""Finds the C++ compiler and nvcc, and proves them by what they compile."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from labkit.probes import installed, run

COMPILE_TIMEOUT = 60.0  # seconds
CUDA_FALLBACKS = ("/usr/local/cuda", "/opt/nvidia/hpc_sdk/Linux_x86_64")  # TileLang's, in order
NVCC_PACKAGE = "nvidia-cuda-nvcc"


@dataclass(frozen=True)
class Compiler:
    """A compiler. `origin`: what named it ("" if none was found); `failure`: "" if it works."""

    origin: str = ""
    version: str = ""
    failure: str = ""


_CXX = """\
#include <cmath>
extern "C" float labkit_sum(const float *x, int n) {
  float total = 0;
  for (int i = 0; i < n; ++i) total += std::fabs(x[i]);
  return total;
}
"""
_CALL = """\
import ctypes, sys
function = ctypes.CDLL(sys.argv[1]).labkit_sum
function.restype = ctypes.c_float
print(function((ctypes.c_float * 4)(1, -2, 3, -4), 4))
"""


def cxx() -> Compiler:
    """The C++ compiler ($CXX, else g++, clang++, c++), proved by running a loop it compiled."""
    chosen = os.environ.get("CXX")
    program = chosen or next(filter(shutil.which, ("g++", "clang++", "c++")), None)
    if program is None:
        return Compiler()
    origin = "CXX" if chosen else program
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        source, library = Path(scratch, "sum.cpp"), Path(scratch, "sum.so")
        source.write_text(_CXX)
        done = run([program, "-std=c++17", "-O2", "-fPIC", "-shared", str(source), "-o",
                    str(library)], COMPILE_TIMEOUT)
        if done.code != 0:
            return Compiler(origin, "", done.reason)
        called = run([sys.executable, "-c", _CALL, str(library)], COMPILE_TIMEOUT)
    if called.output.strip() != "10.0":
        wrong = f"the sum 1 + 2 + 3 + 4 came out as {called.output.strip()}"
        return Compiler(origin, "", called.reason if called.code != 0 else wrong)
    first = run([program, "--version"], COMPILE_TIMEOUT).output.partition("\n")[0]
    number = re.search(r"\d+\.\d+(\.\d+)?", first)
    return Compiler(origin, f"{Path(program).name} {number[0] if number else ''}".strip())


def cuda_home() -> tuple[Path | None, str]:
    """The CUDA folder that TileLang would take, and what named it; the same search as its own.

    What named it: "CUDA_HOME", "CUDA_PATH", "PATH", "pip", "fallback", or "" for none.
    """
    chosen = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if chosen is not None:
        return Path(chosen), "CUDA_HOME" if os.environ.get("CUDA_HOME") else "CUDA_PATH"
    on_path = shutil.which("nvcc")
    if on_path:
        home = _home(on_path)
        toolkit = (home / "include" / "cuda_runtime.h").exists()
        return (home if toolkit else _home(os.path.realpath(on_path))), "PATH"
    if installed(NVCC_PACKAGE):
        for file in metadata.files(NVCC_PACKAGE) or []:
            if file.name == "nvcc":
                return Path(file.locate()).parent.parent, "pip"
    for fallback in CUDA_FALLBACKS:
        if os.path.exists(fallback):
            return Path(fallback), "fallback"
    return None, ""


def _home(nvcc_path: str) -> Path:
    # NVIDIA's HPC SDK keeps nvcc one level further down.
    hpc = "hpc_sdk" in nvcc_path.lower() and "cuda" not in nvcc_path.lower()
    return Path(nvcc_path).parents[2 if hpc else 1]


_CUDA = """\
#include <cuda_fp16.h>
extern "C" __global__ void labkit_twice(__half *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = __hadd(x[i], x[i]);
}
"""


def nvcc_version() -> Compiler:
    """nvcc and its release ("13.0"), without compiling anything."""
    home, origin = cuda_home()
    if home is None:
        return Compiler()
    if not (home / "bin" / "nvcc").exists():
        return Compiler(origin, "", f"no nvcc in {home / 'bin'}")
    done = run([str(home / "bin" / "nvcc"), "--version"], COMPILE_TIMEOUT)
    release = re.search(r"release (\d+\.\d+)", done.output)
    if done.code != 0 or not release:
        return Compiler(origin, "", done.reason)
    return Compiler(origin, release[1])


def nvcc(capability: str) -> Compiler:
    """nvcc, proved by compiling a kernel to a cubin for `capability` ("": 8.0)."""
    found = nvcc_version()
    if found.failure or not found.version:
        return found
    arch = (capability or "8.0").replace(".", "")
    arch += "a" if len(arch) > 2 or arch[0] == "9" else ""  # as TileLang names them
    host = (os.environ.get("CXX") or os.environ.get("CC")
            or next(filter(shutil.which, ("g++", "clang++", "c++")), None))
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        source, cubin = Path(scratch, "twice.cu"), Path(scratch, "twice.cubin")
        source.write_text(_CUDA)
        done = run([str(cuda_home()[0] / "bin" / "nvcc"), *([f"-ccbin={host}"] if host else []),
                    "-std=c++20", f"-arch=sm_{arch}", "-cubin", str(source), "-o", str(cubin)],
                   COMPILE_TIMEOUT)
        if done.code != 0:
            return Compiler(found.origin, found.version, done.reason)
        code = cubin.read_bytes() if cubin.exists() else b""
    if not code.startswith(b"\x7fELF") or b"labkit_twice" not in code:
        return Compiler(found.origin, found.version, "its cubin does not hold the kernel")
    return found
