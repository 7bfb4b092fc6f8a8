"""The reference pages: every line does what the page says, and one that does not is seen."""

from __future__ import annotations

import json

import pytest
import torch

import labkit as lab
from labkit import cudnn_graph, lessons, results
from labkit.cudnn_loader import Cudnn
from labkit.errors import LabError, WrongAnswer
from labkit.reference import cudnn_lines, page, tilelang_lines, ways
from labkit.reference import results as all_results
from labkit.reference.page import Line, Page, compared, executed

CPU = lab.here("cpu", "H100")
ALONE = [line for lines in tilelang_lines.GROUPS.values() for line in lines
         if tilelang_lines._alone(line)]
GROUPS = [together for lines in tilelang_lines.GROUPS.values()
          if (together := [line for line in lines if line not in ALONE])]


def test_every_line_of_tilelang_runs():
    made = tilelang_lines.tilelang(CPU)
    assert made.check() == f"{len(made.lines)} lines ran, and each did what the page says."
    assert len(made.lines) > 50 and "FAILS" not in repr(made)
    named = " ".join(ran.line.code for ran in made.lines)
    for name in ("T.Kernel", "T.copy", "T.gemm", "T.Pipelined", "T.Parallel", "T.reduce_max",
                 "T.alloc_fragment", "T.alloc_shared", "T.if_then_else", "T.Persistent"):
        assert name in named


def test_every_line_of_cudnn_runs():
    made = cudnn_lines.cudnn_graph()
    made.check()
    assert len(made.lines) > 40
    known = " ".join(ran.line.code for ran in made.lines)
    for name in ("matmul", "conv_fprop", "sdpa", "reduction", "tensor_like", "set_output"):
        assert name in known


@pytest.mark.parametrize("sheet", ["T4", "A100", "L4", "H100", "B200"])
def test_the_lines_compile_for_gpus(sheet):
    """So a page that is made on a GPU has kernels that fit it."""
    groups = [*GROUPS, *([line] for line in ALONE)]
    for lines in groups if sheet in ("T4", "H100") else groups[1:4]:
        space: dict = {}
        lessons.execute(tilelang_lines.source(tuple(lines)), f"<{sheet} {lines[0].what}>", space)
        compiled = lab.cross_compile(space["build"](), sheet)
        assert compiled.shared_bytes <= compiled.gpu.shared_per_block


WRONG = [
    (Line("wrong value", "T.copy(X, Y)", "2 * X"), "does not give 2 * X"),
    (Line("no such call", "T.no_such_call(X, Y)", "X"), "no_such_call"),
    (Line("writes nothing", "T.sync_threads()", "X"), "does not give X"),
    (Line("wrong page", "T.copy(X, Y)", "X.no_such_method()"), "no_such_method"),
]


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line.what for line, _ in WRONG])
def test_a_line_that_fails_is_shown_and_fails_the_page(line, words):
    good = Line("right", "T.copy(X, Y)", "X")
    made = Page("A page", {"One": tilelang_lines._group([good, line], CPU)})
    assert [ran.line.what for ran in made.failed] == [line.what]
    assert words in made.failed[0].failure
    assert "FAILS: " in repr(made) and "FAILS: " in made._repr_html_()
    with pytest.raises(WrongAnswer, match="1 of 2 lines of the page 'A page'") as told:
        made.check()
    assert line.what in str(told.value)


@pytest.mark.parametrize(("line", "words"), [
    (Line("another product", "Y = g.matmul(A=A, B=B)", "A @ B + 1"), "does not give"),
    (Line("no such operation", "Y = g.matmull(A=A, B=B)", "A @ B"), "matmull"),
    (Line("nothing shown", "Y = g.relu(input=A)", shows="None"), "None is None"),
    (Line("false", "Y = g.relu(input=A)", shows="not Y.get_is_virtual()"), "is False"),
])
def test_a_line_of_cudnn_that_fails_is_shown(line, words):
    assert words in cudnn_lines._run(line).failure


def test_a_line_of_python_runs_in_names_of_its_own():
    names = {"x": 1}
    assert executed(Line("sets", "x = 2", shows="x"), names).gave == "2"
    assert names == {"x": 1}
    assert executed(Line("raises", "1 / 0", shows="x"), names).failure.startswith("ZeroDivision")


