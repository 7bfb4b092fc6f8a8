"""Programs that the compiler accepts in silence and is known to get wrong.

`warn` looks for five patterns in a traced program, and for two in its Python source, before it is
compiled. Each was reported by users or seen in the CUDA that TileLang 0.1.15 writes. What is found
is issued as a `LabWarning`; `warnings.filterwarnings("ignore", category=LabWarning)` silences it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.diagnose import source_patterns
from labkit.diagnose.padding import padding
from labkit.diagnose.place import Place
from labkit.diagnose.reader import PARALLEL, THREADS, Reader, Statement, Tile
from labkit.errors import LabWarning


@dataclass(frozen=True)
class Finding:
    """pattern: its name. said: what is wrong and what to change. place: the line. thread: where
    it was reported."""

    pattern: str
    said: str
    place: Place | None
    thread: str = ""

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        seen = f" [{self.thread}]" if self.thread else ""
        return f"{self.said}{where}{seen}"


def find(program: Any) -> list[Finding]:
    """The patterns in a traced program, each named once a tile."""
    reader = Reader(program)
    found = [Finding(*one) for search in (_serial, _extents, _beyond, padding, _unwritten)
             for one in search(reader)]
    found += [Finding(*one) for one in source_patterns.search(program)]
    return list(dict.fromkeys(found))


def warn(program: Any, stacklevel: int = 3) -> None:
    """Issues a LabWarning for each pattern in `program`."""
    for finding in find(program):
        warnings.warn(str(finding), LabWarning, stacklevel=stacklevel)


def _accesses(reader: Reader, one: Statement) -> Iterator[tuple[Tile, list[int], bool]]:
    """(tile, indices, whether a condition decides on it) of each element that a statement uses."""
    data = one.node["data"]
    if one.node["type"] == "tirx.BufferStore":
        yield reader.tile(data["buffer"]), reader.items(data["indices"]), False
    if one.node["type"] != "tirx.Evaluate" or not reader.operator(one.node):
        for load, under in reader.loads(data["value"]):
            yield (reader.tile(load["data"]["buffer"]), reader.items(load["data"]["indices"]),
                   under)


def _serial(reader: Reader) -> Iterator[tuple]:
    """A fragment that a serial loop walks through (tile-ai/tilelang#2396)."""
    for one in reader.statements:
        if one.parallel:
            continue
        loops = {loop.variable: loop for loop in one.loops
                 if loop.kind != THREADS and loop.extent != 1}
        for tile, indices, _ in _accesses(reader, one):
            if tile.scope != "local.fragment" or all(n == 1 for n in tile.shape):
                continue
            used = set().union(*(reader.variables(index) for index in indices), set())
            walking = [loop.name for variable, loop in loops.items() if variable in used]
            if walking:
                yield ("serial-fragment", f"`{tile.name}` is a fragment, shared out among the "
                       f"threads, and the loop over `{', '.join(walking)}` walks through it in "
                       "every thread: the result is wrong on a GPU, without an error. Use "
                       "T.Parallel, T.copy or T.reduce.", one.place, "tile-ai/tilelang#2396")


def _extents(reader: Reader) -> Iterator[tuple]:
    """Two loops of different length over one axis of a fragment (tile-ai/tilelang#2957): the
    shorter one decides how the threads share it. Where a T.gemm decides, all is well."""
    lengths: dict[tuple[Tile, int], dict[int, Place | None]] = {}
    together: list[set[Tile]] = []
    fixed: set[Tile] = set()
    for one in reader.statements:
        used: set[Tile] = set()
        if name := reader.operator(one.node):
            for part in filter(None, map(reader.part, reader.arguments(one.node))):
                used.add(part.tile)
                for axis, extent in enumerate(part.extents):
                    if extent is not None and name != "gemm":
                        lengths.setdefault((part.tile, axis), {}).setdefault(extent, one.place)
            fixed |= used if name == "gemm" else set()
        else:
            loops = {loop.variable: loop for loop in one.loops if loop.kind == PARALLEL}
            for tile, indices, _ in _accesses(reader, one):
                used.add(tile)
                for axis, index in enumerate(indices):
                    if index in loops and loops[index].extent is not None:
                        lengths.setdefault((tile, axis), {}).setdefault(
                            loops[index].extent, loops[index].place)
        together.append({tile for tile in used if tile.scope == "local.fragment"})
    while any(group & fixed and not group <= fixed for group in together):
        for group in together:
            fixed |= group if group & fixed else set()
    if "layout_map" in reader.annotated:
        return
    for (tile, axis), found in lengths.items():
        if tile.scope == "local.fragment" and tile not in fixed and len(found) > 1:
            short, long = min(found), max(found)
            yield ("two-extents", f"Axis {axis} of the fragment `{tile.name}` is used with {short} "
                   f"and with {long} elements; the compiler then drops those beyond {short}, "
                   f"without an error. Loop over {long} each time, with a condition inside.",
                   found[short], "tile-ai/tilelang#2957")


def _beyond(reader: Reader) -> Iterator[tuple]:
    """An index that runs over the end of a tile. (Tensors are guarded by the compiler.)"""
    for one in reader.statements:
        for tile, indices, under in _accesses(reader, one):
            if tile.scope == "global" or under:
                continue
            tested = set().union(*(reader.variables(test) for test in one.conditions), set())
            for axis, (index, size) in enumerate(zip(indices, tile.shape, strict=True)):
                _, high = reader.bounds(index, one.loops)
                if size is None or high is None or high < size or tested & reader.variables(index):
                    continue
                yield ("beyond", f"Axis {axis} of `{tile.name}` has {size} elements, and its index "
                       f"goes up to {high}: what lies behind it in memory is used, without an "
                       "error. Change the loop or the tile, or put an if around it.", one.place)
        if reader.operator(one.node):
            for part in filter(None, map(reader.part, reader.arguments(one.node))):
                bounds = [reader.bounds(corner, one.loops)[1] for corner in part.corner]
                for axis, (high, extent, size) in enumerate(
                        zip(bounds, part.extents, part.tile.shape, strict=False)):
                    if (part.tile.scope != "global" and None not in (high, extent, size)
                            and high + extent > size and not one.conditions):
                        yield ("beyond", f"Axis {axis} of `{part.tile.name}` has {size} elements, "
                               f"and a slice of it goes up to {high + extent}: what lies behind it "
                               "in memory is used, without an error. Change the slice.", one.place,
                               "tile-ai/tilelang#2979")


def _unwritten(reader: Reader) -> Iterator[tuple]:
    """A program without any effect: nothing is stored in a tensor, nothing printed or called."""
    for one in reader.statements:
        if one.node["type"] == "tirx.BufferStore":
            if reader.tile(one.node["data"]["buffer"]).scope == "global":
                return
        elif name := reader.operator(one.node):
            parts = [reader.part(argument) for argument in reader.arguments(one.node)]
            if name not in ("copy", "fill", "gemm", "reduce") or any(
                    part and part.tile.scope == "global" for part in
                    (parts[:1] if name == "fill" else parts[1:])):
                return
        elif one.node["type"] == "tirx.Evaluate":
            return
    yield ("unwritten", "The program stores nothing in any of its tensors. Write Y[i] = ... or "
           "T.copy(tile, Y[...]); Y = ... only gives the name Y to something else.", None)
