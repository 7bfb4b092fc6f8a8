"""Rewrites a traced TileLang program so that TileLang's C backend can run it on the CPU.

The learner's source is not touched, and neither is `tilelang.language`: the edits are made on
the traced program's own serialised form, which keeps every shared reference intact. One CPU
thread then does the work of a whole thread block, tile by tile:

* shared memory and fragments become plain local arrays;
* `T.Parallel` and `T.vectorized` loops become serial ones;
* barriers inside a block vanish, and `if tx == 0` holds, since there is one thread;
* a schedule of warps (`T.annotate_ws_schedule`) is dropped, and a product that a GPU would start
  and wait for later (`T.wgmma_gemm`, `T.wait_wgmma`) is done at once;
* elementary functions are called from the C library, 16-bit ones in float32;
* every tensor and tile is called t_name and every other variable v_name, so that no name of the
  program meets one of C++'s;
* tiles are filled with NaN when a block starts (`labkit_new_block`), and asserts can fail;
* bfloat16 takes the name float16, and `cpu_runtime.h` gives that name bfloat16's arithmetic,
  so each value is rounded where the program rounds it.

So the CPU run checks the algorithm (indices, masks, accumulation), not layouts, races or speed.
"""

from __future__ import annotations

import json
import linecache
import math
import re
import struct
from collections.abc import Iterator
from functools import cached_property
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
         "tl.atomic_load_elem_op", "tl.atomic_store_elem_op"}
_ASSERTS = {"tl.device_assert", "tl.device_assert_with_msg"}
_MISSING = {"tirx.popcount", "tirx.clz", "tirx.dp4a"}
# ... and those that say nothing to a single thread
_VANISH = {"tirx.tvm_storage_sync", "tl.sync_warp", "tl.set_max_nreg", "tl.no_set_max_nreg",
           "tl.annotate_producer_reg_dealloc", "tl.annotate_consumer_reg_alloc",
           "tl.tma_store_arrive", "tl.tma_store_wait", "tl.wait_wgmma"}
