"""Faults injected into lessons: each ends with the right status, and harms no other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nbformat
import psutil
import pytest
from test_runner import LESSONS, MATTER, PARAMETERS, output, write

from labkit import processes, runner
from labkit.output_limit import CELL_BYTES

pytestmark = pytest.mark.faults

LINES = "line = 'y' * 99\nfor _ in range({}):\n    print(line)"
PRINTS = {
    "31_prints_200_mb": ["print('x' * 200_000_000)", "print('after')"],
    "32_prints_lines": [LINES.format(200_000), "print('after')"],
}
SLOW_PRINTS = {
    "33_prints_200_mb_in_lines": [LINES.format(2_000_000), "print('after')"],
    "34_displays_200_mb": ["from IPython.display import HTML\nHTML('z' * 200_000_000)",
                           "print('after')"],
    "35_raises_200_mb": ["raise ValueError('w' * 200_000_000)"],
}
HANGS = {
    "41_loops": ["print('before')", "while True:\n    pass"],
    "42_holds_the_interpreter": ["import re\nre.match('(a+)+$', 'a' * 64 + 'b')"],
    "43_ignores_signals": ["import signal, time\nfor number in range(1, 32):\n    if number not in "
                           "(signal.SIGKILL, signal.SIGSTOP):\n        signal.signal(number, "
                           "signal.SIG_IGN)\nwhile True:\n    time.sleep(1)"],
    "44_stops_itself": ["import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"],
}
LIMIT = 12  # seconds: enough for five kernels to start on two busy cores
MEMORY = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
whole = []
while True:
    whole.append(bytearray(64 << 20))
"""


def raw(folder: Path, stem: str, cells: list[dict], **metadata: object) -> None:
    """A notebook as it is given, also one that is not valid."""
    (folder / f"{stem}.ipynb").write_text(json.dumps({
        "cells": cells, "metadata": {"labkit": {**MATTER}, **metadata}, "nbformat": 4,
        "nbformat_minor": 5}))


