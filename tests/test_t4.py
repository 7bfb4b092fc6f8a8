"""Every lesson as if the GPU were Colab's T4: run on the CPU with gpu="T4", and each program that
it would then run on that GPU compiled for it, down to its registers.

A T4 has no bfloat16, 64 KiB of shared memory a block, no cp.async, and no cuDNN attention or kernel
cache. A lesson has to choose by itself what suits it.
"""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from notebook_format import ROOT

from labkit import lessons, runner

LESSONS = [lesson.stem for lesson in lessons.all_lessons(ROOT / "notebooks")]
QUICK = ["02_gemm"]  # in every run of the tests; the others are slow
ASKED = ("__main__", "labkit.compiler")  # a cell, or a @tilelang.jit function that it called
# (lesson, program) whose registers may spill: lesson 08's clinic mends a GEMM that does not fit by
# taking the most stages that do, whatever that costs in registers
SPILLS = [("08_debugging", "main")]

_RECORD = '''\
from labkit import compiler as _compiler

_seen, _compile = [], _compiler.compile


def _recording(program, *arguments, **named):
    if hasattr(program, "attrs"):
        import sys

        asked = sys._getframe(1).f_globals.get("__name__", "__main__")  # or bare
        _seen.append((program, named.get("pass_configs"), asked))
    return _compile(program, *arguments, **named)


_compiler.compile = _recording
'''
_JUDGE = '''\
import json as _json

from labkit import cross_compile as _cross
from labkit.errors import LabError as _LabError

_verdicts, _done = [], set()
for _program, _options, _asked in _seen:
    _key = (_program.script(), str(_options))
    if _key in _done:
        continue
    _done.add(_key)
    _verdict = {"program": str(_program.attrs["global_symbol"]), "asked": _asked, "wrong": "",
                "bfloat16": "bfloat16" in _key[0]}
    try:
        _compiled = _cross(_program, "T4", _options)
        _verdict["wrong"] = _compiled.obstacle
        if not _verdict["wrong"]:
            _used = _compiled.resources
            _verdict |= {"registers": _used.registers, "shared": _compiled.shared_bytes,
                         "spills": _used.spill_stores + _used.spill_loads}
    except _LabError as _error:
        _verdict["wrong"] = str(_error)
    _verdicts.append(_verdict)
with open(PLACE, "w") as _file:
    _json.dump({"sm": here.sm, "gpu": here.gpu.name, "programs": _verdicts}, _file)
'''


@pytest.fixture(scope="module")
def as_on_a_t4(tmp_path_factory):
    """lesson -> (its result, what it compiled), run when first asked for."""
    found = {}

    def run(stem):
        if stem not in found:
            found[stem] = _run(stem, tmp_path_factory.mktemp("t4"))
        return found[stem]

    return run


def _run(stem: str, place: Path, old: str = "", new: str = ""):
    """A copy of the lesson with two more cells: the first notes what is compiled, the last one
    compiles that for the T4. `old` in it is replaced by `new`."""
    notebook = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
    for cell in notebook.cells if old else []:
        cell.source = cell.source.replace(old, new)
    said = place / "programs.json"
    imports = next(n for n, cell in enumerate(notebook.cells)
                   if "parameters" in cell.metadata.get("tags", []))
    notebook.cells.insert(imports, nbformat.v4.new_code_cell(_RECORD))
    notebook.cells.append(nbformat.v4.new_code_cell(_JUDGE.replace("PLACE", repr(str(said)))))
    folder = place / "notebooks"
    folder.mkdir()
    for lesson in lessons.all_lessons(ROOT / "notebooks"):  # it loads kernels from others
        (folder / lesson.path.name).write_bytes(lesson.path.read_bytes())
    nbformat.write(notebook, folder / f"{stem}.ipynb")
    report = runner.run([stem], device="cpu", gpu="T4", out=place / "runs", folder=folder)
    return report.lessons[0], json.loads(said.read_text()) if said.exists() else None


@pytest.mark.parametrize("stem", [stem if stem in QUICK else
                                  pytest.param(stem, marks=pytest.mark.slow) for stem in LESSONS])
def test_lesson_suits_a_t4(stem, as_on_a_t4):
    result, compiled = as_on_a_t4(stem)
    assert result.status == "passed", result.error
    assert (compiled["gpu"], compiled["sm"]) == ("T4", 75)
    uses = lessons.find(stem, ROOT / "notebooks").front_matter["uses"]
    assert compiled["programs"] or "tilelang" not in uses
    assert faults(stem, compiled) == []


def faults(stem, compiled) -> list[str]:
    """What does not suit a T4 of the programs that the lesson runs. A search, such as lab.sweep,
    refuses a schedule that does not fit, and may ask for one."""
    found = []
    for verdict in compiled["programs"]:
        where = f"{verdict['program']} of {stem}"
        if verdict["bfloat16"]:
            found.append(f"{where} uses bfloat16")
        if verdict["asked"] not in ASKED:
            continue
        if verdict["wrong"]:
            found.append(f"{where}: {verdict['wrong']}")
        elif verdict["shared"] > 64 * 1024:
            found.append(f"{where} takes {verdict['shared']} bytes of shared memory")
        elif verdict["spills"] and (stem, verdict["program"]) not in SPILLS:
            found.append(f"{where} spills {verdict['spills']} bytes")
    return found


@pytest.mark.slow
def test_another_gpus_schedule_is_found(tmp_path):
    result, compiled = _run("02_gemm", tmp_path, "gemm_schedule(here.sm)", "gemm_schedule(90)")
    assert result.status == "passed"  # it runs on the CPU all the same
    assert any("shared memory" in fault for fault in faults("02_gemm", compiled))