def test_a_smaller_expectation_is_compared_with_a_corner():
    Y = torch.zeros(4, 4)
    Y[:2, :3] = 1
    assert not compared(Line("corner", "", "torch.ones(2, 3)"), Y, {}).failure
    assert compared(Line("corner", "", "torch.ones(2, 4)"), Y, {}).failure


def test_steps_without_a_libcudnn_say_so():
    made = cudnn_lines.cudnn_steps(cudnn_graph.Target("H100", 90, Cudnn("1.32.0")))
    assert {ran.gave for ran in made.lines} == {"not run: needs a libcudnn"}


def test_steps_run_where_there_is_a_libcudnn(libcudnn):
    made = cudnn_lines.cudnn_steps(cudnn_graph.target(CPU))
    made.check()
    assert made.lines[3].gave.endswith(" plans") and made.lines[6].gave.startswith("eng")


def test_nothing_recorded_is_no_table():
    found = ways.table_or_none("no_such_table", CPU, title="A", columns=["a"], measure=list)
    assert not found.rows and "no table 'no_such_table' was recorded" in repr(found)


# --- all results

LINE = {"gpu": "NVIDIA T4", "date": "2026-11-30", "versions": {"torch": "2"},
        "floors": {"copy_gb_s": 250.0, "tensor_tflops": {"float16": 50.0}},
        "measurement": {"name": "gemm", "shape": {"M": 64}, "dtype": "float16", "kernel_ms": 2.0,
                        "spread_ms": 0.1, "floor_ms": 1.0, "error": 1e-4,
                        "baselines": {"cuBLAS": 1.5}, "flops": 1e9}}


@pytest.fixture
def run(tmp_path, monkeypatch):
    report = {"started": "2026-11-30T10:00:00+00:00",
              "lessons": [{"lesson": "02_gemm", "status": "failed", "seconds": 12.3}]}
    (tmp_path / "report.json").write_text(json.dumps(report))
    monkeypatch.setenv("LABKIT_RUN_FOLDER", str(tmp_path))
    return tmp_path


def test_results_of_this_machine_beside_the_recorded_ones(run):
    (run / all_results.MEASURED).write_text(json.dumps(LINE) + "\n")
    found = all_results.everything()
    row = next(row for row in found.table().rows if row[0] == "02_gemm")
    recorded = max(results.recorded().find("gemm"), key=lambda m: m.flops)
    assert row[:7] == ["02_gemm", "failed", "12", "gemm", "2.0000", "50%", "0.75"]
    assert row[7] == f"{recorded.kernel_ms:.4f}"
    said = repr(found)
    assert "ms here, NVIDIA T4" in said and "(RECORDED)" in said and "2026-11-30 10:00" in said
    assert "gemm: 50% on NVIDIA T4" in found.picture().text
    assert "measured here, NVIDIA T4" in found.picture().svg


def test_without_a_run_only_what_was_recorded(tmp_path, monkeypatch):
    monkeypatch.delenv("LABKIT_RUN_FOLDER", raising=False)
    monkeypatch.chdir(tmp_path)
    found = all_results.everything()
    assert found.folder is None and found.measured is None
    assert "No run was found here" in found.note
    assert all(row[4] == "" for row in found.table().rows)
    assert "measured here" not in found.picture().svg


@pytest.mark.parametrize("spoil", ["report.json", all_results.MEASURED])
def test_a_damaged_run_is_said_and_the_rest_is_shown(run, spoil):
    (run / spoil).write_text("{\n")
    found = all_results.everything()
    assert "cannot be read" in found.note and found.table().rows


def test_every_recorded_kernel_has_its_lesson():
    """Else its row would be missing from the table of all results."""
    shown = {name for names in all_results.everything().places.values() for name in names}
    assert {m.name for m in results.recorded().measurements} <= shown


def test_pages_are_pages():
    assert page.Page("t", {}).check() == "0 lines ran, and each did what the page says."
    with pytest.raises(LabError):
        Page("t", {"a": [page.Ran(Line("w", "c"), "", "broken")]}).check()
