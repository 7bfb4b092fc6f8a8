"""A cuDNN graph as a picture: operations in the order in which they were added, tensors between.

Inputs stand on the left and outputs on the right, in solid frames: they lie in memory. A tensor in
a dashed frame is virtual: one operation hands it to the next and it never reaches memory. The
frontend's own description of the graph is read, so a picture needs no GPU and no libcudnn.
"""

from __future__ import annotations

import textwrap
from typing import Any

from labkit.cudnn_words import dtype_name, layout, operation
from labkit.errors import BadArgument
from labkit.pictures import BLUE, GREEN, GREY, ORANGE, Picture, _Canvas

# widths: of the picture, its edge, a tensor's box, an operation's; then heights
_WIDTH, _PAD, _SIDE, _OP = 880, 16, 262, 236
_TENSOR_HIGH, _OP_HIGH, _GAP = 58, 54, 14
_TRIVIAL = {"convolution_mode", "compute_data_type", "mode", "name"}


def picture(graph: Any) -> Picture:
    """The operations and tensors of a `cudnn.pygraph`, with dims, dtypes and strides.

    Draw it after `validate` (or `cudnn_graph.infer`): before, what is inferred is not there yet.
    Strides are shown of tensors in memory; those that nobody set are marked, since libcudnn may
    choose others. Raises BadArgument for a graph without operations, and for what is no graph.
    """
    if not hasattr(graph, "nodes"):
        raise BadArgument(f"picture takes a cudnn.pygraph, and got {type(graph).__name__}.")
    nodes = list(graph.nodes)
    if not nodes:
        raise BadArgument("The graph has no operations yet; add one before it is drawn.")
    return _Drawing(nodes).picture()


