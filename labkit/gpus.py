"""Data sheets of the GPUs that lessons compile for, each figure with its source.

Rates are dense, with float32 accumulation (int8: int32), at the clock the vendor quotes. Vendor
pages often print twice as much: the rate for 2:4 sparse operands, or for float16 accumulation.
The figures were checked against quotations of the named documents, deviceQuery logs and CUDA
headers, or against arithmetic (SMs x operations per clock x clock); a source says where nothing
was found. Memory and L2 sizes are the vendor's GB and MB counted as GiB and MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.errors import BadArgument
from labkit.table import Table

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

GUIDE = ("CUDA C++ Programming Guide (CUDA 13), Compute Capabilities, table 'Technical "
         "Specifications per Compute Capability'")
HEADER = "cuda_occupancy.h of the CUDA 13.0 toolkit"
RESERVED = "CUDA tuning guides: 1 KB of shared memory a block is the system's (from 8.0 on)"
DRIVER = "cudaGetDeviceProperties, as deviceQuery or torch print it on this GPU"

# What follows from the compute capability alone. Sources: GUIDE, but HEADER for the allocation
# unit and RESERVED for the reserved bytes. (The Blackwell Tuning Guide says 32 blocks and 128 KB
# an SM for 12.0; GUIDE, HEADER and the driver on an RTX 5090 agree on 24 and 100 KB.)
#                     per SM:                    per block:
#      arch       threads warps blocks shared    shared  reserved  allocation unit of shared
_CAPABILITIES = {
    75: ("sm_75",    1024,  32,   16,   64 * KIB,  64 * KIB,    0, 256),
    80: ("sm_80",    2048,  64,   32,  164 * KIB, 163 * KIB, 1024, 128),
    86: ("sm_86",    1536,  48,   16,  100 * KIB,  99 * KIB, 1024, 128),
    89: ("sm_89",    1536,  48,   24,  100 * KIB,  99 * KIB, 1024, 128),
    90: ("sm_90a",   2048,  64,   32,  228 * KIB, 227 * KIB, 1024, 128),
    100: ("sm_100a", 2048,  64,   32,  228 * KIB, 227 * KIB, 1024, 128),
    120: ("sm_120a", 1536,  48,   24,  100 * KIB,  99 * KIB, 1024, 128),
}
_LIMITS = ("arch", "threads_per_sm", "warps_per_sm", "blocks_per_sm", "shared_per_sm",
           "shared_per_block", "shared_reserved", "shared_granularity")
_LIMIT_SOURCES = {
    **dict.fromkeys(("threads_per_block", "registers_per_sm", "registers_per_thread",
                     *_LIMITS[1:6]), GUIDE),
    **dict.fromkeys(("sm_partitions", "register_granularity", "shared_granularity"), HEADER),
    "shared_reserved": RESERVED,
}

# field: (label, unit)
_FIGURES = {
    "sms":                  ("multiprocessors (SMs)", ""),
    "boost_mhz":            ("boost clock", "MHz"),
    "memory_bytes":         ("memory", "GiB"),
    "bandwidth_gb_s":       ("memory bandwidth", "GB/s"),
    "l2_bytes":             ("L2 cache", "MiB"),
    "fp32_tflops":          ("float32, CUDA cores", "TFLOP/s"),
    "tensor_tflops":        ("tensor cores", "TFLOP/s"),
    "threads_per_sm":       ("threads per SM", ""),
    "warps_per_sm":         ("warps per SM", ""),
    "blocks_per_sm":        ("blocks per SM", ""),
    "threads_per_block":    ("threads per block", ""),
    "registers_per_sm":     ("32-bit registers per SM", ""),
    "registers_per_thread": ("registers per thread", ""),
    "register_granularity": ("registers: unit of allocation to a warp", ""),
    "sm_partitions":        ("partitions of an SM, registers shared out among them", ""),
    "shared_per_sm":        ("shared memory per SM", "KiB"),
    "shared_per_block":     ("shared memory per block, opt-in maximum", "KiB"),
    "shared_reserved":      ("shared memory reserved per block", "KiB"),
    "shared_granularity":   ("shared memory: unit of allocation", "B"),
}
_BYTES = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


@dataclass(frozen=True)
class Gpu:
    """One GPU. Sizes are in bytes, tensor_tflops maps a dtype to 1e12 operations per second, and
    sources maps every figure's field to where it comes from. A Gpu looked up as "sm_90" stands
    for any GPU of that capability: its figures of the device are None."""

    name: str                       # as lookup takes it: "A100"
    product: str                    # which variant exactly: "NVIDIA A100 SXM4 80GB"
    sm: int                         # compute capability x 10
    arch: str                       # what TileLang and nvcc are told
    threads_per_sm: int
    warps_per_sm: int
    blocks_per_sm: int
    shared_per_sm: int
    shared_per_block: int           # opt-in maximum of one block, static and dynamic together
    shared_reserved: int            # the system takes this much besides, for every block
    shared_granularity: int
    threads_per_block: int = 1024
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    register_granularity: int = 256
    sm_partitions: int = 4
    sms: int | None = None
    boost_mhz: int | None = None
    memory_bytes: int | None = None
    bandwidth_gb_s: float | None = None
    l2_bytes: int | None = None
    fp32_tflops: float | None = None
    tensor_tflops: dict[str, float] | None = field(default=None, hash=False)
    sources: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def _figures(self) -> Iterator[tuple[str, str, str]]:
        """(field, label, value with unit) of every figure that is known."""
        for key, (label, unit) in _FIGURES.items():
            value = getattr(self, key)
            if key == "tensor_tflops":
                for dtype, rate in (value or {}).items():
                    per_s = "TOP/s" if dtype == "int8" else unit
                    yield key, f"{label}, {dtype}, dense", f"{rate:,.10g} {per_s}"
            elif value is not None:
                yield key, label, f"{value / _BYTES.get(unit, 1):,.10g} {unit}".rstrip()

    def table(self) -> Table:
        """The data sheet, its sources as notes."""
        notes = list(dict.fromkeys(self.sources[key] for key, _, _ in self._figures()))
        rows = [[label, value, f"[{notes.index(self.sources[key]) + 1}]"]
                for key, label, value in self._figures()]
        return Table(f"{self.product} ({self.arch})", ["figure", ">value", "source"], rows,
                     "\n".join(f"[{i}] {note}." for i, note in enumerate(notes, 1)))

    def brief(self) -> Table:
        """The figures that lessons speak of most, without their sources."""
        keys = {"sms", "memory_bytes", "bandwidth_gb_s", "l2_bytes", "tensor_tflops",
                "shared_per_block"}
        rows = [[label, value] for key, label, value in self._figures() if key in keys]
        return Table(f"{self.product} ({self.arch})", ["figure", ">value"], rows)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _gpu(name: str, product: str, sm: int, sources: dict[str, str] | None = None,
         sheet: str = "", **figures: object) -> Gpu:
    """A Gpu with its capability's limits; `sheet` is the source of what `sources` leaves out."""
    return Gpu(name, product, sm, **dict(zip(_LIMITS, _CAPABILITIES[sm], strict=True)), **figures,
               sources={**_LIMIT_SOURCES, **dict.fromkeys(figures, sheet), **(sources or {})})


