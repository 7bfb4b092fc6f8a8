"""Runs one block of a program on the CPU, and keeps what its buffers hold after each step.

    steps = lab.step_through(gemm(70, 90, 50), [A, B], block=(0, 1))
    steps[7].values["acc"]

The CPU run lowers tile operations to loops over logical tiles, so the values are those of
`lab.compile(program, device="cpu")` for this block. Which thread would hold which element of a
fragment is not said: `lab.lower` knows.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from labkit.compiler import Kernel, Parameter, _known, _learn, _outputs, _parameters
from labkit.errors import BadArgument, LabError
from labkit.step_points import Marked, Tile, mark
from labkit.steps import Buffer, Step, Steps

MOST_STEPS, MOST_BYTES = 500, 256 << 20
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
        hint = "; call it with its sizes first" if callable(program) else ""
        raise BadArgument(f"step_through takes a @T.prim_func, not {type(program).__name__}{hint}.")
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise BadArgument(f"most is {most!r}; give a whole number of at least 1.")
    marked = mark(program)
    name = str(program.attrs["global_symbol"])
    kernel = _kernel(program, name, marked, inputs, out_idx)
    values = _own(kernel, kernel.arguments(*map(_to_cpu, inputs)), marked)
    grid = _grid(marked, kernel.parameters, values)
    chosen = _chosen(block, grid, name)
    recorder = _Recorder(marked, kernel.parameters, values, most)
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
    from labkit.compiler import _extents

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
         recorder: _Recorder) -> None:
    from labkit.compiler import cpu_launcher
    from labkit.cpu_build import build

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


# --- during the run


def _bits(tensor: Any) -> Any:
    """A tensor's elements as whole numbers of their size, in a numpy array of the same memory."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().view(whole[tensor.element_size()]).numpy()


def _decoded(bits: Any, dtype: str) -> Any:
    """The numbers that the bits stand for."""
    import numpy as np

    if dtype == "bfloat16":
        wide = bits.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32)
    return bits != 0 if dtype == "bool" else bits.view(np.dtype(dtype))


class _Recorder:
    """Called after each step; keeps what changed."""

    def __init__(self, marked: Marked, parameters: list[Parameter], values: list[Any],
                 most: int) -> None:
        self.points, self.tiles, self.most = marked.points, marked.tiles, most
        self.total, self.bytes = 0, 0
        self.failure: Exception | None = None
        self.written = [p.name for p in parameters
                        if any(p.name in point.tensors for point in marked.points)]
        self.parameters = {p.name: p for p in parameters}
        self.tensors = {p.name: _bits(value) for p, value in zip(parameters, values, strict=True)
                        if p.name in self.written}
        self.before = {name: bits.copy() for name, bits in self.tensors.items()}
        self.now = {name: bits.copy() for name, bits in self.tensors.items()}
        self.kept: list[tuple[int, tuple[int, ...], dict[str, Any], dict[str, Any]]] = []
        self._last: tuple[int, tuple[int, ...]] | None = None

    def see(self, number: int, tiles: Any, sizes: Any, count: int, loops: Any) -> None:
        """The call from C++. What is raised here would be lost there."""
        try:
            point = self.points[number]
            indices = tuple(loops[i] for i in range(len(point.loops)))
            self.total, self._last = self.total + 1, (number, indices)
            if self.failure is None and len(self.kept) == self.total - 1 < self.most \
                    and self.bytes < MOST_BYTES:
                self._keep(number, indices, tiles, sizes, count)
        except Exception as error:
            self.failure = error

    def _keep(self, number: int, indices: tuple, tiles: Any, sizes: Any, count: int) -> None:
        import numpy as np

        point = self.points[number]
        held, changes = {}, {}
        for place, name in enumerate(point.tiles[:count]):
            tile = self.tiles[name]
            whole = np.dtype(f"int{8 * _size(tile)}")
            wanted = math.prod(tile.shape) * whole.itemsize
            if sizes[place] not in (0, wanted):
                raise LabError(f"The compiler changed the size of {name}, from {wanted} bytes to "
                               f"{sizes[place]}, so its steps cannot be shown.")
            memory = ctypes.string_at(tiles[place], wanted)
            held[name] = np.frombuffer(memory, whole).reshape(tile.shape)
            self.bytes += wanted
        for name in point.tensors:
            where = np.nonzero(self.tensors[name] != self.now[name])
            changes[name] = (where, self.tensors[name][where])
            self.now[name][where] = changes[name][1]
            self.bytes += sum(axis.nbytes for axis in where) + changes[name][1].nbytes
        self.kept.append((number, indices, held, changes))

    def last(self) -> str:
        """The last step that ended, as in "step 7 (line 21, k = 3)"; "" before the first."""
        if self._last is None:
            return ""
        number, indices = self._last
        point = self.points[number]
        place = [f"line {point.line}"] if point.line else []
        place += [f"{n} = {i}" for n, i in zip(point.loops, indices, strict=True)]
        return f"step {self.total - 1} ({', '.join(place) or point.text})"

    # --- after it

    def result(self) -> tuple[dict[str, Buffer], list[Step]]:
        """The buffers, and the steps with the contents of all of them."""
        import numpy as np

        buffers = {name: Buffer(name, tile.scope, tile.shape, tile.dtype)
                   for name, tile in self.tiles.items()}
        values, unset, boxes, parts, fresh = {}, {}, {}, {}, {}
        for name, tile in self.tiles.items():
            bits = np.full(tile.shape, -1, np.dtype(f"int{8 * _size(tile)}"))
            values[name], unset[name] = _frozen(_decoded(bits, tile.dtype), bits == -1)
        for name in self.written:
            changed = np.nonzero(self.tensors[name] != self.before[name])
            if not changed or not changed[0].size:
                continue
            boxes[name] = tuple(slice(int(axis.min()), int(axis.max()) + 1) for axis in changed)
            part = ", ".join(f"{one.start}:{one.stop}" for one in boxes[name])
            parts[name] = self.before[name][boxes[name]].copy()
            fresh[name] = np.zeros(parts[name].shape, bool)
            dtype = self.parameters[name].dtype
            buffers[name] = Buffer(name, "global", parts[name].shape, dtype, f"[{part}]")
            values[name], unset[name] = _frozen(_decoded(parts[name].copy(), dtype),
                                                ~fresh[name])
        steps = []
        for count, (number, indices, held, changes) in enumerate(self.kept):
            point, values, unset = self.points[number], dict(values), dict(unset)
            for name, bits in held.items():
                found = _decoded(bits, self.tiles[name].dtype)
                blank = np.isnan(found) if found.dtype.kind == "f" else unset[name] & (bits == -1)
                values[name], unset[name] = _frozen(found, blank)
            for name, (where, bits) in changes.items():
                if name not in boxes:
                    continue
                inside = tuple(axis - one.start
                               for axis, one in zip(where, boxes[name], strict=True))
                parts[name][inside], fresh[name][inside] = bits, True
                found = _decoded(parts[name].copy(), self.parameters[name].dtype)
                blank = ~fresh[name] | (np.isnan(found) if found.dtype.kind == "f" else False)
                values[name], unset[name] = _frozen(found, blank)
            wrote = (*held, *(name for name in changes if name in boxes))
            steps.append(Step(count, point.file, point.line, point.last, point.text,
                              dict(zip(point.loops, indices, strict=True)), wrote, values, unset))
        return buffers, steps


def _frozen(*arrays: Any) -> tuple:
    for array in arrays:
        array.flags.writeable = False
    return arrays


def _size(tile: Tile) -> int:
    """Bytes of an element."""
    import torch

    return getattr(torch, tile.dtype).itemsize
