"""A new lesson to fill in: `labkit new 18 my_kernel`.

It writes a notebook, its exercises and what the tests have to know of it, from the texts in
`labkit/template`. They are a small lesson that passes all tests as it stands. CONTRIBUTING.md says
how to go on.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from labkit import badges, lessons
from labkit.errors import BadArgument

TEMPLATE = Path(__file__).with_name("template")
_STATEMENTS = {
    1: "Write a kernel that computes Z = (X - Y) / 2. Expected size: 1 line. The check runs it at "
       "two sizes.",
    2: "How many bytes does one kernel for 2 X + Y save against two? Expected size: 1 line.",
}


def write(number: str, name: str, title: str = "", repository: Path | None = None) -> list[Path]:
    """Writes lesson `number` (two digits) called `name` (as in my_kernel) into a checkout of the
    kit, and returns the new files. title: of the lesson; "" makes it from the name.

    Raises BadArgument for a number or name that does not fit, that is taken, or where there is no
    checkout; LabError for a README without the place of the badges.
    """
    if not re.fullmatch(r"\d{1,2}", number):
        raise BadArgument(f"The lesson's number is {number!r}; give one or two digits, as in 18.")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise BadArgument(f"The lesson's name is {name!r}; give lower-case words joined by _, as "
                          "in my_kernel.")
    root = repository or lessons.directory().resolve().parent
    if not (root / "tests" / "notebook_format.py").is_file():
        raise BadArgument(f"{root} is no checkout of the kit, which a new lesson needs; run this "
                          "in the repository's folder.")
    number = f"{int(number):02}"
    address = badges.stamped_address(root)
    files = {root / "notebooks" / f"{number}_{name}.ipynb": notebook(number, name, title),
             root / "labkit" / "exercises" / f"lesson_{number}.py":
                 _filled("exercises", number, name, title),
             root / "tests" / f"cases_{number}.py": _filled("cases", number, name, title)}
    taken = [*(root / "notebooks").glob(f"{number}_*.ipynb"), *filter(Path.exists, files)]
    if taken:
        raise BadArgument(f"Lesson {number} is there already ({taken[0].name}); choose another "
                          "number.")
    try:
        for path, text in files.items():
            path.write_text(text)
        made = next(iter(files))  # with the setup cell that all lessons share
        made.write_text(badges.stamped(lessons.Lesson(made), address))
    except OSError as error:
        raise BadArgument(f"{error.filename} cannot be written ({error.strerror}); run this where "
                          "you may write.") from error
    return list(files)


def notebook(number: str, name: str, title: str) -> str:
    """The notebook's text, not run yet."""
    cells: list[dict[str, Any]] = []
    for part in re.split(r"^=== ", _filled("notebook", number, name, title), flags=re.M)[1:]:
        head, source = part.split("\n", 1)
        if head == "exercises":
            cells += _exercises(number, name, title)
            continue
        kind, key, *tags = head.split()
        cells.append(_cell(kind, key, source, tags))
    heading = cells[0]["source"][0].split(" · ", 1)[1].strip()
    matter = {"title": heading, "summary": "One sentence that says what the lesson is about.",
              "minutes": 20, "gpu": "optional", "min_sm": 0, "sm80_cells": [],
              "uses": ["tilelang", "torch"], "before": ["01"],
              "objectives": ["write a kernel that computes Z = 2 X + Y in one pass",
                             "say how many bytes it moves, and what time that takes at least"],
              "needs": "nothing; a GPU is optional.", "terms": {}}
    kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps({"cells": cells, "nbformat": 4, "nbformat_minor": 5, "metadata": {
        "kernelspec": kernelspec, "language_info": {"name": "python"}, "labkit": matter}},
        indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _exercises(number: str, name: str, title: str) -> list[dict[str, Any]]:
    space: dict[str, Any] = {"__name__": "template"}
    lessons.execute(_filled("exercises", number, name, title), "<exercises of a new lesson>", space)
    cells = []
    for place, exercise in enumerate(space["EXERCISES"], 1):
        cells.append(_cell("markdown", exercise.statement,
                           f"### {exercise.heading}\n\n{_STATEMENTS[place]}", []))
        cells.append(_cell("code", f"{exercise.statement}-stub", exercise.cell(exercise.stub),
                           ["exercise", "nbval-check-output"]))
    return cells


def _cell(kind: str, key: str, source: str, tags: list[str]) -> dict[str, Any]:
    more = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": key, "metadata": {"tags": sorted(tags)} if tags else {},
            "source": source.strip("\n").splitlines(keepends=True), **more}


def _filled(which: str, number: str, name: str, title: str) -> str:
    words = name.replace("_", " ")
    found = {"NN": number, "name": name, "id": name.replace("_", "-"),
             "title": title or words[0].upper() + words[1:]}
    return re.sub(r"@(\w+)@", lambda match: found[match[1]],
                  (TEMPLATE / f"{which}.txt").read_text())
