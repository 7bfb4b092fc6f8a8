"""The template of a lesson: what `labkit new` writes passes what every lesson has to pass."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil

import broken_lesson
import nbformat
import pytest
from notebook_format import ROOT, canonical

import labkit as lab
from labkit import badges, lessons, new_lesson, runner
from labkit.benching import places, worker
from labkit.cli import main
from labkit.exercises import exercise as exercises


@pytest.fixture
def checkout(tmp_path):
    """What of a checkout a new lesson needs."""
    for folder in ("notebooks", "tests", "labkit/exercises"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "notebook_format.py", tmp_path / "tests")
    shutil.copy(ROOT / "notebooks" / "01_vector_add.ipynb", tmp_path / "notebooks")
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


@pytest.fixture
def made(checkout):
    notebook, data, cases = new_lesson.write("18", "scaled_sum", repository=checkout)
    space: dict = {"__name__": "new"}
    exec(compile(data.read_text(), str(data), "exec", dont_inherit=True), space)
    spec = importlib.util.spec_from_file_location("cases_of_new", cases)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lessons.Lesson(notebook), space["EXERCISES"], module


def test_the_bench_checks_it_before_anybody_has_recorded_it(made, monkeypatch):
    lesson, *_ = made
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(lesson.path.parent))
    monkeypatch.setenv("LABKIT_RECORD", "")
    (place,) = places.find()["scaled_sum"]
    answer = worker.answer({"name": "scaled_sum", "places": [[place.lesson, place.cell]],
                            "parameters": {}, "device": "cpu", "quick": False, "mode": "check"})
    assert answer["status"] == "done", answer["reason"]
    assert [check["name"] for check in answer["checks"]] == ["scaled_sum"]


def test_it_runs_and_fails_where_its_kernel_is_broken(made, tmp_path):
    lesson, _, cases = made
    folder = tmp_path / "alone"
    folder.mkdir()
    # the check of an exercise looks for lesson 18, which is in no kit
    notebook = nbformat.read(lesson.path, as_version=4)
    notebook.cells = [c for c in notebook.cells if "exercise" not in c.metadata.get("tags", [])]
    nbformat.write(notebook, folder / lesson.path.name)
    (result,) = runner.run(device="cpu", folder=folder, out=tmp_path / "out").lessons
    assert result.status == "passed", result.error
    found = broken_lesson.attempts(folder / lesson.path.name, cases.MUTATIONS, tmp_path)
    assert len(found) == len(cases.MUTATIONS)
    assert all(error and error[0] == "WrongAnswer" for error in found.values()), found


def test_its_form(made):
    lesson, _, _ = made
    matter = lesson.front_matter
    assert lesson.notebook.cells[0].source.startswith(f"# 18 · {matter['title']}\n")
    assert badges.stamped(lesson, badges.stamped_address(ROOT)) == lesson.path.read_text()
    tags = [tag for cell in lesson.notebook.cells for tag in cell.metadata.get("tags", [])]
    for tag in ("setup", "parameters", "kernel", "exercises"):
        assert tags.count(tag) == 1, tag
    assert tags.count("exercise") == 2 and tags.count("nbval-check-output") >= 3
    stored = json.loads(lesson.path.read_text())
    assert json.loads(canonical(stored))["metadata"] == stored["metadata"]
    (cell,) = [c for c in lesson.notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert all(ast.literal_eval(line.value) is not None for line in ast.parse(cell.source).body)
    for objective in matter["objectives"]:
        assert f"- {objective}" in lesson.notebook.cells[0].source


def test_its_exercises_tell_right_from_wrong(made):
    lesson, found, cases = made
    space = {"T": __import__("tilelang.language", fromlist=["T"]), "lab": lab}

    def answer(exercise, source):
        lessons.execute(source, f"<{exercise.key} {len(source)}>", space)
        return space[exercise.answer]

    for exercise in found:
        assert not exercise.attempted(answer(exercise, exercise.stub))
        assert exercise.judge(answer(exercise, exercise.solution)).ok
        assert len(cases.PLANTED[exercise.key]) >= 4
        for _, replacements, sentence in cases.PLANTED[exercise.key]:
            text = exercise.solution
            for old, new in replacements:
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            outcome = exercise.judge(answer(exercise, text))
            assert not outcome.ok and sentence in "\n".join(outcome.lines), outcome.lines
        cells = lesson.notebook.cells
        place = next(n for n, c in enumerate(cells) if c.id == exercise.statement)
        assert cells[place + 1].source == exercise.cell(exercise.stub)
    assert exercises.tree(answer(found[0], found[0].solution))


def test_its_kernel_compiles_for_gpus(made):
    lesson, _, cases = made
    assert list(cases.KERNELS) == ["scaled_sum"]
    space: dict = {}
    lessons.execute(lesson.kernel_cells()[0].source, "<a new lesson's kernel>", space)
    for sheet in ("T4", "H100"):
        assert not lab.cross_compile(space["scaled_sum"](1 << 20), sheet).resources.spill_stores


@pytest.mark.parametrize(("arguments", "words"), [
    (["1a", "mine"], "number is '1a'"), (["18", "My-Kernel"], "name is 'My-Kernel'"),
    (["18", "../x"], "lower-case words"), (["1", "mine"], "Lesson 01 is there already"),
])
def test_what_does_not_fit_is_said(checkout, monkeypatch, capsys, arguments, words):
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(checkout / "notebooks"))
    before = sorted(checkout.rglob("*"))
    assert main(["new", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1
    assert sorted(checkout.rglob("*")) == before


def test_outside_a_checkout(tmp_path, monkeypatch, capsys):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(tmp_path / "notebooks"))
    assert main(["new", "18", "mine"]) == 2
    assert "is no checkout of the kit" in capsys.readouterr().err


def test_a_title_of_its_own(checkout, monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(checkout / "notebooks"))
    assert main(["new", "7", "my_kernel", "--title", "Mine: a test"]) == 0
    assert capsys.readouterr().out.count(" written\n") == 3
    made = lessons.find("07", checkout / "notebooks")
    assert made.front_matter["title"] == "Mine: a test"
    assert "def my_kernel(" in made.kernel_cells()[0].source
