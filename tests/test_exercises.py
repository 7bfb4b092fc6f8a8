"""Every exercise: its stub, its solution, and wrong answers that its check must tell apart."""

from __future__ import annotations

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import lesson_cases
import pytest
from notebook_format import ROOT
from planted_answers import PLANTED

import labkit as lab
from labkit import lessons
from labkit.errors import BadArgument
from labkit.exercises import all_exercises, exercise, progress_file
from labkit.exercises.exercise import find, load
from labkit.exercises.graph_trial import GraphCheck
from labkit.exercises.trial import KernelCheck

pytestmark = pytest.mark.exercises
EXERCISES = all_exercises()
LESSONS = lessons.all_lessons(ROOT / "notebooks")
KERNELS = [e for e in EXERCISES if isinstance(e.judge, KernelCheck)]
GRAPHS = [e for e in EXERCISES if isinstance(e.judge, GraphCheck)]
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.key)


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """No test may touch the progress of whoever runs it."""
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))


def planted(exercise, replacements):
    text = exercise.solution
    for old, new in replacements:
        assert text.count(old) == 1, f"{exercise.key}: {old!r} stands {text.count(old)} times"
        text = text.replace(old, new)
    return text


ALWAYS = 2  # wrong answers to an exercise in `make test`; the others are in `make test-all`


def judged(chosen, folder):
    """(key, name of the answer) -> the feedback on it, by as many threads as there are cores.
    chosen: (key, name) -> source."""
    os.environ["LABKIT_PROGRESS"] = str(folder / "progress.json")

    def judge(item):
        (key, name), source = item
        return lab.check(key, load(find(key), source, name))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(chosen, pool.map(judge, chosen.items()), strict=True))


@pytest.fixture(scope="session")
def verdicts(request, tmp_path_factory):
    """The feedback on every solution and on the first wrong answers, of those in this session."""
    solved = lesson_cases.selected(request, "test_solution_is_correct", "exercise")
    chosen = {(e.key, "solution"): e.solution for (e,) in solved}
    return judged(chosen | wrong(request, "test_wrong_answer_is_told_why"),
                  tmp_path_factory.mktemp("progress"))


@pytest.fixture(scope="session")
def more_verdicts(request, tmp_path_factory):
    """The feedback on the other wrong answers."""
    return judged(wrong(request, "test_another_wrong_answer_is_told_why"),
                  tmp_path_factory.mktemp("progress"))


def wrong(request, test):
    """(key, name) -> the source of the wrong answers for which `test` runs."""
    wanted = lesson_cases.selected(request, test, "key", "what")
    return {(key, what): planted(find(key), replacements) for key, wrong in PLANTED.items()
            for what, replacements, _ in wrong if (key, what) in wanted}


def wrong_answers(part):
    return pytest.mark.parametrize(("key", "what", "sentence"), [
        (key, what, sentence) for key, wrong in PLANTED.items()
        for what, _, sentence in wrong[part]])


def test_every_lesson_has_two_to_four_exercises():
    for lesson in LESSONS:
        count = len([e for e in EXERCISES if e.lesson == lesson.number])
        assert 2 <= count <= 4, (f"{lesson.stem} has {count} exercises, and two to four are right; "
                                 f"see labkit/exercises/lesson_{lesson.number}.py")


@each_exercise
def test_data_are_complete(exercise):
    assert len(exercise.hints) == len(set(exercise.hints)) == 3, "three hints that differ"
    assert "#" in exercise.solution, "a solution says why: it needs a comment"
    planted = len(PLANTED.get(exercise.key, []))
    assert planted >= 4, (f"{planted} wrong answers to {exercise.key} are planted, and four are "
                          f"the fewest; add to PLANTED in tests/cases_{exercise.lesson}.py, or in "
                          "tests/planted_answers.py up to lesson 16")
    for name, text in (("stub", exercise.stub), ("solution", exercise.solution)):
        long = [line for line in text.splitlines() if len(line) > 100]
        assert not long, f"lines of the {name} have more than 100 characters: {long}"
        lines = len(exercise.cell(text).splitlines())
        assert lines <= 45, f"the cell of the {name} has {lines} lines, and 45 are the most"
    assert exercise.solution.strip() not in "\n".join(exercise.hints), "a hint is the solution"


@each_exercise
def test_the_lesson_shows_statement_and_stub(exercise):
    cells = lessons.find(exercise.lesson, ROOT / "notebooks").notebook.cells
    places = [i for i, cell in enumerate(cells) if cell.id == exercise.statement]
    assert places, f"the lesson has no cell with the id {exercise.statement}, the statement's"
    statement, stub = cells[places[0]:places[0] + 2]
    assert statement.cell_type == "markdown", f"the cell {statement.id} must be a text cell"
    heading = f"### {exercise.key} · {exercise.title}"
    assert statement.source.startswith(f"{heading}\n"), f"{statement.id} begins with `{heading}`"
    assert re.search(r"\blines?\b", statement.source), (
        f"{statement.id} says the size of an answer, as in: Expected size: 3 lines.")
    assert stub.source == exercise.cell(exercise.stub), (
        f"the cell {stub.id} after the statement must be the stub of labkit/exercises/lesson_"
        f"{exercise.lesson}.py, two empty lines and the line with lab.check; copy it from one to "
        "the other")
    assert "exercise" in stub.metadata.get("tags", []), f"{stub.id} needs the tag exercise"
    assert "not attempted yet" in str(stub.outputs), (
        f"{stub.id} is stored without its output; run `python tests/notebook_format.py --execute` "
        "with the lesson's file")


