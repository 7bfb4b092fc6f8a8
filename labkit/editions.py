"""The lessons in two editions: for students, with the stubs, and solved, with the solutions in
their place.

Both are made from the lessons as they stand. A copy in which a learner has worked becomes a clean
student edition again; everything outside the exercises' code cells is left as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from labkit import index, lessons
from labkit.errors import BadArgument, LabError
from labkit.exercises.exercise import all_exercises

KINDS = ("student", "solved")


def write(kind: str, out: str | Path, folder: Path | None = None) -> list[Path]:
    """Writes all lessons of `folder` (default: the kit's) as the edition `kind` into `out`.

    kind: "student" or "solved". The outputs of the exercises' cells are removed, as they have not
    run yet; `labkit run` with LABKIT_NOTEBOOKS set to `out` runs them. Returns the files. Raises
    BadArgument for another kind or a folder that cannot be written or holds the lessons
    themselves, LabError for a lesson that lacks the cell of an exercise. The index, if there is
    one, goes with them.
    """
    if kind not in KINDS:
        raise BadArgument(f"There is no edition {kind!r}; the editions are {' and '.join(KINDS)}.")
    folder, out = folder or lessons.directory(), Path(out)
    if out.resolve() == folder.resolve():
        raise BadArgument(f"The folder {out} holds the lessons themselves, and they would be "
                          "overwritten; choose another one.")
    texts = {lesson.path.name: _edition(lesson, kind) for lesson in lessons.all_lessons(folder)}
    if (folder / index.NAME).is_file():  # lessons link to it
        texts[index.NAME] = (folder / index.NAME).read_text()
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text)
            written.append(out / name)
    except OSError as error:
        raise BadArgument(f"The folder {out} cannot be written ({error.strerror}); choose another "
                          "one.") from error
    return written


def _edition(lesson: lessons.Lesson, kind: str) -> str:
    """The text of a lesson's file in the edition `kind`."""
    notebook = json.loads(lesson.path.read_text())
    cells = notebook["cells"]
    for exercise in all_exercises():
        if exercise.lesson != lesson.number:
            continue
        place = next((n for n, cell in enumerate(cells) if cell.get("id") == exercise.statement),
                     None)
        after = cells[place + 1:place + 2] if place is not None else []
        if not after or "exercise" not in after[0]["metadata"].get("tags", []):
            raise LabError(f"{lesson.path.name} lacks the cell of exercise {exercise.key}; restore "
                           "it from the repository.")
        text = exercise.cell(exercise.solution if kind == "solved" else exercise.stub)
        after[0].update(source=text.splitlines(keepends=True), outputs=[], execution_count=None)
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