class _Drawing:
    def __init__(self, nodes: list[Any]) -> None:
        self.nodes = nodes
        self.producer = {id(t): i for i, n in enumerate(nodes) for t in _tensors(n.outputs)}
        self.users: dict[int, list[int]] = {}
        for place, node in enumerate(nodes):
            for t in _tensors(node.inputs):
                self.users.setdefault(id(t), []).append(place)

    def picture(self) -> Picture:
        rows, y = [], 46.0
        seen: set[int] = set()
        for place, node in enumerate(self.nodes):
            inputs = [t for t in _tensors(node.inputs)
                      if id(t) not in self.producer and id(t) not in seen]
            seen |= {id(t) for t in inputs}
            between = [t for t in _tensors(node.outputs) if self.users.get(id(t))]
            outputs = [t for t in _tensors(node.outputs)
                       if not self.users.get(id(t)) and not t.get_is_virtual()]
            side = max(len(inputs), len(outputs), 1)
            high = max(side * (_TENSOR_HIGH + _GAP) - _GAP, _OP_HIGH)
            rows.append((place, node, inputs, between, outputs, y, high))
            y += high + (26 + _TENSOR_HIGH + 26) * bool(between) + _GAP * (not between)
        self.canvas = _Canvas(_WIDTH, y + 30)
        self._head()
        self.ends: dict[int, tuple[float, float]] = {}  # tensor -> where its box ends
        for row in rows:
            self._row(*row)
        self._legend(y + 12)
        return self.canvas.done(self._words())

    def _head(self) -> None:
        for x, text, anchor in ((_PAD, "inputs", "start"), (_WIDTH / 2, "operations", "middle"),
                                (_WIDTH - _PAD, "outputs", "end")):
            self.canvas.label(x, 26, text, 11, anchor, GREY, "bold")

    def _row(self, place: int, node: Any, inputs: list[Any], between: list[Any],
             outputs: list[Any], y: float, high: float) -> None:
        left, top = (_WIDTH - _OP) / 2, y + (high - _OP_HIGH) / 2
        right, centre = left + _OP, left + _OP / 2
        for side, tensors in (("in", inputs), ("out", outputs)):
            start = y + (high - len(tensors) * (_TENSOR_HIGH + _GAP) + _GAP) / 2
            for turn, tensor in enumerate(tensors):
                at = start + turn * (_TENSOR_HIGH + _GAP)
                middle = at + _TENSOR_HIGH / 2
                port = top + _OP_HIGH * (turn + 1) / (len(tensors) + 1)
                if side == "in":
                    self._tensor(_PAD, at, tensor, BLUE, made=False)
                    self._across(_PAD + _SIDE, middle, left, port, BLUE)
                else:
                    self._tensor(_WIDTH - _PAD - _SIDE, at, tensor, GREEN)
                    self._across(right, port, _WIDTH - _PAD - _SIDE, middle, GREEN)
        for tensor in _tensors(node.inputs):  # made by an earlier operation, not by the last one
            if id(tensor) in self.ends:
                x, start = self.ends[id(tensor)]
                if place - self.producer[id(tensor)] > 1:
                    self._around(x, start, right, top + 12)
                else:
                    self._down(x - _SIDE / 2, start + _TENSOR_HIGH / 2, centre, top)
        self._operation(left, top, node)
        for turn, tensor in enumerate(between):
            at = top + _OP_HIGH + 26
            x = centre - _SIDE / 2 + turn * (_SIDE + _GAP)
            self._down(centre, top + _OP_HIGH, x + _SIDE / 2, at)
            self._tensor(x, at, tensor, GREY if tensor.get_is_virtual() else GREEN)
            self.ends[id(tensor)] = (x + _SIDE, at + _TENSOR_HIGH / 2)

    def _operation(self, x: float, y: float, node: Any) -> None:
        self._rounded(x, y, _OP, _OP_HIGH, "#1f2430", "#1f2430")
        params = ", ".join(f"{key} {_plain(value)}" for key, value in node.params.items()
                           if key not in _TRIVIAL and _telling(value))
        lines = textwrap.wrap(params, 46, max_lines=2, placeholder=" …")
        title = operation(node)
        if title == "reduction":
            title += f" {_plain(node.params.get('mode', ''))}".rstrip()
        high = y + (_OP_HIGH - 14 * len(lines)) / 2 + 5
        self.canvas.label(x + _OP / 2, high, title, 13, colour="#ffffff", weight="bold")
        for turn, line in enumerate(lines, 1):
            self.canvas.label(x + _OP / 2, high + 1 + 14 * turn, line, 9, colour="#d7dbe2")

    def _tensor(self, x: float, y: float, tensor: Any, colour: str, made: bool = True) -> None:
        virtual = tensor.get_is_virtual()
        self._rounded(x, y, _SIDE, _TENSOR_HIGH, "#ffffff" if virtual else colour, colour,
                      "5 4" if virtual else "", 1 if virtual else 0.1)
        self.canvas.label(x + _SIDE - 12, y + 18, dtype_name(tensor), 11, "end", GREY)
        for line, (text, size, ink, weight) in enumerate(_lines(tensor, made)):
            self.canvas.label(x + 12, y + 18 + line * 16, text, size, "start", ink, weight)

    def _rounded(self, x: float, y: float, w: float, h: float, fill: str, line: str,
                 dash: str = "", opacity: float = 1) -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.canvas.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="7" fill="{fill}" '
            f'fill-opacity="{opacity:g}" stroke="{line}" stroke-width="1.4"{dashed}/>')

    def _across(self, x1: float, y1: float, x2: float, y2: float, colour: str) -> None:
        middle = (x1 + x2) / 2
        self._curve(f"M{x1:g} {y1:g} C{middle:g} {y1:g} {middle:g} {y2:g} {x2:g} {y2:g}", colour)
        self._tip(x2, y2, 6, 0, colour)

    def _down(self, x1: float, y1: float, x2: float, y2: float) -> None:
        middle = (y1 + y2) / 2
        self._curve(f"M{x1:g} {y1:g} C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}", GREY)
        self._tip(x2, y2, 0, 6, GREY)

    def _around(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """From a tensor down the right side to an operation further below."""
        out = max(x1, x2) + 34
        self._curve(f"M{x1:g} {y1:g} C{out:g} {y1:g} {out:g} {y2:g} {x2:g} {y2:g}", GREY)
        self._tip(x2, y2, -6, 0, GREY)

    def _curve(self, path: str, colour: str) -> None:
        self.canvas.parts.append(f'<path d="{path}" fill="none" stroke="{colour}" '
                                 'stroke-width="1.6"/>')

    def _tip(self, x: float, y: float, dx: float, dy: float, colour: str) -> None:
        side = (4, 0) if dy else (0, 4)
        points = [(x, y), *((x - dx + way * side[0], y - dy + way * side[1]) for way in (-1, 1))]
        self.canvas.parts.append('<polygon points="' + " ".join(f"{a:g},{b:g}" for a, b in points)
                                 + f'" fill="{colour}"/>')

    def _legend(self, y: float) -> None:
        self._rounded(_PAD, y - 11, 26, 14, "#ffffff", GREY, "5 4")
        self.canvas.label(_PAD + 34, y, "virtual: never in memory", 11, "start", GREY)
        self._rounded(_PAD + 220, y - 11, 26, 14, BLUE, BLUE, "", 0.1)
        self.canvas.label(_PAD + 254, y, "read from memory", 11, "start", GREY)
        self._rounded(_PAD + 400, y - 11, 26, 14, GREEN, GREEN, "", 0.1)
        self.canvas.label(_PAD + 434, y, "written to memory", 11, "start", GREY)

    def _words(self) -> str:
        lines = []
        for node in self.nodes:
            ins = ", ".join(_spoken(t, id(t) in self.producer) for t in _tensors(node.inputs))
            outs = ", ".join(_spoken(t, True) for t in _tensors(node.outputs))
            lines.append(f"{operation(node)}: {ins} -> {outs}")
        return "\n".join(lines)


def _tensors(ports: dict[str, Any]) -> list[Any]:
    return [tensor for tensor in ports.values() if tensor is not None]


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " × ".join(map(str, value))
    return str(getattr(value, "name", value))


def _telling(value: Any) -> bool:
    return bool(value) or (isinstance(value, int) and not isinstance(value, bool))


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length - 1] + "…"