def _rates(float16: float, bfloat16: float | None = None, tf32: float | None = None,
           float8: float | None = None, int8: float | None = None) -> dict[str, float]:
    rates = {"float16": float16, "bfloat16": bfloat16, "tf32": tf32, "float8": float8, "int8": int8}
    return {dtype: rate for dtype, rate in rates.items() if rate is not None}


_H100 = "NVIDIA H100 Tensor Core GPU Architecture whitepaper v1.04, table 3"
_READ = dict.fromkeys(("sms", "boost_mhz", "l2_bytes"), DRIVER)

ALL: tuple[Gpu, ...] = (
    _gpu("T4", "NVIDIA T4", 75, sms=40, boost_mhz=1590, memory_bytes=16 * GIB,
         bandwidth_gb_s=320, l2_bytes=4 * MIB, fp32_tflops=8.1,
         tensor_tflops=_rates(65, int8=130), sheet="NVIDIA T4 datasheet (951643)",
         sources=_READ | {"bandwidth_gb_s": "NVIDIA T4 product page, '320+ GB/s' (256 bit at "
                          "5001 MHz; the datasheet rounds to 300)"}),
    _gpu("A10G", "NVIDIA A10G", 86, sms=80, boost_mhz=1710, memory_bytes=24 * GIB,
         bandwidth_gb_s=600, l2_bytes=6 * MIB, fp32_tflops=35,
         tensor_tflops=_rates(70, 70, tf32=35, int8=140),
         sheet="NVIDIA A10G for AWS datasheet, February 2022",
         sources=_READ | {"boost_mhz": "nvidia-smi, maximum SM clock, as logs of A10G runs give it",
                          "tensor_tflops": "NVIDIA A10G for AWS datasheet, February 2022; int8 "
                          "from memory, not found in a stored text (the RTX 3090's 2048 a clock "
                          "and SM would make 280)"}),
    _gpu("A100", "NVIDIA A100 SXM4 80GB", 80, sms=108, boost_mhz=1410, memory_bytes=80 * GIB,
         bandwidth_gb_s=2039, l2_bytes=40 * MIB, fp32_tflops=19.5,
         tensor_tflops=_rates(312, 312, tf32=156, int8=624),
         sheet="NVIDIA A100 datasheet (1758950), A100 80GB SXM", sources=_READ),
    _gpu("L4", "NVIDIA L4", 89, sms=58, boost_mhz=2040, memory_bytes=24 * GIB,
         bandwidth_gb_s=300, l2_bytes=48 * MIB, fp32_tflops=30.3,
         tensor_tflops=_rates(121, 121, tf32=60, float8=242.5, int8=242.5),
         sheet="NVIDIA L4 datasheet (it prints sparse tensor rates, here halved)", sources=_READ),
    _gpu("RTX 4090", "NVIDIA GeForce RTX 4090", 89, sms=128, boost_mhz=2520,
         memory_bytes=24 * GIB, bandwidth_gb_s=1008, l2_bytes=72 * MIB, fp32_tflops=82.6,
         tensor_tflops=_rates(165.2, 165.2, tf32=82.6, float8=330.3, int8=660.6),
         sheet="NVIDIA Ada GPU Architecture whitepaper v2.1, appendix A, table 2"),
    _gpu("H100", "NVIDIA H100 SXM5 80GB", 90, sms=132, boost_mhz=1980, memory_bytes=80 * GIB,
         bandwidth_gb_s=3350, l2_bytes=50 * MIB, fp32_tflops=66.9,
         tensor_tflops=_rates(989.4, 989.4, tf32=494.7, float8=1978.9, int8=1978.9), sheet=_H100,
         sources=_READ | {"bandwidth_gb_s": "NVIDIA H100 datasheet, H100 SXM",
                          "tensor_tflops": f"{_H100}, at 1830 MHz"}),
    _gpu("H200", "NVIDIA H200 SXM 141GB", 90, sms=132, boost_mhz=1980, memory_bytes=141 * GIB,
         bandwidth_gb_s=4800, l2_bytes=60 * MIB, fp32_tflops=66.9,
         tensor_tflops=_rates(989.4, 989.4, tf32=494.7, float8=1978.9, int8=1978.9),
         sheet="NVIDIA H200 datasheet, H200 SXM",
         sources=_READ | dict.fromkeys(
             ("fp32_tflops", "tensor_tflops"), f"{_H100}, for the H100 SXM5: the same chip and "
             "clocks; the H200 datasheet prints these rounded and sparse")),
    _gpu("B200", "NVIDIA B200 SXM 180GB (one module, both dies)", 100, sms=148, boost_mhz=1965,
         memory_bytes=180 * GIB, bandwidth_gb_s=7700, l2_bytes=253 * MIB // 2, fp32_tflops=75,
         tensor_tflops=_rates(2250, 2250, tf32=1100, float8=4500, int8=4500),
         sheet="NVIDIA Blackwell datasheet (3384703), HGX B200, individual GPU (sparse tensor "
               "rates there, here halved)",
         sources=_READ | {"boost_mhz": "nvidia-smi, maximum SM clock, as logs of B200 runs give it",
                          "bandwidth_gb_s": "NVIDIA Blackwell datasheet (3384703), HGX B200 (older "
                          "pages say 8 TB/s; the driver's 7680 bit at 3996 MHz make 7672)"}),
    _gpu("RTX 5090", "NVIDIA GeForce RTX 5090", 120, sms=170, boost_mhz=2407,
         memory_bytes=32 * GIB, bandwidth_gb_s=1792, l2_bytes=96 * MIB, fp32_tflops=104.8,
         tensor_tflops=_rates(209.5, 209.5, tf32=104.8, float8=419, int8=838),
         sheet="NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3",
         sources={"tensor_tflops": "NVIDIA RTX Blackwell GPU Architecture whitepaper, table 3; "
                  "tf32 from memory, not found in a stored text"}),
)

