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

import functools
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.cudnn_devices import device_properties
from labkit.cudnn_loader import Cudnn, load_cudnn
from labkit.cudnn_picture import picture
from labkit.cudnn_reference import evaluate
from labkit.errors import BadArgument, LabError, NotSupported, first_line
from labkit.gpus import lookup
from labkit.table import Table

__all__ = ["STEPS", "Built", "Target", "build", "candidates", "data_type", "describe", "evaluate",
           "infer", "picture", "scratch", "target", "try_build"]

STEPS = ("validate", "build_operation_graph", "create_execution_plans", "check_support",
         "build_plans")
_DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
               "float8_e4m3fn": "FP8_E4M3", "float8_e5m2": "FP8_E5M2", "int8": "INT8",
               "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "bool": "BOOLEAN"}
NO_LIBCUDNN = ("Plans come from libcudnn, and there is none here; pip install "
               '"labkit[deviceless]" brings one that needs no GPU.')
_REASONS_SHOWN = 3
_CALL = re.compile(r"[\w.:>-]+\(.*\)")  # as in "finalize_internal()"
_ON_CPU = ("What they compute is checked on the CPU, operation by operation in PyTorch; timings "
           "are recorded ones.")


def data_type(dtype: Any) -> Any:
    """cuDNN's name for a dtype of torch or its name, as "bfloat16". Raises BadArgument."""
    load_cudnn()
    import cudnn

    name = str(dtype).removeprefix("torch.")
    if name not in _DATA_TYPES:
        raise BadArgument(f"cuDNN has no tensors of dtype {name!r}; the dtypes are "
                          f"{', '.join(_DATA_TYPES)}.")
    return getattr(cudnn.data_type, _DATA_TYPES[name])


def describe(x: Any) -> dict[str, Any]:
    """What a graph has to know of the torch tensor `x`: dim, stride (in elements) and data_type,
    as arguments of `graph.tensor`. A tensor on the device "meta" will do: no value is read."""
    return {"dim": list(x.shape), "stride": list(x.stride()), "data_type": data_type(x.dtype)}


@dataclass(frozen=True)
class Target:
    """Where graphs are planned. gpu: the GPU's name; sm: its compute capability x 10; libcudnn:
    what `load_cudnn` found; handle: of the GPU of this run, None where graphs are not run;
    properties: of a GPU that is not there, None where its plans cannot be listed; options: further
    arguments of every graph (see `with_options`)."""

    gpu: str
    sm: int
    libcudnn: Cudnn
    handle: Any = None
    properties: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether graphs can be executed."""
        return self.handle is not None

    @property
    def plans(self) -> bool:
        """Whether plans can be made: on a GPU, or without one where there is a libcudnn."""
        return self.runs or self.properties is not None

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of `cudnn.pygraph` that say for which GPU: the handle, or a GPU's
        description and compute capability; none where graphs are only built."""
        if self.runs:
            return {"handle": self.handle}
        return {"device_property": self.properties, "sm_version": self.sm} if self.plans else {}

    def graph(self, name: str, dtype: Any, **options: Any) -> Any:
        """An empty `cudnn.pygraph` for this target: tensors of `dtype`, everything between them
        and the arithmetic in float32. options: further arguments of `cudnn.pygraph`."""
        import cudnn

        return cudnn.pygraph(name=name, io_data_type=data_type(dtype),
                             intermediate_data_type=cudnn.data_type.FLOAT,
                             compute_data_type=cudnn.data_type.FLOAT,
                             **{**self.where, **self.options, **options})

    def with_options(self, **options: Any) -> Target:
        """The same target, whose graphs get these arguments of `cudnn.pygraph` too, such as
        `kernel_cache`: so a lesson's graph can be built with them as it stands."""
        return replace(self, options={**self.options, **options})

    def __repr__(self) -> str:
        if self.runs:
            return f"cuDNN {self.libcudnn.version} on {self.gpu}: graphs are planned and run."
        if self.plans:
            return (f"cuDNN {self.libcudnn.version}, no GPU in use: graphs are planned for "
                    f"{self.gpu} (sm_{self.sm}).\n{_ON_CPU}")
        if self.libcudnn.found:
            return (f"Graphs are built, validated and drawn, not planned: beside a GPU, plans for "
                    f"another ({self.gpu}) are not made.\n{_ON_CPU}")
        return ("No libcudnn here: graphs are built, validated and drawn, not planned.\n"
                f'{_ON_CPU}\nTo list plans without a GPU: pip install "labkit[deviceless]".')


@functools.cache
def _handle(device: int) -> Any:
    import cudnn

    return cudnn.create_handle()


def target(here: Any, gpu: str = "") -> Target:
    """Where this run plans its graphs; `here` is the result of `lab.here`.

    On a GPU: that GPU, with one handle a process. Without one: the description of `gpu`, or of
    `here`'s, if there is a libcudnn. Where torch sees a GPU, another one is not planned for: with
    the driver of a real GPU loaded, cuDNN 9.19 crashed over the description of another. Raises
    BadArgument for a GPU without a data sheet, and what `load_cudnn` raises.
    """
    import torch

    libcudnn = load_cudnn()
    if here.device == "gpu" and not gpu:
        if not libcudnn.found:
            raise NotSupported("There is a GPU but no libcudnn; run `labkit doctor` to see which "
                               "package brings it.")
        return Target(torch.cuda.get_device_name(), here.sm, libcudnn,
                      handle=_handle(torch.cuda.current_device()))
    sheet = lookup(gpu) if gpu else here.gpu
    properties = device_properties(sheet)
    if not libcudnn.found or torch.cuda.is_available():
        return Target(sheet.name, sheet.sm, libcudnn)
    import cudnn

    return Target(sheet.name, sheet.sm, libcudnn,
                  properties=cudnn.create_device_properties(json.dumps(properties)))


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
    Raises BadArgument if the graph is not valid, NotSupported, with cuDNN's reasons, if no plan
    can run it on the target.
    """
    import cudnn

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
    except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
        raise NotSupported(_why(error, target, step)) from error


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
