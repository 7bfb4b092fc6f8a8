"""Runs one block of a program on the CPU, and keeps what its buffers hold after each step.

    steps = lab.step_through(gemm(70, 90, 50), [A, B], block=(0, 1))
    steps[7].values["acc"]

The CPU run lowers tile operations to loops over logical tiles, so the values are those of
`lab.compile(program, device="cpu")` for this block. Which thread would hold which element of a
fragment is not said: `lab.lower` knows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from labkit.compiler import (
    Kernel,
    Parameter,
    _extents,
    _known,
    _learn,
    _outputs,
    _parameters,
    cpu_launcher,
)
from labkit.cpu_build import build
from labkit.errors import BadArgument, LabError
from labkit.step_points import Marked, mark
from labkit.step_record import Recorder
from labkit.steps import Steps

MOST_STEPS = 500
_STEP = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p),
                         ctypes.POINTER(ctypes.c_int64), ctypes.c_int64,
                         ctypes.POINTER(ctypes.c_int64))


class _Watch(ctypes.Structure):  # as in cpu_runtime.h
    _fields_ = [("block", ctypes.c_int64 * 3), ("step", _STEP)]


def step_through(program: Any, inputs: Sequence[Any], block: int | Sequence[int] | None = None,
                 out_idx: int | Sequence[int] | None = None, most: int = MOST_STEPS) -> Steps:
    """Runs one block of `program` on the CPU, and keeps its buffers after each tile operation.

    program: a `@T.prim_func`. inputs: its tensors and numbers in order, with or without those that
        it writes. They stay as they are: what is written goes to a copy, and a tensor on a GPU is
        copied to the CPU.
    block: the block's index, x first, as the program's `T.Kernel` names it; None: the first.
    out_idx: as for `lab.compile`. None: all that the program writes, where `inputs` leaves them
        away.
    most: how many steps are kept, from the first on; with them at most 256 MiB.

    Raises BadArgument (a block outside the grid, inputs that do not fit), NotOnCPU (a construct
    that the CPU run cannot execute), MissingTool or CompileFailed as `lab.compile`, and LabError
    where the program stops, with the step after which it did.
    """
    from tilelang.language.eager import PrimFunc

    if not isinstance(program, PrimFunc):
        hint = ("; give its program, as get_tir(...) of the same arguments returns it"
                if hasattr(program, "get_tir") else
                "; call it with its sizes first" if callable(program) else "")
        raise BadArgument(f"step_through takes a @T.prim_func, not {type(program).__name__}{hint}.")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise BadArgument(f"most is {most!r}; give a whole number of at least 1.")
    marked = mark(program)
    name = str(program.attrs["global_symbol"])
    kernel = _kernel(program, name, marked, inputs, out_idx)
    values = _own(kernel, kernel.arguments(*map(_to_cpu, inputs)), marked)
    grid = _grid(marked, kernel.parameters, values)
    chosen = _chosen(block, grid, name)
    recorder = Recorder(marked, kernel.parameters, values, most)
    _run(marked, kernel, values, chosen, recorder)
    buffers, steps = recorder.result()
    outputs = {p.name: value for p, value in zip(kernel.parameters, values, strict=True)
               if p.name in recorder.written}
    return Steps(name, chosen, grid, buffers, steps, recorder.total, outputs,
                 marked.listing.sections([(p.file, p.line) for p in marked.points]))


# --- before the run


def _kernel(program: Any, name: str, marked: Marked, inputs: Any, out_idx: Any) -> Kernel:
    """The program's parameters, with the outputs that the call makes."""
    parameters = _parameters(program)
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Sequence):
        raise BadArgument(f"inputs is of type {type(inputs).__name__}; give a list of the "
                          f"program's tensors, as in [{', '.join(p.name for p in parameters)}].")
    written = {tensor for point in marked.points for tensor in point.tensors}
    made = (program.attrs or {}).get("tilelang_out_idx")
    if out_idx is None and made is not None:
        out_idx = [int(index) for index in made]
    elif out_idx is None and len(inputs) != len(parameters):
        out_idx = [i for i, p in enumerate(parameters) if p.name in written]
        if len(inputs) != len(parameters) - len(out_idx):
            left = ", ".join(p.name for p in parameters if p.name in written)
            raise BadArgument(f"{name} takes {', '.join(map(str, parameters))}, of which {left} "
                              f"may be left away, but got {len(inputs)} inputs; give a list of "
                              f"{len(parameters) - len(out_idx)}.")
    return Kernel(name, "cpu", parameters, _outputs(out_idx, parameters), "", None, program)


def _to_cpu(value: Any) -> Any:
    """A tensor of another device on the CPU, with the strides that it has."""
    import torch

    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    if value.layout != torch.strided or value.is_contiguous():
        return value.cpu()
    return _copy(value)


def _copy(value: Any) -> Any:
    import torch

    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def _own(kernel: Kernel, values: list[Any], marked: Marked) -> list[Any]:
    """The arguments, with a copy of what the program writes and the caller gave."""
    written = {tensor for point in marked.points for tensor in point.tensors}
    return [_copy(value) if p.name in written and i not in kernel.outputs else value
            for i, (p, value) in enumerate(zip(kernel.parameters, values, strict=True))]


def _grid(marked: Marked, parameters: list[Parameter], values: list[Any]) -> tuple[int, ...]:
    sizes: dict[str, int] = {}
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.shape is None:
            sizes.setdefault(parameter.name, value)
        else:
            _learn(parameter, value, sizes)
    return tuple(_known(_extents(marked.grid), sizes))


def _chosen(block: Any, grid: tuple[int, ...], name: str) -> tuple[int, ...]:
    axes = ("bx", "by", "bz")[:len(grid)]
    given = (0,) * len(grid) if block is None else (block,) if isinstance(block, int) else block
    if not isinstance(given, Sequence) or len(given) != len(grid) or not all(
            isinstance(i, int) and not isinstance(i, bool) for i in given):
        raise BadArgument(f"block is {block!r}, but the grid of {name} has "
                          f"{len(grid)} ax{'i' if len(grid) == 1 else 'e'}s; give "
                          f"({', '.join(axes)}{',' if len(axes) == 1 else ''}) as whole numbers.")
    if 0 in grid:
        raise BadArgument(f"The grid of {name} is {' x '.join(map(str, grid))}: it has no block; "
                          "give inputs that are not empty.")
    if not all(0 <= i < n for i, n in zip(given, grid, strict=True)):
        limits = ", ".join(f"{axis} from 0 to {n - 1}" for axis, n in zip(axes, grid, strict=True))
        raise BadArgument(f"Block {tuple(given)} lies outside the grid of {name}, which has "
                          f"{' x '.join(map(str, grid))} blocks; give {limits}.")
    return tuple(given)


def _run(marked: Marked, kernel: Kernel, values: list[Any], block: tuple[int, ...],
         recorder: Recorder) -> None:
    library, order, _ = build(marked.program)
    launch = cpu_launcher(library, order, kernel.name, kernel.parameters)
    watch = _Watch((ctypes.c_int64 * 3)(*block), _STEP(recorder.see))
    library.labkit_watch(ctypes.byref(watch))
    try:
        launch(*values)
    except LabError as error:
        after = recorder.last()
        raise LabError(f"After {after or 'its start'}, {error}") from error
    finally:
        library.labkit_watch(None)
    if recorder.failure:
        raise recorder.failure
