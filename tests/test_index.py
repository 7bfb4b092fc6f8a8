"""The index of the lessons and the glossary, as the lessons' front matter says."""

from __future__ import annotations

import json
import re

import nbformat
import pytest
from notebook_format import ROOT, canonical

from labkit import index, lessons
from labkit.cli import main
from labkit.errors import LabError

NOTEBOOKS = ROOT / "notebooks"
LESSONS = lessons.all_lessons(NOTEBOOKS)
DESCRIBED = [lesson for lesson in LESSONS if "objectives" in lesson.front_matter]


def test_the_index_is_up_to_date():
    assert index.is_up_to_date(NOTEBOOKS), "run `labkit index`"


def test_the_index_is_a_notebook_in_canonical_form():
    stored = (NOTEBOOKS / index.NAME).read_text()
    assert stored == canonical(json.loads(stored))
    nbformat.validate(nbformat.reads(stored, as_version=4))


def test_it_lists_every_lesson_once_and_links_lead_somewhere():
    text = "\n".join(c.source for c in nbformat.read(NOTEBOOKS / index.NAME, as_version=4).cells)
    for lesson in LESSONS:
        assert len(re.findall(rf"^\| {lesson.number} \|", text, re.M)) == 1, lesson.stem
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (NOTEBOOKS / target).is_file(), target


def test_all_lessons_are_described_or_only_the_last_ones():
    """A lesson without objectives shows only its summary: none may be forgotten."""
    bare = [lesson.stem for lesson in LESSONS if lesson not in DESCRIBED]
    assert not bare or [x for x in LESSONS if int(x.number) >= 17] == DESCRIBED, (
        f"these have no objectives in their metadata labkit: {bare}; see CONTRIBUTING.md, step 3")


@pytest.mark.parametrize("lesson", DESCRIBED, ids=lambda lesson: lesson.stem)
def test_front_matter_says_what_the_lesson_says(lesson):
    matter, title = lesson.front_matter, lesson.notebook.cells[0].source
    prose = "\n".join(c.source for c in lesson.notebook.cells if c.cell_type == "markdown")
    assert len(matter["objectives"]) >= 2, "objectives: two or more"
    for objective in matter["objectives"]:
        assert f"- {objective}" in title, f"the title cell lacks the objective `- {objective}`"
    later = set(matter["before"]) - {one.number for one in LESSONS if one.number < lesson.number}
    assert not later, f"before: numbers of earlier lessons, as text; these are not: {later}"
    for number in matter["before"]:
        file = lessons.find(number, NOTEBOOKS).path.name
        assert f"]({file})" in title, f"before has {number}, and the title cell no link to {file}"
    assert matter["needs"] in title, f"the title cell lacks what needs says: {matter['needs']}"
    for term, meaning in matter["terms"].items():
        assert term.lower() in prose.lower(), f"no text cell uses the term {term!r}"
        assert meaning and not meaning.endswith(".") and len(meaning) < 130, (
            f"the meaning of {term!r} has 1 to 129 characters and no full stop at its end")


def test_a_term_is_introduced_once():
    terms = [term.lower() for lesson in LESSONS for term in lesson.front_matter.get("terms", {})]
    twice = sorted({term for term in terms if terms.count(term) > 1})
    assert not twice, f"two lessons have these in their terms; leave them in the first: {twice}"


# --- lessons of a test


@pytest.fixture
def folder(tmp_path, monkeypatch):
    def write(stem, **more):
        notebook = nbformat.v4.new_notebook(metadata={"labkit": {
            "title": "A | title", "summary": "One sentence.", "minutes": 30, "gpu": "optional",
            "min_sm": 0, "sm80_cells": [], "uses": ["tilelang"], **more}})
        nbformat.write(notebook, tmp_path / f"{stem}.ipynb")

    write("00_one", objectives=["do this", "do that"], before=[], needs="nothing; a GPU is "
          "optional. A T4 will do.", terms={"grid": "all blocks"})
    write("01_two", gpu="required", min_sm=80, uses=["cudnn", "torch"], before=["00"],
          terms={"Block": "some threads"})
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(tmp_path))
    return tmp_path


def test_what_stands_in_it(folder, capsys):
    assert main(["index", "--check"]) == 1
    assert "run `labkit index`" in capsys.readouterr().out
    assert main(["index"]) == 0 and main(["index", "--check"]) == 0
    cells = nbformat.read(folder / index.NAME, as_version=4).cells
    text = "\n".join(cell.source for cell in cells)
    assert "2 lessons, about 1 hours" not in text and "2 lessons, about 1 hour." in text
    assert ("| 00 | [A \\| title](00_one.ipynb) | • do this<br>• do that |  | 30 | GPU optional; "
            "TileLang; A T4 will do. |") in text
    assert ("| 01 | [A \\| title](01_two.ipynb) | One sentence. | 00 | 30 | a GPU, sm_80 or later; "
            "cuDNN's frontend, PyTorch |") in text
    assert text.index("| Block | some threads | [01](01_two.ipynb) |") < text.index("| grid |")
    assert [lesson.stem for lesson in lessons.all_lessons(folder)] == ["00_one", "01_two"]


def test_a_lesson_that_changed_makes_it_old(folder):
    index.write(folder)
    notebook = nbformat.read(folder / "00_one.ipynb", as_version=4)
    notebook.metadata.labkit.minutes = 31
    nbformat.write(notebook, folder / "00_one.ipynb")
    assert not index.is_up_to_date(folder)


@pytest.mark.parametrize("change", [{"objectives": "one"}, {"before": 3}, {"terms": []},
                                    {"needs": None}])
def test_wrong_kinds_are_said(folder, change):
    notebook = nbformat.read(folder / "00_one.ipynb", as_version=4)
    notebook.metadata.labkit.update(change)
    nbformat.write(notebook, folder / "00_one.ipynb")
    with pytest.raises(LabError, match=f"00_one.ipynb has .* as {next(iter(change))} in its meta"):
        index.write(folder)


def test_a_folder_that_cannot_be_written(folder, capsys):
    (folder / index.NAME).mkdir()
    assert main(["index"]) == 2
    assert "cannot be written (Is a directory)" in capsys.readouterr().err
