"""Patterns in a kernel's Python source that leave no trace in the program made from it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from labkit import parsing
from labkit.diagnose.place import Place


def search(program: Any) -> Iterator[tuple]:
    """A parameter that is assigned to, and a constant assigned in an if (tile-ai/tilelang#2977).
    Nothing where the source is not to be found."""
    function = getattr(program, "orig_func", None)
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function) or function.__code__.co_filename
        with parsing.LOCK:
            tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    body = tree.body[0]
    if not isinstance(body, ast.FunctionDef):
        return

    def place(node: ast.AST) -> Place:
        return Place(file, first + node.lineno - 1)

    parameters = {argument.arg for argument in body.args.args}
    mutable = {target.id for node in ast.walk(body) if isinstance(node, ast.Assign)
               for target in node.targets
               if isinstance(target, ast.Name) and "alloc_" in ast.unparse(node.value)}
    for node in ast.walk(body):
        for target in _targets(node):
            if target in parameters:
                yield ("parameter", f"`{target} = ...` gives the name {target} to something else; "
                       f"the tensor stays as it was. Write {target}[i, j] = ..., or T.copy(tile, "
                       f"{target}).", place(node))
    for branch, names in _branches(body):
        for node in (*branch.body, *branch.orelse):
            if not isinstance(node, ast.Assign) or not isinstance(
                    _bare(node.value), ast.Constant):
                continue
            for target in _targets(node):
                if target in mutable or target in parameters:
                    continue
                if target in names or _elsewhere(branch, node, target):
                    yield ("constant-in-branch", f"`{ast.unparse(node)}` in an if is done whatever "
                           f"the condition is: a name in a kernel is no variable. Write {target} = "
                           f"T.if_then_else(condition, a, b), or make it with T.alloc_var.",
                           place(node), "tile-ai/tilelang#2977")


def _targets(node: ast.AST) -> list[str]:
    return [target.id for target in node.targets
            if isinstance(target, ast.Name)] if isinstance(node, ast.Assign) else []


def _bare(value: ast.AST) -> ast.AST:
    return value.operand if isinstance(value, ast.UnaryOp) else value


def _elsewhere(branch: ast.If, node: ast.AST, name: str) -> bool:
    """Whether the other branch gives the name a value too."""
    return any(name in _targets(other) for other in (*branch.body, *branch.orelse)
               if other is not node)


def _branches(body: ast.FunctionDef) -> Iterator[tuple[ast.If, set[str]]]:
    """Each if whose condition depends on the kernel's own values (not on Python's alone), with the
    names that have a value before it."""
    own = {argument.arg for argument in body.args.args}
    for node in ast.walk(body):
        if isinstance(node, (ast.For, ast.withitem)):
            target = node.target if isinstance(node, ast.For) else node.optional_vars
            own |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)
                    } if target is not None else set()
    for node in ast.walk(body):
        if isinstance(node, ast.Assign) and own & {
                name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}:
            own |= set(_targets(node))
    for node in ast.walk(body):
        if isinstance(node, ast.If) and own & {
                name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}:
            before = {name for other in ast.walk(body) if getattr(other, "lineno", 0) < node.lineno
                      for name in _targets(other)}
            yield node, before
