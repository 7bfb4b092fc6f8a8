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
from dataclasses import asdict, replace
from typing import Any

from labkit.cudnn_graph import NO_LIBCUDNN, Target, build, scratch
from labkit.cudnn_plan import Plan, Plans
from labkit.errors import BadArgument, LabError, WrongAnswer, first_line
from labkit.results import RECORDED, record_path, recorded_plans
from labkit.verify import Comparison

_NEAR = 3  # plans within this factor of the fastest are timed again, with many more rounds


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
