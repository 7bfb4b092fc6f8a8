"""What a worker of the bench does with a lesson's cells, with a lesson made for it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import nbformat
import pytest
import torch

from labkit import benchmark, environment, roofline
from labkit.benching import worker

SETUP = """
import torch
import labkit as lab
from types import SimpleNamespace
"""
HERE = """
here = SimpleNamespace(device=kind)
x = torch.arange(float(N))
made = []
"""
ONE = """
def one(N):
    made.append(N)
    x, out = torch.arange(float(N)), torch.empty(N)
    return dict(kernel=lambda: torch.mul(x, 2, out=out), baselines={"x + x": lambda: x + x},
                references={"copy": lambda: out.clone()}, dtype="float32", moved=8 * N, output=out,
                check=lambda: lab.check(out, 2 * x.double(), name="twice"))
"""


@pytest.fixture
def ask(monkeypatch, tmp_path):
    """Asks a worker in this process about a cell of a lesson; a GPU's times are made up."""
    def times(candidates, **_):
        for call in candidates.values():
            call()
        return {name: benchmark.Times(float(place), 0.1, 10)
                for place, name in enumerate(candidates, 1)}

    monkeypatch.setattr(benchmark, "time_each", times)
    monkeypatch.setattr(roofline, "measured", lambda: roofline.Floors("GPU", "made up", 1000.0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(environment, "versions", lambda: {"torch": "1"})
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(tmp_path))
    monkeypatch.setenv("LABKIT_RECORD", "")

    def answer(cell, mode, before="", name="twice", **request):
        sources = [("setup", SETUP), ("parameters", "N = 8\nkind = 'gpu'\ndevice = 'auto'\n"
                                      "quick = False"),
                   ("", HERE), ("", ONE), ("", before), ("", cell)]
        cells = [nbformat.v4.new_code_cell(source, id=f"c{i}",
                                           metadata={"tags": [tag] if tag else []})
                 for i, (tag, source) in enumerate(sources)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "01_one.ipynb")
        return worker.answer({
            "name": name, "places": [["01_one", "c5"]], "parameters": {}, "device": "cpu",
            "quick": False, "mode": mode, "cost": False, "kind": "", **request})

    return answer


def measured(found):
    return [json.loads(line)["measurement"] for line in found["lines"]]


BENCH = "lab.bench('twice', here, shape={'N': N}, **one(N))"
SHAPES = "lab.bench_shapes('twice', here, [{'N': n} for n in (4, 5, 6)], one)\nprint(made)"


def test_measured_as_the_lesson_does(ask):
    found = ask(BENCH, "measure")
    assert found["status"] == "done" and not found["broken"], found
    (m,) = measured(found)
    assert m["shape"] == {"N": 8} and m["kernel_ms"] == 1.0
    assert m["baselines"] == {"x + x": 2.0} and m["references"] == {"copy": 3.0}


def test_with_other_parameters(ask):
    (m,) = measured(ask(BENCH, "measure", parameters={"N": 5}))
    assert m["shape"] == {"N": 5}
    found = ask(BENCH, "measure", parameters={"M": 5})
    assert found["status"] == "failed" and "has no parameter 'M'" in found["reason"]


def test_several_shapes(ask, capsys):
    assert [m["shape"]["N"] for m in measured(ask(SHAPES, "measure"))] == [4, 5, 6]
    assert "[4, 5, 6]" in capsys.readouterr().out


@pytest.mark.parametrize(("part", "shapes"), [([0, 2], "[4, 6]"), ([1, 2], "[5]"), ([3, 4], "[]")])
def test_prepared_in_parts(ask, capsys, part, shapes):
    found = ask(SHAPES, "prepare", part=part)
    assert found["status"] == "done" and not found["lines"]
    assert shapes in capsys.readouterr().out


def test_checked_without_a_gpu(ask):
    found = ask(BENCH, "check", parameters={"kind": "cpu"})
    assert found["checks"] == [{"name": "twice", "output": "", "dtype": "float32", "elements": 8,
                                "error": 0.0, "allowed": pytest.approx(3.8e-6, rel=0.01)}]
    found = ask(BENCH.replace("one(N)", "{**one(N), 'kernel': lambda: None}"), "check")
    assert found["status"] == "failed" and "WRONG" in found["reason"]


@pytest.mark.parametrize("cell", ["x + 1", "lab.check(x, x.double())", "if kind == 'gpu':\n    "
                                  "lab.bench('twice', here, shape={'N': N}, **one(N))",
                                  "compared = SimpleNamespace(name='twice', verdicts=())"])
def test_a_cell_that_compares_nothing_of_that_name_fails(ask, cell):
    found = ask(cell, "check", parameters={"kind": "cpu"})
    assert found["status"] == "failed" and not found["checks"]
    assert "compared nothing called 'twice'" in found["reason"]


def test_cells_before_the_measuring_one_time_nothing(ask):
    before = "first = lab.bench('other', here, shape={'N': N}, **one(N))"
    found = ask(f"first.measurement\n{BENCH}", "measure", before)
    assert [m["name"] for m in measured(found)] == ["twice"]


def test_a_name_that_is_not_timed_here_is_left_out(ask):
    assert ask(BENCH, "measure", parameters={"kind": "cpu"})["status"] == "left out"


def test_a_cell_that_measures_another_name(ask):
    found = ask(BENCH, "measure", name="thrice")
    assert found["status"] == "failed" and "measured nothing called 'thrice'" in found["reason"]


def test_what_a_cell_raises_is_the_reason(ask):
    found = ask("1 / 0", "measure")
    assert (found["status"], found["reason"]) == ("failed", "ZeroDivisionError: division by zero")


def test_verdicts_of_comparisons_that_a_cell_makes_itself(ask):
    cell = ("verdict = lab.compare(x, x.double(), name='out')\n"
            "compared = [SimpleNamespace(name='twice', verdicts=(verdict,))]")
    (check,) = ask(cell, "check")["checks"]
    assert (check["name"], check["output"], check["error"]) == ("twice", "out", 0.0)


def test_files_of_their_own(ask):
    cell = ("import os, pathlib\n"
            "pathlib.Path(os.environ['LABKIT_RECORD']).with_name('table-t.json').write_text('{}')")
    found = ask(cell, "measure", name="t", kind="table")
    assert found["status"] == "done" and found["files"] == {"table-t": "{}"}
    assert ask("x", "measure", name="t", kind="table")["status"] == "failed"


def test_the_own_work_comes_back():
    assert benchmark._stand_in is None
    with benchmark.standing_in(lambda **_: 1):
        assert benchmark.bench("a", SimpleNamespace(), kernel=None, baselines={}, shape={},
                               dtype="", moved=0, output=None, check=None) == 1
    assert benchmark._stand_in is None
