"""The index of all lessons and the glossary, as a notebook, drawn from the lessons' front matter.

`labkit index` writes it; a test says when it is out of date.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit import lessons
from labkit.errors import BadArgument

NAME = "index.ipynb"
PARTS = ((0, "TileLang: from the first kernel to FlashAttention"),
         (9, "Transformer blocks as GEMMs with epilogues"),
         (12, "cuDNN's graph API"), (17, "Reference and more"))
_NEEDS = {"tilelang": "TileLang", "cudnn": "cuDNN's frontend", "torch": "PyTorch"}


def write(folder: Path | None = None) -> Path:
    """Writes the index of the lessons in `folder` (default: the kit's own) beside them. Raises
    BadArgument if it cannot be written, LabError for a lesson that cannot be read."""
    folder = folder or lessons.directory()
    path = folder / NAME
    found = text(lessons.all_lessons(folder))
    try:
        path.write_text(found)
    except OSError as error:
        raise BadArgument(f"The index {path} cannot be written ({error.strerror}); choose a folder "
                          "that you may write to, with LABKIT_NOTEBOOKS.") from error
    return path


def is_up_to_date(folder: Path | None = None) -> bool:
    """Whether the index in `folder` is the one that `write` would write."""
    folder = folder or lessons.directory()
    path = folder / NAME
    return path.is_file() and path.read_text() == text(lessons.all_lessons(folder))


def text(chosen: Sequence[lessons.Lesson]) -> str:
    """The notebook's text, in the form in which lessons are stored."""
    cells = [_cell("index-title", _title(chosen))]
    for number, (first, name) in enumerate(PARTS):
        last = PARTS[number + 1][0] if number + 1 < len(PARTS) else 100
        part = [one for one in chosen if first <= int(one.number) < last]
        if part:
            cells.append(_cell(f"index-part-{number + 1}", _part(name, part)))
    cells.append(_cell("index-glossary", _glossary(chosen)))
    notebook = {
        "cells": cells, "nbformat": 4, "nbformat_minor": 5,
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python",
                                    "name": "python3"},
                     "labkit": {}, "language_info": {"name": "python"}}}
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cell(name: str, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": name, "metadata": {},
            "source": source.strip("\n").splitlines(keepends=True)}


def _title(chosen: Sequence[lessons.Lesson]) -> str:
    hours = round(sum(one.front_matter["minutes"] for one in chosen) / 60)
    return (f"# All lessons\n\n{len(chosen)} lessons, about {hours} hour{'s' * (hours != 1)}. "
            "Begin with the first one; \"before\" names the lessons that another one builds on. "
            "Every lesson runs without a GPU: its kernels are then checked on the CPU, and its "
            "times are recorded ones.\n\nThis page is written by `labkit index` from what each "
            "lesson says of itself. The words are explained in the glossary at its end.")


def _part(name: str, part: Sequence[lessons.Lesson]) -> str:
    lines = [f"## {name}", "", "| | lesson | you will be able to | before | minutes | needs |",
             "|---|---|---|---|---|---|"]
    for lesson in part:
        matter = lesson.front_matter
        able = "<br>".join(f"• {_plain(o)}" for o in matter.get("objectives", [])) or _plain(
            matter["summary"])
        lines.append(f"| {lesson.number} | [{_plain(matter['title'])}]({lesson.path.name}) | "
                     f"{able} | {', '.join(matter.get('before', []))} | {matter['minutes']} | "
                     f"{_needs(matter)} |")
    return "\n".join(lines)


def _needs(matter: dict[str, Any]) -> str:
    gpu = "a GPU" if matter["gpu"] == "required" else "GPU optional"
    gpu += f", sm_{matter['min_sm']} or later" if matter["min_sm"] else ""
    more = matter.get("needs", "").split(". ", 1)[1:]  # what follows "a GPU is optional"
    return "; ".join([gpu, ", ".join(_NEEDS.get(name, name) for name in matter["uses"]),
                      *map(_plain, more)])


def _glossary(chosen: Sequence[lessons.Lesson]) -> str:
    terms = [(term, meaning, lesson) for lesson in chosen
             for term, meaning in lesson.front_matter.get("terms", {}).items()]
    lines = ["## Glossary", "", "| term | meaning | lesson |", "|---|---|---|"]
    for term, meaning, lesson in sorted(terms, key=lambda entry: entry[0].lower()):
        lines.append(f"| {_plain(term)} | {_plain(meaning)} | "
                     f"[{lesson.number}]({lesson.path.name}) |")
    return "\n".join(lines)


def _plain(value: str) -> str:
    """`value` within one cell of a table."""
    return " ".join(str(value).split()).replace("|", "\\|")
