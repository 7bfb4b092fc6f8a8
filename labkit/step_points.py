"""Marks the steps of a traced program: one call after each tile operation of a block.

    T.copy(A[...], A_tile)                     T.copy(A[...], A_tile)
    T.gemm(A_tile, B_tile, acc)       ->       labkit_step(0, &A_tile[0], k)
                                               T.gemm(A_tile, B_tile, acc)
                                               labkit_step(1, &acc[0], k)

A tile operation is a call (`T.copy`, `T.gemm`, `T.reduce_*`, `T.fill`, ...), a `T.Parallel` loop
with what is in it, a loop over single elements, or a plain assignment to an element. The block's
body runs only where `labkit_chosen(bx, by, bz)` holds. Both functions are in `cpu_runtime.h`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument
from labkit.listing import Listing
from labkit.retarget import _PARALLEL, _VECTORIZED, _Graph

_BARRIER = "shared.barrier"
_SCOPES = {"shared.dyn": "shared", "shared": "shared", "local.fragment": "fragment",
           "local": "local", "local.var": "variable"}
_OPERATIONS = ("tl.tileop.", "tl.atomic_")
_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


@dataclass(frozen=True)
class Tile:
    """A buffer of a block. scope: "shared", "fragment", "local", "variable"."""

    name: str
    scope: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Point:
    """A statement after which a step ends.

    line, last: its first and last line in `file` (None: not known). loops: the names of the loop
    indices around it. tiles, tensors: what it may write.
    """

    file: str | None
    line: int | None
    last: int | None
    text: str
    loops: tuple[str, ...]
    tiles: tuple[str, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Marked:
    """A program with its steps marked. grid: the extents of its axes, as TileLang expressions."""

    program: Any
    points: list[Point]
    tiles: dict[str, Tile]
    grid: list[Any]
    listing: Listing


def mark(func: Any) -> Marked:
    """The program with a call after each step. func: a traced `tirx.PrimFunc`, left as it is.

    Raises BadArgument for a program without a block.
    """
    marker = _Marker(func)
    return Marked(marker.graph.load(), marker.points, marker.named, marker.grid(func),
                  marker.listing)


class _Marker:
    def __init__(self, func: Any) -> None:
        self.graph = graph = _Graph(func)
        self.listing = Listing()
        self.places = dict(graph.walk())
        self._found: list[tuple[int, tuple, tuple, tuple]] = []  # statement, loops, tiles, tensors
        self.named: dict[str, Tile] = {}
        self.tiles: dict[int, tuple[str, int]] = {}  # data variable -> (name, buffer)
        self.tensors: dict[int, str] = {}
        blocks = [node for node in graph.of_type("tirx.SBlock") if self._launches(node)]
        axes = {self._tag(node): node["data"]["loop_var"] for node in graph.of_type("tirx.For")
                if node["data"]["thread_binding"] != graph.none}
        self._axes = [axes[name] for name in _AXES if name in axes]
        if not blocks or not self._axes:
            raise BadArgument(f"{func.attrs['global_symbol']} has no `with T.Kernel(...)`, so no "
                              "block to step through; give a program that launches one.")
        for node in graph.of_type("tirx.SBlock"):
            for index in graph.nodes[node["data"]["alloc_buffers"]]["data"]:
                self._name_tile(index)
        for variable in func.buffer_map.values():
            self._name_tensor(variable.name)
        for block in blocks:
            body = self._whole(self._marked(block["data"]["body"], (), ()))
            chosen = graph.call("tirx.call_extern", "bool",
                                [graph.string("labkit_chosen"), *self._axes])
            block["data"]["body"] = graph.add("tirx.IfThenElse", {
                "span": graph.none, "condition": chosen, "then_case": body,
                "else_case": graph.none})
        self.points = self._points()

    def grid(self, func: Any) -> list[Any]:
        """The extents of the grid's axes, x first."""
        from tvm import tirx

        found: dict[str, Any] = {}

        def visit(node: Any) -> None:
            if isinstance(node, tirx.For) and node.thread_binding is not None:
                found[str(node.thread_binding.thread_tag)] = node.extent

        tirx.stmt_functor.post_order_visit(func.body, visit)
        return [found[name] for name in _AXES if name in found]

    # --- what there is

    def _launches(self, block: dict) -> bool:
        names = self.graph.nodes[block["data"]["annotations"]]["data"][::2]
        return any(self.graph.text(name) == "tl.launch_threads" for name in names)

    def _tag(self, loop: dict) -> str:
        binding = self.graph.nodes[loop["data"]["thread_binding"]]
        return self.graph.text(binding["data"]["thread_tag"])

    def _name_tile(self, index: int) -> None:
        data = self.graph.nodes[index]["data"]
        pointer = self.graph.nodes[self.graph.nodes[data["data"]]["data"]["type_annotation"]]
        scope = self.graph.text(pointer["data"]["storage_scope"])
        shape = [self.graph.nodes[extent]["data"].get("value")
                 for extent in self.graph.nodes[data["shape"]]["data"]]
        if scope == _BARRIER or None in shape:
            return
        name = wanted = self.graph.text(data["name"])
        number = 2
        while name in self.named:
            name, number = f"{wanted}_{number}", number + 1
        self.named[name] = Tile(name, _SCOPES.get(scope, scope), tuple(shape), data["dtype"])
        self.tiles[data["data"]] = (name, index)

    def _name_tensor(self, name: str) -> None:
        for node in self.graph.of_type("tirx.Buffer"):
            if node["data"]["data"] not in self.tiles and self.graph.text(
                    node["data"]["name"]) == name:
                self.tensors[node["data"]["data"]] = name

    # --- the walk

    def _whole(self, statements: list[int]) -> int:
        if len(statements) == 1:
            return statements[0]
        return self.graph.add("tirx.SeqStmt", {
            "span": self.graph.none, "seq": self.graph.add("ffi.Array", statements)})

    def _marked(self, index: int, loops: tuple, binds: tuple) -> list[int]:
        """The statement, or several in its place, with a call after each step.

        loops: (name, variable) of the loops around it. binds: the same of the names bound before.
        """
        graph, node = self.graph, self.graph.nodes[index]
        data = node.get("data")
        if node["type"] == "tirx.SeqStmt":
            found = []
            for child in graph.nodes[data["seq"]]["data"]:
                found += self._marked(child, loops, binds)
                if graph.nodes[child]["type"] == "tirx.Bind":
                    binds = (*binds, child)
            data["seq"] = graph.add("ffi.Array", found)
            return [index]
        if node["type"] in ("tirx.Evaluate", "tirx.BufferStore") or (
                node["type"] in ("tirx.For", "tirx.While", "tirx.IfThenElse")
                and not self._has_operations(index)):
            return self._step(index, loops)
        if node["type"] == "tirx.For":
            loops = (*loops, *self._indices(index, binds))
        for part in ("body", "then_case", "else_case", "block"):
            if part in (data or {}) and data[part] != graph.none:
                data[part] = self._whole(self._marked(data[part], loops, binds))
        return [index]

    def _has_operations(self, index: int) -> bool:
        """Whether a statement is made of steps, and not itself one."""
        node = self.graph.nodes[index]
        if node["type"] == "tirx.For" and node["data"]["kind"] in (_PARALLEL, _VECTORIZED):
            return False
        for _, inside in self._within(index):
            if inside["type"] == "tirx.For" and inside["data"]["kind"] == _PARALLEL:
                return True
            if inside["type"] == "tirx.Call" and self.graph.operator(inside).startswith(
                    _OPERATIONS):
                return True
        return False

    def _within(self, index: int) -> Iterator[tuple[int, dict]]:
        seen, stack = set(), [index]
        while stack:
            index = stack.pop()
            if index not in seen:
                seen.add(index)
                yield index, self.graph.nodes[index]
                stack.extend(self.graph.children(self.graph.nodes[index]))

    def _indices(self, index: int, binds: tuple) -> list[tuple[str, int]]:
        """The loop's variable; where the source does not name it, as with `T.Persistent`, what the
        same line binds in its place."""
        variable, place = self.graph.nodes[index]["data"]["loop_var"], self.places.get(index)
        name = self._variable(variable)
        line = self.listing.line(place)
        if not line or re.search(rf"\b{re.escape(name)}\b", line):
            return [(name, variable)]
        bound = [self.graph.nodes[bind]["data"]["var"] for bind in binds
                 if self.places.get(bind) == place]
        words = re.findall(r"\w+", line)
        named = [(self._variable(one), one) for one in bound
                 if self.graph.nodes[one]["data"]["dtype"].startswith("int")
                 and self._variable(one) in words]
        return sorted(named, key=lambda pair: words.index(pair[0]))

    def _variable(self, index: int) -> str:
        return self.graph.text(self.graph.nodes[index]["data"]["name"])

    def _step(self, index: int, loops: tuple) -> list[int]:
        written = self._written(index)
        tiles = [self.tiles[data] for data in written if data in self.tiles]
        tensors = tuple(self.tensors[data] for data in written if data in self.tensors)
        if not tiles and not tensors:
            return [index]
        self._found.append((index, tuple(name for name, _ in loops),
                            tuple(name for name, _ in tiles), tensors))
        graph = self.graph
        call = graph.call("tirx.call_extern", "int32", [
            graph.string("labkit_step"), graph.integer("int32", len(self._found) - 1),
            *(self._address(buffer) for _, buffer in tiles), *(var for _, var in loops)])
        return [index, graph.add("tirx.Evaluate", {"span": graph.none, "value": call})]

    def _points(self) -> list[Point]:
        places = self.listing.own([(self.places.get(index), self._reduction(index))
                                   for index, *_ in self._found], set(self.places.values()))
        points = []
        for place, (index, loops, tiles, tensors) in zip(places, self._found, strict=True):
            text, last = self.listing.statement(place)
            file, line = place or (None, None)
            points.append(Point(file, line, last, text or self._script(index), loops, tiles,
                                tensors))
        return points

    def _reduction(self, index: int) -> str:
        """"max" for a reduction to the maximum, and so on; "" for another statement."""
        for _, node in self._within(index):
            if node["type"] == "tirx.Call" and self.graph.operator(node) == "tl.tileop.reduce":
                kind = self.graph.nodes[self.graph.nodes[node["data"]["args"]]["data"][2]]
                return self.graph.text(kind["data"]["value"])
        return ""

    def _address(self, buffer: int) -> int:
        graph, data = self.graph, self.graph.nodes[buffer]["data"]
        axes = len(graph.nodes[data["shape"]]["data"])
        first = graph.add("tirx.BufferLoad", {
            "span": graph.none, "dtype": data["dtype"], "buffer": buffer, "predicate": graph.none,
            "indices": graph.add("ffi.Array", [graph.integer("int32", 0)] * axes)})
        return graph.call("tirx.address_of", "handle", [first])

    def _written(self, index: int) -> list[int]:
        """The data variables of the buffers that a statement may write, in order."""
        graph, found = self.graph, {}
        for _, node in self._within(index):
            data = node.get("data")
            if node["type"] == "tirx.BufferStore":
                found[graph.nodes[data["buffer"]]["data"]["data"]] = None
            elif node["type"] == "tirx.Call":
                arguments = graph.nodes[data["args"]]["data"]
                name = graph.operator(node)
                writes = name in ("tl.access_ptr", "tirx.address_of") or (
                    name == "tl.region" and graph.nodes[arguments[1]]["data"]["value"] & 2)
                first = graph.nodes[arguments[0]] if arguments else {"type": ""}
                if writes and first["type"] == "tirx.BufferLoad":
                    found[graph.nodes[first["data"]["buffer"]]["data"]["data"]] = None
        order = [*self.tiles, *self.tensors]
        return sorted((data for data in found if data in order), key=order.index)

    def _script(self, index: int) -> str:
        """A statement as TileLang prints it, where its source is not known."""
        from tilelang import tvm

        whole = {**self.graph.data, "root_index": index}
        lines = tvm.ir.load_json(json.dumps(whole)).script().splitlines()
        kept = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        return " ".join(kept)
