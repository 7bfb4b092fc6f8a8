"""The lessons without and with solutions."""

from __future__ import annotations

import json
import shutil

import nbformat
import pytest
from notebook_format import ROOT

from labkit import cli, editions, runner
from labkit.errors import BadArgument, LabError
from labkit.exercises import all_exercises

pytestmark = pytest.mark.exercises
NOTEBOOKS = ROOT / "notebooks"


def cells(folder):
    """Lesson -> id -> cell."""
    return {path.name: {c["id"]: c for c in json.loads(path.read_text())["cells"]}
            for path in sorted(folder.glob("*.ipynb"))}


@pytest.mark.parametrize("kind", editions.KINDS)
def test_only_the_exercises_differ(kind, tmp_path):
    written = editions.write(kind, tmp_path / "new" / "folder", NOTEBOOKS)
    assert [path.name for path in written] == sorted(p.name for p in NOTEBOOKS.glob("*.ipynb"))
    before, after = cells(NOTEBOOKS), cells(written[0].parent)
    texts = set()
    for name in before:
        nbformat.validate(nbformat.read(written[0].parent / name, as_version=4))
        assert list(before[name]) == list(after[name])
        for cell, new in zip(before[name].values(), after[name].values(), strict=True):
            if "exercise" in cell["metadata"].get("tags", []):
                assert new["outputs"] == []
                texts.add("".join(new["source"]))
            else:
                assert cell == new
    wanted = {e.cell(e.stub if kind == "student" else e.solution) for e in all_exercises()}
    assert texts == wanted


def test_a_used_copy_becomes_a_clean_one(tmp_path):
    editions.write("solved", tmp_path / "used", NOTEBOOKS)
    editions.write("student", tmp_path / "clean", tmp_path / "used")
    editions.write("student", tmp_path / "other", NOTEBOOKS)
    assert cells(tmp_path / "clean") == cells(tmp_path / "other")


def test_bad_input_is_said(tmp_path, capsys):
    with pytest.raises(BadArgument, match="no edition 'teacher'"):
        editions.write("teacher", tmp_path)
    with pytest.raises(BadArgument, match="holds the lessons themselves"):
        editions.write("solved", NOTEBOOKS, NOTEBOOKS)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadArgument, match="cannot be written"):
        editions.write("solved", tmp_path / "file" / "folder", NOTEBOOKS)
    shutil.copy(NOTEBOOKS / "02_gemm.ipynb", tmp_path)
    file = tmp_path / "02_gemm.ipynb"
    file.write_text(file.read_text().replace('"gemm-ex-1"', '"gemm-ex-7"'))
    with pytest.raises(LabError, match="lacks the cell of exercise 02"):
        editions.write("student", tmp_path / "out", tmp_path)


def test_the_command_writes_them(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(NOTEBOOKS))
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))
    assert cli.main(["edition", "solved", "--out", str(tmp_path / "solved")]) == 0
    assert f"{len(list(NOTEBOOKS.glob('[0-9]*.ipynb')))} lessons written" in capsys.readouterr().out
    assert cli.main(["progress"]) == 0
    assert f"0 of {len(all_exercises())} solved" in capsys.readouterr().out


def solved(lessons, folder, out, monkeypatch):
    """Runs the solved edition of these lessons and returns what each check says."""
    monkeypatch.setenv("LABKIT_PROGRESS", str(folder / "progress.json"))
    editions.write("solved", folder, NOTEBOOKS)
    report = runner.run(lessons, device="cpu", out=out, folder=folder)
    assert all(result.status == "passed" for result in report.lessons), report.lessons
    assert not (folder / "progress.json").exists(), "the kit's solutions are no one's progress"
    said = {}
    for path in out.glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            if "exercise" in cell["metadata"].get("tags", []):
                text = "".join(cell["outputs"][-1]["data"]["text/plain"])
                said[text[:4]] = text.splitlines()[0]
    return said


def test_solutions_are_right_in_their_lesson(tmp_path, monkeypatch):
    said = solved(["00"], tmp_path / "solved", tmp_path / "runs", monkeypatch)
    assert len(said) == 3 and all(text.endswith("correct.") for text in said.values()), said


@pytest.mark.slow
def test_all_solutions_are_right_in_their_lessons(tmp_path, monkeypatch):
    said = solved([], tmp_path / "solved", tmp_path / "runs", monkeypatch)
    assert len(said) == len(all_exercises())
    assert all(text.endswith("correct.") for text in said.values()), said
