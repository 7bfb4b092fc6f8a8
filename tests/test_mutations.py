"""A broken kernel fails its lesson, and the lessons that load it."""

from __future__ import annotations

import shutil

import broken_lesson
import lesson_cases
import nbformat
import pytest
from mutations import MUTATIONS
from notebook_format import ROOT

from labkit import lessons, runner

NOTHING = "nothing"
LESSONS = lessons.all_lessons(ROOT / "notebooks")


@pytest.fixture(scope="module")
def broken(request, tmp_path_factory):
    """Lesson -> what is broken -> its error, for what this session asks. The last attempt breaks
    nothing: it shows that those before have left nothing behind."""
    wanted = lesson_cases.selected(request, "test_a_broken_kernel_fails_its_lesson", "stem", "what")
    found = {}

    def of(stem):
        if stem not in found:
            every = [rest for name, *rest in MUTATIONS if name == stem]
            own = [one for one in every if (stem, one[0]) in wanted]
            _, old, _ = every[-1]
            try:
                found[stem] = broken_lesson.attempts(
                    ROOT / "notebooks" / f"{stem}.ipynb", [*own, (NOTHING, old, old)],
                    tmp_path_factory.mktemp(stem))
            except Exception as error:  # told by each of the lesson's tests
                found[stem] = error
        if isinstance(found[stem], Exception):
            raise AssertionError(f"{stem} cannot be tried: it fails before anything is broken, or "
                                 "MUTATIONS does not fit it") from found[stem]
        return found[stem]

    return of


@pytest.mark.parametrize(("stem", "what"), [mutation[:2] for mutation in MUTATIONS])
def test_a_broken_kernel_fails_its_lesson(stem, what, broken):
    error = broken(stem)[what]
    assert error, (f"{stem} ran through with its kernel broken ({what}): a check of the lesson "
                   "must see it, at a size that shows it")
    name, text = error
    assert name == "WrongAnswer", (
        f"{stem}, {what}: the broken kernel must run and give a wrong result, so that lab.check "
        f"raises WrongAnswer; it raised {name}: {text}")


@pytest.mark.parametrize("stem", sorted({stem for stem, *_ in MUTATIONS}))
def test_its_cell_put_back_passes(stem, broken):
    assert broken(stem)[NOTHING] is None


@pytest.mark.parametrize(("source", "old", "new", "names"), [
    ("02_gemm", "T.ceildiv(K, block_K)", "K // block_K", ["03_schedules", "07_autotuning"]),
    ("12_cudnn_first_graph", "relu(input=biased", "relu(input=conv",
     ["13_cudnn_engines", "16_cudnn_production"]),
    ("14_cudnn_matmul_amax", "(input=biased", "(input=scaled", ["15_cudnn_attention"]),
], ids=lambda value: value if str(value)[:2].isdigit() else "")
def test_a_broken_kernel_fails_the_lessons_that_load_it(source, old, new, names, tmp_path):
    """As lesson 03, which measures lesson 02's kernel: it must fail where that one is wrong."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for lesson in LESSONS:  # a lesson may load kernels from several
        shutil.copy(lesson.path, folder)
    notebook = nbformat.read(folder / f"{source}.ipynb", as_version=4)
    for cell in notebook.cells:
        if "kernel" in cell.metadata.get("tags", []):
            assert old in cell.source
            cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, folder / f"{source}.ipynb")
    report = runner.run(names, device="cpu", out=tmp_path / "runs", folder=folder)
    assert [result.lesson for result in report.lessons] == names
    for result in report.lessons:
        assert result.status == "failed" and result.error["name"] == "WrongAnswer", result


def test_every_kernel_cell_is_mutated():
    for lesson in LESSONS:
        for cell in lesson.kernel_cells():
            if "T.WSSchedule(" in cell.source:
                continue  # who does what, and when: the CPU run leaves it out, TileLang judges it
            assert any(stem == lesson.stem and cell.source.count(old) == 1
                       for stem, _, old, _ in MUTATIONS), (
                f"no line of MUTATIONS breaks the kernel cell {cell.id} of {lesson.stem}: add "
                f"(what is broken, a text that stands once in it, its replacement) to MUTATIONS in "
                f"tests/cases_{lesson.number}.py, or in tests/mutations.py up to lesson 16")
