"""Which cells of a lesson a given cell needs.

A cell needs those before it that give a value to a name it reads, and what these need. The names
that a function reads count from where it is defined to where the given cell calls it. A cell that
changes a thing without naming it again, by a method's call, is not seen: then the lesson's check
fails, and the bench says so.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import LabError


@dataclass
class Names:
    """The names of one cell. reads: needed from cells before it; later: read by its functions when
    they are called; gives: bound by it; changes: things with an attribute or an element set by it;
    imports: modules and what comes from them."""

    reads: set[str] = field(default_factory=set)
    later: set[str] = field(default_factory=set)
    gives: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    imports: set[str] = field(default_factory=set)


def names(source: str) -> Names:
    """The names of a cell. Raises SyntaxError."""
    found = _Reader()
    for statement in ast.parse(source).body:
        found.visit(statement)
    return found.names


class _Reader(ast.NodeVisitor):
    """Walks a cell's statements in the order in which they run."""

    def __init__(self) -> None:
        self.names = Names()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.id not in self.names.gives:
                self.names.reads.add(node.id)
        else:
            self.names.gives.add(node.id)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._target(target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name) and node.target.id not in self.names.gives:
            self.names.reads.add(node.target.id)
        self._target(node.target)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._target(node.target)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._target(node.target)
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def _target(self, target: ast.expr) -> None:
        if isinstance(target, (ast.Attribute, ast.Subscript)):
            base: ast.expr = target
            while isinstance(base, (ast.Attribute, ast.Subscript)):
                base = base.value
            if isinstance(base, ast.Name):
                self.names.changes.add(base.id)
        self.visit(target)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            bound = alias.asname or alias.name.split(".")[0]
            self.names.gives.add(bound)
            self.names.imports.add(bound)

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in [*node.decorator_list, *node.args.defaults,
                        *(default for default in node.args.kw_defaults if default)]:
            self.visit(outside)
        self.names.gives.add(node.name)
        self.names.later |= _free(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.names.later |= _free(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.names.gives.add(node.name)
        self.names.later |= _free(node)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp
                       | ast.DictComp) -> None:
        self.names.reads |= _free(node) - self.names.gives

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension


def _free(node: ast.AST) -> set[str]:
    """The names that a function, class or comprehension reads and does not bind itself. One that
    an inner function binds counts as bound in the outer one, too."""
    read, bound = set(), set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name):
            (read if isinstance(one.ctx, ast.Load) else bound).add(one.id)
        elif isinstance(one, ast.arg):
            bound.add(one.arg)
        elif one is not node and isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            bound.add(one.name)
        elif isinstance(one, (ast.Import, ast.ImportFrom)):
            bound |= {a.asname or a.name.split(".")[0] for a in one.names}
        elif isinstance(one, ast.ExceptHandler) and one.name:
            bound.add(one.name)
    return read - bound


def needed(sources: Sequence[str], target: int, always: Iterable[int] = ()) -> list[int]:
    """The places of the cells that cell `target` needs, itself the last, in order.

    sources: the lesson's code cells. always: cells that are taken in any case.
    Raises SyntaxError, ValueError if `target` is none of them.
    """
    if not 0 <= target < len(sources):
        raise ValueError(f"there is no cell {target} among {len(sources)}")
    cells = [names(source) for source in sources[: target + 1]]
    modules = set().union(*(cell.imports for cell in cells))
    chosen = {place for place in always if place < target}
    while True:
        called = set().union(*(cells[place].later for place in {*chosen, target}))
        open_names = cells[target].reads | (called - cells[target].gives)
        taken = set()
        for place in reversed(range(target)):
            cell = cells[place]
            if not (place in chosen or cell.gives & open_names
                    or (cell.changes - modules) & open_names):
                continue
            taken.add(place)
            # later: a call on the way may need them as they were
            open_names = (open_names - cell.gives) | cell.reads | (cell.later - cell.gives)
        if taken <= chosen:
            return [*sorted(chosen), target]
        chosen |= taken


def cells_for(lesson: Any, target: str) -> list[Any]:
    """The cells of a `lessons.Lesson` that the one with the id `target` needs, itself the last; the
    setup and the parameters are always among them, exercises never. Raises LabError."""
    cells = [cell for cell in lesson.notebook.cells if cell.cell_type == "code"
             and "exercise" not in cell.metadata.get("tags", [])]
    try:
        place = [cell.id for cell in cells].index(target)
        chosen = needed([cell.source for cell in cells], place, [
            i for i, cell in enumerate(cells)
            if {"setup", "parameters"} & set(cell.metadata.get("tags", []))])
    except (ValueError, SyntaxError) as error:
        raise LabError(f"The cells that {target} of {lesson.stem} needs cannot be told "
                       f"({error}); correct the lesson.") from error
    return [cells[i] for i in chosen]
