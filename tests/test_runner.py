"""The runner meets lessons that fail in every way, in real kernels."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import psutil
import pytest

import labkit
from labkit import devices, runner
from labkit.errors import BadArgument, LabError, NeedsGPU
from labkit.report import STATUSES, Result

PARAMETERS = 'device = "auto"\ngpu = ""\nquick = False'
MATTER = {"title": "A title", "summary": "One sentence.", "minutes": 1, "gpu": "optional",
          "min_sm": 0, "sm80_cells": [], "uses": []}
HTML = "<script>alert('x')</script> & more\nsecond line"

LEFTOVERS = """
import subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleep)
no_environment = subprocess.Popen(sleep, env={}, start_new_session=True)
start = f"import subprocess as s; print(s.Popen({sleep}, start_new_session=True, stdout=2).pid)"
orphan = subprocess.run([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True).stdout
print(child.pid, no_environment.pid, orphan)
time.sleep(1.2)  # a process without its environment is found by looking, twice a second
"""
LESSONS = {
    "01_passes": ["import json, os, sys, labkit\nopen('litter.txt', 'w').close()\n"
                  "print(json.dumps([device, gpu, quick, sys.executable, labkit.__file__,"
                  " os.getcwd(), os.environ['LABKIT_NOTEBOOKS']]))"],
    "02_fails": ["x = 1", f"raise ValueError({HTML!r})", "print('never')"],
    "03_exits": ["print('before')", "import os; os._exit(1)"],
    "04_is_killed": ["import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "05_segfaults": ["import ctypes; ctypes.string_at(0)"],
    "06_hides": ["import ipywidgets as w\nout = w.Output()\nbox = w.VBox([w.HTML('x'), out])",
                 "box", "with out:\n    1 / 0", "print('after')"],
    "07_interacts": ["from ipywidgets import interact\n@interact(n=(0, 3))\n"
                     "def draw(n=1):\n    raise KeyError('tile')"],
    "08_leaves_processes": [LEFTOVERS],
    "09_ends_itself": ["import sys; sys.exit()", "print('never')"],
    "10_kills_its_parent": ["import os, signal, time; os.kill(os.getppid(), signal.SIGKILL)\n"
                            "time.sleep(600)"],
    "99_passes_now": ["print('last')"],
}


def write(folder: Path, stem: str, cells: list[str], *, parameters: bool = True,
          **matter: object) -> Path:
    tags = {"tags": ["parameters"]} if parameters else {}
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell("# Lesson"),
               nbformat.v4.new_code_cell(PARAMETERS, metadata=tags),
               *map(nbformat.v4.new_code_cell, cells)],
        metadata={"labkit": {**MATTER, **matter}})
    path = folder / f"{stem}.ipynb"
    nbformat.write(notebook, path)
    return path


def add_stale_error(path: Path) -> None:
    """Gives the notebook an error of an earlier run, in a cell and in an Output widget."""
    notebook = nbformat.read(path, as_version=4)
    error = nbformat.v4.new_output("error", ename="Old", evalue="", traceback=[])
    notebook.metadata.widgets = {"application/vnd.jupyter.widget-state+json": {
        "state": {"a": {"model_name": "OutputModel", "state": {"outputs": [error]}}}}}
    notebook.cells[2].outputs = [error]
    nbformat.write(notebook, path)


def output(path: Path) -> str:
    return "".join(out.text for cell in nbformat.read(path, as_version=4).cells
                   for out in cell.get("outputs", []) if out.output_type == "stream")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run of all lessons, with a python3 kernelspec installed that leads nowhere."""
    folder, out = tmp_path_factory.mktemp("lessons"), tmp_path_factory.mktemp("out {braces}")
    for stem, cells in LESSONS.items():
        write(folder, stem, cells)
    add_stale_error(folder / "99_passes_now.ipynb")
    (folder / "20_not_json.ipynb").write_text("not json {")
    write(folder, "21_no_parameters", ["1"], parameters=False)
    write(folder, "22_needs_gpu", ["1"], gpu="required")
    nbformat.write(nbformat.v4.new_notebook(), folder / "23_no_front_matter.ipynb")
    before = sorted(folder.iterdir())
    spec = tmp_path_factory.mktemp("jupyter") / "kernels" / "python3"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(json.dumps(
        {"argv": ["/bin/false"], "display_name": "wrong", "language": "python"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(spec.parents[1]))
        report = runner.run(device="cpu", gpu="T4", quick=True, out=out, folder=folder, timeout=60,
                            jobs=2)
    assert sorted(folder.iterdir()) == before, "a lesson littered the folder of lessons"
    return report


@pytest.fixture(scope="module")
def saved(ran):
    return json.loads((ran.folder / "report.json").read_text())


@pytest.fixture(scope="module")
def by_name(saved):
    return {entry["lesson"]: entry for entry in saved["lessons"]}


@pytest.mark.faults
@pytest.mark.parametrize(("lesson", "status"), [
    ("01_passes", "passed"), ("02_fails", "failed"), ("03_exits", "crashed"),
    ("04_is_killed", "crashed"), ("05_segfaults", "crashed"), ("06_hides", "failed"),
    ("07_interacts", "failed"), ("08_leaves_processes", "passed"), ("09_ends_itself", "failed"),
    ("10_kills_its_parent", "crashed"), ("20_not_json", "failed"), ("21_no_parameters", "failed"),
    ("22_needs_gpu", "skipped"), ("23_no_front_matter", "failed"), ("99_passes_now", "passed")])
def test_status(by_name, lesson, status):
    assert by_name[lesson]["status"] == status, by_name[lesson]


@pytest.mark.faults
@pytest.mark.parametrize(("lesson", "cell", "name", "message"), [
    ("02_fails", 3, "ValueError", HTML),
    ("03_exits", 3, "DeadKernelError", "exit code 1"),
    ("04_is_killed", 2, "DeadKernelError", "SIGKILL"),
    ("05_segfaults", 2, "DeadKernelError", "signal 11 (SIGSEGV)"),
    ("06_hides", 4, "ZeroDivisionError", "division by zero"),
    ("07_interacts", 2, "KeyError", "tile"),
    ("09_ends_itself", 2, "SystemExit", "did not run"),
    ("10_kills_its_parent", 2, "ProcessDied", "SIGKILL"),
    ("20_not_json", None, "LabError", "not a readable notebook"),
    ("21_no_parameters", None, "LabError", "'parameters'"),
    ("23_no_front_matter", None, "LabError", "lacks title")])
def test_error_names_its_cell(ran, by_name, lesson, cell, name, message):
    error = by_name[lesson]["error"]
    assert (error["cell"], error["name"]) == (cell, name)
    assert message in error["message"]
    if cell is not None:
        source = nbformat.read(ran.folder / by_name[lesson]["notebook"], as_version=4)
        assert error["cell_id"] in [one.id for one in source.cells]


def test_skip_says_why(by_name):
    assert "GPU" in by_name["22_needs_gpu"]["reason"]
    assert "error" not in by_name["22_needs_gpu"]


def test_report_schema(ran, saved):
    assert set(saved) == {"id", "started", "resumed", "finished", "device", "gpu", "quick",
                          "parameters", "limits", "labkit", "versions", "chosen", "waiting",
                          "lessons"}
    assert saved["waiting"] == saved["resumed"] == []
    assert saved["limits"] == {"timeout": 60, "total": None, "retries": 0, "jobs": 2}
    assert (saved["device"], saved["gpu"], saved["quick"]) == ("cpu", "T4", True)
    assert saved["labkit"] == labkit.__version__
    assert saved["started"] <= saved["finished"]
    assert [entry["lesson"] for entry in saved["lessons"]] == saved["chosen"] == sorted(
        [*LESSONS, "20_not_json", "21_no_parameters", "22_needs_gpu", "23_no_front_matter"])
    for entry in saved["lessons"]:
        assert entry["status"] in STATUSES
        assert entry["device"] == "cpu"
        assert entry["seconds"] >= 0
        assert ("error" in entry) == (entry["status"] in ("failed", "timed_out", "crashed"))
        assert ("reason" in entry) == (entry["status"] == "skipped")
    assert ran.exit_code == 1
    assert not list(ran.folder.glob(".*")), "a temporary file was left"


def test_parameters_python_labkit_and_folder(ran):
    device, gpu, quick, python, package, cwd, notebooks = json.loads(
        output(ran.folder / "01_passes.ipynb"))
    assert (device, gpu, quick) == ("cpu", "T4", True)
    assert python == sys.executable
    assert package == labkit.__file__
    assert Path(cwd) not in (Path.cwd(), ran.folder, Path(notebooks))
    assert not Path(cwd).exists(), "the lesson's folder was left behind"


def test_executed_copies_are_kept(ran):
    assert {path.stem for path in ran.folder.glob("*.ipynb")} == set(LESSONS)
    assert "before" in output(ran.folder / "03_exits.ipynb")
    assert "after" in output(ran.folder / "06_hides.ipynb")


@pytest.mark.faults
def test_leftover_processes_are_gone(ran):
    pids = [int(pid) for pid in output(ran.folder / "08_leaves_processes.ipynb").split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if psutil.pid_exists(pid)
                and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for key, value in attrs if key in ("href", "src")]


def test_page_shows_every_lesson_and_escapes(ran, by_name):
    text = (ran.folder / "report.html").read_text()
    found = Page(text)
    assert all(lesson in text for lesson in by_name)
    assert "&lt;script&gt;" in text and "script" not in found.tags
    copies = [link for link in found.links if not link.startswith("logs/")]
    assert sorted(copies) == sorted(f"{lesson}.ipynb" for lesson in LESSONS)
    assert all((ran.folder / link).stat().st_size for link in found.links)
    assert not re.search(r"https?://|url\(|@import", text), "the page needs outside resources"


def test_table_has_one_line_a_lesson(ran, by_name):
    lines = ran.table(width=100).splitlines()
    assert [line.split()[0] for line in lines[:len(by_name)]] == list(by_name)
    assert max(map(len, lines[:len(by_name)])) <= 100
    assert lines[-1].startswith("3 passed, 7 failed, 4 crashed, 1 skipped; report: ")


@pytest.mark.faults
def test_time_out_keeps_what_was_done(tmp_path):
    path = write(tmp_path, "01_hangs", ["print('done')", "print('now', flush=True)\nwhile 1: pass"])
    start = time.monotonic()
    report = runner.run(["1"], device="cpu", out=tmp_path / "out", timeout=5, folder=tmp_path)
    result, = report.lessons
    assert result.status == "timed_out" and report.exit_code == 1
    assert result.error["cell"] == 3 and "5 s" in result.error["message"]
    assert 5 <= result.seconds <= time.monotonic() - start < 12
    assert output(report.folder / path.name).split() == ["done", "now"]


@pytest.mark.faults
def test_kernel_that_hangs_before_it_starts(tmp_path, monkeypatch):
    (tmp_path / "ipykernel_launcher.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write(tmp_path, "01_one", ["1"])
    report = runner.run(device="cpu", out=tmp_path / "out", folder=tmp_path, timeout=6)
    result, = report.lessons
    assert (result.status, result.error["cell"]) == ("timed_out", None)
    assert result.error["message"] == "Not finished after 6 s, before any cell had started."


@pytest.mark.faults
def test_kernel_that_does_not_start_says_why(tmp_path, monkeypatch):
    (tmp_path / "ipykernel_launcher.py").write_text("raise SystemExit('no such module')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    write(tmp_path, "01_one", ["1"])
    report = runner.run(device="cpu", out=tmp_path / "out", folder=tmp_path)
    result, = report.lessons
    assert (result.status, result.error["cell"]) == ("crashed", None)
    assert result.error["message"].endswith(
        "before any cell had started. Last words: no such module")


def fake_smi(folder: Path, listing: str, capability: str = "9.0") -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && echo '{listing}' || echo {capability}\n")
    script.chmod(0o755)


@pytest.mark.parametrize(("listing", "visible", "device"), [
    ("GPU 0: NVIDIA H200 (UUID: GPU-1a2b)", None, "gpu"),
    ("GPU 0: NVIDIA H200 (UUID: GPU-1a2b)", "0", "gpu"),
    ("GPU 0: NVIDIA H200 (UUID: GPU-1a2b)", "GPU-1a", "gpu"),
    ("GPU 0: NVIDIA H200 (UUID: GPU-1a2b)", "", "cpu"),
    ("GPU 0: NVIDIA H200 (UUID: GPU-1a2b)", "-1", "cpu"),
    ("GPU 0: NVIDIA H200 (UUID: GPU-1a2b)", "1", "cpu"),
    ("No devices found.", None, "cpu")])
def test_device_is_resolved_without_torch(tmp_path, monkeypatch, listing, visible, device):
    fake_smi(tmp_path, listing)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(devices, "_torch_sees_it", lambda: True)
    assert devices.resolve_device("auto") == device
    assert devices.resolve_device("cpu") == "cpu"
    if device == "cpu":
        with pytest.raises(NeedsGPU, match="nvidia-smi shows no GPU"):
            devices.resolve_device("gpu")


def test_a_gpu_that_torch_cannot_use(tmp_path, monkeypatch, capsys):
    """As with a driver that is older than torch's CUDA: the lessons run, on the CPU."""
    fake_smi(tmp_path, "GPU 0: NVIDIA H200 (UUID: GPU-1a2b)")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "LABKIT_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(devices, "_torch_sees_it", lambda: False)
    assert devices.resolve_device("auto") == "cpu"
    assert "torch cannot use it" in capsys.readouterr().err
    assert devices.resolve_device("gpu") == "gpu"  # asked for: the lessons say what is wrong


def test_lesson_above_the_capability_is_skipped(tmp_path, monkeypatch):
    fake_smi(tmp_path, "GPU 0: Tesla T4 (UUID: GPU-1)", "7.5")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    write(tmp_path, "01_hopper", ["1"], min_sm=90)
    report = runner.run(device="gpu", out=tmp_path / "out", folder=tmp_path)
    result, = report.lessons
    assert (result.status, result.device, report.exit_code) == ("skipped", "gpu", 0)
    assert "sm_90" in result.reason and "sm_75" in result.reason


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(LabError, match="no lessons"):
        runner.run(folder=tmp_path)
    write(tmp_path, "01_one", ["1"])
    with pytest.raises(BadArgument, match="There is no lesson '7'"):
        runner.run(["7"], folder=tmp_path)
    with pytest.raises(BadArgument, match="device is 'tpu'"):
        runner.run(device="tpu", folder=tmp_path)
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below", "/proc/labkit", tmp_path):
        with pytest.raises(BadArgument, match="--out"):
            runner.run(device="cpu", out=out, folder=tmp_path)


def test_note_is_one_line_whatever_the_message():
    error = {"cell": 4, "name": "ValueError", "message": "\nfirst\nsecond"}
    assert Result("01_one", "failed", error=error).note == "cell 4: ValueError: first"
    error = {"cell": None, "name": "AssertionError", "message": ""}
    assert Result("01_one", "failed", error=error).note == "AssertionError: "
