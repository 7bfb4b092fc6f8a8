"""All plans that cuDNN has for a graph: listed for any GPU, timed on the one that is there.

A plan is an engine (a family of kernels) with its knobs (tile, stages, split, ...). The heuristics
rank them without running any; `measure` runs every one with a workspace of its own.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from labkit.cudnn_graph import NO_LIBCUDNN, Target, build, scratch
from labkit.errors import BadArgument, LabError, WrongAnswer, first_line
from labkit.pictures import Picture
from labkit.results import RECORDED, record_path, recorded_plans
from labkit.table import Table
from labkit.verify import Comparison

_NEAR = 3  # plans within this factor of the fastest are timed again, with many more rounds


@dataclass(frozen=True)
class Plan:
    """One plan. index: its place in cuDNN's own ranking, 0 the default; knobs: name -> value;
    notes: what cuDNN says of its behaviour; workspace: bytes, None if it did not build; kernel_ms,
    spread_ms: median and the range from the 10th to the 90th percentile, None if not timed; error:
    relative Frobenius error of its output; failure: why it did not build or run."""

    index: int
    name: str
    engine: int
    knobs: dict[str, int]
    notes: tuple[str, ...] = ()
    workspace: int | None = None
    kernel_ms: float | None = None
    spread_ms: float | None = None
    error: float | None = None
    failure: str = ""

    @property
    def short(self) -> str:
        """The knobs in short, as in "TILE_SIZE 0, TILEK 1"."""
        return ", ".join(f"{name} {value}" for name, value in sorted(self.knobs.items()))


@dataclass(frozen=True)
class Plans:
    """The plans of one graph on one GPU, in cuDNN's order. others: what they are compared with,
    name -> milliseconds of the same run; built_s: seconds that building all of them took."""

    name: str
    gpu: str
    date: str
    origin: str
    shape: dict[str, int]
    dtype: str
    flops: float
    plans: list[Plan]
    others: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    built_s: float | None = None

    @property
    def ranked(self) -> list[Plan]:
        """The timed plans, the fastest first."""
        return sorted((p for p in self.plans if p.kernel_ms is not None),
                      key=lambda p: p.kernel_ms)

    @property
    def default(self) -> Plan:
        """The plan that HEURISTICS_CHOICE takes: the first one that builds."""
        return next(p for p in self.plans if not p.failure)

    @property
    def best(self) -> Plan:
        """The fastest plan. Raises LabError if none was timed."""
        if not self.ranked:
            raise LabError(f"The plans of {self.name} were listed, not timed.")
        return self.ranked[0]

    @property
    def engines(self) -> dict[int, int]:
        """engine -> how many plans it has, the largest first."""
        count: dict[int, int] = {}
        for plan in self.plans:
            count[plan.engine] = count.get(plan.engine, 0) + 1
        return dict(sorted(count.items(), key=lambda item: -item[1]))

    def table(self, most: int = 40) -> Table:
        """The plans, the fastest first; untimed ones in cuDNN's order. At most `most` rows."""
        timed = self.ranked
        rest = [p for p in self.plans if p.kernel_ms is None]
        noted = any(p.notes for p in self.plans)
        rows = [[p.index, p.engine, p.short, _size(p.workspace), *[_notes(p)] * noted]
                + ([f"{p.kernel_ms * 1e3:,.1f}", _rate(self.flops / p.kernel_ms / 1e9)]
                   if p.kernel_ms is not None else [p.failure, ""] if timed else [])
                for p in [*timed, *rest][:most]]
        columns = [">place", ">engine", "knobs", ">workspace", *["notes"] * noted]
        left = len(timed) + len(rest) - len(rows)
        return Table(self._title(), columns + ([">us", ">TFLOP/s"] if timed else []), rows,
                     "Place: in cuDNN's own ranking; 0 is the default."
                     + (f" {left} more plans are not shown." if left > 0 else ""))

    def _title(self) -> str:
        shape = ", ".join(f"{axis} = {size:,}" for axis, size in self.shape.items())
        return (f"{self.name}: {shape}, {self.dtype}, on {self.gpu}, {self.date} ({self.origin})")

    def picture(self) -> Picture:
        """Every timed plan as a dot: place in cuDNN's ranking across, time on a logarithmic axis
        up, colour by engine; `others` as lines. Raises LabError if none was timed."""
        from labkit.cudnn_spread import spread

        return spread(self)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _size(workspace: int | None) -> str:
    if workspace is None:
        return ""
    return f"{workspace:,} B" if workspace < 10_000 else f"{workspace / 1e6:,.1f} MB"


def _rate(tflops: float) -> str:
    """Two digits at least, so that the slowest plan does not read as none at all."""
    return f"{tflops:,.0f}" if tflops >= 10 else f"{tflops:.2g}"


def _notes(plan: Plan) -> str:
    short = {"RUNTIME_COMPILATION": "compiled here", "CUBLASLT_DEPENDENCY": "cuBLASLt",
             "SUPPORTS_CUDA_GRAPH_NATIVE_API": "CUDA graph"}
    return ", ".join(short.get(note, note) for note in plan.notes)


def list_plans(graph: Any, target: Target, modes: Sequence[Any] | None = None) -> list[Plan]:
    """Builds every plan of `graph` on `target` and lists them, in cuDNN's order.

    modes: heuristic modes, by default A, B and FALLBACK. A plan that does not build is listed with
    the reason. Raises what `cudnn_graph.build` raises, and LabError without a libcudnn.
    """
    import cudnn

    if not target.plans:
        raise LabError(NO_LIBCUDNN)
    modes = modes or [cudnn.heur_mode.A, cudnn.heur_mode.B, cudnn.heur_mode.FALLBACK]
    build(graph, target, modes, cudnn.build_plan_policy.ALL)
    return [_plan(graph, index) for index in range(graph.get_execution_plan_count())]