def code(source: str | None, name: str, tags: tuple[str, ...] = ()) -> dict:
    cell = {"cell_type": "code", "id": name, "metadata": {"tags": list(tags)}, "outputs": [],
            "execution_count": None}
    return cell if source is None else {**cell, "source": source}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Faults that end by themselves, two at a time, between two lessons that pass."""
    folder, out = tmp_path_factory.mktemp("lessons"), tmp_path_factory.mktemp("out")
    for stem, cells in {"01_first": ["print('first')"], **PRINTS,
                        "51_out_of_memory": [MEMORY], "99_last": ["print('last')"]}.items():
        write(folder, stem, cells)
    first = code(PARAMETERS, "first", ("parameters",))
    raw(folder, "61_no_cells", [])
    raw(folder, "62_another_kernel", [first, code("print('ran')", "second")],
        kernelspec={"name": "my-venv", "display_name": "My own", "language": "python"})
    raw(folder, "63_another_language", [first], kernelspec={
        "name": "julia-1.10", "display_name": "Julia", "language": "julia"})
    raw(folder, "64_no_source", [first, code(None, "second")])
    (folder / "65_empty.ipynb").write_text("")
    (folder / "66_binary.ipynb").write_bytes(bytes(range(256)) * 64)
    (folder / "67_nested.ipynb").write_text('{"cells": ' + "[" * 100_000)
    (folder / "68_a_folder.ipynb").mkdir()
    os.mkfifo(folder / "69_a_pipe.ipynb")
    (folder / "70_endless.ipynb").symlink_to("/dev/zero")
    (folder / "71_leads_nowhere.ipynb").symlink_to("nowhere")
    return runner.run(device="cpu", out=out, folder=folder, timeout=120, jobs=2)


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """Faults that never end, all at once, and a lesson that passes beside them."""
    folder, out = tmp_path_factory.mktemp("hanging"), tmp_path_factory.mktemp("out")
    for stem, cells in {**HANGS, "45_passes": ["print('passes')"]}.items():
        write(folder, stem, cells)
    return runner.run(device="cpu", out=out, folder=folder, timeout=LIMIT, jobs=5)


@pytest.fixture(scope="module")
def by_name(ran):
    return saved(ran)


def saved(report) -> dict:
    found = json.loads((report.folder / "report.json").read_text())["lessons"]
    return {entry["lesson"]: entry for entry in found}


@pytest.mark.parametrize(("lesson", "status", "name", "words"), [
    ("01_first", "passed", None, None),
    ("31_prints_200_mb", "passed", None, None),
    ("32_prints_lines", "passed", None, None),
    ("51_out_of_memory", "failed", "MemoryError", ""),
    ("61_no_cells", "failed", "LabError", "has no code cell tagged 'parameters'"),
    ("62_another_kernel", "passed", None, None),
    ("63_another_language", "failed", "LabError", "is written in 'julia'"),
    ("64_no_source", "failed", "LabError", "not a readable notebook"),
    ("65_empty", "failed", "LabError", "not a readable notebook"),
    ("66_binary", "failed", "LabError", "not a readable notebook"),
    ("67_nested", "failed", "LabError", "not a readable notebook"),
    ("68_a_folder", "failed", "LabError", "it is not a file"),
    ("69_a_pipe", "failed", "LabError", "it is not a file"),
    ("70_endless", "failed", "LabError", "it is not a file"),
    ("71_leads_nowhere", "failed", "LabError", "it is not a file"),
    ("99_last", "passed", None, None)])
def test_status(by_name, lesson, status, name, words):
    entry = by_name[lesson]
    assert entry["status"] == status, entry
    assert ("error" in entry) == (status != "passed")
    if name:
        assert entry["error"]["name"] == name and words in entry["error"]["message"]
        assert len(entry["error"]["message"]) <= 2000


@pytest.mark.parametrize("lesson", HANGS)
def test_what_hangs_is_ended_in_time(hung, lesson):
    entry = saved(hung)[lesson]
    assert entry["status"] == "timed_out" and LIMIT <= entry["seconds"] < LIMIT + 15
    assert entry["error"]["name"] == "Timeout" and entry["error"]["cell"] in (2, 3)
    assert entry["error"]["message"] == f"Not finished after {LIMIT} s."


def test_what_was_done_is_kept(ran, hung):
    assert {path.stem for path in ran.folder.glob("*.ipynb")} == {
        "01_first", "62_another_kernel", "99_last", "51_out_of_memory", *PRINTS}
    assert output(ran.folder / "62_another_kernel.ipynb") == "ran\n"
    assert {path.stem for path in hung.folder.glob("*.ipynb")} == {*HANGS, "45_passes"}
    assert output(hung.folder / "41_loops.ipynb") == "before\n"
    assert saved(hung)["45_passes"]["status"] == "passed"


@pytest.mark.parametrize("lesson", PRINTS)
def test_endless_output_is_cut_where_it_can_be_read(ran, lesson):
    assert_cut(ran.folder / f"{lesson}.ipynb")


def assert_cut(copy: Path) -> None:
    assert copy.stat().st_size < 1.5 * CELL_BYTES
    shown = json.dumps(nbformat.read(copy, as_version=4).cells)
    assert "output cut off: a run keeps 8 MB of a cell" in shown
    assert output(copy).endswith("after\n")


@pytest.mark.slow
def test_200_mb_in_other_ways(tmp_path):
    for stem, cells in SLOW_PRINTS.items():
        write(tmp_path, stem, cells)
    report = runner.run(device="cpu", out=tmp_path / "out", folder=tmp_path, timeout=300)
    lines, display, error = report.lessons
    assert [lines.status, display.status, error.status] == ["passed", "passed", "failed"]
    assert_cut(report.folder / lines.notebook)
    assert_cut(report.folder / display.notebook)
    assert error.error["name"] == "ValueError" and len(error.error["message"]) == 2000
    assert (report.folder / error.notebook).stat().st_size < CELL_BYTES


def test_nothing_is_left_running(ran, hung):
    assert not list(processes.marked(ran.id)) and not list(processes.marked(hung.id))
    assert not [child for child in psutil.Process().children(recursive=True)
                if processes.alive(child)]


def test_other_faults_have_their_lessons():
    """Exceptions, os._exit, SIGKILL, a segmentation fault, what is not JSON: in test_runner.py."""
    assert {"02_fails", "03_exits", "04_is_killed", "05_segfaults"} <= set(LESSONS)
