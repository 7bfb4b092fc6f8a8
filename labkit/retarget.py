"""Rewrites a traced TileLang program so that TileLang's C backend can run it on the CPU.

The learner's source is not touched, and neither is `tilelang.language`: the edits are made on
the traced program's own serialised form, which keeps every shared reference intact. One CPU
thread then does the work of a whole thread block, tile by tile:

* shared memory and fragments become plain local arrays;
* `T.Parallel` and `T.vectorized` loops become serial ones;
* barriers inside a block vanish, and `if tx == 0` holds, since there is one thread;
* elementary functions are called from the C library, 16-bit ones in float32;
* bfloat16 takes the name float16, and `cpu_runtime.h` gives that name bfloat16's arithmetic,
  so each value is rounded where the program rounds it.

So the CPU run checks the algorithm (indices, masks, accumulation), not layouts, races or speed.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterator
from typing import Any

from labkit.errors import NotOnCPU

_SCOPES = {"shared.dyn", "shared", "local.fragment"}
_PARALLEL, _VECTORIZED, _SERIAL = 1, 2, 0  # tirx.ForKind

# data fields that hold numbers or names; every other integer refers to a node
_LITERAL = {"kind", "line", "column", "end_line", "end_column", "ndim", "data_alignment", "dtype",
            "offset_factor", "buffer_type", "iter_type", "purity"}

# TileLang operators that mean the same when one thread does a block's work
_SAME = {"tl.region", "tl.launch_thread_idx", "tl.infinity", "tl.access_ptr", "tl.GemmWarpPolicy",
         "tl.clamp", "tl.loop_break", "tl.conflict_hint", "tl.pow_of_int",
         "tl.tileop.copy", "tl.tileop.fill", "tl.tileop.gemm", "tl.tileop.reduce",
         "tl.tileop.atomicadd", "tl.tileop.atomicmax", "tl.tileop.atomicmin",
         "tl.atomic_add_elem_op", "tl.atomic_add_ret_elem_op", "tl.atomic_max_elem_op",
         "tl.atomic_max_ret_elem_op", "tl.atomic_min_elem_op", "tl.atomic_min_ret_elem_op",
         "tl.atomic_load_elem_op", "tl.atomic_store_elem_op",
         "tl.device_assert", "tl.device_assert_with_msg"}
# ... and those that say nothing to a single thread
_VANISH = {"tirx.tvm_storage_sync", "tl.sync_warp", "tl.set_max_nreg", "tl.no_set_max_nreg",
           "tl.annotate_producer_reg_dealloc", "tl.annotate_consumer_reg_alloc"}
# operator -> function of the C library in float32
_MATH = {"tirx.exp": "expf", "tirx.exp2": "exp2f", "tirx.exp10": "exp10f", "tirx.log": "logf",
         "tirx.log2": "log2f", "tirx.log10": "log10f", "tirx.log1p": "log1pf",
         "tirx.sqrt": "sqrtf", "tirx.rsqrt": "labkit_rsqrtf", "tirx.sigmoid": "labkit_sigmoidf",
         "tirx.tanh": "tanhf", "tirx.sinh": "sinhf", "tirx.cosh": "coshf", "tirx.sin": "sinf",
         "tirx.cos": "cosf", "tirx.tan": "tanf", "tirx.asin": "asinf", "tirx.acos": "acosf",
         "tirx.atan": "atanf", "tirx.atan2": "atan2f", "tirx.erf": "erff", "tirx.fabs": "fabsf",
         "tirx.floor": "floorf", "tirx.ceil": "ceilf", "tirx.trunc": "truncf",
         "tirx.round": "roundf", "tirx.nearbyint": "nearbyintf", "tirx.pow": "powf",
         "tirx.fmod": "fmodf", "tirx.copysign": "copysignf", "tirx.hypot": "hypotf",
         "tl.__exp": "expf", "tl.__exp10": "exp10f", "tl.__log": "logf", "tl.__log2": "log2f",
         "tl.__log10": "log10f", "tl.__sin": "sinf", "tl.__cos": "cosf", "tl.__tan": "tanf",
         "tl.fast_rcp": "labkit_rcpf", "tl.ieee_frcp": "labkit_rcpf", "tl.ieee_fsqrt": "sqrtf",
         "tl.ieee_frsqrt": "labkit_rsqrtf", "tl.fma": "fmaf", "tl.max_nan": "labkit_max_nanf",
         "tl.min_nan": "labkit_min_nanf"}


class _Graph:
    """A serialised program: a list of nodes that refer to each other by index."""

    def __init__(self, func: Any) -> None:
        from tilelang import tvm

        self.data = json.loads(tvm.ir.save_json(func))
        self.nodes: list[dict] = self.data["nodes"]

    def load(self) -> Any:
        from tilelang import tvm

        return tvm.ir.load_json(json.dumps(self.data))

    def add(self, type_: str, data: Any) -> int:
        self.nodes.append({"type": type_, "data": data})
        return len(self.nodes) - 1

    def of_type(self, *types: str) -> Iterator[dict]:
        return (node for node in list(self.nodes) if node["type"] in types)

    def text(self, index: int) -> str:
        return self.nodes[index]["data"]

    def operator(self, call: dict) -> str:
        op = self.nodes[call["data"]["op"]]
        return op["data"] if op["type"] == "ir.Op" else ""

    def children(self, node: dict) -> Iterator[int]:
        data = node.get("data")
        if node["type"] in ("ffi.Array", "ffi.Map"):
            yield from data
        elif isinstance(data, dict):
            for field, value in data.items():
                literal = field in _LITERAL or (field == "value" and node["type"] in (
                    "ir.IntImm", "ir.FloatImm"))
                if isinstance(value, int) and not isinstance(value, bool) and not literal:
                    yield value

    def walk(self) -> Iterator[tuple[int, tuple[str, int] | None]]:
        """Every reachable node with the source place (file, line) of the statement around it."""
        seen: set[int] = set()
        stack = [(self.data["root_index"], None)]
        while stack:
            index, place = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            node = self.nodes[index]
            if isinstance(node.get("data"), dict) and "span" in node["data"]:
                span = self.nodes[node["data"]["span"]]
                if span["type"] == "ir.Span":
                    place = (self.text(span["data"]["source_name"]), span["data"]["line"])
            yield index, place
            stack.extend((child, place) for child in self.children(node))


def where(place: tuple[str, int] | None) -> str:
    """' in line N: `source line`', as far as it is known."""
    if place is None:
        return ""
    line = linecache.getline(*place).strip()
    return f" in line {place[1]}" + (f" (`{line}`)" if line else "")


def for_cpu(func: Any) -> tuple[Any, str]:
    """The program for TileLang's `c` target, and the 16-bit format its `half` stands for.

    func: a traced `tirx.PrimFunc`. Returns (PrimFunc, "float16" | "bfloat16").
    Raises NotOnCPU, naming the construct and its line, for what one thread a block cannot do.
    """
    graph = _Graph(func)
    places = dict(graph.walk())
    half = _use_one_half_type(graph, places)
    for node in graph.of_type("ir.PointerType"):
        if graph.text(node["data"]["storage_scope"]) in _SCOPES:
            node["data"]["storage_scope"] = graph.add("ffi.String", "local")
    for node in graph.of_type("tirx.For"):
        if node["data"]["kind"] in (_PARALLEL, _VECTORIZED):
            node["data"]["kind"] = _SERIAL
    _drop_layouts(graph)
    _replace_calls(graph, places)
    _replace_thread_tests(graph, places)
    return graph.load(), half


def _use_one_half_type(graph: _Graph, places: dict) -> str:
    used: dict[str, Any] = {}
    for index, place in places.items():
        data = graph.nodes[index].get("data")
        dtype = data.get("dtype") if isinstance(data, dict) else None
        if isinstance(dtype, str):
            used.setdefault(dtype, place)
    for dtype, place in used.items():
        if "float8" in dtype or "float4" in dtype or "float6" in dtype:
            raise NotOnCPU(f"The CPU run has no {dtype}{where(place)}; use float16, bfloat16 or "
                           "float32 there, or run on a GPU.")
    if "bfloat16" not in used:
        return "float16"
    if "float16" in used:
        raise NotOnCPU("The CPU run takes float16 or bfloat16, not both in one program; bfloat16 "
                       f"is used{where(used['bfloat16'])} and float16{where(used['float16'])}.")
    for node in graph.nodes:
        if isinstance(node.get("data"), dict) and node["data"].get("dtype") == "bfloat16":
            node["data"]["dtype"] = "float16"
    return "bfloat16"


def _drop_layouts(graph: _Graph) -> None:
    """`T.annotate_layout` places elements among threads and banks; a local array has neither."""
    for block in graph.of_type("tirx.SBlock"):
        pairs = graph.nodes[block["data"]["annotations"]]["data"]
        kept = [item for key, value in zip(pairs[::2], pairs[1::2], strict=True)
                for item in (key, value) if graph.text(key) != "layout_map"]
        block["data"]["annotations"] = graph.add("ffi.Map", kept)


def _replace_calls(graph: _Graph, places: dict) -> None:
    none = next(i for i, node in enumerate(graph.nodes) if node["type"] == "None")
    pure_extern = graph.add("ir.Op", "tirx.call_pure_extern")

    def cast(dtype: str, value: int) -> dict:
        return {"type": "tirx.Cast", "data": {"span": none, "dtype": dtype, "value": value,
                                              "annotations": graph.add("ffi.Map", [])}}

    for index, place in places.items():
        node = graph.nodes[index]
        if node["type"] != "tirx.Call":
            continue
        name, data = graph.operator(node), node["data"]
        if name in _VANISH:
            graph.nodes[index] = {"type": "ir.IntImm",
                                  "data": {"span": none, "dtype": "int32", "value": 0}}
        elif name in _MATH and data["dtype"] in ("float32", "float16"):
            arguments = [graph.add(*cast("float32", argument).values())
                         for argument in graph.nodes[data["args"]]["data"]]
            text = graph.add("ffi.String", _MATH[name])
            callee = graph.add("tirx.StringImm", {"span": none, "dtype": "handle", "value": text})
            call = {"span": data["span"], "dtype": "float32", "op": pure_extern,
                    "args": graph.add("ffi.Array", [callee, *arguments]),
                    "annotations": data["annotations"]}
            graph.nodes[index] = cast(data["dtype"], graph.add("tirx.Call", call))
        elif (name.startswith("tl.") and name not in _SAME) or name.startswith("tirx.ptx"):
            construct = name.removeprefix("tl.tileop.").removeprefix("tl.").removeprefix("tirx.")
            raise NotOnCPU(f"`{construct}`{where(place)} works on GPU threads or hardware that a "
                           "CPU does not have; the CPU run cannot execute it. Use tile operators "
                           "(T.copy, T.gemm, T.reduce_*, T.Parallel), or run on a GPU.")


def _replace_thread_tests(graph: _Graph, places: dict) -> None:
    """`tx == 0` becomes true; any other use of a thread index is refused."""
    threads = {node["data"]["var"] for node in graph.of_type("tirx.Bind")
               if graph.nodes[node["data"]["value"]]["type"] == "tirx.Call"
               and graph.operator(graph.nodes[node["data"]["value"]]) == "tl.launch_thread_idx"}
    for node in graph.of_type("tirx.EQ"):
        a, b = node["data"]["a"], node["data"]["b"]
        if (a in threads and graph.nodes[b]["type"] == "ir.IntImm") or (
                b in threads and graph.nodes[a]["type"] == "ir.IntImm"):
            span = node["data"]["span"]
            node["type"] = "ir.IntImm"
            node["data"] = {"span": span, "dtype": "bool", "value": 1}
    for index, place in places.items():
        node = graph.nodes[index]
        if node["type"] != "tirx.Bind" and threads.intersection(graph.children(node)):
            raise NotOnCPU(f"A thread index is used{where(place)}; the CPU run has one thread a "
                           "block. Write the loop over elements with T.Parallel, or run on a GPU.")
