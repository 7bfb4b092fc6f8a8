"""The source of a program's statements, found again by file and line.

Cells of a notebook and kernels taken from a lesson have no file; Python keeps their text in
`linecache`, under a name that is no path.
"""

from __future__ import annotations

import ast
import linecache
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)


def lines_of(file: str) -> list[str]:
    """The lines of a source file, or of a cell; [] if they are not known."""
    found = linecache.getlines(file)
    if not found and "/<" in file:  # `inspect` makes a path of "<02_gemm kernel cell 0>"
        found = linecache.getlines(file[file.index("/<") + 1:])
    return found


def _is_tilelangs(file: str) -> bool:
    import tilelang

    return Path(tilelang.__file__).parent in Path(file).parents


@dataclass(frozen=True)
class Section:
    """A part of the source, dedented. first: the number of its first line in `file`."""

    file: str
    first: int
    lines: tuple[str, ...]


@dataclass
class Listing:
    """Source files as they are asked for."""

    _trees: dict[str, ast.AST | None] = field(default_factory=dict)

    def line(self, place: tuple[str, int] | None) -> str:
        """The text of a line, "" if it is not known."""
        lines = lines_of(place[0]) if place else []
        return lines[place[1] - 1].strip() if place and 0 < place[1] <= len(lines) else ""

    def statement(self, place: tuple[str, int] | None) -> tuple[str, int | None]:
        """The statement that begins or lies at a line, on one line and without comments, and its
        last line."""
        tree = self._tree(place[0]) if place else None
        if tree is None:
            return self.line(place), place and place[1]
        found = [node for node in ast.walk(tree) if isinstance(node, (ast.For, *_SIMPLE))
                 and node.lineno <= place[1] <= node.end_lineno
                 and (isinstance(node, _SIMPLE) or node.lineno == place[1])]
        if not found:
            return self.line(place), place[1]
        inner = min(found, key=lambda node: (node.end_lineno - node.lineno, node.end_col_offset))
        text = " ".join(line.strip() for line in ast.unparse(inner).splitlines())
        return text, inner.end_lineno

    def function(self, place: tuple[str, int]) -> tuple[int, int]:
        """First and last line of the innermost function around a line, with its decorators; the
        line itself if there is none."""
        tree = self._tree(place[0])
        around = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                  and node.lineno <= place[1] <= node.end_lineno] if tree else []
        if not around:
            return place[1], place[1]
        inner = max(around, key=lambda node: node.lineno)
        return min([inner.lineno, *(d.lineno for d in inner.decorator_list)]), inner.end_lineno

    def own(self, found: list[tuple[tuple[str, int] | None, str]],
            claimed: set[tuple[str, int] | None]) -> list[tuple[str, int] | None]:
        """The places of statements, with those inside TileLang replaced by the line that called it.

        found: (place, kind of reduction or "") of each statement, in order. TileLang makes a
        reduction by a function of its own, so its statement says a line of TileLang's. The caller
        is the next `reduce_...` of this kind after the statement before, at a line that no
        statement claims; None where there is none.
        """
        places = [None if place is None or _is_tilelangs(place[0]) else place for place, _ in found]
        for i, (place, kind) in enumerate(found):
            if places[i] is None and place is not None and kind:
                before = next((p for p in reversed(places[:i]) if p), None)
                after = next((p for p in places[i + 1:] if p), None)
                places[i] = self._caller(f"reduce_{kind}", before, after, claimed)
        for i, (place, kind) in enumerate(found):  # what TileLang puts around a reduction
            if places[i] is None and place is not None and not kind:
                places[i] = next((places[j] for j in range(i, len(found)) if found[j][1]), None)
        return places

    def _caller(self, name: str, before: tuple[str, int] | None, after: tuple[str, int] | None,
                claimed: set[tuple[str, int] | None]) -> tuple[str, int] | None:
        for near, behind in ((before, True), (after, False)):
            if near is None or not (tree := self._tree(near[0])):
                continue
            first, last = self.function(near)
            calls = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call)
                     and getattr(node.func, "attr", getattr(node.func, "id", "")) == name
                     and first <= node.lineno <= last and (near[0], node.lineno) not in claimed]
            calls = [line for line in calls if (line > near[1] if behind else line < near[1])]
            if behind and after and after[0] == near[0] and first <= after[1] <= last \
                    and after[1] > near[1]:
                calls = [line for line in calls if line < after[1]]
            if calls:
                return near[0], min(calls) if behind else max(calls)
        return None

    def sections(self, places: list[tuple[str | None, int | None]]) -> list[Section]:
        """The functions around these places, each once, in the order of the places."""
        found: dict[tuple, None] = {}
        for file, line in places:
            if file and line and lines_of(file):
                found.setdefault((file, *self.function((file, line))))
        return [Section(file, first, tuple(textwrap.dedent("".join(
            lines_of(file)[first - 1:last])).splitlines())) for file, first, last in found]

    def _tree(self, file: str) -> ast.AST | None:
        if file not in self._trees:
            text = "".join(lines_of(file))
            try:
                self._trees[file] = ast.parse(textwrap.dedent(text)) if text else None
            except SyntaxError:  # a cell with a magic in it
                self._trees[file] = None
        return self._trees[file]