def _name(tensor: Any) -> str:
    return tensor.get_name() or f"tensor {tensor.get_uid()}"


def _dims(tensor: Any) -> str:
    return " × ".join(map(str, tensor.get_dim() or []))


def _lines(tensor: Any, made: bool) -> list[tuple[str, float, str, str]]:
    """What a tensor's box says: (text, size, colour, weight) for each line."""
    dims = _dims(tensor) or "dims not inferred yet"
    lines = [(_cut(_name(tensor), 24), 12, "#1f2430", "bold"), (dims, 11, "#1f2430", "normal")]
    if tensor.get_is_pass_by_value():
        return [*lines, ("one number, from the host", 10, GREY, "normal")]
    if tensor.get_is_virtual():
        return [*lines, ("virtual: its layout is cuDNN's affair", 10, GREY, "normal")]
    stride = tensor.get_stride()
    if not stride:
        return lines
    if made and not tensor.stride_assigned:
        return [*lines, ("strides not set: libcudnn chooses", 10, ORANGE, "bold")]
    text = f"strides {', '.join(map(str, stride))}"
    named = f"{text} · {layout(tensor.get_dim(), stride)}"
    return [*lines, (named if len(named) <= 46 else text, 9.5, GREY, "normal")]


def _spoken(tensor: Any, made: bool) -> str:
    if tensor.get_is_pass_by_value():
        where = "a number from the host"
    elif tensor.get_is_virtual():
        where = "virtual"
    elif not tensor.get_stride() or (made and not tensor.stride_assigned):
        where = "strides not set"
    else:
        where = layout(tensor.get_dim(), tensor.get_stride())
    dims = " x ".join(map(str, tensor.get_dim() or [])) or "not inferred yet"
    return f"{_name(tensor)} ({', '.join(filter(None, [dims, dtype_name(tensor), where]))})"
