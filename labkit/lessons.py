"""Finds the lessons, reads their front matter, and loads their kernel cells.

A lesson is `notebooks/NN_name.ipynb`. Its front matter is the notebook metadata `labkit`:

    {"title": "Vector add", "summary": "one sentence", "minutes": 25,
     "gpu": "optional" | "required", "min_sm": 0, "sm80_cells": [], "uses": ["tilelang"],
     "objectives": ["launch a grid of blocks"], "before": ["00"], "needs": "a sentence",
     "terms": {"grid": "all blocks of one launch"}}

`min_sm` is the lowest compute capability (75, 80, ...) that the whole lesson needs; 0: any.
`sm80_cells` are the ids of the kernel cells that need compute capability 8.0 or later. The last
four are for the index and its glossary (`labkit index`), and may be missing.
"""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit.errors import BadArgument, LabError

FRONT_MATTER = {"title": str, "summary": str, "minutes": int, "gpu": str, "min_sm": int,
                "sm80_cells": list, "uses": list}
FOR_THE_INDEX = {"objectives": list, "before": list, "needs": str, "terms": dict}

_LARGEST = 100_000_000  # bytes of a notebook


def directory() -> Path:
    """The folder of lessons: `$LABKIT_NOTEBOOKS`, else `./notebooks`, else the kit's own."""
    chosen = os.environ.get("LABKIT_NOTEBOOKS")
    if chosen:
        if not Path(chosen).is_dir():
            raise BadArgument(f"LABKIT_NOTEBOOKS is {chosen}, which is not a folder; "
                              "set it to the folder that holds the lessons, or unset it.")
        return Path(chosen)
    package = Path(__file__).resolve().parent
    for folder in (Path.cwd() / "notebooks", package / "notebooks", package.parent / "notebooks"):
        if any(folder.glob("[0-9][0-9]_*.ipynb")):
            return folder
    raise LabError("No lessons found: looked in ./notebooks and in the installed kit. "
                   "Reinstall labkit, or set LABKIT_NOTEBOOKS to the folder that holds them.")


@dataclass(frozen=True)
class Lesson:
    """One lesson file; `stem` is its name in reports, as in `02_gemm`."""

    path: Path

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.stem[:2]

    @cached_property
    def notebook(self) -> Any:
        from labkit.nbformat_import import nbformat

        try:
            if not self.path.is_file():  # a pipe would be waited for
                raise OSError("it is not a file")
            if self.path.stat().st_size > _LARGEST:
                raise OSError(f"it is larger than {_LARGEST // 1_000_000} MB")
            found = nbformat.read(self.path, as_version=4)
            nbformat.validate(found, relax_add_props=True)
            return found
        except Exception as error:
            raise LabError(f"{self.path.name} is not a readable notebook "
                           f"({' '.join(str(error).split())}); "
                           "restore it from the repository.") from error

    @cached_property
    def front_matter(self) -> dict[str, Any]:
        matter = self.notebook.metadata.get("labkit", {})
        if not isinstance(matter, dict):
            raise LabError(f"{self.path.name} has {matter!r} as its metadata 'labkit', where a "
                           "block of settings belongs; copy it from another lesson and fill it in.")
        missing = [key for key in FRONT_MATTER if key not in matter]
        if missing:
            raise LabError(f"{self.path.name} lacks {', '.join(missing)} in its metadata 'labkit'; "
                           "copy the block from another lesson and fill it in.")
        for key, kind in {**FRONT_MATTER, **FOR_THE_INDEX}.items():
            if key in matter and not isinstance(matter[key], kind):
                raise LabError(f"{self.path.name} has {matter[key]!r} as {key} in its metadata "
                               f"'labkit', where a value of type {kind.__name__} belongs; "
                               "correct it.")
        return dict(matter)

    def kernel_cells(self) -> list[Any]:
        """The code cells tagged `kernel`, in order."""
        return [cell for cell in self.notebook.cells
                if cell.cell_type == "code" and "kernel" in cell.metadata.get("tags", [])]


def all_lessons(folder: Path | None = None) -> list[Lesson]:
    """Every lesson, in reading order."""
    folder = folder or directory()
    return [Lesson(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]


def find(name: str, folder: Path | None = None) -> Lesson:
    """The lesson called `name`: its number ("2", "02"), stem ("02_gemm") or title part ("gemm").

    Raises BadArgument if no lesson, or more than one, fits.
    """
    lessons = all_lessons(folder)
    wanted = Path(str(name)).name.removesuffix(".ipynb")
    if re.fullmatch(r"\d{1,2}", wanted):
        fits = [lesson for lesson in lessons if int(lesson.number) == int(wanted)]
    else:
        fits = ([lesson for lesson in lessons if lesson.stem == wanted]
                or [lesson for lesson in lessons if lesson.stem[3:] == wanted])
    if len(fits) == 1:
        return fits[0]
    known = ", ".join(lesson.stem for lesson in lessons)
    if not fits:
        raise BadArgument(f"There is no lesson {str(name)!r}; the lessons are: {known}.")
    raise BadArgument(f"{str(name)!r} fits several lessons: "
                      f"{', '.join(lesson.stem for lesson in fits)}; give the number.")


def kernel(lesson: str, name: str) -> Any:
    """The object called `name` that a `kernel` cell of `lesson` defines.

    The lesson's kernel cells are executed in order in a fresh namespace up to and including
    the one that defines `name`.

    Raises BadArgument if the lesson does not exist or none of its kernel cells defines `name`.
    """
    found = find(lesson)
    space: dict[str, Any] = {"__name__": f"labkit.lesson_{found.stem}"}
    for index, cell in enumerate(found.kernel_cells()):
        execute(cell.source, f"<{found.stem} kernel cell {index}>", space)
        if name in space:
            return space[name]
    defined = [key for key, value in space.items()
               if not key.startswith("_") and not isinstance(value, ModuleType)]
    raise BadArgument(f"Lesson {found.stem} has no kernel called {name!r}; "
                      f"its kernel cells define: {', '.join(defined) or 'nothing'}.")


def namespace(lesson: str) -> dict[str, Any]:
    """All names that the kernel cells of `lesson` define, in a fresh namespace.

    Raises BadArgument if the lesson does not exist.
    """
    found = find(lesson)
    space: dict[str, Any] = {"__name__": f"labkit.lesson_{found.stem}"}
    for index, cell in enumerate(found.kernel_cells()):
        execute(cell.source, f"<{found.stem} kernel cell {index}>", space)
    return space


def execute(source: str, filename: str, space: dict[str, Any]) -> None:
    """Executes `source` in `space`. TileLang reads a program's source text, so the text is made
    known to `linecache` under `filename`."""
    source = source.rstrip("\n") + "\n"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    # dont_inherit: this file postpones annotations, which would hide names from TileLang
    exec(compile(source, filename, "exec", dont_inherit=True), space)
