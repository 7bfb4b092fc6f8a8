"""Random parameter files through the command, random schedules through the explorer: whatever is
in them, the user sees a result or one sentence, and no traceback."""

from __future__ import annotations

import inspect
import json
import random
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from test_parameter_file import broken, files, folder, lesson  # noqa: F401

import labkit as lab
from labkit import lessons, runner
from labkit.cli import main
from labkit.errors import BadArgument
from labkit.gpus import ALL
from labkit.report import STATUSES, Result

pytestmark = pytest.mark.faults

SAMPLE, ALL_OF_THEM = 40, pytest.param(500, marks=pytest.mark.slow)


# --- parameter files


@pytest.mark.parametrize("count", [SAMPLE, ALL_OF_THEM])
def test_any_parameter_file_through_the_command(folder, tmp_path, monkeypatch, capsys,  # noqa: F811
                                                count):
    """The lessons themselves do not run here: what reaches them is noted."""
    path, seen = tmp_path / "class.json", {0: 0, 2: 0}
    reached = []

    def attempt(one, plan, *_):
        reached.append((one.stem, plan.own.get(one.stem, {})))
        return Result(one.stem, seconds=0.1)

    monkeypatch.setattr(runner, "attempt", attempt)
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))

    @settings(max_examples=count, derandomize=True, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(files.map(lambda file: json.dumps(file).encode()) | broken)
    def one(content):
        path.write_bytes(content)
        reached.clear()
        code = main(["run", "--device", "cpu", "--out", str(tmp_path / "out"),
                     "--parameters", str(path)])
        shown = capsys.readouterr()
        seen[code] += 1
        assert "Traceback" not in shown.out + shown.err
        if code == 2:
            assert not reached and not shown.out
            assert len(shown.err.splitlines()) == 1 and shown.err.startswith(f"labkit: {path}")
        else:
            assert not shown.err and [stem for stem, _ in sorted(reached, key=str)] == [
                "01_one", "02_two", "03_three"]
            saved = json.loads((tmp_path / "out" / "report.json").read_text())
            assert saved["parameters"] == {stem: own for stem, own in reached if own}

    one()
    assert seen[0] >= count // 20 and seen[2] >= count // 5, seen


@pytest.mark.parametrize("count", [2, pytest.param(25, marks=pytest.mark.slow)])
def test_what_a_file_may_say_a_lesson_takes(folder, tmp_path, monkeypatch, capsys,  # noqa: F811
                                            count):
    """Random values of the right type, in real kernels: the parameters arrive as they were."""
    lesson(folder, "02_two", ["import json\nprint(json.dumps([size, share, name, tiles]))"])
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))
    chance, path = random.Random(5), tmp_path / "class.json"
    for turn in range(count):
        own = {"size": chance.choice([0, -1, 2**70, chance.randrange(10**6)]),
               "share": chance.choice([0.0, -1e308, 1e-320, chance.random()]),
               "name": "".join(chance.choice("a'\"\\{}%\n\t\u20ac\U0001f600\x00#")
                               for _ in range(8)),
               "tiles": [chance.randrange(-5, 500) for _ in range(chance.randrange(4))]}
        path.write_text(json.dumps({"02": own}))
        out = tmp_path / f"out-{turn}"
        assert main(["run", "2", "--device", "cpu", "--out", str(out),
                     "--parameters", str(path)]) == 0, own
        assert "Traceback" not in "".join(capsys.readouterr())
        notebook = json.loads((out / "02_two.ipynb").read_text())
        printed = "".join(text for cell in notebook["cells"] for one in cell.get("outputs", [])
                          for text in one.get("text", []))
        assert json.loads(printed) == list(own.values())


# --- schedules

GEMM, ATTENTION = lab.kernel("02", "gemm"), lab.kernel("06", "flash_attention")
GELU = lab.kernel("04", "gemm_bias_gelu")
ODD = [0, -1, 1, 7, 63, 4096, 2**31, 2**70, 1.5, float("nan"), None, True, "a", "", [64], (1,),
       {}, object(), b"x", "Square"]


def any_value(chance, good):
    return chance.choice(ODD) if chance.random() < 0.06 else chance.choice(good)


def any_problem(chance):
    sizes = [any_value(chance, [1, 100, 1000, 4096, 8192]) if chance.random() < 0.4 else 1000
             for _ in range(4)]
    dtype = any_value(chance, ["float16", "bfloat16", "float32"]) if chance.random() < 0.3 else (
        "float16")
    kind = chance.randrange(3)
    if kind == 0:
        return GEMM, lambda: lab.Gemm(*sizes[:3], dtype)
    if kind == 1:
        return GELU, lambda: lab.Gemm(*sizes[:3], dtype, epilogue="bias_gelu")
    return ATTENTION, lambda: lab.Attention(1, 2, sizes[0], chance.choice([64, 128, sizes[1]]),
                                            causal=chance.random() < 0.5)


KNOBS = {"block_M": [64, 128, 256], "block_N": [64, 128, 256], "block_K": [32, 64],
         "num_stages": [0, 1, 2, 3, 4], "threads": [128, 256], "panel": [0, 10]}


def any_schedule(chance, build):
    own = [knob for knob in KNOBS if knob in inspect.signature(build).parameters]
    names = chance.sample(own, chance.randrange(1, len(own)))
    if chance.random() < 0.1:
        names.append(chance.choice(["M", "nonsense", "blocks", "warps", "dtype", 3]))
    return {name: any_value(chance, KNOBS.get(name, [1, 64, "FullRow"])) for name in names}


@pytest.mark.parametrize("count", [SAMPLE, ALL_OF_THEM])
def test_any_schedule_through_the_explorer(count, monkeypatch):
    """Given at the start, or moved to afterwards; the compilers run for a few of them."""
    failures = []
    monkeypatch.setattr(threading, "excepthook", lambda found: failures.append(found))
    chance, refused, shown = random.Random(17), 0, 0
    for turn in range(count):
        build, problem = any_problem(chance)
        start, moves = (any_schedule(chance, build) for _ in range(2))
        gpu = any_value(chance, [*ALL, "T4", "sm_90"])
        made = None
        try:
            made = lab.ScheduleExplorer(build, problem(), start=start, gpu=gpu)
            shown += 1
            made.set(**moves)
        except BadArgument as told:
            refused += 1
            assert len(str(told).splitlines()) == 1 and str(told).endswith("."), str(told)
            str(told).encode()
        except TypeError as error:  # a keyword that is no text is Python's own sentence
            assert "keywords must be strings" in str(error)
        finally:
            if made is not None:
                if turn % 50 == 3:
                    made.settle()
                for name, part in made.page.parts.items():
                    text = str(getattr(part, "value", ""))
                    assert "Traceback" not in text and "explorer failed" not in text, (name, text)
                made.close()
    assert not failures, failures
    assert refused > count // 4 and shown > count // 4, (refused, shown)


def test_the_lessons_of_this_file_are_real(folder):  # noqa: F811
    assert [one.stem for one in lessons.all_lessons(folder)] == ["01_one", "02_two", "03_three"]
    assert "passed" in STATUSES
