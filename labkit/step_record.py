"""Keeps what a block's buffers hold after each step: of tiles a copy, of tensors what changed."""

from __future__ import annotations

import ctypes
import math
from typing import Any

from labkit.compiler import Parameter
from labkit.errors import LabError
from labkit.step_points import Marked, Tile
from labkit.steps import Buffer, Step

MOST_BYTES = 256 << 20


def bits_of(tensor: Any) -> Any:
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


class Recorder:
    """Called after each step; keeps what changed."""

    def __init__(self, marked: Marked, parameters: list[Parameter], values: list[Any],
                 most: int) -> None:
        self.points, self.tiles, self.most = marked.points, marked.tiles, most
        self.total, self.bytes = 0, 0
        self.failure: Exception | None = None
        self.written = [p.name for p in parameters
                        if any(p.name in point.tensors for point in marked.points)]
        self.parameters = {p.name: p for p in parameters}
        self.tensors = {p.name: bits_of(value) for p, value in zip(parameters, values, strict=True)
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
