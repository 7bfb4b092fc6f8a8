"""Finding lessons and loading their kernels."""

from __future__ import annotations

import json
import subprocess
import sys

import nbformat
import pytest
import torch

import labkit as lab
from labkit import lessons
from labkit.errors import BadArgument, LabError


def test_kernel_comes_from_the_lesson_and_runs():
    vector_add = lab.kernel("01", "vector_add")
    a, b = torch.randn(777), torch.randn(777)
    out = lab.compile(vector_add(777), out_idx=-1, device="cpu")(a, b)
    assert torch.equal(out, a + b)


def test_kernel_cells_bring_their_helpers():
    assert set(lab.kernel("02", "SCHEDULES")) >= {75, 80, 90}
    assert lab.kernel("02", "gemm_schedule")(89) == lab.kernel("02", "SCHEDULES")[80]


@pytest.mark.parametrize("name", ["2", "02", "02_gemm", "gemm", "02_gemm.ipynb",
                                  "notebooks/02_gemm.ipynb"])
def test_names_of_a_lesson(name):
    assert lessons.find(name).stem == "02_gemm"


@pytest.mark.parametrize("name", ["99", "attention", ""])
def test_unknown_lesson(name):
    with pytest.raises(BadArgument, match="the lessons are: 00_environment") as error:
        lessons.find(name)
    assert "\n" not in str(error.value)


def test_unknown_kernel():
    with pytest.raises(BadArgument, match=r"no kernel called 'attention'.*gemm"):
        lab.kernel("02", "attention")


def test_folder_of_lessons(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(tmp_path / "missing"))
    with pytest.raises(BadArgument, match="is not a folder"):
        lessons.directory()
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "notebooks" / "00_mine.ipynb")
    monkeypatch.delenv("LABKIT_NOTEBOOKS")
    monkeypatch.chdir(tmp_path)
    assert [lesson.stem for lesson in lessons.all_lessons()] == ["00_mine"]


def test_unreadable_lesson_and_missing_front_matter(tmp_path):
    (tmp_path / "00_broken.ipynb").write_text("{")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "01_bare.ipynb")
    broken, bare = lessons.all_lessons(tmp_path)
    with pytest.raises(LabError, match=r"00_broken\.ipynb is not a readable notebook"):
        _ = broken.notebook
    with pytest.raises(LabError, match="lacks title, summary, minutes"):
        _ = bare.front_matter


def test_import_is_cheap():
    code = ("import sys, time; start = time.perf_counter(); import labkit; "
            "took = time.perf_counter() - start; "
            "heavy = {'torch', 'tilelang', 'matplotlib', 'nbformat', 'numpy'} & set(sys.modules); "
            "import json; print(json.dumps([took, sorted(heavy)]))")
    runs = [json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                      check=True).stdout) for _ in range(3)]
    assert min(took for took, _ in runs) < 0.3
    assert runs[0][1] == []


def test_every_export_loads():
    for name in lab.__all__:
        assert getattr(lab, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = lab.nonsense


def test_errors_show_no_traceback():
    assert LabError("one sentence.")._render_traceback_() == ["LabError: one sentence."]
