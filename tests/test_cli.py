"""The command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from test_runner import write

import labkit
from labkit import machine
from labkit.cli import main


@pytest.fixture
def lessons(tmp_path, monkeypatch):
    folder = tmp_path / "lessons"
    folder.mkdir()
    write(folder, "01_one", ["print(1)"])
    write(folder, "02_two", ["raise RuntimeError('no')"], gpu="required", min_sm=80, minutes=25)
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"labkit {labkit.__version__}\n"


def test_no_command_prints_help(capsys):
    assert main([]) == 2
    assert "doctor" in capsys.readouterr().out


def test_lessons_lists_them_and_survives_a_broken_one(lessons, capsys):
    (lessons / "03_broken.ipynb").write_text("{")
    assert main(["lessons"]) == 0
    one, two, broken = capsys.readouterr().out.splitlines()
    assert one.split() == ["01", "A", "title", "1", "min", "GPU", "optional"]
    assert two.endswith("25 min  GPU required, sm_80")
    assert "not a readable notebook" in broken


@pytest.mark.parametrize("ok", [True, False])
def test_doctor(monkeypatch, capsys, ok):
    class Report:
        def as_dict(self):
            return {"ok": ok}

        def __str__(self):
            return "all well"

    Report.ok = ok
    module = types.SimpleNamespace(doctor=Report)
    monkeypatch.setitem(sys.modules, "labkit.environment", module)
    assert main(["doctor"]) == (0 if ok else 1)
    assert capsys.readouterr().out == "all well\n"
    assert main(["doctor", "--json"]) == (0 if ok else 1)
    assert json.loads(capsys.readouterr().out) == {"ok": ok}


def test_run_passes_and_reports_in_a_folder_named_by_time(lessons, capsys):
    assert main(["run", "one", "1", "--device", "cpu", "--quick"]) == 0
    shown = capsys.readouterr().out
    report, = Path("runs").glob("*/report.json")
    assert [entry["lesson"] for entry in json.loads(report.read_text())["lessons"]] == ["01_one"]
    assert "1 passed" in shown and str(report.with_suffix(".html")) in shown
    assert len([line for line in shown.splitlines() if line.startswith("01_one")]) == 2


@pytest.mark.parametrize(("arguments", "words"), [
    (["run", "nothing"], "no lesson 'nothing'"),
    (["run", "1", "--out", "/proc/labkit"], "cannot be written"),
    (["run", "--device", "gpu"], "no GPU"),
])
def test_bad_input_is_one_sentence_and_2(lessons, monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(machine, "nvidia_smi", lambda *_: "")
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("labkit: ") and error.count("\n") == 1 and words in error


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_time_limit_is_a_number_above_0(capsys, seconds):
    with pytest.raises(SystemExit) as ended:
        main(["run", "--timeout", seconds])
    assert ended.value.code == 2
    assert "seconds above 0" in capsys.readouterr().err


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_a_whole_report(tmp_path, sent):
    """From a folder elsewhere, with labkit only on the path of the runner's own process."""
    write(tmp_path, "01_one", ["import labkit; print(labkit.__file__)"])
    write(tmp_path, "02_waits", ["import os, pathlib, time\n"
                                 f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text("
                                 "str(os.getpid()))\ntime.sleep(600)"])
    write(tmp_path, "03_three", ["1"])
    root = Path(labkit.__file__).parents[1]
    start = f"import sys; sys.path.insert(0, {str(root)!r}); from labkit.cli import main; "
    process = subprocess.Popen(
        [sys.executable, "-c", start + "sys.exit(main(sys.argv[1:]))",
         "run", "--device", "cpu", "--out", "out"], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "LABKIT_NOTEBOOKS": str(tmp_path)})
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    halfway = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [entry["status"] for entry in halfway["lessons"]] == ["passed"]
    process.send_signal(sent)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    one, two, three = report["lessons"]
    assert one["status"] == "passed"
    assert (two["status"], two["error"]["name"], two["error"]["cell"]) == (
        "failed", "KeyboardInterrupt", 2)
    assert (three["status"], three["reason"]) == ("skipped", "interrupted")
    assert report["finished"] and "1 skipped" in shown
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}/cmdline").exists() or not Path(
        f"/proc/{(tmp_path / 'pid').read_text()}/cmdline").read_text()
