"""What a schedule is explored for: a matrix product. (Attention is in `attention.py`.)

A problem knows its sizes, how much work it is, what a schedule costs by arithmetic alone, which
schedules cannot work and why, and what its kernel is checked against and timed beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from labkit.errors import BadArgument
from labkit.gpus import Gpu

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
PRODUCER_THREADS = 128  # the group that only copies, which the compiler adds from 9.0 on


@dataclass(frozen=True)
class Part:
    """A buffer in shared memory. bytes: of all its copies; later: it takes over the space of the
    other buffers when they are no longer needed, so only what is beyond theirs counts; overtaken:
    that holds only before 9.0, since from there on copies for the next tile run ahead."""

    name: str
    bytes: int
    later: bool = False
    overtaken: bool = False


@dataclass(frozen=True)
class Grid:
    """The blocks of one launch. tiles: (rows, columns) of output tiles of one matrix; matrices:
    how many of them; steps: along the axis that a block walks; work: of each block, relative to
    the longest, summed and divided by their number (1: all equal)."""

    tiles: tuple[int, int]
    matrices: int
    steps: int
    work: float = 1.0

    @property
    def blocks(self) -> int:
        return self.tiles[0] * self.tiles[1] * self.matrices


def _bias_gelu(C: Any, bias: Any) -> Any:
    import torch.nn.functional as F

    return F.gelu(C + bias, approximate="tanh")


# name -> (further inputs, each a vector of N; what becomes of the float32 product)
EPILOGUES: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "": ((), lambda C: C),
    "bias_gelu": (("bias",), _bias_gelu),
}


def whole(name: str, value: Any) -> int:
    """`value`, if it is a whole number of at least 1. Raises BadArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadArgument(f"{name} is {value!r}; give a whole number of at least 1.")
    return value


def known_dtype(dtype: Any) -> None:
    """Raises BadArgument for a dtype that tensor cores do not take."""
    if dtype not in BYTES:
        raise BadArgument(f"dtype is {dtype!r}; it takes {', '.join(map(repr, BYTES))}.")


def no_such_dtype(dtype: str, gpu: Gpu) -> str:
    """Why `gpu` has no tensor-core product in `dtype`, empty if it has one."""
    if dtype == "bfloat16" and gpu.sm < 80:
        return (f"The {gpu.name} has no bfloat16 tensor cores, so this would run on its slow "
                "units; choose float16.")
    return "" if dtype != "float32" or gpu.sm >= 80 else (
        f"The {gpu.name} has no tensor cores for float32 (TF32), so this would run on its slow "
        "units; choose float16.")


def all_threads(schedule: dict[str, Any], gpu: Gpu) -> int:
    """Threads of a block with the group that only copies: from 9.0 on the compiler adds one where
    there is a pipeline, be it of one stage."""
    producer = gpu.sm >= 90 and schedule.get("num_stages", 1) > 0
    return schedule.get("threads", 128) + PRODUCER_THREADS * producer


def common_rules(schedule: dict[str, Any], gpu: Gpu) -> str:
    """The rules that hold for any kernel on tensor cores; empty if none is broken."""
    for knob in ("block_M", "block_N", "block_K"):
        size = schedule.get(knob, 16)
        if not isinstance(size, int) or size < 1 or size % 16:
            return f"{knob} is {size}; tensor cores take multiples of 16."
    threads, stages = schedule.get("threads", 128), schedule.get("num_stages", 1)
    if not isinstance(threads, int) or threads < 32 or threads % 32:
        return f"threads is {threads}; a block is made of warps of 32 threads."
    if not isinstance(stages, int) or stages < 0:
        return f"num_stages is {stages}; give 0 or more."
    total = all_threads(schedule, gpu)
    if total > gpu.threads_per_block:
        added = " with the group that only copies" if total > threads else ""
        return (f"A block would have {total:,} threads{added}, and the {gpu.name} takes "
                f"{gpu.threads_per_block:,}.")
    return ""


