"""The other problem that a schedule is explored for: attention over tiles of keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit.gpus import Gpu
from labkit.widgets.problems import (
    BYTES,
    Grid,
    Part,
    common_rules,
    known_dtype,
    no_such_dtype,
    whole,
)


@dataclass(frozen=True)
class Attention:
    """softmax(Q @ K.T / sqrt(dim)) @ V for every sequence of the batch and every head, with `seq`
    queries and keys of size `dim`; causal: query i sees the keys up to i.

    Raises BadArgument for a size below 1 or an unknown dtype.
    """

    batch: int
    heads: int
    seq: int
    dim: int
    causal: bool = False
    dtype: str = "float16"

    def __post_init__(self) -> None:
        for axis in ("batch", "heads", "seq", "dim"):
            whole(axis, getattr(self, axis))
        known_dtype(self.dtype)

    name = property(lambda self: "flash_attention" + ("_causal" if self.causal else ""))
    shape = property(lambda self: {"batch": self.batch, "heads": self.heads, "Sq": self.seq,
                                   "Sk": self.seq, "D": self.dim})

    @property
    def label(self) -> str:
        mask = ", causal" if self.causal else ""
        return f"batch {self.batch}, heads {self.heads}, S {self.seq}, D {self.dim}{mask}"

    @property
    def flops(self) -> int:
        """Of the two products; half of them where causal."""
        whole = 4 * self.batch * self.heads * self.seq**2 * self.dim
        return whole // 2 if self.causal else whole

    @property
    def moved(self) -> int:
        """Bytes if Q, K and V are read once and the output is written once."""
        return 4 * self.batch * self.heads * self.seq * self.dim * BYTES[self.dtype]

    def arguments(self) -> dict[str, Any]:
        """What a builder takes besides the knobs."""
        return {**self.shape, "kv_heads": self.heads, "causal": self.causal, "dtype": self.dtype}

    def space(self) -> dict[str, list[Any]]:
        """The knobs and the values that are offered where the explorer is given none."""
        return {"block_M": [32, 64, 128, 192, 256],
                "block_N": [16, 32, 48, 64, 96, 112, 128, 160, 192],
                "num_stages": [1, 2, 3], "threads": [64, 128, 256, 384, 512]}

    def others(self) -> list[Attention]:
        """This problem and other sizes to compare it with."""
        sizes = [(self.batch, self.heads, self.seq, self.dim), (4, 16, 1024, 128),
                 (4, 16, 4096, 128), (1, 16, 16384, 128), (4, 16, 4096, 64)]
        return [replace(self, batch=b, heads=h, seq=s, dim=d)
                for b, h, s, d in dict.fromkeys(sizes)]

    def dtypes(self) -> list[str]:
        return list(dict.fromkeys([self.dtype, "float16", "bfloat16"]))

    def grid(self, schedule: dict[str, Any]) -> Grid:
        block_M, block_N = _tile(schedule)
        visits = self._visits(block_M, block_N)
        return Grid((len(visits), 1), self.batch * self.heads, max(visits),
                    sum(visits) / len(visits) / max(visits))

    def _visits(self, block_M: int, block_N: int) -> list[int]:
        """How many tiles of keys each tile of queries visits."""
        ends = range(block_M, self.seq + block_M, block_M)
        return [-(-(min(end, self.seq) if self.causal else self.seq) // block_N) for end in ends]

    def through_l2(self, schedule: dict[str, Any]) -> int:
        """Bytes that the blocks ask for: each reads its queries once and the keys and values of
        every tile it visits, which the L2 cache may hold, and writes its part of the output."""
        block_M, block_N = _tile(schedule)
        keys = sum(min(visits * block_N, self.seq) for visits in self._visits(block_M, block_N))
        each = BYTES[self.dtype] * self.batch * self.heads * self.dim
        return (2 * self.seq + 2 * keys) * each

    def useful(self, schedule: dict[str, Any]) -> float:
        """The share of the tensor cores' work that is not on hidden pairs or beyond an edge."""
        block_M, block_N = _tile(schedule)
        done = sum(self._visits(block_M, block_N)) * block_M * block_N
        pairs = self.seq * (self.seq + 1) // 2 if self.causal else self.seq**2
        return pairs / done

    def shared(self, schedule: dict[str, Any]) -> list[Part]:
        """The buffers of lesson 06's kernel: Q, stages of K and V, and the output on its way out,
        in the same place. The compiler's own figure is exact also for another kernel."""
        block_M, block_N = _tile(schedule)
        stages, each = max(1, schedule.get("num_stages", 1)), BYTES[self.dtype] * self.dim
        return [Part("Q", block_M * each), Part(f"K x{stages}", stages * block_N * each),
                Part(f"V x{stages}", stages * block_N * each),
                Part("O", block_M * each, later=True)]

    def accumulators(self, schedule: dict[str, Any]) -> float:
        """32-bit registers that each thread needs for the scores, the probabilities (half as
        wide) and the output tile."""
        block_M, block_N = _tile(schedule)
        each = block_N * (1 + BYTES[self.dtype] / 4) + self.dim
        return block_M * each / schedule.get("threads", 128)

    def illegal(self, schedule: dict[str, Any], gpu: Gpu) -> str:
        """Which rule the schedule breaks, in a sentence; empty if none that is known here."""
        broken = common_rules(schedule, gpu)
        if broken:
            return broken
        block_M, warps = _tile(schedule)[0], schedule.get("threads", 128) // 32
        if block_M % (16 * warps):
            return (f"{warps} warps cannot share {block_M} rows of scores: each takes whole rows, "
                    f"in pieces of 16. Use at most {block_M // 16 * 32} threads, or a taller tile.")
        if self.causal and 80 <= gpu.sm < 90 and schedule.get("num_stages", 1) > 1:
            return (f"On the {gpu.name} this TileLang cannot pipeline a loop whose length depends "
                    "on the block, as the causal one's does; use one stage.")
        return ""

    def warning(self, schedule: dict[str, Any], gpu: Gpu) -> str:
        """What makes a schedule that compiles a bad one, in a sentence; empty if nothing known."""
        return no_such_dtype(self.dtype, gpu)

    def reads(self, schedule: dict[str, Any], block: tuple[int, int], step: int) -> dict[str, Any]:
        """The tiles that block (row, column) copies in `step`: name -> (tile row, tile column)."""
        return {"Q": (block[0], 0), "K": (step, 0), "V": (step, 0), "O": (block[0], 0)}

    def inputs(self, device: str, seed: int = 0) -> list[Any]:
        """Random Q, K and V of batch x heads x seq x dim."""
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        shape = (self.batch, self.heads, self.seq, self.dim)
        return [torch.randn(shape, device=device, generator=generator)
                .to(getattr(torch, self.dtype)) for _ in range(3)]

    def reference(self, Q: Any, K: Any, V: Any) -> Any:
        """The result in float32, one sequence at a time so that the scores fit in memory."""
        import torch

        outputs = []
        for q, k, v in zip(Q.float(), K.float(), V.float(), strict=True):
            scores = q @ k.mT / self.dim**0.5
            if self.causal:
                later = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
                scores.masked_fill_(later, float("-inf"))
            outputs.append(scores.softmax(-1) @ v)
        return torch.stack(outputs)

    def baselines(self, *inputs: Any) -> dict[str, Callable[[], Any]]:
        """torch's attention, with the backend that it picks by itself on a GPU."""
        import torch.nn.functional as F

        return {"SDPA": lambda: F.scaled_dot_product_attention(*inputs, is_causal=self.causal)}


def _tile(schedule: dict[str, Any]) -> tuple[int, int]:
    return schedule.get("block_M", 64), schedule.get("block_N", 64)
