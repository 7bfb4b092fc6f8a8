"""A TileLang program -> what it becomes on any GPU, whether that GPU is here or not.

TileLang lowers for an architecture without a GPU and without nvcc: that gives the CUDA source, the
grid, the threads and the dynamic shared memory. nvcc and ptxas add registers and spills, and with
the GPU's data sheet follow occupancy and whether the kernel can be launched there at all. Every
figure is a compiler's own; nothing is estimated.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit import cache, ptxas
from labkit.diagnose import failed, noted
from labkit.diagnose.place import Place, learners
from labkit.errors import BadArgument, CompileFailed
from labkit.gpus import Gpu, sheet_of
from labkit.occupancy import Occupancy, occupancy
from labkit.table import Table

# what to look for in the generated source
LANDMARKS = {
    "wgmma": r"tl::wgmma_\w+", "mma": r"tl::mma_sync", "ldmatrix": r"tl::ptx_ldmatrix\w*",
    "cp.async": r"tl::cp_async_gs\w*", "TMA load": r"tl::tma_load\w*",
    "TMA store": r"tl::tma_store(?!_)\w*", "mbarrier": r"\.(?:wait|arrive\w*)\(",
    "__syncthreads": r"__syncthreads\(", "named barrier": r"tl::__sync_thread_partial\w*",
}
TENSOR_CORE = ("wgmma", "mma")
_VECTOR_BYTES = {"float4": 16, "uint4": 16, "int4": 16, "longlong4": 32, "ulonglong4": 32,
                 "float2": 8, "uint2": 8, "int2": 8, "half2": 4, "uint1": 4, "float": 4}


@dataclass(frozen=True)
class CrossCompiled:
    """One kernel for one GPU.

    source: CUDA C++. grid: blocks along x, y, z (None where the size is only known at run time).
    threads: per block, with the producer warps that the compiler adds. shared_bytes: dynamic
    shared memory per block. landmarks: name -> how often its instruction stands in the source.
    global_access: bytes -> how many accesses to global memory of that width the source has.
    """

    gpu: Gpu
    name: str
    source: str
    grid: tuple[int | None, ...]
    threads: int
    shared_bytes: int
    landmarks: dict[str, int]
    global_access: dict[int, int]
    nvcc_flags: tuple[str, ...] = ()
    program: Any = field(default=None, repr=False, compare=False)
    options: str = field(default="{}", repr=False, compare=False)

    @property
    def entry(self) -> str:
        """The kernel's name in the source."""
        return re.search(r"(\w+)\([^)]*\)\s*\{", self.body)[1]

    @property
    def body(self) -> str:
        """The kernel's own lines, from its signature to its last brace."""
        return self.source[self.source.rindex('extern "C" __global__'):].strip()

    @cached_property
    def resources(self) -> ptxas.Resources:
        """Registers, spills, stack and static shared memory, from ptxas. Raises MissingTool
        without nvcc, CompileFailed if nvcc rejects the source."""
        program = self.program  # found in the traceback by what explains the error
        try:
            return ptxas.resources(self.source, self.entry, self.gpu.arch, self.nvcc_flags)
        except CompileFailed as error:
            if program is not None:
                error.place = _learners_line(error.log, program, self.gpu.arch, self.options)
            raise noted(error) from None

    @cached_property
    def occupancy(self) -> Occupancy:
        """Blocks per multiprocessor, and what limits them."""
        return occupancy(self.gpu, self.threads, self.resources.registers,
                         self.shared_bytes + self.resources.static_shared_bytes)

    def _too_large(self, shared: int) -> str:
        gpu = self.gpu
        if shared > gpu.shared_per_block:
            return (f"It takes {_kib(shared)} of shared memory a block, and the {gpu.name} "
                    f"gives {_kib(gpu.shared_per_block)}; use smaller tiles or fewer stages.")
        if self.threads > gpu.threads_per_block:
            return (f"It has {self.threads} threads a block, and the {gpu.name} takes "
                    f"{gpu.threads_per_block}; use fewer threads.")
        return ""

    @property
    def obstacle(self) -> str:
        """Why this kernel cannot be launched on this GPU, in one sentence; empty if it can."""
        gpu = self.gpu
        found = (self._too_large(self.shared_bytes)
                 or self._too_large(self.shared_bytes + self.resources.static_shared_bytes))
        if found:
            return found
        if not self.occupancy.blocks:
            return (f"Its {self.threads} threads take {self.resources.registers} registers each, "
                    f"more than the {gpu.name}'s {gpu.registers_per_sm:,} a multiprocessor; use "
                    "smaller tiles or fewer threads.")
        return ""

    @property
    def launches(self) -> bool:
        """Whether one block of it fits on this GPU."""
        return not self.obstacle

    @property
    def tensor_core(self) -> str:
        """The tensor-core instruction in the source: "wgmma", "mma", or "" for none."""
        return next((mark for mark in TENSOR_CORE if mark in self.landmarks), "")

    def report(self) -> Table:
        """Everything known about the kernel on this GPU; compiles with nvcc."""
        used, occupied, gpu = self.resources, self.occupancy, self.gpu
        spilled = used.spill_stores + used.spill_loads
        rows = [
            ["grid", _grid(self.grid)],
            ["threads a block", self.threads],
            ["shared memory a block", f"{_kib(self.shared_bytes + used.static_shared_bytes)} of "
                                      f"{_kib(gpu.shared_per_block)}"],
            ["registers a thread", f"{used.registers} of {gpu.registers_per_thread}"],
            ["spilled to memory a thread", f"{spilled} bytes" if spilled else "nothing"],
            ["stack frame a thread", f"{used.stack_bytes} bytes" if used.stack_bytes else "none"],
            ["blocks a multiprocessor", f"{occupied.blocks}, limited by {occupied.limited_by}"],
            ["warps a multiprocessor", f"{occupied.warps} of {gpu.warps_per_sm} "
                                       f"({occupied.share:.0%})"],
            ["instructions", _marks(self.landmarks)],
            ["global accesses", ", ".join(f"{count} of {width} bytes" for width, count
                                          in sorted(self.global_access.items(), reverse=True))
             or "by copy engine only"],
            ["can be launched", "yes" if self.launches else f"no. {self.obstacle}"],
        ]
        return Table(f"{self.name} on {gpu.name} ({gpu.arch})", ["what", "figure"], rows)

    def __repr__(self) -> str:
        obstacle = self._too_large(self.shared_bytes)
        text = (f"{self.name} for {self.gpu.name} ({self.gpu.arch}): grid {_grid(self.grid)}, "
                f"{self.threads} threads, {_kib(self.shared_bytes)} of shared memory; "
                f"{_marks(self.landmarks)}")
        return f"{text}\nIt cannot be launched. {obstacle}" if obstacle else text


