"""Every lesson: its form, and its run from start to end."""

from __future__ import annotations

import ast
import json
import re

import lesson_cases
import nbformat
import pytest
from notebook_format import KERNELSPEC, ROOT, canonical

from labkit import lessons, runner

LESSONS = lessons.all_lessons(ROOT / "notebooks")
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)


def tagged(lesson, tag):
    return [cell for cell in lesson.notebook.cells if tag in cell.metadata.get("tags", [])]


def depends_on(lesson):
    """The numbers of the lessons whose kernels this one loads."""
    source = "\n".join(c.source for c in lesson.notebook.cells if c.cell_type == "code")
    return sorted(set(re.findall(r'lab\.kernel\("(\d\d)"', source)))


# --- form


def test_lessons_are_numbered_in_order():
    numbers = [int(lesson.number) for lesson in LESSONS]
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    assert not twice, f"two files in notebooks/ have the number {twice}: rename one"
    assert numbers[0] == 0, f"the first lesson is {numbers[0]:02}, and 00 belongs there"
    parts = [n for n in numbers if n < 9], [n for n in numbers if n >= 12]
    for part in parts:  # within a part none is missing
        missing = sorted(set(range(part[0], part[-1] + 1)) - set(part))
        assert not missing, f"no lesson has the number {missing}: a new one takes the next free one"


@each_lesson
def test_file_is_canonical(lesson):
    notebook = json.loads(lesson.path.read_text())
    name = lesson.path.name
    if lesson.path.read_text() != canonical(notebook):  # no diff of some thousand lines
        pytest.fail(f"{name} is not stored in the form of all lessons (ids, counts, metadata, "
                    f"outputs); run: python tests/notebook_format.py notebooks/{name}")
    assert notebook["metadata"]["kernelspec"] == KERNELSPEC
    size = lesson.path.stat().st_size
    assert size < 400_000, f"{name} has {size:,} bytes, and 400,000 are the most: show less output"
    nbformat.validate(lesson.notebook)


@each_lesson
def test_ids_are_readable_and_unique(lesson):
    ids = [cell.id for cell in lesson.notebook.cells]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    assert not twice, f"cells share an id; give each its own: {twice}"
    odd = [name for name in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)]
    assert not odd, (f"an id has two words or more, in lower case and joined by -, as in "
                     f"my-kernel-check; change these in the file: {odd}")


@each_lesson
def test_front_matter(lesson):
    matter = lesson.front_matter
    unknown = sorted(set(matter) - {*lessons.FRONT_MATTER, *lessons.FOR_THE_INDEX})
    assert not unknown, f"the metadata labkit has keys that nothing reads; remove them: {unknown}"
    assert matter["gpu"] in ("optional", "required"), 'gpu is "optional" or "required"'
    assert 5 <= matter["minutes"] <= 90, "minutes: 5 to 90; split a longer lesson"
    assert matter["min_sm"] in (0, 75, 80, 86, 89, 90), (
        "min_sm is the lowest compute capability times 10: 0, 75, 80, 86, 89 or 90")
    others = sorted(set(matter["sm80_cells"]) - {cell.id for cell in lesson.kernel_cells()})
    assert not others, f"sm80_cells holds ids of cells with the tag kernel; these are not: {others}"
    title = lesson.notebook.cells[0].source.splitlines()[0]
    assert title == f"# {lesson.number} · {matter['title']}", (
        "the lesson's first line is `# NN · title`, with the number of its file and the title of "
        "its metadata labkit")


@each_lesson
def test_parameters_are_literals(lesson):
    cells = tagged(lesson, "parameters")
    assert len(cells) == 1, f"{len(cells)} cells have the tag parameters; exactly one must"
    values = {}
    for statement in ast.parse(cells[0].source).body:
        line = f"parameters cell, `{ast.unparse(statement)}`"
        assert isinstance(statement, ast.Assign), f"{line} is no assignment; move it to a later one"
        try:
            values[statement.targets[0].id] = ast.literal_eval(statement.value)
        except ValueError:
            pytest.fail(f"{line} computes; only a number, a text or a list of them may stand there")
    usual = {"device": "auto", "gpu": "", "quick": False}
    assert {name: values.get(name) for name in usual} == usual, (
        "the parameters cell sets these three, to these values")


@each_lesson
def test_tagged_places(lesson):
    assert len(tagged(lesson, "setup")) == 1, "one cell, the first with code, has the tag setup"
    assert tagged(lesson, "exercises"), "the heading of the exercises has the tag exercises"
    assert lesson.kernel_cells() or depends_on(lesson), (
        "a lesson has a kernel: give its cell the tag kernel, or load one with lab.kernel")
    same = len(tagged(lesson, "nbval-check-output"))
    assert same >= 3, (f"{same} cells have the tag nbval-check-output, which says that the output "
                       "is the same on every run; three or more must")


@each_lesson
def test_cells_are_short_and_run_through(lesson):
    for cell in lesson.notebook.cells:
        if cell.cell_type == "code":
            lines = len(cell.source.splitlines())
            assert lines <= 45, f"{cell.id}: {lines} lines, and 45 are the most: split the cell"
            assert not re.search(r"^\s*[%!]", cell.source, re.M), (
                f"{cell.id}: a line starts with % or !, which is not Python; write it in Python")
            assert all(o.output_type != "error" for o in cell.outputs), (
                f"{cell.id}: its stored output is an error; mend it and run `python "
                f"tests/notebook_format.py --execute notebooks/{lesson.path.name}`")
        else:
            words = len(cell.source.split())
            assert words <= 200, f"{cell.id}: {words} words, and 200 are the most: split the cell"


@each_lesson
def test_outputs_carry_no_state_and_no_paths(lesson):
    text = lesson.path.read_text()
    again = f"python tests/notebook_format.py notebooks/{lesson.path.name}"
    assert "widgets" not in lesson.notebook.metadata, f"widgets' state is stored; run: {again}"
    for forbidden in ("application/vnd.jupyter.widget", "/tmp/", "/root/", "/home/"):
        line = next((n for n, line in enumerate(text.splitlines(), 1) if forbidden in line), 0)
        assert not line, (f"line {line} of {lesson.path.name} holds {forbidden}, which differs "
                          f"between machines: do not print it, and run: {again}")
    for cell in lesson.notebook.cells:
        for output in cell.get("outputs", []):
            for value in output.get("data", {}).values():
                assert len(value) < 100_000, (
                    f"{cell.id}: {len(value):,} characters of output, and 100,000 are the most")


@each_lesson
def test_links_lead_somewhere(lesson):
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https://)([^)#]+\.ipynb)\)", cell.source):
                assert (lesson.path.parent / target).exists(), (
                    f"{cell.id} links to {target}, and notebooks/ has no such file")


# --- running


@pytest.fixture(scope="module")
def report(request, tmp_path_factory):
    wanted = lesson_cases.selected(request, "test_lesson_runs_on_the_cpu", "lesson")
    return runner.run([lesson.stem for (lesson,) in wanted], device="cpu",
                      out=tmp_path_factory.mktemp("runs"), folder=ROOT / "notebooks")


@each_lesson
def test_lesson_runs_on_the_cpu(lesson, report):
    (result,) = [r for r in report.lessons if r.lesson == lesson.stem]
    assert result.status == "passed", result.error
    assert result.device == "cpu"


@pytest.mark.gpu
def test_lessons_run_on_the_gpu(cuda, tmp_path):
    report = runner.run(device="gpu", out=tmp_path, folder=ROOT / "notebooks", quick=True)
    assert {r.lesson: r.status for r in report.lessons} == {x.stem: "passed" for x in LESSONS}
