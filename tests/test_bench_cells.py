"""Which cells the bench runs: what a measuring cell needs, and which cells measure a name."""

from __future__ import annotations

import functools

import nbformat
import pytest

from labkit import lessons
from labkit.benching import cases, places, slicing
from labkit.errors import BadArgument, LabError


def needed(*sources, always=()):
    return slicing.needed(sources, len(sources) - 1, always)


def test_what_a_cell_reads_and_what_that_needs():
    assert needed("a = 1", "b = a", "c = 2", "print(b)") == [0, 1, 3]


def test_the_latest_definition_counts():
    assert needed("a = 1", "a = 2", "print(a)") == [1, 2]
    assert needed("a = 1", "a = a + 1", "print(a)") == [0, 1, 2]
    assert needed("a = 1", "a += 1", "print(a)") == [0, 1, 2]


def test_a_function_reads_when_it_is_called():
    """`size` of cell 1 is what f finds in cell 3, whichever came first."""
    assert needed("def f():\n    return size", "size = 2", "x = 3", "f()") == [0, 1, 3]
    assert needed("size = 1", "def f(n=size):\n    return n", "f()") == [0, 1, 2]
    assert needed("def f(a):\n    b = a\n    return b", "a = 1", "b = 2", "f(3)") == [0, 3]


def test_names_that_a_cell_binds_itself_are_not_asked_for():
    assert needed("out = 1", "out = 2\nprint(out)") == [1]
    assert needed("x = 1", "print([x for x in range(3)])") == [1]
    assert needed("x = 1", "for x in range(3):\n    print(x)") == [1]
    assert needed("x = 1", "call = lambda x: x") == [1]


def test_a_change_of_a_thing_is_a_definition_of_it():
    assert needed("t = [1]", "t[0] = 2", "print(t)") == [0, 1, 2]
    assert needed("import torch", "torch.backends.x = True", "torch.ones(3)") == [0, 2]


def test_setup_and_parameters_are_always_there():
    assert needed("import os", "n = 1", "print(2)", always=[0, 1]) == [0, 1, 2]


def test_a_cell_that_is_not_python(tmp_path):
    with pytest.raises(ValueError, match="no cell 3"):
        slicing.needed(["a = 1"], 3)
    with pytest.raises(LabError, match="cannot be told"):
        slicing.cells_for(lesson(tmp_path, "%%time\nx = 1", "lab.bench('x', here)"), "c1")


def lesson(folder, *sources):
    cells = [nbformat.v4.new_code_cell(source, id=f"c{i}") for i, source in enumerate(sources)]
    path = folder / "01_one.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return lessons.Lesson(path)


def found(monkeypatch, folder, *sources):
    lesson(folder, *sources)
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))
    return {name: [(place.cell, place.sure) for place in chosen]
            for name, chosen in places.find().items()}


def test_calls_of_the_benchmark(monkeypatch, tmp_path):
    assert found(monkeypatch, tmp_path, "lab.bench('mine', here)", "bench_shapes('two', here)",
                 "lab.check(x, y, name='gemm')", "lab.kernel('02', 'gemm')") == {
        "mine": [("c0", True)], "two": [("c1", True)]}


def test_a_function_of_the_lesson_that_measures(monkeypatch, tmp_path):
    assert found(monkeypatch, tmp_path, "def measure(name):\n    return lab.bench(name, here)",
                 "measure('theirs')") == {"theirs": [("c1", True)]}


def test_names_of_the_results_in_other_calls(monkeypatch, tmp_path):
    assert found(monkeypatch, tmp_path, "compare.run('gemm_swiglu, z not saved', here)",
                 "[compare.run(n, here) for n in ('gemm_dswiglu', 'other')]") == {
        "gemm_swiglu": [("c0", False)], "gemm_dswiglu": [("c1", False)]}
    assert found(monkeypatch, tmp_path, "mine = {'gemm_drms': 1}\n[compare.run(*m) for m in mine]",
                 "lab.compare({'gemm_swiglu': 1})") == {"gemm_drms": [("c0", False)]}
    assert found(monkeypatch, tmp_path, "ops = {'gemm_swiglu': 1, 'gemm_drms, in': 2}",
                 "x = 'gemm'", "compare.error_rows('gemm_drms')",
                 "[compare.run(n, here) for n in ops]") == {
        "gemm_swiglu": [("c3", False)], "gemm_drms": [("c3", False)]}


def test_what_lessons_keep_in_files():
    kinds = {name: kind for name, (kind, _) in places.find_files().items()}
    assert kinds["cudnn_launch"] == kinds["cudnn_fp8"] == "table"
    assert kinds["gemm"] == kinds["gemm_tuned"] == "sweep"
    assert kinds["cudnn_conv_bias_relu"] == "plans" and "gemm_raced" not in kinds


def test_where_a_cell_is_sure_the_others_are_left_out(monkeypatch, tmp_path):
    assert found(monkeypatch, tmp_path, "survey('gemm', here)", "lab.bench('gemm', here)") == {
        "gemm": [("c1", True)]}


def test_the_lessons_measure_these_names():
    measured = places.find()
    found = functools.cache(lessons.find)
    assert {"vector_add", "gemm", "gemm_persistent", "gemm_fp8", "gemm_bias_gelu", "softmax",
            "softmax_online", "softmax_kept", "flash_attention", "flash_attention_causal",
            "cudnn_conv_bias_relu",
            "cudnn_matmul_amax", "cudnn_sdpa", "cudnn_sdpa_causal"} <= set(measured)
    for name, chosen in measured.items():
        for place in chosen:
            ids = [cell.id for cell in slicing.cells_for(found(place.lesson), place.cell)]
            assert ids[-1] == place.cell, name
            assert len(ids) < 21, f"{name} runs most of its lesson: {ids}"


def test_the_further_sizes_are_parameters_of_their_lessons():
    chosen = cases.chosen()
    assert len({case.key for case in chosen}) == len(chosen)
    found = functools.cache(lessons.find)
    for case in chosen:
        for place in case.places if case.parameters else ():
            cell = next(cell for cell in found(place.lesson).notebook.cells
                        if "parameters" in cell.metadata.get("tags", []))
            given = slicing.names(cell.source).gives
            assert set(case.parameters) <= given, case


def test_choosing(monkeypatch):
    monkeypatch.setattr(places, "find", functools.cache(places.find))
    assert [str(c) for c in cases.chosen(["softmax", "vector_add"])] == ["softmax", "vector_add"]
    assert len(cases.chosen(["gemm"])) > 3
    assert len(cases.chosen(["gemm"], quick=True)) == len(cases.chosen(["gemm"], device="cpu")) == 1
    assert "cost_autotune" not in [c.name for c in cases.chosen(device="cpu")]
    assert "cost_run" not in [c.name for c in cases.chosen()]
    monkeypatch.setattr(places, "find_files", functools.cache(places.find_files))
    everything = [(c.name, c.kind) for c in cases.chosen(everything=True)]
    assert {("gemm", ""), ("gemm", "sweep"), ("cudnn_launch", "table")} <= set(everything)
    assert [c.kind for c in cases.chosen(["cudnn_launch"])] == ["table"]
    assert cases.chosen(["cudnn_launch"], device="cpu") == []
    assert {c.kind for c in cases.chosen(["gemm"])} == {""}
    with pytest.raises(BadArgument, match="No lesson measures 'gem'"):
        cases.chosen(["gem"])
    with pytest.raises(BadArgument, match="needs a CUDA GPU"):
        cases.chosen(["cost_autotune"], device="cpu")