def cross_compile(program: Any, gpu: str | Gpu,
                  pass_configs: dict[str, Any] | None = None) -> CrossCompiled:
    """Lowers `program`, a `@T.prim_func`, for `gpu`: a name such as "T4", or "sm_90".

    pass_configs: TileLang's compiler options, as for `lab.compile`. Kept on disk by content.
    Raises BadArgument for an unknown GPU or another kind of object, CompileFailed if TileLang
    rejects the program for this architecture.
    """
    from tilelang.language.eager import PrimFunc

    from labkit.diagnose import patterns

    sheet = sheet_of(gpu)
    if not isinstance(program, PrimFunc):
        raise BadArgument(f"cross_compile takes a @T.prim_func, not {type(program).__name__}; "
                          "call its builder with sizes first, as in cross_compile(gemm(M, N, K), "
                          f"{sheet.name!r}).")
    patterns.warn(program)
    options = plain_options(pass_configs)
    fields = _lowered(program, sheet.arch, options)
    return CrossCompiled(gpu=sheet, nvcc_flags=ptxas.flags(json.loads(options)), program=program,
                         options=options, **fields)


def plain_options(pass_configs: Any) -> str:
    """The compiler options as JSON."""
    if pass_configs is None:
        pass_configs = {}
    if not isinstance(pass_configs, dict):
        raise BadArgument(f"pass_configs is of type {type(pass_configs).__name__}; give a "
                          'dictionary of options, as in {"tl.enable_fast_math": True}.')
    try:
        return json.dumps({str(getattr(key, "value", key)): value
                           for key, value in pass_configs.items()}, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArgument(f"pass_configs holds a value that is not plain ({error}); give "
                          "booleans, numbers or texts.") from error


@functools.lru_cache(maxsize=512)
def _lowered(program: Any, arch: str, options: str) -> dict[str, Any]:
    import tilelang

    key = cache.key(cache.program_text(program), arch, options, tilelang.__version__,
                    Path(__file__).read_text())
    path = cache.directory() / "lowered" / f"{key}.json"
    fields = _read(path)
    if fields is None:
        fields = _lower(program, arch, json.loads(options))
        cache.store(path, json.dumps(fields).encode())
    fields["grid"] = tuple(fields["grid"])
    fields["global_access"] = {int(k): v for k, v in fields["global_access"].items()}
    return fields


def _read(path: Path) -> dict[str, Any] | None:
    try:
        fields = json.loads(path.read_text())
        return fields if _complete(fields) else None
    except (OSError, ValueError, RecursionError):
        return None  # not there, or damaged: it is made anew


def _complete(fields: Any) -> bool:
    """Whether these are the fields that `_lower` makes."""
    kinds = {"name": str, "source": str, "grid": list, "threads": int, "shared_bytes": int,
             "landmarks": dict, "global_access": dict}
    return (isinstance(fields, dict) and fields.keys() == kinds.keys()
            and all(type(fields[name]) is kind for name, kind in kinds.items())
            and len(fields["grid"]) == 3
            and all(n is None or type(n) is int for n in fields["grid"])
            and fields["landmarks"].keys() <= LANDMARKS.keys()
            and all(width.isdecimal() for width in fields["global_access"])
            and all(type(count) is int for name in ("landmarks", "global_access")
                    for count in fields[name].values()))


def _artifact(program: Any, arch: str, options: dict[str, Any]) -> Any:
    import tilelang
    from tilelang import tvm

    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with tvm.transform.PassContext(opt_level=3, config=options), target:
        return tilelang.lower(program, target=target)


def _learners_line(log: str, program: Any, arch: str, options: str) -> Place | None:
    """The line of the learner's that nvcc's first error is about. TileLang can write the source
    once more with the learner's lines in it (`#line 12 "file"`)."""
    found = re.search(r"kernel\.cu\((\d+)\): error|at line (\d+) of \S*kernel\.cu", log)
    if found is None:
        return None
    source = _artifact(program, arch, {**json.loads(options), "tl.emit_line_directives": True})
    number, place = 0, None
    for line in source.kernel_source.splitlines():
        directive = re.match(r'#line (\d+) "(.*)"', line)
        if directive:
            place = Place(directive[2], int(directive[1]))
            place = place if learners(place.file) else None
            continue
        number += 1
        if number == int(found[1] or found[2]):
            return place
    return None


def _lower(program: Any, arch: str, options: dict[str, Any]) -> dict[str, Any]:
    name = str(program.attrs["global_symbol"])
    try:
        artifact = _artifact(program, arch, options)
    except Exception as error:
        raise failed(f"TileLang could not compile {name!r} for {arch}", error) from error
    functions = list(artifact.device_mod.functions.values())
    if len(functions) != 1:
        raise BadArgument(f"{name!r} splits into {len(functions)} kernels; "
                          "cross-compile each as a program of its own.")
    attributes, source = functions[0].attrs, artifact.kernel_source
    extent = attributes["thread_extent"]
    threads = 1
    for axis in "xyz":
        threads *= _integer(extent.get(f"threadIdx.{axis}", 1)) or 1
    counts = {mark: len(re.findall(pattern, source)) for mark, pattern in LANDMARKS.items()}
    return {"name": name, "source": source, "threads": threads,
            "grid": [_integer(extent.get(f"blockIdx.{axis}", 1)) for axis in "xyz"],
            "shared_bytes": int(attributes.get("dyn_shared_memory_buf", 0)),
            "landmarks": {mark: count for mark, count in counts.items() if count},
            "global_access": _global_access(source, [v.name for v in program.buffer_map.values()])}


def _global_access(source: str, tensors: Sequence[str]) -> dict[int, int]:
    """Vector accesses `*(float4*)(A + ...)` to the program's tensors, by width in bytes."""
    widths: dict[int, int] = {}
    for kind, name in re.findall(r"\*\((?:const )?(\w+)\s*\*\)\((\w+) \+", source):
        if name in tensors and kind in _VECTOR_BYTES:
            width = _VECTOR_BYTES[kind]
            widths[width] = widths.get(width, 0) + 1
    return widths


def _integer(extent: Any) -> int | None:
    try:
        return int(extent)
    except TypeError:
        return None


def _grid(grid: Sequence[int | None]) -> str:
    return " x ".join("?" if n is None else f"{n:,}" for n in grid)


def _kib(size: int) -> str:
    return f"{size / 1024:g} KiB"


def _marks(landmarks: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in landmarks.items()) or "no landmarks"


def landmark_table(program: Any, gpus: Sequence[str]) -> Table:
    """What `program` becomes on each of `gpus`, side by side."""
    if isinstance(gpus, str) or not isinstance(gpus, Iterable) or not (gpus := list(gpus)):
        raise BadArgument(f"gpus is {gpus!r}; give a list of at least one GPU, as in "
                          '("T4", "H100").')
    compiled = [cross_compile(program, gpu) for gpu in gpus]
    marks = [mark for mark in LANDMARKS if any(mark in c.landmarks for c in compiled)]
    rows = [[c.gpu.name, c.gpu.arch, c.threads, _kib(c.shared_bytes),
             *(c.landmarks.get(mark, "") for mark in marks)] for c in compiled]
    return Table(f"{compiled[0].name}, compiled for {len(compiled)} GPUs",
                 ["GPU", "arch", ">threads", ">shared", *(f">{mark}" for mark in marks)], rows,
                 "Numbers: how often the instruction stands in the generated source.")
