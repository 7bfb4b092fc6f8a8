"""Records sweeps for the explorer on the GPU that is here.

    python -m labkit.widgets.record OUT [NAME …] [--tiny]

Writes OUT/<gpu>-sweep-<name>.json for every sweep, or for those that are named. Every schedule is
checked against float32 before it is timed and after; one that fails is kept with its reason.
--tiny: a few schedules at a small size, on the CPU where there is no GPU, to try the command.
"""

from __future__ import annotations

import argparse
import datetime
import inspect
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from labkit import parsing
from labkit.errors import BadArgument, LabError, NeedsGPU, first_line
from labkit.gpus import Gpu
from labkit.widgets.attention import Attention
from labkit.widgets.measure import Bench, Prepared
from labkit.widgets.problems import Gemm

GROUP, MILLISECONDS = 40, 20  # interleaved at a time; for each schedule
FAST_MATH = {"tl.enable_fast_math": True}


@dataclass(frozen=True)
class Recipe:
    """One sweep: the kernel of a lesson, the problem, every combination of `space`, and every
    value of the explorer's own sliders with the other knobs as in `start`."""

    lesson: str
    kernel: str
    problem: Any
    start: dict[str, Any]
    space: dict[str, list[Any]]
    more: list[dict[str, Any]] = field(default_factory=list)
    pass_configs: dict[str, Any] | None = None

    def schedules(self, gpu: Gpu) -> list[dict[str, Any]]:
        """Without those that break a rule: the explorer says why by itself."""
        from labkit.lessons import kernel

        taken = inspect.signature(kernel(self.lesson, self.kernel)).parameters
        grid = [dict(self.start, **dict(zip(self.space, values, strict=True)))
                for values in itertools.product(*self.space.values())]
        star = [dict(self.start, **{knob: value})
                for knob, values in self.problem.space().items() if knob in taken
                for value in values]
        found: list[dict[str, Any]] = []
        for schedule in [self.start, *self.more, *star, *grid]:
            if schedule not in found and not self.problem.illegal(schedule, gpu):
                found.append(schedule)
        return found


_PLAIN = dict(block_M=128, block_N=128, block_K=32, num_stages=2, threads=128, panel=0)
_BEST = dict(block_M=128, block_N=256, block_K=64, num_stages=4, threads=256, panel=16,
             warps="FullRow")
_STAYS = dict(block_M=128, block_N=256, block_K=64, num_stages=4, threads=256, group=8, piece=128,
              warps="FullRow")
_ATTENTION = Recipe("06", "flash_attention", Attention(4, 16, 4096, 128, dtype="bfloat16"),
                    dict(block_M=192, block_N=112, num_stages=2, threads=384),
                    {"block_M": [64, 128, 192, 256], "block_N": [64, 96, 112, 128, 160],
                     "num_stages": [1, 2], "threads": [128, 256, 384]}, pass_configs=FAST_MATH)
RECIPES = {
    "gemm_explored": Recipe(
        "02", "gemm", Gemm(4096, 4096, 4096, "bfloat16"), _PLAIN,
        {"block_M": [64, 128, 256], "block_N": [64, 128, 256], "block_K": [32, 64],
         "num_stages": [2, 3, 4], "threads": [128, 256], "panel": [0, 10]}, [_BEST]),
    "gemm_skinny": Recipe(
        "02", "gemm", Gemm(16, 4096, 4096, "bfloat16"), dict(_PLAIN, block_M=16, block_N=64),
        {"block_M": [16, 32, 64], "block_N": [32, 64, 128, 256], "block_K": [32, 64, 128],
         "num_stages": [2, 3, 4], "threads": [64, 128]}, [_BEST]),
    "gemm_bias_gelu_explored": Recipe(
        "04", "gemm_bias_gelu", Gemm(8192, 14336, 4096, "bfloat16", "bias_gelu"), _STAYS,
        {"block_M": [128, 256], "block_N": [128, 256], "block_K": [32, 64],
         "num_stages": [2, 3, 4], "threads": [128, 256],
         "piece": [64, 128]}, pass_configs=FAST_MATH),
    "flash_attention_explored": _ATTENTION,
    "flash_attention_causal_explored": replace(
        _ATTENTION, problem=replace(_ATTENTION.problem, causal=True)),
}


def tiny(recipe: Recipe) -> Recipe:
    """Three schedules at a size that a CPU runs in a second."""
    problem = recipe.problem
    small = (replace(problem, M=min(problem.M, 40), N=72, K=64) if isinstance(problem, Gemm)
             else replace(problem, batch=1, heads=2, seq=70, dim=32))
    start = {**recipe.start, "block_M": 64, "block_N": 32, "threads": 128, "num_stages": 1}
    return replace(recipe, problem=small, start=start, space={"num_stages": [1, 2, 3]}, more=[])