# operator -> function of the C library in float32
_MATH = {"tirx.exp": "expf", "tirx.exp2": "exp2f", "tirx.exp10": "exp10f", "tirx.log": "logf",
         "tirx.log2": "log2f", "tirx.log10": "log10f", "tirx.log1p": "log1pf",
         "tirx.sqrt": "sqrtf", "tirx.rsqrt": "labkit_rsqrtf", "tirx.sigmoid": "labkit_sigmoidf",
         "tirx.tanh": "tanhf", "tirx.sinh": "sinhf", "tirx.cosh": "coshf", "tirx.sin": "sinf",
         "tirx.cos": "cosf", "tirx.tan": "tanf", "tirx.asin": "asinf", "tirx.acos": "acosf",
         "tirx.atan": "atanf", "tirx.atan2": "atan2f", "tirx.erf": "erff", "tirx.fabs": "fabsf",
         "tirx.floor": "floorf", "tirx.ceil": "ceilf", "tirx.trunc": "truncf",
         "tirx.round": "nearbyintf", "tirx.nearbyint": "nearbyintf", "tirx.pow": "powf",
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

    @cached_property
    def none(self) -> int:
        return next(i for i, node in enumerate(self.nodes) if node["type"] == "None")

    def string(self, text: str) -> int:
        return self.add("tirx.StringImm", {"span": self.none, "dtype": "handle",
                                           "value": self.add("ffi.String", text)})

    def integer(self, dtype: str, value: int) -> int:
        return self.add("ir.IntImm", {"span": self.none, "dtype": dtype, "value": value})

    def cast(self, dtype: str, value: int) -> int:
        return self.add("tirx.Cast", {"span": self.none, "dtype": dtype, "value": value,
                                      "annotations": self.add("ffi.Map", [])})

    def call(self, op: str, dtype: str, arguments: list[int]) -> int:
        return self.add("tirx.Call", {
            "span": self.none, "dtype": dtype, "op": self.add("ir.Op", op),
            "args": self.add("ffi.Array", arguments), "annotations": self.add("ffi.Map", [])})

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
    _drop_placing(graph)
    places = dict(graph.walk())
    half = _use_one_half_type(graph, places)
    for node in graph.of_type("ir.PointerType"):
        if graph.text(node["data"]["storage_scope"]) in _SCOPES:
            node["data"]["storage_scope"] = graph.add("ffi.String", "local")
    for node in graph.of_type("tirx.Var", "tirx.Buffer"):
        array = node["type"] == "tirx.Buffer" or graph.nodes[
            node["data"]["type_annotation"]]["type"] == "ir.PointerType"
        name = ("t_" if array else "v_") + graph.text(node["data"]["name"])
        node["data"]["name"] = graph.add("ffi.String", name)
    _refuse_per_thread_atomics(graph, places)
    for node in graph.of_type("tirx.For"):
        if node["data"]["kind"] in (_PARALLEL, _VECTORIZED):
            node["data"]["kind"] = _SERIAL
    _prepare_blocks(graph)
    _keep_constants_exact(graph)
    _replace_thread_tests(graph, places)
    _replace_calls(graph, places)
    return graph.load(), half


def _drop_placing(graph: _Graph) -> None:
    """Drops what says where and by whom: `T.annotate_layout`, which places elements among threads
    and banks that a local array does not have, and `T.annotate_ws_schedule` with the marks by which
    it names statements (`T.ws_op`). One thread does everything, in the order of the program."""
    for block in graph.of_type("tirx.SBlock"):
        pairs = graph.nodes[block["data"]["annotations"]]["data"]
        kept = [item for key, value in zip(pairs[::2], pairs[1::2], strict=True)
                for item in (key, value)
                if graph.text(key) not in ("layout_map", "tl.ws_schedule")]
        block["data"]["annotations"] = graph.add("ffi.Map", kept)
    for index, node in enumerate(list(graph.nodes)):
        if node["type"] == "tirx.AttrStmt" and graph.text(
                node["data"]["attr_key"]) == "tl.ws_op_id":
            graph.nodes[index] = graph.nodes[node["data"]["body"]]


def _use_one_half_type(graph: _Graph, places: dict) -> str:
    used: dict[str, Any] = {}
    for index, place in places.items():
        data = graph.nodes[index].get("data")
        dtype = data.get("dtype") if isinstance(data, dict) else None
        if isinstance(dtype, str):
            used.setdefault(dtype, place)
    for dtype, place in used.items():
        if dtype.startswith(("float8", "float4_", "float6_")):
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


def _prepare_blocks(graph: _Graph) -> None:
    """Begins each block's work with `labkit_new_block()`."""
    for block in graph.of_type("tirx.SBlock"):
        pairs = graph.nodes[block["data"]["annotations"]]["data"]
        if "tl.launch_threads" in [graph.text(key) for key in pairs[::2]]:
            start = graph.add("tirx.Evaluate", {
                "span": graph.none, "value": graph.call("tirx.call_extern", "int32",
                                                        [graph.string("labkit_new_block")])})
            block["data"]["body"] = graph.add("tirx.SeqStmt", {
                "span": graph.none, "seq": graph.add("ffi.Array", [start, block["data"]["body"]])})


def _keep_constants_exact(graph: _Graph) -> None:
    """The C backend prints constants with 7 digits. One that needs more is passed as its bits, and
    one beyond float16's range, in a bfloat16 program, as a float32."""
    for index, node in enumerate(list(graph.nodes)):
        if node["type"] != "ir.FloatImm":
            continue
        dtype, value = node["data"]["dtype"], float(node["data"]["value"])
        if not math.isfinite(value):
            continue
        printed = float(f"{value:.6e}")
        if dtype == "float32" and _float32(printed) != _float32(value):
            graph.nodes[index] = graph.nodes[_bits(graph, "float32", value)]
        elif dtype == "float64" and printed != value:
            graph.nodes[index] = graph.nodes[_bits(graph, "float64", value)]
        elif dtype == "float16" and abs(value) > 65504:
            wide = _bits(graph, "float32", value)
            graph.nodes[index] = graph.nodes[graph.cast("float16", wide)]


def _bits(graph: _Graph, dtype: str, value: float) -> int:
    """A call that makes the constant from its bits."""
    function, integer, code, bits = {"float32": ("labkit_float", "int32", "f", "i"),
                                     "float64": ("labkit_double", "int64", "d", "q")}[dtype]
    (number,) = struct.unpack(f"<{bits}", struct.pack(f"<{code}", value))
    return graph.call("tirx.call_pure_extern", dtype,
                      [graph.string(function), graph.integer(integer, number)])


def _float32(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _replace_calls(graph: _Graph, places: dict) -> None:
    for index, place in places.items():
        node = graph.nodes[index]
        if node["type"] != "tirx.Call":
            continue
        name, data = graph.operator(node), node["data"]
        arguments = graph.nodes[data["args"]]["data"]
        if name in _VANISH:
            graph.nodes[index] = graph.nodes[graph.integer("int32", 0)]
        elif name == "tl.tileop.tma_copy" and "barrier" not in map(
                graph.text, graph.nodes[data["annotations"]]["data"][::2]):
            # a store that is not waited for; a load names the barrier on which it is
            data["op"] = graph.add("ir.Op", "tl.tileop.copy")
        elif name in _MATH and data["dtype"] in ("float32", "float16"):
            called = graph.call("tirx.call_pure_extern", "float32", [
                graph.string(_MATH[name]), *(graph.cast("float32", a) for a in arguments)])
            graph.nodes[index] = graph.nodes[graph.cast(data["dtype"], called)]
        elif name in _ASSERTS:
            message = arguments[1:] or [graph.string("")]
            graph.nodes[index] = graph.nodes[graph.call("tirx.call_extern", "int32", [
                graph.string("labkit_assert"), arguments[0], *message])]
        elif name in ("tl.tileop.gemm", "tl.tileop.wgmma_gemm") and any(
                _axes(graph, a) != 2 for a in arguments[:3]):
            raise NotOnCPU(f"T.gemm takes matrices on the CPU run, and{where(place)} one of its "
                           "tiles has other than two axes; give it a tile of two, or run on a GPU.")
        elif name == "tl.tileop.wgmma_gemm":
            data["op"] = graph.add("ir.Op", "tl.tileop.gemm")
        elif name in _MISSING or name.startswith("tirx.ptx") or (
                name.startswith("tl.") and name not in _SAME):
            construct = name.removeprefix("tl.tileop.").removeprefix("tl.").removeprefix("tirx.")
            raise NotOnCPU(f"`{construct}`{where(place)} works on GPU threads or hardware that a "
                           "CPU does not have; the CPU run cannot execute it. Use tile operators "
                           "(T.copy, T.gemm, T.reduce_*, T.Parallel), or run on a GPU.")


def _axes(graph: _Graph, region: int) -> int:
    """How many axes the tile of a `tl.region` argument has."""
    load = graph.nodes[graph.nodes[graph.nodes[region]["data"]["args"]]["data"][0]]
    buffer = graph.nodes[load["data"]["buffer"]]
    return len(graph.nodes[buffer["data"]["shape"]]["data"])


def _thread_axes(graph: _Graph) -> dict[int, int]:
    """Variable -> number of threads, for each thread index of the program."""
    extents: list[int] = []
    for block in graph.of_type("tirx.SBlock"):
        pairs = graph.nodes[block["data"]["annotations"]]["data"]
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if graph.text(key) == "tl.launch_threads":
                extents = [graph.nodes[i]["data"].get("value", 1 << 30)
                           for i in graph.nodes[value]["data"]]
    threads = {}
    for bind in graph.of_type("tirx.Bind"):
        call = graph.nodes[bind["data"]["value"]]
        if call["type"] == "tirx.Call" and graph.operator(call) == "tl.launch_thread_idx":
            (axis,) = graph.nodes[call["data"]["args"]]["data"]
            axis = graph.nodes[axis]["data"]["value"]
            threads[bind["data"]["var"]] = extents[axis] if axis < len(extents) else 1
    return threads


def _thread_tests(graph: _Graph, condition: int, threads: dict[int, int]) -> Iterator[tuple]:
    """(node, holds for one of the block's threads) for each `tx == k` in a chain of `and`."""
    node = graph.nodes[condition]
    if node["type"] == "tirx.And":
        for side in ("a", "b"):
            yield from _thread_tests(graph, node["data"][side], threads)
    elif node["type"] == "tirx.EQ":
        for variable, constant in (("a", "b"), ("b", "a")):
            number = graph.nodes[node["data"][constant]]
            if node["data"][variable] in threads and number["type"] == "ir.IntImm":
                yield condition, number["data"]["value"] < threads[node["data"][variable]]


def _replace_thread_tests(graph: _Graph, places: dict) -> None:
    """`if tx == k:` without an else is done once, as on the GPU; any other use of a thread index is
    refused."""
    threads = _thread_axes(graph)
    for branch in graph.of_type("tirx.IfThenElse"):
        if graph.nodes[branch["data"]["else_case"]]["type"] == "None":
            for test, holds in list(_thread_tests(graph, branch["data"]["condition"], threads)):
                graph.nodes[test] = graph.nodes[graph.integer("bool", int(holds))]
    for index, place in places.items():
        node = graph.nodes[index]
        if node["type"] != "tirx.Bind" and set(threads).intersection(graph.children(node)):
            raise NotOnCPU(f"A thread index is used{where(place)}; the CPU run has one thread a "
                           "block. Write the loop over elements with T.Parallel, or run on a GPU.")


def _refuse_per_thread_atomics(graph: _Graph, places: dict) -> None:
    """An atomic on one element outside `T.Parallel` is done by every thread of the block."""
    threads = _thread_axes(graph)
    stack, seen = [(graph.data["root_index"], False)], set()
    while stack:
        index, single = stack.pop()
        if (index, single) in seen:
            continue
        seen.add((index, single))
        node = graph.nodes[index]
        if node["type"] == "tirx.For" and node["data"]["kind"] == _PARALLEL:
            single = True
        elif node["type"] == "tirx.IfThenElse":
            single |= any(True for _ in _thread_tests(graph, node["data"]["condition"], threads))
        elif node["type"] == "tirx.Call" and not single and re.fullmatch(
                r"tl\.atomic_(add|max|min).*_elem_op", graph.operator(node)):
            raise NotOnCPU(f"An atomic{where(places.get(index))} stands outside T.Parallel, so a "
                           "GPU does it once for each thread of the block; the CPU run cannot. "
                           "Put it into `for i in T.Parallel(1):` to have it done once.")
        stack.extend((child, single) for child in graph.children(node))
