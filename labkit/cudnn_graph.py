"""Builds a cuDNN graph for the GPU that is there, or for one that is not, step by step.

    target = cudnn_graph.target(here)                 # where graphs are planned
    graph = target.graph("conv", "bfloat16")
    X = graph.tensor(name="X", **cudnn_graph.describe(x))
    ...
    built = cudnn_graph.build(graph, target)          # five steps, each timed
    built.execute({X: x, ..., Y: y})                  # on a GPU; else its meaning, on the CPU

Lesson 12 writes every one of these out before it uses them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.cudnn_loader import load_cudnn
from labkit.cudnn_picture import picture
from labkit.cudnn_reference import evaluate
from labkit.cudnn_target import NO_LIBCUDNN, Target, data_type, describe, target
from labkit.errors import BadArgument, LabError, NotSupported, first_line
from labkit.table import Table

__all__ = ["STEPS", "Built", "Target", "build", "candidates", "data_type", "describe", "evaluate",
           "infer", "load_cudnn", "picture", "scratch", "target", "try_build"]

STEPS = ("validate", "build_operation_graph", "create_execution_plans", "check_support",
         "build_plans")
_REASONS_SHOWN = 3
_CALL = re.compile(r"[\w.:>-]+\(.*\)")  # as in "finalize_internal()"


@dataclass
class Built:
    """A graph after `build`: steps maps each step that was taken to its milliseconds on the host;
    plan: the name of the plan that `execute` runs; workspace: bytes of scratch memory that it
    needs; count: how many plans there were; refusal: why there are none (see `try_build`)."""

    graph: Any
    target: Target
    steps: dict[str, float]
    plan: str = ""
    workspace: int = 0
    count: int = 0
    refusal: str = ""
    _scratch: Any = field(default=None, repr=False)

    def execute(self, pack: dict[Any, Any]) -> None:
        """Runs the graph. pack: tensor of the graph -> torch tensor, for every input and output.

        On a GPU: the plan, on torch's current stream. Without one: the graph's meaning, one
        operation after another in PyTorch (see `labkit.cudnn_reference`, and what it raises).
        """
        if not self.target.runs:
            return evaluate(self.graph, pack)
        import cudnn
        import torch

        if self._scratch is None:
            self._scratch = scratch(self.workspace)
        cudnn.set_stream(handle=self.target.handle, stream=torch.cuda.current_stream().cuda_stream)
        self.graph.execute(pack, self._scratch, handle=self.target.handle)

    def table(self) -> Table:
        """The five steps and their times."""
        notes = {"validate": "shapes inferred, the graph checked",
                 "build_operation_graph": "handed to libcudnn, which infers layouts",
                 "create_execution_plans": f"{self.count} plans named" if self.plan
                 else "the heuristics name plans",
                 "check_support": "those that cannot run are dropped",
                 "build_plans": f"ready: {self.plan}" if self.plan else "code and workspace"}
        rows = [[step, f"{self.steps[step]:.2f}" if step in self.steps else "not here", notes[step]]
                for step in STEPS]
        last = f"Workspace: {self.workspace:,} bytes. " if self.plan else ""
        return Table(f"The five steps, {self.target.gpu}", ["step", ">ms", "what it did"
                     if self.plan else "what it does"], rows, last + "Times on the host."
                     + (f"\n{self.refusal}" if self.refusal else ""))

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def scratch(size: int) -> Any:
    """`size` bytes of workspace on the GPU, at least one, so that there is a pointer."""
    import torch

    return torch.empty(max(size, 1), dtype=torch.uint8, device="cuda")


def build(graph: Any, target: Target, modes: Sequence[Any] | None = None,
          policy: Any = None, plan: tuple[int, dict[str, int]] | None = None) -> Built:
    """Takes `graph` through the five steps and times each.

    modes: heuristic modes, by default A and FALLBACK. policy: by default HEURISTICS_CHOICE, which
    builds the first plan that builds. plan: instead of asking the heuristics, take this engine
    with these knobs (name -> value), as a `Plan` names them.
    Without a libcudnn only the first step is taken: the frontend infers shapes and checks the
    graph by its own rules.
    Raises BadArgument if the graph is not valid or an operation has an argument that does not
    exist, NotSupported, with cuDNN's reasons, if no plan can run it on the target.
    """
    import cudnn

    if not hasattr(graph, "validate") or not isinstance(target, Target):
        raise BadArgument("build takes a cudnn.pygraph and what cudnn_graph.target returns, and "
                          f"got {type(graph).__name__} and {type(target).__name__}.")
    modes = modes or [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
    policy = cudnn.build_plan_policy.HEURISTICS_CHOICE if policy is None else policy
    arguments = {"create_execution_plans": (list(modes),), "build_plans": (policy,)}
    if plan is not None:
        engine, knobs = plan
        chosen = {getattr(cudnn.knob_type, name): value for name, value in knobs.items()}
        arguments["create_execution_plans"] = (engine, chosen)
    built = Built(graph, target, {})
    for step in STEPS if target.plans else STEPS[:1]:
        start = time.perf_counter()
        if target.plans:
            call = step if plan is None else step.replace("execution_plans", "execution_plan")
            _take(graph, target, call, arguments.get(step, ()))
        else:
            infer(graph)
        built.steps[step] = (time.perf_counter() - start) * 1e3
    if "create_execution_plans" in built.steps:
        built.count = graph.get_execution_plan_count()
    if STEPS[-1] in built.steps:
        built.workspace = graph.get_workspace_size()
        built.plan = graph.get_plan_name_at_index(graph._plan_index)  # 1.32 has no public way
    return built


def try_build(graph: Any, target: Target) -> Built:
    """`build`; but where the target's GPU is not there, a refusal is no error: what is returned
    then says why, and its `execute` computes the graph's meaning. Raises what `build` raises if
    the graph was to run on a GPU."""
    try:
        return build(graph, target)
    except NotSupported as error:
        if target.runs:
            raise
        return Built(graph, target, {}, refusal=str(error))


def candidates(graph: Any, target: Target, modes: Sequence[Any]) -> int:
    """Takes `graph` through the first four steps, and returns how many plans can run it on the
    target. None is built. Raises what `build` raises, and LabError without a libcudnn."""
    if not target.plans:
        raise LabError(NO_LIBCUDNN)
    for step in STEPS[:-1]:
        _take(graph, target, step, (list(modes),) if step == "create_execution_plans" else ())
    return graph.get_execution_plan_count()


def infer(graph: Any) -> None:
    """Has the frontend infer the shapes of `graph` and check it, without a libcudnn.

    `validate` does so before it hands the graph to libcudnn, where it ends without one. Raises
    BadArgument if the graph is not valid, NotSupported if cuDNN has no such graph on any GPU.
    """
    import cudnn

    try:
        graph.validate()
    except ValueError as error:
        raise BadArgument(f"The graph is not valid: {first_line(error)}") from error
    except cudnn.cudnnGraphNotSupportedError as error:
        raise NotSupported(f"cuDNN has no such graph: {first_line(error)}") from error
    except Exception as error:
        if "_lower_to_cpp" not in _frames(error):  # not the step into libcudnn: a real failure
            raise


def _frames(error: BaseException) -> set[str]:
    frames, place = set(), error.__traceback__
    while place is not None:
        frames.add(place.tb_frame.f_code.co_name)
        place = place.tb_next
    return frames


def _take(graph: Any, target: Target, step: str, arguments: tuple[Any, ...]) -> None:
    import cudnn

    try:
        getattr(graph, step)(*arguments)
    except ValueError as error:
        raise BadArgument(f"The graph is not valid: {first_line(error)}") from error
    except TypeError as error:  # from 1.27 on an operation's arguments are looked at this late
        raise BadArgument(f"The graph is not valid, it says in {step}: {_argument(error)}.") \
            from error
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise NotSupported(_why(error, target, step)) from error


def _argument(error: TypeError) -> str:
    """Which argument of an operation does not exist, where the frontend's message tells."""
    said = str(error)
    known, _, given = said.partition("Invoked with types:")
    call, names = re.match(r"(\w+)\(\)", said), re.findall(r"(\w+): ", given.partition("{")[2])
    more = [name for name in names if not re.search(rf"\b{name}: ", known)]
    if not call or not more:
        return first_line(error).rstrip(".")
    return f"{call[1]} has no argument {', '.join(more)}"


def _why(error: Exception, target: Target, step: str) -> str:
    said = str(error)
    every = list(dict.fromkeys(re.findall(r"Reason: (.+)", said)))
    # cuDNN's callers repeat the verdict of what they called: only the conditions tell something
    reasons = [reason for reason in every if not _CALL.fullmatch(reason)
               and "CUDNN_STATUS" not in reason and "libcuda == nullptr" not in reason]
    text = (f"cuDNN {target.libcudnn.version} has no plan for this graph on {target.gpu} "
            f"(sm_{target.sm}), it says in {step}: ")
    if not target.runs and "RUNTIME_PREREQUISITE_MISSING" in said:
        text += ("kernels that are compiled when the graph is built take the NVIDIA driver, which "
                 "is not in use here, and of the precompiled ones none fits")
        if not reasons:
            return text + "."
        text += ". Among the reasons: "
    shown = "; ".join(reasons[:_REASONS_SHOWN] or every[:1]) or first_line(error)
    more = f" (and {len(reasons) - _REASONS_SHOWN} more)" if len(reasons) > _REASONS_SHOWN else ""
    return text + shown + more + "."