def record(name: str, recipe: Recipe, out: Path, device: str, most: int | None = None
           ) -> dict[str, Any]:
    """Measures one sweep, writes its file after each group, and returns its content."""
    from labkit.environment import versions
    from labkit.gpus import lookup
    from labkit.lessons import kernel
    from labkit.machine import own_gpu

    build, problem = kernel(recipe.lesson, recipe.kernel), recipe.problem
    sheet = own_gpu() if device == "cuda" else lookup("H100")  # whose rules hold
    schedules = recipe.schedules(sheet)[:most]
    bench = Bench(problem, device=device)
    shared = {"shape": problem.shape, "dtype": problem.dtype}
    entries: list[dict[str, Any]] = []
    content = {"gpu": _device_name(device), "date": str(datetime.date.today()),
               "versions": versions(), "flops": problem.flops, "clock_mhz": None,
               "baselines": {}, "schedules": entries}
    start = time.monotonic()

    def compiled(schedule: dict[str, Any]) -> Any:
        try:
            return bench.compile(parsing.built(build, problem.arguments() | schedule),
                                 recipe.pass_configs)
        except Exception as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        kernels = list(pool.map(compiled, schedules))
    _say(f"{name}: {len(schedules)} schedules compiled in {time.monotonic() - start:.0f} s")
    path = out / f"{sheet.name.lower().replace(' ', '') if device == 'cuda' else 'cpu'}-sweep-" \
                 f"{name}.json"
    baselines: dict[str, list[float]] = {}
    for first in range(0, len(schedules), GROUP):
        part = slice(first, first + GROUP)
        for entry in _group(bench, schedules[part], kernels[part], device, baselines, content):
            entries.append({**entry, **shared})
        content["baselines"] = {k: statistics.median(v) for k, v in baselines.items()}
        path.write_text(json.dumps(rounded(content), separators=(",", ":")))
    timed = [e for e in entries if "kernel_ms" in e]
    _say(f"{name}: {len(timed)} timed, {len(entries) - len(timed)} failed, "
         f"{time.monotonic() - start:.0f} s, {path}")
    return content


def _group(bench: Bench, schedules: list[dict[str, Any]], kernels: list[Any], device: str,
           baselines: dict[str, list[float]], content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Checks these schedules, times the right ones interleaved, checks them again."""
    ready: dict[str, Prepared] = {}
    failures: dict[str, str] = {}
    for place, (schedule, kernel) in enumerate(zip(schedules, kernels, strict=True)):
        try:
            if isinstance(kernel, Exception):
                raise kernel
            ready[str(place)] = bench.prepare(kernel, schedule)
        except Exception as error:
            failures[str(place)] = first_line(error)[:200]
    others = bench.baselines() if device == "cuda" else {}  # they name a GPU's library
    times = _time({**{k: r.launch for k, r in ready.items()}, **others}, device)
    for name in others:
        baselines.setdefault(name, []).append(times[name].median)
    content["clock_mhz"] = next((t.clock_mhz for t in times.values()), None)
    for place, schedule in enumerate(schedules):
        key = str(place)
        if key in ready and not (verdict := ready[key].judge()).ok:
            failures[key] = f"wrong after timing: {repr(verdict).splitlines()[0]}"[:200]
        if key in failures:
            yield {"schedule": schedule, "failure": failures[key]}
        else:
            yield {"schedule": schedule, "kernel_ms": times[key].median,
                   "spread_ms": times[key].spread, "error": verdict.error}


def _time(calls: dict[str, Callable[[], Any]], device: str) -> dict[str, Any]:
    from labkit.benchmark import Times, time_each

    if device == "cuda":
        return time_each(calls, milliseconds=MILLISECONDS)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - start) * 1e3)
    return {name: Times(statistics.median(ms), max(ms) - min(ms), 3) for name, ms in times.items()}


def rounded(value: Any) -> Any:
    """The same with floats to 5 significant digits, which is more than a timing knows."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.5g}")
    return value


def _device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "CPU, TileLang's C backend"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    import torch

    parser = argparse.ArgumentParser(prog="python -m labkit.widgets.record",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tiny", action="store_true", help="a few schedules at a small size")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in RECIPES]
    if unknown:
        raise BadArgument(f"There is no sweep {unknown[0]!r}; there are {', '.join(RECIPES)}.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not options.tiny:
        raise NeedsGPU("Recording needs a CUDA GPU, and torch sees none here; --tiny tries the "
                       "command on the CPU.")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or RECIPES:
        recipe = RECIPES[name]
        record(name, tiny(recipe) if options.tiny else recipe, options.out, device,
               3 if options.tiny else None)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LabError as error:
        sys.exit(f"record: {error}")
