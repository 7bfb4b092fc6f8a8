"""Several lessons at once, limits, retries, resuming, and the reports for people and for CI."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from xml.etree import ElementTree as xml

import pytest
from test_runner import MATTER, PARAMETERS, fake_smi, output, write

import labkit
from labkit import __version__, devices, runner
from labkit.cli import main
from labkit.errors import BadArgument, LabError
from labkit.report import Result, RunReport

ROOT = Path(labkit.__file__).parents[1]
TWO_GPUS = "GPU 0: NVIDIA H200 (UUID: GPU-aa)\nGPU 1: NVIDIA H200 (UUID: GPU-bb)"


@pytest.fixture
def folder(tmp_path):
    (folder := tmp_path / "lessons").mkdir()
    return folder


def two_gpus(tmp_path, monkeypatch, visible=None):
    fake_smi(tmp_path, TWO_GPUS)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


# Several at once

def test_one_gpu_is_never_shared(folder, tmp_path, monkeypatch, capsys):
    """Four lessons, three at once asked for, two GPUs there."""
    two_gpus(tmp_path, monkeypatch)
    for number in range(4):
        write(folder, f"0{number}_uses", [
            "import json, os, time\nbegan = time.monotonic()\ntime.sleep(0.7)\n"
            "print(json.dumps([os.environ['CUDA_VISIBLE_DEVICES'], began, time.monotonic()]))"])
    report = runner.run(device="gpu", out=tmp_path / "out", folder=folder, jobs=3)
    assert report.limits["jobs"] == 2 and "so 2 run at once" in capsys.readouterr().out
    assert [result.lesson for result in report.lessons] == [f"0{n}_uses" for n in range(4)]
    used = [json.loads(output(report.folder / result.notebook)) for result in report.lessons]
    assert {gpu for gpu, _, _ in used} == {"GPU-aa", "GPU-bb"}
    for gpu in ("GPU-aa", "GPU-bb"):
        spans = sorted((began, ended) for name, began, ended in used if name == gpu)
        assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))


@pytest.mark.parametrize(("visible", "gpus"), [
    (None, ["GPU-aa", "GPU-bb"]), ("1", ["1"]), ("1,0", ["1", "0"]), ("0,7,1", ["0"]),
    ("GPU-bb,0", ["GPU-bb", "0"]), ("0,0", ["0"]), ("", []), ("-1", []), ("NoDevFiles", [])])
def test_gpus_that_may_be_given_out(tmp_path, monkeypatch, visible, gpus):
    two_gpus(tmp_path, monkeypatch, visible)
    assert devices.visible_gpus() == gpus


def test_ctrl_c_ends_all_that_run(folder, tmp_path):
    for number in (1, 2):
        write(folder, f"0{number}_waits", [
            f"import pathlib, time; pathlib.Path({str(tmp_path / str(number))!r}).touch()\n"
            "time.sleep(600)"])
    write(folder, "03_three", ["1"])
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", "run", "--device", "cpu", "--jobs", "2", "--out", "out"],
        cwd=tmp_path, env={**os.environ, "LABKIT_NOTEBOOKS": str(folder),
                           "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 90
    while not all((tmp_path / str(number)).exists() for number in (1, 2)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    one, two, three = report["lessons"]
    assert one["error"]["name"] == two["error"]["name"] == "KeyboardInterrupt"
    assert (three["status"], three["reason"]) == ("skipped", "interrupted")
    assert report["finished"] and not report["waiting"]


# Limits and retries

def test_total_limit_ends_what_runs_and_leaves_out_the_rest(folder, tmp_path):
    write(folder, "01_hangs", ["while True:\n    pass"])
    write(folder, "02_two", ["1"])
    report = runner.run(device="cpu", out=tmp_path / "out", folder=folder, total=8)
    one, two = report.lessons
    assert one.status == "timed_out" and one.error["message"].startswith(
        "Not finished when the time limit of the whole run, 8 s, was up")
    assert (two.status, two.reason) == (
        "skipped", "the time limit of the whole run, 8 s, was up")
    assert report.exit_code == 1 and not report.interrupted
    root = xml.parse(report.folder / "report.xml").getroot()
    assert [case[0].tag for case in root.iter("testcase")] == ["error", "error"]
    again = runner.run(["2"], device="cpu", out=tmp_path / "out-2", folder=folder, total=60)
    assert again.lessons[0].status == "passed"


def test_retries_are_off_and_where_asked_for_are_said(folder, tmp_path):
    flag = tmp_path / "flag"
    write(folder, "01_at_second", [f"import pathlib\nflag = pathlib.Path({str(flag)!r})\n"
                                   "there = flag.exists(); flag.touch()\nprint('there', there)\n"
                                   "assert there, 'not yet'"])
    write(folder, "02_never", ["import os; os._exit(9)"])
    report = runner.run(device="cpu", out=tmp_path / "out", folder=folder, retries=1, jobs=2)
    one, two = report.lessons
    assert one.status == "passed" and [e["message"] for e in one.attempts] == ["not yet"]
    assert one.note == "attempt 2" and one.error is None
    assert two.status == "crashed" and len(two.attempts) == 1 and "attempt 2" in two.note
    assert output(report.folder / "01_at_second.attempt-1.ipynb") == "there False\n"
    assert output(report.folder / "01_at_second.ipynb") == "there True\n"
    assert "<summary>attempt 1</summary>" in (report.folder / "report.html").read_text()
    flag.unlink()
    report = runner.run(["1"], device="cpu", out=tmp_path / "out-2", folder=folder)
    assert report.lessons[0].status == "failed" and report.lessons[0].attempts is None


@pytest.mark.parametrize("limit", [{"timeout": 0}, {"timeout": float("nan")}, {"total": -1},
                                   {"total": float("inf")}, {"retries": -1}, {"retries": True},
                                   {"jobs": 0}, {"jobs": 1.5}, {"timeout": "9"}])
def test_limits_are_checked(folder, limit):
    with pytest.raises(BadArgument, match=f"^{next(iter(limit))} is .* it takes a .*number"):
        runner.run(folder=folder, **limit)


@pytest.mark.parametrize(("option", "value"), [("--jobs", "0"), ("--jobs", "two"),
                                               ("--retries", "-1"), ("--total-timeout", "nan")])
def test_options_are_checked(capsys, option, value):
    with pytest.raises(SystemExit) as ended:
        main(["run", option, value])
    assert ended.value.code == 2 and f"argument {option}" in capsys.readouterr().err


# Resuming

@pytest.fixture
def half_done(folder, tmp_path):
    """A run of which one lesson passed, and one failed for want of a file."""
    write(folder, "01_one", ["print('ran')"])
    write(folder, "02_two", [f"open({str(tmp_path / 'wanted')!r})"])
    report = runner.run(device="cpu", out=tmp_path / "out", folder=folder, quick=True, gpu="T4")
    assert report.exit_code == 1
    return tmp_path / "out"


def test_resume_runs_what_did_not_pass(half_done, folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "wanted").touch()
    before = (half_done / "01_one.ipynb").stat().st_mtime_ns
    first = json.loads((half_done / "report.json").read_text())
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))
    assert main(["run", "--resume", "--out", str(half_done)]) == 0
    assert "1 passed before, and is not run again" in capsys.readouterr().out
    second = json.loads((half_done / "report.json").read_text())
    assert (half_done / "01_one.ipynb").stat().st_mtime_ns == before
    assert [entry["status"] for entry in second["lessons"]] == ["passed", "passed"]
    assert second["lessons"][0] == first["lessons"][0]
    assert (second["id"], second["started"], second["quick"], second["gpu"]) == (
        first["id"], first["started"], True, "T4")
    assert len(second["resumed"]) == 1
    changed = folder / "01_one.ipynb"
    changed.write_text(changed.read_text().replace("ran", "ran anew"))
    runner.run(out=half_done, folder=folder, resume=True)
    assert output(half_done / "01_one.ipynb") == "ran anew\n"
    (half_done / "02_two.ipynb").unlink()
    runner.run(out=half_done, folder=folder, resume=True)
    assert (half_done / "02_two.ipynb").exists()


def test_resume_keeps_the_order(folder, tmp_path):
    """The second of three was still running when the run was killed."""
    for number in (1, 2, 3):
        write(folder, f"0{number}_one", ["1"])
    report = runner.run(["3", "2", "1"], device="cpu", out=tmp_path / "out", folder=folder, jobs=2)
    file = report.folder / "report.json"
    data = json.loads(file.read_text())
    data["lessons"], data["waiting"] = [data["lessons"][0], data["lessons"][2]], ["02_one"]
    file.write_text(json.dumps(data))
    again = runner.run(out=report.folder, folder=folder, resume=True)
    assert [result.lesson for result in again.lessons] == ["03_one", "02_one", "01_one"]


def test_resume_without_a_folder_takes_the_newest(folder, tmp_path, monkeypatch):
    write(folder, "01_one", ["1"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument, match=r"There is no run to resume in .*runs"):
        runner.run(folder=folder, resume=True)
    first = runner.run(device="cpu", folder=folder)
    again = runner.run(folder=folder, resume=True)
    assert again.folder == first.folder and again.id == first.id
    begun = runner.run(device="cpu", out="new", folder=folder, resume=True)
    assert begun.lessons[0].status == "passed" and not begun.resumed


@pytest.mark.parametrize(("asked", "words"), [
    ({"quick": False, "gpu": "H100"}, r"started otherwise \(gpu\)"),
    ({"names": ["01"]}, r"\(choice of lessons\)")])
def test_resume_keeps_the_run_s_settings(half_done, folder, asked, words):
    with pytest.raises(BadArgument, match=words):
        runner.run(out=half_done, folder=folder, resume=True, **asked)


LIES = [
    "", "{", "[]", "{}", "null", "[" * 100_000,
    {"id": "x"}, {"id": "../../x" + "0" * 26}, {"id": None}, {"device": "tpu"}, {"quick": 1},
    {"chosen": [3]}, {"chosen": ["../01_one"]}, {"chosen": ["77_gone"]}, {"chosen": "01_one"},
    {"lessons": 3},
    {"lessons": [3]}, {"lessons": [{"lesson": "01_one"}]}, {"parameters": {"01_one": 3}},
    {"parameters": {"01_one": {"device": "gpu"}}}, {"parameters": {"01_one": {"rm": 1}}},
    {"versions": {"python": "2.7"}}, {"labkit": "0.0"}, {"versions": {"python": 3}},
    {"lessons": [{"lesson": "01_one", "status": "passed", "seconds": "1"}]},
    {"lessons": [{"lesson": "01_one", "status": "passed", "seconds": 1, "device": "cpu",
                  "title": "", "source": "", "attempts": [3]}]}]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: str(lie)[:40])
def test_a_report_that_lies_is_not_resumed(folder, tmp_path, lie):
    write(folder, "01_one", ["1"])
    (out := tmp_path / "out").mkdir()
    whole = {"id": "0" * 32, "started": "2026-01-01T00:00:00+00:00", "resumed": [],
             "finished": None, "device": "cpu", "gpu": "", "quick": False, "parameters": {},
             "limits": {}, "labkit": __version__, "versions": runner._versions(),
             "chosen": ["01_one"], "waiting": ["01_one"], "lessons": []}
    text = lie if isinstance(lie, str) else json.dumps({**whole, **lie})
    (out / "report.json").write_text(text)
    with pytest.raises(LabError) as refused:
        runner.run(out=out, folder=folder, resume=True)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    assert (out / "report.json").read_text() == text, "it was overwritten"


# Reports

HOSTILE = ["01_$(touch pwned)", "02_{x}'\"`;&|<b>", "03_ -rf", "04_\x1b[2J\n\t", "05_ü\u202e漢",
           "06_" + "n" * 200, "07_%2e%2e", "08_]]>&amp;<!--"]


def test_hostile_names(folder, tmp_path, capsys):
    for number, name in enumerate(HOSTILE):
        write(folder, name, ["print('ran')"] if number < 3 else ["raise ValueError('\\x1b[2J\\0')"],
              title="\x1b]0;title\x07<script>")
    raw = os.fsencode(folder) + b"/09_\xff\xfe.ipynb"
    with open(raw, "w") as file:
        file.write((folder / f"{HOSTILE[0]}.ipynb").read_text())
    report = runner.run(device="cpu", out=tmp_path / "out", folder=folder, jobs=2)
    assert [result.status for result in report.lessons] == [
        *["passed"] * 3, *["failed"] * 6]
    assert "name is not UTF-8; rename it" in report.lessons[-1].error["message"]
    shown = capsys.readouterr().out
    assert all(line.isprintable() for line in shown.splitlines())
    assert all(line.isprintable() for line in report.table(200).splitlines())
    assert not list(tmp_path.rglob("pwned*")) and "<script" not in (
        report.folder / "report.html").read_text()
    root = xml.parse(report.folder / "report.xml").getroot()
    assert len(list(root.iter("testcase"))) == 9
    assert sum(1 for _ in report.folder.glob("*.ipynb")) == 8


def test_junit_has_the_parts_that_ci_systems_read(tmp_path):
    error = {"cell": 3, "name": "ValueError", "message": "no\x00 \ud800 & <tile>\nsecond"}
    report = RunReport(tmp_path, "2026-01-02T03:04:05+00:00", "cpu", "T4", True, "0.1",
                       {"gpu": "", "torch": "2"}, [
        Result("01_one", seconds=1.5, notebook="01_one.ipynb"),
        Result("02_two", "failed", 2, error=error), Result("03_three", "timed_out", error=error),
        Result("04_four", "crashed", error=error), Result("05_five", "skipped", reason="no GPU"),
        Result("06_six", "skipped", reason="interrupted", left_out=True)])
    assert report.write() and report.exit_code == 1
    root = xml.parse(tmp_path / "report.xml").getroot()
    suite, = root
    assert root.tag == "testsuites" and suite.tag == "testsuite"
    for element in (root, suite):
        assert {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
            "tests": "6", "failures": "1", "errors": "3", "skipped": "1"}
        assert float(element.get("time")) == 3.5
    assert suite.get("timestamp") == "2026-01-02T03:04:05"
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    kinds = {name: [part.tag for part in case] for name, case in cases.items()}
    assert kinds == {"01_one": ["system-out"], "02_two": ["failure"], "03_three": ["error"],
                     "04_four": ["error"], "05_five": ["skipped"], "06_six": ["error"]}
    failure = cases["02_two"][0]
    assert failure.get("type") == "ValueError" and failure.get("message").startswith("cell 3: ")
    assert failure.text == "no\ufffd \ufffd & <tile>\nsecond"
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert properties["torch"] == "2" and properties["compiled for"] == "T4"


def test_a_live_line_on_a_terminal(folder, tmp_path):
    write(folder, "01_one", ["import time; time.sleep(1)"])
    write(folder, "02_two", ["raise ValueError('no')"])
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit", "run", "--device", "cpu", "--out", "out", "--jobs", "2"],
        cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "LABKIT_NOTEBOOKS": str(folder), "PYTHONPATH": str(ROOT)})
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the terminal is closed
            break
    os.close(ours)
    assert process.wait(30) == 1
    text = shown.decode()
    assert "01_one 0 s, 02_two 0 s" in text or "02_two 0 s, 01_one 0 s" in text
    assert "1 of 2 lessons" in text
    assert text.count("cell 2: ValueError: no") == 2  # when it ended, and in the table


def test_output_that_cannot_be_written_does_not_end_the_run(folder, tmp_path):
    write(folder, "01_one", ["1"])
    write(folder, "02_two", ["1"])
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "labkit", "run", "--device", "cpu", "--out", "out"],
            cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120,
            env={**os.environ, "LABKIT_NOTEBOOKS": str(folder), "PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stderr.startswith("labkit: the output cannot be written (No space left on device)")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [entry["status"] for entry in report["lessons"]] == ["passed", "passed"]


def test_matter_and_parameters_are_those_of_the_lessons():
    """The notebooks made here have what the kit's own have."""
    first = json.loads((ROOT / "notebooks" / "01_vector_add.ipynb").read_text())
    for_the_index = {"before", "needs", "objectives", "terms"}
    assert set(MATTER) == set(first["metadata"]["labkit"]) - for_the_index
    assert all(f"{name} = " in PARAMETERS for name in ("device", "gpu", "quick"))
