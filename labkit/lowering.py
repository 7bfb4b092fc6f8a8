"""A TileLang program -> what the compiler makes of it, pass by pass.

Lowering is the compiler's way from a program to CUDA: some eighty passes, each of which rewrites
the program a little. `lower` keeps the program's text before and after each of them and the
layouts that were inferred. It needs no GPU. A program that does not compile is followed up to the
pass that rejects it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.diagnose import failed, reason
from labkit.errors import BadArgument
from labkit.gpus import Gpu, sheet_of
from labkit.table import Table


@dataclass(frozen=True)
class Pass:
    """One step of the compiler: the program's text before and after it."""

    name: str
    before: str = field(repr=False)
    after: str = field(repr=False)

    @property
    def changed(self) -> bool:
        return self.before != self.after

    @property
    def counts(self) -> tuple[int, int]:
        """Lines added, lines removed."""
        lines = self._lines(0)
        return (sum(line.startswith("+") for line in lines),
                sum(line.startswith("-") for line in lines))

    def diff(self, *having: str, context: int = 0, width: int = 110) -> str:
        """The changed lines, "+" or "-" in front; of several words in `having`, only lines that
        hold one of them. context: unchanged lines around a change. width: of a line, in
        characters; what is longer is cut."""
        lines = [line for line in self._lines(context)
                 if not having or any(word in line for word in having)]
        return "\n".join(line if len(line) <= width else line[:width - 2] + " …" for line in lines)

    def _lines(self, context: int) -> list[str]:
        compared = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(),
                                        lineterm="", n=context)
        return [line for line in list(compared)[2:] if not line.startswith("@@")]


@dataclass(frozen=True)
class Lowering:
    """The passes that a program went through for one GPU, in order.

    layouts: name of a tile -> the layout that the compiler chose for it, for
    `pictures.fragment`. error: the compiler's message where it rejected the program, else "";
    the pass that rejected it is then the last one.
    """

    name: str
    gpu: Gpu
    passes: tuple[Pass, ...]
    layouts: dict[str, Any]
    error: str = ""

    def find(self, name: str) -> Pass:
        """The first pass of this name that changed the program, or else the first of the name."""
        same = [step for step in self.passes if step.name == name]
        if not same:
            raise BadArgument(f"No pass is called {name!r}; the passes are: "
                              f"{', '.join(dict.fromkeys(step.name for step in self.passes))}.")
        return next((step for step in same if step.changed), same[0])

    def table(self, at_least: int = 1) -> Table:
        """The passes that changed at least so many lines."""
        rows = []
        for number, step in enumerate(self.passes, 1):
            added, removed = step.counts
            if added + removed >= at_least:
                rows.append([number, step.name, added, removed])
        if self.error:
            rows.append([len(self.passes), self.passes[-1].name, "", "rejected it"])
        return Table(f"{self.name} for {self.gpu.name} ({self.gpu.arch}): {len(self.passes)} "
                     f"passes, {sum(step.changed for step in self.passes)} of which changed it",
                     [">number", "pass", ">lines added", ">lines removed"], rows, self.error)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def lower(program: Any, gpu: str | Gpu, pass_configs: dict[str, Any] | None = None) -> Lowering:
    """Lowers `program`, a `@T.prim_func`, for `gpu`, and keeps what each pass did.

    Nothing is taken from a cache, so each call runs every pass. Raises BadArgument for an unknown
    GPU or another kind of object, CompileFailed if lowering ends before its first pass.
    """
    import tilelang
    from tilelang import tvm
    from tilelang.language.eager import PrimFunc

    from labkit.crosscompile import plain_options

    sheet = sheet_of(gpu)
    if not isinstance(program, PrimFunc):
        raise BadArgument(f"lower takes a @T.prim_func, not {type(program).__name__}; call its "
                          f"builder with sizes first, as in lower(gemm(M, N, K), {sheet.name!r}).")
    name = str(program.attrs["global_symbol"])
    options = json.loads(plain_options(pass_configs))
    watch, error = _watch(), ""
    target = tvm.target.Target({"kind": "cuda", "arch": sheet.arch})
    try:
        with tvm.transform.PassContext(opt_level=3, config=options,
                                       instruments=[watch]), target:
            tilelang.lower(program, target=target)
    except Exception as raised:
        error = reason(raised)
        if not watch.open and not watch.passes:
            raise failed(f"TileLang could not lower {name!r} for {sheet.arch}",
                         raised) from raised
    passes = [*watch.passes, *(Pass(step, before, before) for step, before in watch.open[-1:])]
    return Lowering(name, sheet, tuple(passes), watch.layouts, error)


def _watch() -> Any:
    """An instrument for TileLang's passes, with what it saw: `passes`, `layouts`, and `open`,
    the passes that began and did not end."""
    from tilelang import tvm

    @tvm.ir.instrument.pass_instrument
    class Watch:
        def __init__(self) -> None:
            self.passes: list[Pass] = []
            self.layouts: dict[str, Any] = {}
            self.open: list[tuple[str, str]] = []

        def run_before_pass(self, module: Any, info: Any) -> None:
            self.open.append((str(info.name).rsplit(".", 1)[-1], module.script()))

        def run_after_pass(self, module: Any, info: Any) -> None:
            name, before = self.open.pop()
            self.passes.append(Pass(name, before, module.script()))
            self.layouts.update(_layouts(module))

    return Watch()


def _layouts(module: Any) -> Iterator[tuple[str, Any]]:
    from tvm import tirx

    found: list[tuple[str, Any]] = []

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock) and "layout_map" in node.annotations:
            found.extend((str(buffer), layout)
                         for buffer, layout in node.annotations["layout_map"].items())

    for function in module.functions.values():
        if isinstance(function, tirx.PrimFunc):
            tirx.stmt_functor.post_order_visit(function.body, visit)
    return iter(found)


def owners(layout: Any, *index: int) -> list[tuple[int, int]]:
    """(thread, register) of each thread that holds element `index` of a fragment.

    layout: a `Fragment` of `Lowering.layouts`. More than one thread: they hold copies.
    """
    from tilelang.layout import Fragment

    if not isinstance(layout, Fragment):
        raise BadArgument(f"{type(layout).__name__} is no layout of a fragment, which threads hold "
                          "in registers; take one that lower(...).layouts lists as Fragment.")
    shape = [int(extent) for extent in layout.get_input_shape()]
    if len(index) != len(shape) or any(
            not 0 <= place < extent for place, extent in zip(index, shape, strict=False)):
        raise BadArgument(f"Index {list(index)} lies outside the fragment of {shape}; "
                          "give one inside.")
    copies = int(layout.replicate_size)
    found = []
    for copy in range(copies):
        place = list(index)
        threads = layout.map_forward_thread([copy, *place] if copies > 1 else place)
        registers = layout.map_forward_index([copy, *place] if copies > 1 else place)
        found.append((int(threads[0]), _flat(registers, layout.get_output_shape())))
    return found


def _flat(index: Any, shape: Any) -> int:
    flat = 0
    for place, extent in zip(index, shape, strict=True):
        flat = flat * int(extent) + int(place)
    return flat