@each_exercise
def test_stub_is_not_attempted(exercise):
    feedback = lab.check(exercise.key, load(exercise, exercise.stub, "stub"))
    assert not feedback.ok and not feedback.attempted
    assert "not attempted yet" in repr(feedback)
    assert progress_file.read() == {}


@each_exercise
def test_solution_is_correct(exercise, verdicts):
    feedback = verdicts[exercise.key, "solution"]
    assert feedback.ok, feedback
    assert "not judged" not in feedback.text, "this machine lacks nvcc"


@pytest.mark.parametrize("gpu", ["T4", "H100"])
@pytest.mark.parametrize("exercise", KERNELS, ids=lambda e: e.key)
def test_solution_compiles_for_a_gpu(exercise, gpu):
    program = load(exercise, exercise.solution)(**exercise.judge.cases[0])
    compiled = lab.cross_compile(program, gpu, exercise.judge.pass_configs)
    assert compiled.shared_bytes <= compiled.gpu.shared_per_block


@pytest.mark.gpu
@pytest.mark.parametrize("exercise", KERNELS, ids=lambda e: e.key)
def test_solution_is_right_on_the_gpu(exercise, cuda):
    judge = exercise.judge
    sizes = judge.cases[0]
    inputs = judge.inputs(sizes, cuda.Generator().manual_seed(0))
    run = lab.compile(load(exercise, exercise.solution)(**sizes), out_idx=judge.out_idx,
                      device="gpu", pass_configs=judge.pass_configs)
    outputs, wanted = run(*(x.cuda() for x in inputs)), judge.reference(sizes, *inputs)
    for out, reference in zip(*(x if isinstance(x, tuple) else (x,) for x in (outputs, wanted)),
                              strict=True):
        lab.check(out.cpu(), reference, name=exercise.key)


@pytest.mark.gpu
@pytest.mark.parametrize("exercise", GRAPHS, ids=lambda e: e.key)
def test_graph_of_a_solution_is_right_on_the_gpu(exercise, cuda):
    found = exercise.judge.on_gpu(load(exercise, exercise.solution))
    major, minor = cuda.cuda.get_device_capability()
    if 10 * major + minor < exercise.judge.min_sm:
        assert found.ok is None and "compute capability" in found.text
    else:
        assert found.ok, found.text


@pytest.mark.parametrize("gpu", ["T4", "A100", "L4", "H100", "B200"])
@pytest.mark.parametrize("exercise", GRAPHS, ids=lambda e: e.key)
def test_graph_of_a_solution_has_plans(exercise, gpu, libcudnn):
    import cudnn
    import torch

    from labkit import cudnn_graph, cudnn_support
    from labkit.errors import NotSupported

    if not cudnn_support._stand_in():
        pytest.skip("needs a libcudnn and a stand-in for the driver")
    judge, there = exercise.judge, cudnn_graph.target(lab.here("cpu", "H100"), gpu)
    dtype = torch.bfloat16 if there.sm >= 80 else torch.float16
    tensors = judge._tensors(judge.gpu, dtype)
    graph, *_ = load(exercise, exercise.solution)(there, *tensors.values(),
                                                  **judge.options(judge.gpu))
    modes = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
    if there.sm >= judge.min_sm:
        assert cudnn_graph.candidates(graph, there, modes) > 0
    else:
        with pytest.raises(NotSupported):
            cudnn_graph.candidates(graph, there, modes)


def assert_told(feedback, sentence):
    assert not feedback.ok and feedback.attempted, "a wrong answer passed"
    assert sentence in feedback.text, feedback.text
    assert "Traceback" not in feedback.text


@wrong_answers(slice(None, ALWAYS))
def test_wrong_answer_is_told_why(key, what, sentence, verdicts):
    assert_told(verdicts[key, what], sentence)


@pytest.mark.slow
@wrong_answers(slice(ALWAYS, None))
def test_another_wrong_answer_is_told_why(key, what, sentence, more_verdicts):
    assert_told(more_verdicts[key, what], sentence)


# --- what a learner calls


def test_checks_of_tensors_and_of_exercises_keep_their_meaning():
    import torch

    ones = torch.ones(3)
    assert lab.check(ones, ones).ok
    with pytest.raises(BadArgument, match="needs a reference"):
        lab.check(ones)
    with pytest.raises(BadArgument, match="needs your answer"):
        lab.check("02.1")
    with pytest.raises(BadArgument, match=r"lesson 02 has 02\.1"):
        lab.check("02.9", ones)
    with pytest.raises(BadArgument, match=r'as in "02\.1"'):
        lab.check("gemm", ones)
    assert find("2.1") is find("02.1")