# What lookup takes, in lower case, without signs, "nvidia", "tesla" and "geforce". A variant with
# other figures (H100 PCIe, RTX 4090 Laptop, a MIG slice) must not match; A100s differ in memory.
_SPELLINGS = {
    "T4": "t4", "A10G": "a10g", "A100": r"a100(sxm4?|pcie)?(40gb|80gb)?(pcie)?", "L4": "l4",
    "RTX 4090": "(rtx)?4090", "H100": r"h100(sxm5?)?(80gb)?(hbm3)?",
    "H200": r"h200(sxm5?)?(141gb)?", "B200": r"b200(sxm6?)?(180gb)?", "RTX 5090": "(rtx)?5090",
}


def names() -> tuple[str, ...]:
    """The names of the GPUs that have a data sheet."""
    return tuple(gpu.name for gpu in ALL)


def arch_numbers() -> tuple[str, ...]:
    """The architectures of the compile matrix: "75", ... "90a", "100a", "120a"."""
    return tuple(arch.removeprefix("sm_") for arch, *_ in _CAPABILITIES.values())


def sheet_of(gpu: str | Gpu) -> Gpu:
    """The data sheet that `gpu` is or names. Raises BadArgument for a name that has none."""
    return gpu if isinstance(gpu, Gpu) else lookup(gpu)


def lookup(name: str) -> Gpu:
    """The GPU called `name`: "H100", "rtx4090", a device's name as torch or nvidia-smi report it
    ("NVIDIA H100 80GB HBM3"), or "sm_90": any GPU of that capability, without device figures.

    Raises BadArgument for a name that has no data sheet.
    """
    key = re.sub(r"[^a-z0-9]", "", str(name).lower())
    key = re.sub(r"^(nvidia)?(tesla|geforce)?", "", key)
    for gpu in ALL:
        if re.fullmatch(_SPELLINGS[gpu.name], key):
            return gpu
    capability = re.fullmatch(r"(?:sm|compute)?(\d{2,3})[af]?", key)
    if capability and (sm := int(capability[1])) in _CAPABILITIES:
        arch = _CAPABILITIES[sm][0]
        return _gpu(arch, f"any GPU of compute capability {sm // 10}.{sm % 10}", sm)
    raise BadArgument(f"There is no data sheet for {str(name)!r}; the names that work are "
                      f"{', '.join(names())}, and, for the limits of an architecture alone, "
                      f"{', '.join(arch for arch, *_ in _CAPABILITIES.values())}.")