def _plan(graph: Any, index: int) -> Plan:
    import cudnn

    engine, knobs = graph.get_engine_and_knobs_at_index(index)
    workspace, failure, notes = None, "", ()
    try:
        workspace = graph.get_workspace_size_plan_at_index(index)
        notes = tuple(note.name for note in graph.get_behavior_notes_for_plan_at_index(index))
    except (RuntimeError, cudnn.cudnnGraphNotSupportedError) as error:  # it did not build
        failure = first_line(error)
    return Plan(index, graph.get_plan_name_at_index(index), int(engine),
                {getattr(knob, "name", str(knob)): int(value) for knob, value in knobs.items()},
                notes, workspace, failure=failure)


def measure(name: str, here: Any, target: Target,
            make: Callable[[], tuple[Any, dict[Any, Any]]], *, output: Any,
            check: Callable[[], Comparison], others: dict[str, Callable[[], Any]],
            shape: dict[str, int], dtype: str, flops: float) -> Plans:
    """Times every plan on the GPU of this run; without one, shows the recorded file.

    make() returns a graph and its pack: tensor of the graph -> torch tensor. output: the tensor in
    the pack that is written; check: compares it, as for `lab.bench`. Every plan runs with a
    workspace of its own, its output filled with NaN before and checked after it; a wrong one is a
    failure and is not timed. others: calls to compare with, timed in the same run. All are timed
    once with few rounds, the plans near the fastest and the others again with many.
    Raises LabError if there is no GPU and no recorded file, WrongAnswer if no plan is right.
    """
    if here.device != "gpu":
        data = recorded_plans(name)
        plans = [Plan(**{**p, "notes": tuple(p["notes"])}) for p in data["plans"]]
        return Plans(name, data["gpu"], data["date"], RECORDED, data["shape"], data["dtype"],
                     data["flops"], plans, data["others"], data["versions"], data.get("built_s"))
    import time

    import torch

    from labkit.benchmark import time_each

    graph, pack = make()
    start = time.perf_counter()
    plans = list_plans(graph, target)
    built_s = time.perf_counter() - start
    plans, calls = checked(plans, graph, pack, target, output=output, check=check)
    if not calls:
        raise WrongAnswer(f"None of the {len(plans)} plans of {name} gave the right result; the "
                          f"first: {plans[0].failure}")
    times = time_each({str(index): call for index, call in calls.items()}, milliseconds=50)
    fastest = min(took.median for took in times.values())
    near = {key: calls[int(key)] for key, took in times.items() if took.median <= _NEAR * fastest}
    clash = sorted(set(near) & set(others))
    if clash:
        raise BadArgument(f"{', '.join(clash)} names a plan; give the others names of their own.")
    times |= time_each({**near, **others}, milliseconds=300)
    plans = [plan if plan.failure else
             replace(plan, kernel_ms=times[str(plan.index)].median,
                     spread_ms=times[str(plan.index)].spread) for plan in plans]
    from labkit.environment import versions

    result = Plans(name, torch.cuda.get_device_name(), str(datetime.date.today()), "measured now",
                   dict(shape), dtype, flops, plans, {key: times[key].median for key in others},
                   versions(), built_s)
    _record(result)
    return result


def checked(plans: Sequence[Plan], graph: Any, pack: dict[Any, Any], target: Target, *,
            output: Any, check: Callable[[], Comparison]
            ) -> tuple[list[Plan], dict[int, Callable[[], None]]]:
    """Runs each of `plans` (of `list_plans`) once on the GPU, with a workspace of its own, and
    compares its output.

    output: the tensor in the pack that is written, NaN before each run; check: compares it.
    Returns the plans, each with its error or its failure, and index -> a call for the right ones.
    """
    found, calls = [], {}
    for plan in plans:
        if not plan.failure:
            call = functools.partial(_run, graph, pack, scratch(plan.workspace), plan.index, target)
            plan = _check(plan, call, output, check)
            if not plan.failure:
                calls[plan.index] = call
        found.append(plan)
    return found, calls


def _run(graph: Any, pack: dict[Any, Any], workspace: Any, index: int, target: Target) -> None:
    import cudnn
    import torch

    cudnn.set_stream(handle=target.handle, stream=torch.cuda.current_stream().cuda_stream)
    graph.execute_plan_at_index(pack, workspace, index, handle=target.handle)


def _check(plan: Plan, call: Callable[[], None], output: Any,
           check: Callable[[], Comparison]) -> Plan:
    import cudnn
    import torch

    output.fill_(math.nan)
    try:
        call()
        torch.cuda.synchronize()
        verdict = check()
    except (RuntimeError, WrongAnswer, cudnn.cudnnGraphNotSupportedError) as error:
        return replace(plan, failure=first_line(error))
    return replace(plan, error=verdict.error, failure="" if verdict.ok else
                   repr(verdict).splitlines()[0])


def _record(result: Plans) -> None:
    """Writes the plans beside the file that `$LABKIT_RECORD` names, where that is set."""
    path = record_path(result.name, "plans")
    if path is None:
        return
    plans = [{key: value for key, value in asdict(plan).items()
              if not (key == "failure" and not value)} for plan in result.plans]
    content = {key: getattr(result, key) for key in
               ("gpu", "date", "versions", "shape", "dtype", "flops", "others", "built_s")}
    path.write_text(json.dumps({**content, "plans": plans}, indent=1) + "\n")
