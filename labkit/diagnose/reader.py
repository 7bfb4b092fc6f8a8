"""Reads a traced program statement by statement, with the loops and conditions around each.

The program is read in the serialised form that `retarget` rewrites, because only there does every
statement have the learner's line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit.diagnose.place import Place, _plain, learners
from labkit.retarget import _Graph

SERIAL, PARALLEL, THREADS = 0, 1, 4  # tirx.ForKind
_CONDITIONAL = ("tirx.if_then_else",)


@dataclass(frozen=True)
class Loop:
    """variable: its node. kind: of tirx.ForKind. low, extent: None where not known."""

    variable: int
    name: str
    kind: int
    low: int | None
    extent: int | None
    place: Place | None


@dataclass(frozen=True)
class Statement:
    """node: the statement. loops, conditions: around it, outermost first."""

    node: dict
    loops: tuple[Loop, ...]
    conditions: tuple[int, ...]
    place: Place | None

    @property
    def parallel(self) -> bool:
        return any(loop.kind == PARALLEL for loop in self.loops)


@dataclass(frozen=True)
class Tile:
    """A tile or tensor: scope is "global", "shared.dyn", "local.fragment", "local" ..."""

    index: int
    name: str
    scope: str
    shape: tuple[int | None, ...]
    place: Place | None


@dataclass(frozen=True)
class Part:
    """The part of a tile that an operator takes: its corner (nodes) and extents."""

    tile: Tile
    corner: tuple[int, ...]
    extents: tuple[int | None, ...]


class Reader:
    def __init__(self, program: Any) -> None:
        self.graph = _Graph(program)
        self.nodes = self.graph.nodes
        self.bound: dict[int, int] = {}  # a name in the kernel -> its value
        self.annotated: set[str] = set()
        self._tiles: dict[int, Tile] = {}
        root = self.nodes[self.graph.data["root_index"]]
        self.statements = list(self._read(root["data"]["body"], (), ()))

    def _read(self, index: int, loops: tuple, conditions: tuple) -> Iterator[Statement]:
        node = self.nodes[index]
        kind, data = node["type"], node.get("data")
        if kind == "tirx.SeqStmt":
            for child in self.nodes[data["seq"]]["data"]:
                yield from self._read(child, loops, conditions)
        elif kind == "tirx.For":
            loop = Loop(data["loop_var"], self.text(data["loop_var"]), data["kind"],
                        self.number(data["min"]), self.number(data["extent"]), self._place(node))
            yield from self._read(data["body"], (*loops, loop), conditions)
        elif kind == "tirx.IfThenElse":
            for branch in ("then_case", "else_case"):
                yield from self._read(data[branch], loops, (*conditions, data["condition"]))
        elif kind in ("tirx.SBlockRealize", "tirx.SBlock", "tirx.AttrStmt", "tirx.While"):
            if kind == "tirx.SBlock":
                pairs = self.nodes[data["annotations"]]["data"]
                self.annotated.update(self.graph.text(key) for key in pairs[::2])
            yield from self._read(data["block" if kind == "tirx.SBlockRealize" else "body"], loops,
                                  conditions)
        elif kind == "tirx.Bind":
            self.bound[data["var"]] = data["value"]
            yield Statement(node, loops, conditions, self._place(node))
        elif kind in ("tirx.BufferStore", "tirx.Evaluate"):
            yield Statement(node, loops, conditions, self._place(node))

    def _place(self, node: dict) -> Place | None:
        where = self.nodes[node["data"]["span"]]
        if where["type"] != "ir.Span":
            return None
        file = _plain(self.graph.text(where["data"]["source_name"]))
        return Place(file, where["data"]["line"]) if learners(file) else None

    def text(self, variable: int) -> str:
        return self.graph.text(self.nodes[variable]["data"]["name"])

    def number(self, index: int) -> int | None:
        node = self.nodes[index]
        return node["data"]["value"] if node["type"] == "ir.IntImm" else None

    def items(self, index: int) -> list[int]:
        return self.nodes[index]["data"]

    def tile(self, buffer: int) -> Tile:
        if buffer not in self._tiles:
            data = self.nodes[buffer]["data"]
            annotation = self.nodes[self.nodes[data["data"]]["data"]["type_annotation"]]
            self._tiles[buffer] = Tile(
                buffer, self.graph.text(data["name"]),
                self.graph.text(annotation["data"]["storage_scope"]) or "global",
                tuple(self.number(n) for n in self.items(data["shape"])),
                self._place(self.nodes[buffer]))
        return self._tiles[buffer]

    def operator(self, node: dict) -> str:
        """"gemm" for a statement that is T.gemm(...); else ""."""
        if node["type"] != "tirx.Evaluate":
            return ""
        call = self.nodes[node["data"]["value"]]
        name = self.graph.operator(call) if call["type"] == "tirx.Call" else ""
        return name.removeprefix("tl.tileop.") if name.startswith("tl.tileop.") else ""

    def arguments(self, node: dict) -> list[int]:
        return self.items(self.nodes[node["data"]["value"]]["data"]["args"])

    def part(self, index: int) -> Part | None:
        """The part of a tile that an argument of a tile operator names."""
        node = self.nodes[index]
        if node["type"] != "tirx.Call" or self.graph.operator(node) != "tl.region":
            return None
        load, _, *extents = self.items(node["data"]["args"])
        data = self.nodes[load]["data"]
        return Part(self.tile(data["buffer"]), tuple(self.items(data["indices"])),
                    tuple(self.number(n) for n in extents))

    def loads(self, index: int, under: bool = False) -> Iterator[tuple[dict, bool]]:
        """The loads in an expression, each with whether a condition decides on it."""
        node = self.nodes[index]
        if node["type"] == "tirx.Var" and index in self.bound:
            yield from self.loads(self.bound[index], under)
            return
        if node["type"] == "tirx.BufferLoad":
            yield node, under
        under = under or node["type"] == "tirx.Select" or (
            node["type"] == "tirx.Call" and self.graph.operator(node) in _CONDITIONAL)
        for child in self.graph.children(node):
            if self.nodes[child]["type"] != "tirx.Buffer":
                yield from self.loads(child, under)

    def calls(self, index: int) -> set[str]:
        """Names of the operators in an expression; "Select" for a choice."""
        node = self.nodes[index]
        found = {self.graph.operator(node)} if node["type"] == "tirx.Call" else set()
        if node["type"] == "tirx.Select":
            found.add("Select")
        for child in [self.bound.get(index, -1), *self.graph.children(node)]:
            if child >= 0 and self.nodes[child]["type"] != "tirx.Buffer":
                found |= self.calls(child)
        return found

    def variables(self, index: int) -> set[int]:
        """The variables in an expression, also those behind a name that was bound."""
        node = self.nodes[index]
        if node["type"] == "tirx.Var":
            return {index} | (self.variables(self.bound[index]) if index in self.bound else set())
        return set().union(*(self.variables(child) for child in self.graph.children(node)
                             if self.nodes[child]["type"] != "tirx.Buffer"))

    def bounds(self, index: int, loops: tuple[Loop, ...]) -> tuple[int | None, int | None]:
        """Lowest and highest value of an integer expression, None where not known."""
        node = self.nodes[index]
        kind, data = node["type"], node.get("data")
        if kind == "ir.IntImm":
            return data["value"], data["value"]
        if kind == "tirx.Var":
            for loop in loops:
                if loop.variable == index and loop.low is not None and loop.extent is not None:
                    return loop.low, loop.low + loop.extent - 1
            return self.bounds(self.bound[index], loops) if index in self.bound else (None, None)
        if kind in ("tirx.Add", "tirx.Sub", "tirx.Mul", "tirx.FloorDiv"):
            (a, b), (c, d) = (self.bounds(data[side], loops) for side in "ab")
            if None in (a, b, c, d):
                return None, None
            if kind == "tirx.Add":
                return a + c, b + d
            if kind == "tirx.Sub":
                return a - d, b - c
            if kind == "tirx.FloorDiv":
                return (a // c, b // c) if c == d and c > 0 else (None, None)
            products = [x * y for x in (a, b) for y in (c, d)]
            return min(products), max(products)
        return None, None