@pytest.mark.parametrize("answer", [3, "text", [1, 2], lambda **sizes: 1, print, object()])
@each_exercise
def test_no_answer_raises(exercise, answer):
    feedback = lab.check(exercise.key, answer)
    assert feedback.attempted and not feedback.ok and feedback.text.count("\n") <= 6


@pytest.mark.parametrize("changes", [
    {"threads": 1}, {"threads": 100}, {"block_K": 7}, {"block_M": 3, "block_N": 1000},
    {"threads": 0}, {"num_stages": -1}, {"block_N": 10**9}, {"block_K": 32.0}, {"panel": 1}])
def test_odd_schedules_are_told_not_raised(changes):
    schedule = dict(block_M=64, block_N=128, block_K=32, num_stages=3, threads=128) | changes
    feedback = lab.check("03.2", schedule)
    assert not feedback.ok and feedback.attempted, feedback
    assert "Traceback" not in feedback.text and feedback.text.count("\n") <= 3


def test_hints_come_one_after_the_other(monkeypatch):
    monkeypatch.setattr("labkit.exercises._hints_shown", {})
    shown = [repr(lab.hint("02.1")) for _ in range(4)]
    assert [f"hint {n} of 3" in text for n, text in enumerate(shown[:3], 1)] == [True] * 3
    assert shown[3] == shown[2] and "lab.solution" in shown[2]
    assert "hint 1 of 3" in repr(lab.hint("02.1", 1))
    for wrong in (0, 4, True, "2"):
        with pytest.raises(BadArgument, match="give 1 to 3"):
            lab.hint("02.1", wrong)
    assert "transpose_B=True" in repr(lab.solution("02.1"))
    assert progress_file.read()["02.1"] == {"attempts": 0, "hints": 3, "solution": True,
                                            "solved": ""}


# --- progress


def test_progress_counts_attempts_and_keeps_the_first_success():
    assert progress_file.record("02.1", attempt=True) == ""
    progress_file.record("02.1", attempt=True, solved=True)
    first = progress_file.read()["02.1"]
    progress_file.record("02.1", attempt=True)
    assert progress_file.read()["02.1"] == first and first["attempts"] == 2 and first["solved"]
    table = lab.progress()
    assert table.title == f"Exercises: 1 of {len(EXERCISES)} solved"
    assert [row[3] for row in table.rows if row[0] == "02.1"] == ["2"]


def test_the_kits_own_solution_is_no_ones_progress(monkeypatch):
    chosen = next(e for e in EXERCISES if e.key == "03.1")
    monkeypatch.setattr(exercise, "_running_cell", lambda: chosen.cell(chosen.solution))
    assert lab.check("03.1", load(chosen, chosen.solution)).ok
    assert progress_file.read() == {}


def test_a_solution_in_ones_own_words_counts():
    """Often the natural answer has the statements of the kit's: without its comments, it counts."""
    chosen = next(e for e in EXERCISES if e.key == "01.1")
    own = "\n".join(line.split("  #")[0] for line in chosen.solution.splitlines()
                    if not line.strip().startswith("#"))
    assert own != chosen.solution and lab.check("01.1", load(chosen, own)).ok
    assert progress_file.read()["01.1"]["solved"]


def test_a_loop_over_rows_with_tile_operators_is_right():
    """One block takes the rows one by one: its threads share each row, and the store after it is
    no loop over elements."""
    chosen = next(e for e in EXERCISES if e.key == "05.3")
    head, body = chosen.solution.split("        with T.Kernel(M, threads=threads) as b:\n")
    tiles, work = body.split("            # the lowest")
    tail = "\n    return main"
    work, _ = f"            # the lowest{work}".split(tail)
    own = (head + "        with T.Kernel(1, threads=threads):\n" + tiles
           + "            for b in T.serial(M):\n"
           + "".join(f"    {line}\n" if line else "\n" for line in work.splitlines()) + tail)
    assert lab.check("05.3", load(chosen, own, "rows")).ok


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"exercises": 3}', '{"exercises": {"a": 1}}',
                                    "\x00\x01", "[" * 100_000])
def test_a_damaged_file_is_set_aside(damage):
    file = progress_file.path()
    file.write_text(damage)
    lab.progress()
    assert progress_file.record("02.1", attempt=True) == ""
    assert progress_file.read()["02.1"]["attempts"] == 1
    json.loads(file.read_text())
    if '"a"' not in damage:
        assert file.with_name("progress.json.damaged").read_text() == damage


def test_a_file_that_cannot_be_written_is_said_and_harms_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "file" / "progress.json"))
    feedback = lab.check("02.1", 3)
    assert "Progress was not kept" in feedback.text and "LABKIT_PROGRESS" in feedback.text
    assert progress_file.read() == {}


def test_several_writers_lose_nothing():
    threads = [threading.Thread(target=progress_file.record, args=(f"02.{n}",),
                                kwargs={"attempt": True}) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(progress_file.read()) == 20
