"""What an exercise is, where its data lies, and whether an answer was attempted.

Each lesson has one data file, `lesson_NN.py`, whose `EXERCISES` lists its exercises in order. The
statement stands in the lesson, in the markdown cell that `statement` names; the stub stands in the
code cell after it, where the learner edits it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from labkit import lessons
from labkit.errors import BadArgument
from labkit.pictures import Picture


@dataclass(frozen=True)
class Outcome:
    """What a check found. lines: sentences for the learner. picture: where the errors lie."""

    ok: bool
    lines: tuple[str, ...]
    picture: Picture | None = None


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    key: lesson and number, as in "02.1". statement: id of the markdown cell that states it.
    answer: the name that the stub defines and the check takes. stub, solution: source text.
    hints: from vague to concrete. judge: answer -> Outcome; must not raise for what a learner
    may write.
    """

    key: str
    title: str
    statement: str
    answer: str
    stub: str = field(repr=False)
    solution: str = field(repr=False)
    hints: tuple[str, str, str] = field(repr=False)
    judge: Callable[[Any], Outcome] = field(repr=False)

    @property
    def lesson(self) -> str:
        return self.key[:2]

    @property
    def heading(self) -> str:
        return f"{self.key} · {self.title}"

    def cell(self, text: str) -> str:
        """The source of the exercise's code cell with `text`, the stub or the solution, in it."""
        return f'{text.strip()}\n\n\nlab.check("{self.key}", {self.answer})'

    def attempted(self, answer: Any) -> bool:
        """Whether `answer` is something else than the stub."""
        if callable(answer):
            untouched = _tree_of(self.stub, self.answer)
            return untouched is None or tree(answer) != untouched
        return not _unfilled(answer)

    def is_solution(self, answer: Any) -> bool:
        """Whether `answer` is the kit's own solution word for word, with its comments, as in the
        edition with solutions. The same statements in a learner's own words are the learner's."""
        own = self.solution.strip()
        return own in _running_cell() or own == _text_of(answer)


def _running_cell() -> str:
    """The text of the notebook cell that runs; empty outside of IPython."""
    try:
        from IPython import get_ipython
    except ImportError:
        return ""
    shell = get_ipython()
    return (shell.user_ns.get("In") or [""])[-1] if shell else ""


def _text_of(function: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError):
        return ""


def tree(function: Any) -> str | None:
    """The parsed source of a function, without comments and spacing; None if there is none."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        return ast.dump(ast.parse(source).body[0])
    except (OSError, TypeError, SyntaxError, IndexError):
        return None


def left_open(function: Any) -> tuple[int, str] | None:
    """(line in its cell, text) of a `...` that still stands in a function's body as a statement."""
    try:
        lines, first = inspect.getsourcelines(function)
        body = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    for node in ast.walk(body):
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                and node.value.value is Ellipsis):
            return max(first, 1) + node.lineno - 1, lines[node.lineno - 1].strip()
    return None


def _tree_of(source: str, name: str) -> str | None:
    """The definition of `name` in `source`, as `tree` gives it."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.dump(node)
    return None


def _unfilled(answer: Any) -> bool:
    """Whether `...` stands in an answer that is a value, at any depth."""
    if isinstance(answer, dict):
        return any(_unfilled(value) for value in answer.values())
    if isinstance(answer, (list, tuple, set)):
        return any(_unfilled(value) for value in answer)
    return answer is Ellipsis or answer is None


@functools.cache
def all_exercises() -> tuple[Exercise, ...]:
    """Every exercise of every lesson, in order."""
    import labkit.exercises as package

    names = sorted(m.name for m in pkgutil.iter_modules(package.__path__)
                   if m.name.startswith("lesson_"))
    return tuple(exercise for name in names
                 for exercise in import_module(f"labkit.exercises.{name}").EXERCISES)


def find(key: str) -> Exercise:
    """The exercise called `key`, "02.1" or "2.1". Raises BadArgument."""
    found = re.fullmatch(r"(\d{1,2})\.(\d+)", key.strip())
    wanted = f"{int(found[1]):02}.{int(found[2])}" if found else key
    for exercise in all_exercises():
        if exercise.key == wanted:
            return exercise
    same = [e.key for e in all_exercises() if found and e.lesson == wanted[:2]]
    known = f"lesson {wanted[:2]} has {', '.join(same)}" if same else (
        'give the lesson and the number, as in "02.1"')
    raise BadArgument(f"There is no exercise {key!r}; {known}.")


@functools.cache
def namespace(lesson: str) -> dict[str, Any]:
    """The names that an answer may use: torch, `lab`, TileLang's `T`, and what the lesson's kernel
    cells define."""
    import tilelang.language as T
    import torch

    import labkit

    space = lessons.namespace(lesson)
    return {**space, "T": T, "torch": torch, "lab": labkit}


def load(exercise: Exercise, source: str, name: str = "answer") -> Any:
    """The object that `source`, a text such as the stub or the solution, defines as the answer."""
    space = dict(namespace(exercise.lesson))
    lessons.execute(source, f"<{exercise.key} {name}>", space)
    return space[exercise.answer]