@dataclass(frozen=True)
class Gemm:
    """C = A @ B, A of M x K, B of K x N, all of `dtype`, summed in float32.

    epilogue: "" or "bias_gelu", which is applied to the sum before it is rounded and stored;
    "bias_gelu" takes a further input, `bias` of N. Raises BadArgument for a size below 1, an
    unknown dtype or epilogue.
    """

    M: int
    N: int
    K: int
    dtype: str = "float16"
    epilogue: str = ""

    def __post_init__(self) -> None:
        for axis in "MNK":
            whole(axis, getattr(self, axis))
        known_dtype(self.dtype)
        if self.epilogue not in EPILOGUES:
            raise BadArgument(f"epilogue is {self.epilogue!r}; it takes "
                              f"{', '.join(map(repr, EPILOGUES))}.")

    name = property(lambda self: "gemm" + (f"_{self.epilogue}" if self.epilogue else ""))
    shape = property(lambda self: {"M": self.M, "N": self.N, "K": self.K})
    flops = property(lambda self: 2 * self.M * self.N * self.K)

    @property
    def label(self) -> str:
        return f"{self.M} x {self.N} x {self.K}"

    @property
    def moved(self) -> int:
        """Bytes if each input is read once and the output is written once."""
        M, N, K = self.M, self.N, self.K
        extra = len(EPILOGUES[self.epilogue][0]) * N
        return (M * K + K * N + M * N + extra) * BYTES[self.dtype]

    def arguments(self) -> dict[str, Any]:
        """What a builder takes besides the knobs."""
        return {**self.shape, "dtype": self.dtype}

    def space(self) -> dict[str, list[Any]]:
        """The knobs and the values that are offered where the explorer is given none."""
        return {"block_M": [16, 32, 64, 128, 192, 256], "block_N": [32, 64, 128, 192, 256],
                "block_K": [16, 32, 64, 128], "num_stages": [1, 2, 3, 4, 5],
                "threads": [64, 128, 256, 384], "panel": [0, 1, 2, 4, 8, 10, 16],
                "group": [1, 2, 4, 8, 16], "piece": [32, 64, 128, 256],
                "warps": ["Square", "FullRow", "FullCol"]}

    def others(self) -> list[Gemm]:
        """This problem and other sizes to compare it with."""
        sizes = [(self.M, self.N, self.K), *((n, n, n) for n in (1024, 2048, 4096, 8192)),
                 (16, 4096, 4096), (4096, 4096, 256)]
        return [replace(self, M=M, N=N, K=K) for M, N, K in dict.fromkeys(sizes)]

    def dtypes(self) -> list[str]:
        return list(dict.fromkeys([self.dtype, "float16", "bfloat16"]))

    def grid(self, schedule: dict[str, Any]) -> Grid:
        block_M, block_N, block_K = _tile(schedule)
        return Grid((-(-self.M // block_M), -(-self.N // block_N)), 1, -(-self.K // block_K))

    def through_l2(self, schedule: dict[str, Any]) -> int:
        """Bytes that the blocks ask for: each reads its rows of A and its columns of B, which the
        L2 cache may hold, and writes its tile of C. Reads beyond an edge do not happen."""
        rows, columns = self.grid(schedule).tiles
        M, N, K = self.M, self.N, self.K
        read = columns * M * K + rows * K * N + rows * len(EPILOGUES[self.epilogue][0]) * N
        return (read + M * N) * BYTES[self.dtype]

    def useful(self, schedule: dict[str, Any]) -> float:
        """The share of the tensor cores' work that is not on zeros beyond an edge."""
        grid, (block_M, block_N, block_K) = self.grid(schedule), _tile(schedule)
        done = grid.tiles[0] * block_M * grid.tiles[1] * block_N * grid.steps * block_K
        return self.M * self.N * self.K / done

    def shared(self, schedule: dict[str, Any]) -> list[Part]:
        """The buffers of lesson 02's kernel: stages of A and B, then the tile of C on its way
        out, in the same place. Of lesson 03's kernel that stays, which has a `piece`: from 9.0
        on, C leaves beside them. The compiler's own figure is exact also for another kernel."""
        block_M, block_N, block_K = _tile(schedule)
        stages, each = max(1, schedule.get("num_stages", 1)), BYTES[self.dtype]
        piece = schedule.get("piece")
        leaving = (Part("C", block_M * block_N * each, later=True) if piece is None
                   else Part("piece of C", block_M * piece * each, later=True, overtaken=True))
        return [Part(f"A x{stages}", stages * block_M * block_K * each),
                Part(f"B x{stages}", stages * block_N * block_K * each), leaving]

    def accumulators(self, schedule: dict[str, Any]) -> float:
        """float32 numbers of the output tile that each thread holds in registers."""
        block_M, block_N, _ = _tile(schedule)
        return block_M * block_N / schedule.get("threads", 128)

    def illegal(self, schedule: dict[str, Any], gpu: Gpu) -> str:
        """Which rule the schedule breaks, in a sentence; empty if none that is known here."""
        broken = common_rules(schedule, gpu)
        if broken:
            return broken
        block_M, block_N, _ = _tile(schedule)
        piece = schedule.get("piece", block_N)
        if piece < 1 or block_N % piece:
            return (f"block_N is {block_N}, and pieces of {piece} columns do not make it up; "
                    "choose a piece that divides it.")
        warps = schedule.get("threads", 128) // 32
        if not any(block_M % (16 * down) == 0 and block_N % (8 * (warps // down)) == 0
                   for down in range(1, warps + 1) if warps % down == 0):
            return (f"{warps} warps cannot share a tile of {block_M} x {block_N}: each needs whole "
                    "pieces of 16 rows and 8 columns. Use fewer threads or a larger tile.")
        return ""

    def warning(self, schedule: dict[str, Any], gpu: Gpu) -> str:
        """What makes a schedule that compiles a bad one, in a sentence; empty if nothing known."""
        return no_such_dtype(self.dtype, gpu)

    def reads(self, schedule: dict[str, Any], block: tuple[int, int], step: int) -> dict[str, Any]:
        """The tiles that block (row, column) copies in `step`: name -> (tile row, tile column)."""
        return {"A": (block[0], step), "B": (step, block[1]), "C": block}

    def inputs(self, device: str, seed: int = 0) -> list[Any]:
        """Random inputs in the order of the program's parameters. Products are about 1."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)

        def random(*shape: int, scale: float = 1) -> Any:
            values = torch.randn(*shape, device=device, generator=generator) * scale
            return values.to(getattr(torch, self.dtype))

        extra = [random(self.N, scale=2) for _ in EPILOGUES[self.epilogue][0]]
        return [random(self.M, self.K), random(self.K, self.N, scale=self.K**-0.5), *extra]

    def reference(self, A: Any, B: Any, *extra: Any) -> Any:
        """The result in float32."""
        return EPILOGUES[self.epilogue][1](A.float() @ B.float(), *(x.float() for x in extra))

    def baselines(self, *inputs: Any) -> dict[str, Callable[[], Any]]:
        """What computes the same whole function on a GPU, as calls."""
        import torch

        if not self.epilogue:
            out = torch.empty(self.M, self.N, dtype=inputs[0].dtype, device=inputs[0].device)
            return {"cuBLAS": lambda: torch.mm(inputs[0], inputs[1], out=out)}
        A, B, bias = inputs
        return {"cuBLASLt": lambda: torch._addmm_activation(bias, A, B, use_gelu=True)}


def _tile(schedule: dict[str, Any]) -> Sequence[int]:
    return [schedule.get(knob, size) for knob, size in
            (("block_M", 128), ("block_N", 128), ("block_K", 32))]
