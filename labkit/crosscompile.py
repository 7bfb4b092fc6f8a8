"""A TileLang program -> the CUDA source it becomes on any GPU, whether it is here or not.

TileLang lowers for an architecture without a GPU and without nvcc. The source, the grid, the
threads and the dynamic shared memory are the compiler's own; nothing here is estimated.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument, CompileFailed
from labkit.gpus import Gpu, lookup
from labkit.table import Table

# what to look for in the generated source, and what it is
LANDMARKS = {
    "wgmma": r"tl::wgmma_\w+", "mma": r"tl::mma_sync", "ldmatrix": r"tl::ptx_ldmatrix\w*",
    "cp.async": r"tl::cp_async_gs\w*", "TMA load": r"tl::tma_load\w*",
    "TMA store": r"tl::tma_store(?!_)\w*", "mbarrier": r"\.(?:wait|arrive\w*)\(",
    "__syncthreads": r"__syncthreads\(", "16-byte access": r"\*\((?:float4|uint4|int4)\s*\*\)",
}


@dataclass(frozen=True)
class CrossCompiled:
    """One kernel for one GPU. source: CUDA C++. grid: blocks along x, y, z (None where the size
    is only known at run time). threads: per block, with the producer warps that the compiler
    adds. shared_bytes: dynamic shared memory per block. landmarks: name -> how often its
    instruction stands in the source."""

    gpu: Gpu
    name: str
    source: str
    grid: tuple[int | None, ...]
    threads: int
    shared_bytes: int
    landmarks: dict[str, int]

    @property
    def body(self) -> str:
        """The kernel's own lines, from its signature to its last brace."""
        start = self.source.rindex('extern "C" __global__')
        return self.source[start:].strip()

    def __repr__(self) -> str:
        found = ", ".join(f"{name} x{count}" for name, count in self.landmarks.items())
        grid = " x ".join("?" if n is None else f"{n:,}" for n in self.grid)
        return (f"{self.name} for {self.gpu.name} ({self.gpu.arch}): grid {grid}, {self.threads} "
                f"threads, {self.shared_bytes:,} bytes of shared memory; {found or 'no landmarks'}")


def cross_compile(program: Any, gpu: str | Gpu) -> CrossCompiled:
    """Lowers `program`, a `@T.prim_func`, for `gpu`: a name such as "T4", or "sm_90".

    Raises BadArgument for an unknown GPU or another kind of object, CompileFailed if TileLang
    rejects the program for this architecture.
    """
    from tilelang.language.eager import PrimFunc

    sheet = gpu if isinstance(gpu, Gpu) else lookup(gpu)
    if not isinstance(program, PrimFunc):
        raise BadArgument(f"cross_compile takes a @T.prim_func, not {type(program).__name__}; "
                          "call its builder with sizes first, as in cross_compile(gemm(M, N, K), "
                          f"{sheet.name!r}).")
    return _lower(program, sheet)


@functools.lru_cache(maxsize=256)
def _lower(program: Any, sheet: Gpu) -> CrossCompiled:
    import tilelang
    from tilelang import tvm

    from labkit.cpu_build import reason

    name = str(program.attrs["global_symbol"])
    target = tvm.target.Target({"kind": "cuda", "arch": sheet.arch})
    try:
        with target:
            artifact = tilelang.lower(program, target=target)
    except Exception as error:
        raise CompileFailed(f"TileLang could not compile {name!r} for {sheet.name} "
                            f"({sheet.arch}): {reason(error)}") from error
    functions = list(artifact.device_mod.functions.values())
    if len(functions) != 1:
        raise BadArgument(f"{name!r} splits into {len(functions)} kernels; "
                          "cross-compile each as a program of its own.")
    attributes = functions[0].attrs
    extent = attributes["thread_extent"]
    grid = tuple(_integer(extent.get(f"blockIdx.{axis}", 1)) for axis in "xyz")
    threads = 1
    for axis in "xyz":
        threads *= _integer(extent.get(f"threadIdx.{axis}", 1)) or 1
    source = artifact.kernel_source
    counts = {mark: len(re.findall(pattern, source)) for mark, pattern in LANDMARKS.items()}
    return CrossCompiled(sheet, name, source, grid, threads,
                         int(attributes.get("dyn_shared_memory_buf", 0)),
                         {mark: count for mark, count in counts.items() if count})


def _integer(extent: Any) -> int | None:
    try:
        return int(extent)
    except TypeError:
        return None


def landmark_table(program: Any, gpus: tuple[str, ...]) -> Table:
    """What `program` becomes on each of `gpus`, side by side."""
    compiled = [cross_compile(program, gpu) for gpu in gpus]
    marks = [mark for mark in LANDMARKS if any(mark in c.landmarks for c in compiled)]
    rows = [[c.gpu.name, c.gpu.arch, c.threads, f"{c.shared_bytes / 1024:g} KiB",
             *(c.landmarks.get(mark, "") for mark in marks)] for c in compiled]
    return Table(f"{compiled[0].name}, compiled for {len(compiled)} GPUs",
                 ["GPU", "arch", ">threads", ">shared", *(f">{mark}" for mark in marks)], rows,
                 "Numbers: how often the instruction stands in the generated source.")
