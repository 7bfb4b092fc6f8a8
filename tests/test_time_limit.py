"""Answers that do not end: the check ends them, and says where they were."""

from __future__ import annotations

import threading
import time

import pytest

import labkit as lab
from labkit.errors import BadArgument
from labkit.exercises import time_limit
from labkit.exercises.exercise import find, load
from labkit.exercises.time_limit import TookTooLong, limited

pytestmark = pytest.mark.exercises


@pytest.fixture(autouse=True)
def short(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setenv("LABKIT_CHECK_SECONDS", "1")


ENDLESS = """
def launched_threads(*sizes):
    n = 0
    while True:
        n += 1
"""
CATCHES = """
def launched_threads(*sizes):
    while True:
        try:
            sum(range(1000))
        except:
            pass
"""


def function_exercise():
    """A check of a plain function, whatever it is called."""
    from labkit.exercises import all_exercises
    from labkit.exercises.trial import FunctionCheck

    return next(e for e in all_exercises() if isinstance(e.judge, FunctionCheck))


@pytest.mark.parametrize(("source", "line"), [(ENDLESS, "line "), (CATCHES, "line ")],
                         ids=["endless", "catches everything"])
def test_an_endless_loop_is_told_with_its_line(source, line):
    exercise = function_exercise()
    answer = load(exercise, source.replace("launched_threads", exercise.answer))
    began = time.monotonic()
    feedback = lab.check(exercise.key, answer)
    assert time.monotonic() - began < 30
    assert feedback.attempted and not feedback.ok
    assert feedback.text.splitlines()[1].startswith(line), feedback.text
    assert "it did not end within 1 seconds of computing. Look for a loop" in feedback.text
    settled()


def settled(seconds=5):
    deadline = time.monotonic() + seconds
    while any(t.name == "labkit-check" for t in threading.enumerate()):
        assert time.monotonic() < deadline, "a check is left running"
        time.sleep(0.05)


def test_an_endless_loop_in_a_compiled_kernel(tmp_path):
    """In a process of its own: nothing can end that loop but the end of the process."""
    import subprocess
    import sys

    exercise = find("01.1")
    head = exercise.solution.split("@T.prim_func")[0]
    assert head.count("def ") == 1
    text = exercise.solution
    place = text.index("T.Parallel")
    line_start = text.rindex("\n", 0, place) + 1
    indent = " " * (len(text[line_start:]) - len(text[line_start:].lstrip()))
    loop = (f"{indent}n = T.alloc_local((1,), 'int32')\n{indent}n[0] = 0\n"
            f"{indent}while n[0] < 1:\n{indent}    n[0] = 0\n")
    answer = text[:line_start] + loop + text[line_start:]
    (tmp_path / "answer.py").write_text(answer)
    script = (f"import labkit as lab, pathlib\nfrom labkit.exercises.exercise import find, load\n"
              f"answer = load(find('01.1'), pathlib.Path({str(tmp_path / 'answer.py')!r})"
              ".read_text())\nprint(lab.check('01.1', answer))\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          timeout=300)
    assert not done.returncode, done.stderr
    assert "it did not end within 1 seconds of computing." in done.stdout, done.stdout
    assert "restart the notebook's kernel" in done.stdout


def test_what_waits_is_ended_by_the_wall_clock():
    event = threading.Event()
    with pytest.raises(TookTooLong, match=r"within 0.5 seconds, and waits for something\. An"):
        limited(lambda: [event.wait(0.1) for _ in range(100)], waiting=0.5)
    settled()


def test_waiting_does_not_count_as_computing():
    assert limited(lambda: time.sleep(1.5) or "done") == "done"


def test_results_and_errors_come_through():
    assert limited(lambda: 7) == 7
    with pytest.raises(KeyError, match="mine"):
        limited(lambda: {}["mine"])


def test_ctrl_c_ends_the_answer_too(monkeypatch):
    def interrupted(thread, began):
        raise KeyboardInterrupt

    monkeypatch.setattr(time_limit, "_used", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limited(lambda: [sum(range(1000)) for _ in iter(int, 1)])
    settled()


def test_ends_in_a_notebook(tmp_path, monkeypatch):
    """On the main thread of a notebook's kernel, and the cells after it run."""
    import nbformat
    from nbclient import NotebookClient

    exercise = function_exercise()
    endless = f"def {exercise.answer}(*given):\n    while True:\n        pass"
    cells = ["import labkit as lab", endless,
             f'lab.check("{exercise.key}", {exercise.answer})', "print('after')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3",
                   resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = notebook.cells[2].outputs[0]["data"]["text/plain"]
    assert "line 2 of your cell, `while True:`" in said or "line 3 of your cell" in said, said
    assert notebook.cells[3].outputs[0]["text"] == "after\n"


@pytest.mark.parametrize("value", ["0", "-1", "many", "nan", "inf"])
def test_the_limit_is_checked(monkeypatch, value):
    monkeypatch.setenv("LABKIT_CHECK_SECONDS", value)
    with pytest.raises(BadArgument, match="LABKIT_CHECK_SECONDS is"):
        limited(lambda: 1)
