"""Which cell of which lesson measures a name.

Of three kinds of cells, those of the first kind that there is are taken:

* sure: the cell calls `lab.bench("name", …)` or `lab.bench_shapes("name", …)`, or a function of the
  lesson that passes its first argument on to one of them;
* it calls `labkit.epilogue.compare`, and it or a cell that it needs holds the name as a text;
* it holds the name, one of `NAMES`, as an argument of another call or in a loop's list.

Cells that are not sure are tried one after the other until one has measured the name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from labkit import lessons
from labkit.benching import slicing

# the names that a results file has at least (labkit.results)
NAMES = ("vector_add", "gemm", "gemm_fp8", "gemm_bias_gelu", "softmax", "flash_attention",
         "flash_attention_causal", "flash_attention_ahead", "flash_attention_ahead_causal",
         "gemm_swiglu", "gemm_swiglu_forward", "gemm_dswiglu",
         "gemm_drms", "gemm_residual_rms", "gemm_rms_rope", "gemm_cross_entropy",
         "transformer_block", "cudnn_conv_bias_relu", "cudnn_matmul_amax", "cudnn_sdpa")
_TIMES = {"bench", "bench_shapes"}
_COMPARES = {"run", "measure"}  # of labkit.epilogue.compare
_KEEPS = {("lab", "measured_table"): "table", ("lab", "sweep"): "sweep", ("lab", "tune"): "sweep",
          ("cudnn_plans", "measure"): "plans", ("shares", "share_table"): "table",
          ("spent", "of_each"): "table"}  # what keeps its figures in a file of its own
_ONLY_READS = {"check", "compare", "kernel", "find", "recorded", "recorded_table", "sweep", "tune",
               "recorded_plans", "recorded_sweep", "print", "support", "against", "measured_table"}


@dataclass(frozen=True)
class Place:
    """A cell, by its lesson's stem and its id; sure: whether it certainly measures the name."""

    lesson: str
    cell: str
    sure: bool


def find(chosen: Sequence[lessons.Lesson] | None = None) -> dict[str, list[Place]]:
    """Every name that a lesson measures, of `chosen` or of all, -> the cells that do, in the order
    of the lessons. Names of `NAMES` come first. Raises LabError for a lesson that cannot be read.
    """
    ranked: dict[str, dict[Place, int]] = {}
    for lesson in lessons.all_lessons() if chosen is None else chosen:
        cells = {cell.id: tree for cell in lesson.notebook.cells if cell.cell_type == "code"
                 and "exercise" not in cell.metadata.get("tags", [])
                 and (tree := _parsed(cell.source)) is not None}
        passing = {name for tree in cells.values() for name in _passing(tree)}
        for identity, tree in cells.items():
            names = [(name, 0) for name in _mentioned(tree)]
            names += [(name, 2) for name in _timed(tree, passing)]
            if _compares(tree):
                names += [(name, 1) for cell in slicing.cells_for(lesson, identity)
                          for name in _texts(cells[cell.id])]
            for name, rank in names:
                place = Place(lesson.stem, identity, rank == 2)
                ranked.setdefault(name, {}).setdefault(place, rank)
    found = {}
    for name, ranks in ranked.items():
        best = max(ranks.values())
        found[name] = [place for place, rank in ranks.items() if rank == best]
    order = [name for name in NAMES if name in found]
    return {name: found[name] for name in [*order, *(n for n in found if n not in NAMES)]}


def find_files() -> dict[str, tuple[str, Place]]:
    """What the lessons record in files of their own, name -> (kind, cell): a "table" of
    `lab.measured_table` or what calls it, "plans" of `cudnn_plans.measure`, a "sweep" of
    `lab.sweep` or `lab.tune`. What stands in a function or under an `if` is not counted."""
    found: dict[str, tuple[str, Place]] = {}
    for lesson in lessons.all_lessons():
        for cell in lesson.notebook.cells:
            tree = _parsed(cell.source) if cell.cell_type == "code" else None
            for statement in tree.body if tree else []:
                if isinstance(statement, (ast.Assign, ast.Expr)):
                    for kind, name in _kept(statement):
                        found.setdefault(name, (kind, Place(lesson.stem, cell.id, True)))
    return found


def _kept(statement: ast.stmt) -> Iterator[tuple[str, str]]:
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call):
            continue
        function, arguments = call.func, call.args
        if _called(call) == "partial" and arguments:
            function, arguments = arguments[0], arguments[1:]
        if not (isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name)):
            continue
        kind = _KEEPS.get((function.value.id, function.attr))
        if kind and arguments and isinstance(arguments[0], ast.Constant):
            yield kind, str(arguments[0].value)


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:  # a cell with a magic measures nothing
        return None


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _passing(tree: ast.Module) -> Iterator[str]:
    """The functions whose first argument goes on to `bench` as its first."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.args.args:
            first = node.args.args[0].arg
            if any(isinstance(call, ast.Call) and _called(call) in _TIMES and call.args
                   and isinstance(call.args[0], ast.Name) and call.args[0].id == first
                   for call in ast.walk(node)):
                yield node.name


def _timed(tree: ast.Module, passing: set[str]) -> Iterator[str]:
    """What the cell certainly measures."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _called(call) in _TIMES | passing and call.args:
            first = call.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value.split(",")[0]


def _compares(tree: ast.Module) -> bool:
    """Whether the cell calls `labkit.epilogue.compare`."""
    return any(isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
               and node.value.id == "compare" and node.attr in _COMPARES for node in ast.walk(tree))


def _mentioned(tree: ast.Module) -> Iterator[str]:
    """Names of `NAMES` that are arguments of calls which may measure, or that a loop goes over."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) not in _ONLY_READS:
            yield from (_base(argument.value) for argument in node.args
                        if isinstance(argument, ast.Constant) and _base(argument.value) in NAMES)
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield from _texts(node.iter)


def _texts(tree: ast.AST) -> Iterator[str]:
    """The texts in it that are names of `NAMES`, up to a comma."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and _base(one.value) in NAMES:
            yield _base(one.value)


def _base(value: Any) -> str:
    return value.split(",")[0] if isinstance(value, str) else ""
