"""The schedule explorer without a page: sliders moved by their values, compilers waited for."""

from __future__ import annotations

import functools
import inspect
import json
import os
import random
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

import labkit as lab
from labkit import benchmark, compiler, machine, ptxas, results, tuning_space
from labkit.errors import BadArgument, LabError, NeedsGPU
from labkit.gpus import ALL, lookup
from labkit.widgets import compiled as compilers
from labkit.widgets import explorer as explorer_module
from labkit.widgets import measure as measuring
from labkit.widgets import record, recordings
from labkit.widgets.background import Latest, Superseded
from labkit.widgets.instant import aligned, instant, shared_bytes

GEMM, GELU = lab.kernel("02", "gemm"), lab.kernel("04", "gemm_bias_gelu")
ATTENTION = lab.kernel("06", "flash_attention")
PLAIN = dict(block_M=128, block_N=128, block_K=32, num_stages=2, threads=128, panel=0)
STAYS = dict(block_M=128, block_N=128, block_K=32, num_stages=2, threads=128, blocks=132, group=8,
             piece=64, warps="FullRow")
LARGE = dict(block_M=128, block_N=256, block_K=64, num_stages=3, threads=256, panel=10)


@pytest.fixture(autouse=True)
def no_recordings(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    recordings._sweep.cache_clear()
    yield tmp_path
    recordings._sweep.cache_clear()


@pytest.fixture
def explorer():
    made = lab.ScheduleExplorer(GEMM, lab.Gemm(1024, 1024, 1024), start=PLAIN, gpu="A100")
    yield made
    made.close()


def shown(explorer, name):
    return explorer.page.parts[name].value


# --- arithmetic


@pytest.mark.parametrize("sheet", ["A100", "H100"])
def test_arithmetic_agrees_with_the_compiler(sheet):
    gpu = lookup(sheet)
    for build, problem, schedule in (
            (GEMM, lab.Gemm(512, 512, 512), PLAIN),
            (GEMM, lab.Gemm(500, 300, 200), dict(PLAIN, block_M=64, num_stages=4)),
            (GELU, lab.Gemm(512, 512, 512, epilogue="bias_gelu"), dict(STAYS, block_N=64)),
            (ATTENTION, lab.Attention(1, 2, 256, 64), dict(block_M=64, block_N=64, num_stages=1)),
            (ATTENTION, lab.Attention(1, 2, 256, 128, causal=True), dict(block_M=128))):
        code = lab.cross_compile(build(**problem.arguments(), **schedule), sheet)
        now = instant(problem, {"threads": 128, **schedule}, gpu)
        assert now.shared_bytes == code.shared_bytes, (problem, schedule)
        assert now.threads == code.threads, (problem, schedule)
        x, y, z = code.grid
        assert schedule.get("blocks", now.grid.blocks) == x * y * z, (problem, schedule)


def test_gemm_figures_by_hand():
    problem = lab.Gemm(4096, 4096, 4096, "bfloat16")
    now = instant(problem, LARGE, lookup("H100"))
    assert problem.flops == 2 * 4096**3 and problem.moved == 3 * 2 * 4096**2
    assert now.grid.tiles == (32, 16) and now.grid.steps == 64
    # 512 blocks on 132 multiprocessors: 4 waves, 116 in the last one
    assert (now.blocks_per_sm, now.waves, now.last_wave) == (1, 4, 116)
    assert now.wasted == pytest.approx(1 - 512 / 528)
    assert now.asked_bytes == (512 * (128 + 256) * 4096 + 4096**2) * 2
    assert now.shared_bytes == 3 * (128 + 256) * 64 * 2
    assert now.ceiling_tflops == pytest.approx(989.4)


def test_attention_figures_by_hand():
    problem = lab.Attention(2, 3, 1000, 64, causal=True)
    schedule = dict(block_M=128, block_N=64, num_stages=1, threads=128)
    grid = problem.grid(schedule)
    assert grid.blocks == 8 * 6 and grid.steps == 16
    visits = [2, 4, 6, 8, 10, 12, 14, 16]
    assert grid.work == pytest.approx(sum(visits) / 8 / 16)
    assert problem.flops == 4 * 6 * 1000**2 * 64 // 2
    assert problem.useful(schedule) == pytest.approx(1000 * 1001 / 2 / (sum(visits) * 128 * 64))
    assert problem.through_l2(schedule) == 2 * 6 * 64 * (2000 + 2 * sum(
        min(v * 64, 1000) for v in visits))


def test_a_ragged_gemm_counts_only_what_is_there():
    problem = lab.Gemm(100, 100, 100)
    schedule = dict(block_M=64, block_N=64, block_K=64)
    assert problem.grid(schedule).blocks == 4
    assert problem.useful(schedule) == pytest.approx(100**3 / 128**3)
    assert problem.through_l2(schedule) == 2 * (2 * 100 * 100 * 2 + 100 * 100)


@pytest.mark.parametrize("problem", [lab.Gemm(40, 24, 32, "float32"),
                                     lab.Gemm(40, 24, 32, epilogue="bias_gelu"),
                                     lab.Attention(2, 3, 40, 16),
                                     lab.Attention(1, 2, 33, 16, True)])
def test_reference_and_baseline_are_one_function(problem):
    inputs = [t.float() for t in problem.inputs("cpu")]
    if isinstance(problem, lab.Gemm) and problem.epilogue:
        bias = inputs.pop()
        out = torch.nn.functional.gelu(inputs[0] @ inputs[1] + bias, approximate="tanh")
        inputs.append(bias)
    else:
        out = next(iter(problem.baselines(*inputs).values()))()
    lab.check(out, problem.reference(*inputs), name=problem.name)


def test_what_does_not_fit_together_is_said():
    for make, words in (
            (lambda: lab.Gemm(0, 1, 1), "M is 0"), (lambda: lab.Gemm(1, 1, 1, "int8"), "dtype is"),
            (lambda: lab.Gemm(1, 1, 1, epilogue="tanh"), "epilogue is 'tanh'"),
            (lambda: lab.Attention(1, 1, 1, True), "dim is True"),
            (lambda: lab.ScheduleExplorer(GEMM, "gemm"), "problem is of type str"),
            (lambda: lab.ScheduleExplorer(5, lab.Gemm(1, 1, 1)), "build is of type int"),
            (lambda: lab.ScheduleExplorer(GEMM, lab.Gemm(1, 1, 1), start={"block": 1}),
             "no knob 'block'"),
            (lambda: lab.ScheduleExplorer(GEMM, lab.Gemm(1, 1, 1), space={"block_M": []}),
             "values of 'block_M'"),
            (lambda: lab.ScheduleExplorer(lambda M: M, lab.Gemm(1, 1, 1)), "none of the knobs"),
            (lambda: lab.ScheduleExplorer(GEMM, lab.Gemm(1, 1, 1), gpu="Z80"), "no data sheet")):
        with pytest.raises(BadArgument, match=words):
            make()


# --- controls


def test_only_the_knobs_of_the_builder_are_offered(explorer):
    assert list(explorer.controls.knobs) == ["block_M", "block_N", "block_K", "num_stages",
                                             "threads", "panel", "warps"]
    attention = lab.ScheduleExplorer(ATTENTION, lab.Attention(1, 2, 256, 64), gpu="A100")
    assert list(attention.controls.knobs) == ["block_M", "block_N", "num_stages", "threads"]

    def build(block_M, threads=128):
        return GEMM(256, 256, 256, block_M=block_M, threads=threads)

    own = lab.ScheduleExplorer(build, lab.Gemm(256, 256, 256), space={"block_M": [64, 128]},
                               start={"threads": 256}, gpu="A100")
    assert list(own.controls.knobs) == ["block_M"] and own.schedule["threads"] == 256
    assert own.controls.size not in own.controls.all and own.controls.dtype not in own.controls.all
    assert own.settle().code.threads == 256


def test_a_builder_of_any_knobs_takes_the_space():
    def build(**schedule):
        return GEMM(256, 256, 256, **schedule)

    made = lab.ScheduleExplorer(build, lab.Gemm(256, 256, 256), gpu="A100", start=PLAIN,
                                space={"block_M": [64, 128], "num_stages": [1, 2]})
    assert made.schedule == PLAIN and list(made.controls.knobs) == ["block_M", "num_stages"]
    made.set(block_M=64)
    assert made.settle().used.registers > 0


def test_moving_what_is_not_there_is_refused(explorer):
    with pytest.raises(BadArgument, match="no control 'depth'"):
        explorer.set(depth=3)
    with pytest.raises(BadArgument, match=r"block_M is 40; it offers 16, 32"):
        explorer.set(block_M=40)


def test_the_starting_value_is_offered():
    made = lab.ScheduleExplorer(GEMM, lab.Gemm(256, 256, 256), start=dict(PLAIN, block_M=80))
    assert made.schedule["block_M"] == 80


# --- three answers


def test_a_move_is_answered_three_times(explorer):
    explorer.controls.knobs["block_M"].value = 64
    assert "64x128x32" in shown(explorer, "status") and "compiling" in shown(explorer, "figures")
    assert 'data-state="waiting"' in shown(explorer, "detail")
    found = explorer.settle()
    code = lab.cross_compile(GEMM(1024, 1024, 1024, **explorer.schedule), "A100")
    assert found.code.source == code.source and found.used == code.resources
    assert found.occupied == code.occupancy
    assert f"{found.used.registers} of 255" in shown(explorer, "figures")
    assert 'data-state="source"' in shown(explorer, "detail")
    assert "It fits." in shown(explorer, "status")


def test_the_first_answer_is_quick_and_going_back_is_too(explorer):
    explorer.settle()
    explorer.set(block_M=256, threads=256)
    explorer.settle()
    took = []
    for block_M in (128, 256) * 5:
        start = time.perf_counter()
        explorer.set(block_M=block_M)
        took.append(time.perf_counter() - start)
        explorer.settle()
    assert sorted(took)[5] < 0.1
    start = time.perf_counter()
    explorer.set(block_M=256)
    assert explorer.found.final and 'data-state="source"' in shown(explorer, "detail")
    assert time.perf_counter() - start < 0.1


def test_each_way_to_fail_has_its_sentence(explorer):
    explorer.set(block_M=16, block_N=32, threads=256)
    assert "Not possible. 8 warps cannot share a tile of 16 x 32" in shown(explorer, "status")
    assert explorer.found.final and 'data-state="none"' in shown(explorer, "detail")
    explorer.set(**{**LARGE, "num_stages": 5}, gpu="T4")
    assert "Does not fit. A block would take 240 KiB" in shown(explorer, "status")
    explorer.settle()
    assert "Does not fit. A block takes 240 KiB" in shown(explorer, "status")
    assert 'data-state="source"' in shown(explorer, "detail")
    explorer.set(**dict(LARGE, threads=128, num_stages=2), gpu="A100")
    explorer.settle()
    assert "It spills:" in shown(explorer, "status")
    explorer.set(**PLAIN, dtype="bfloat16", gpu="T4")
    assert "no bfloat16 tensor cores" in shown(explorer, "status")


def test_a_builder_that_fails_is_quoted(explorer):
    def build(M, N, K, block_M=64):
        if block_M == 128:
            raise RuntimeError("not today")
        return GEMM(M, N, K, block_M=block_M) if block_M < 256 else None

    made = lab.ScheduleExplorer(build, lab.Gemm(256, 256, 256), gpu="A100")
    made.set(block_M=128)
    made.settle()
    assert "Does not compile. The builder failed: not today" in shown(made, "status")
    made.set(block_M=256)
    made.settle()
    assert "build returned a NoneType" in shown(made, "status")
    made.set(block_M=32)
    assert made.settle().used is not None


def test_without_nvcc_the_source_is_still_there(explorer, monkeypatch):
    from labkit.errors import MissingTool

    def missing():
        raise MissingTool("No CUDA compiler (nvcc) found.")

    monkeypatch.setattr(ptxas, "nvcc", missing)
    explorer.set(block_M=64, block_K=64)
    found = explorer.settle()
    assert found.code is not None and found.used is None
    assert "Registers are not known: No CUDA compiler" in shown(explorer, "status")
    assert "not known" in shown(explorer, "figures")


def test_every_detail_draws(explorer):
    explorer.settle()
    for kind in explorer.page._kind.options:
        explorer.page._kind.value = kind
        assert len(shown(explorer, "detail")) > 300, kind
    explorer.page._kind.value = "tiles a block reads"
    first = shown(explorer, "detail")
    explorer.page._step.value = 3
    assert shown(explorer, "detail") != first


# --- what is newer wins


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


def test_a_newer_move_ends_the_older_compiler(explorer, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))  # so that nvcc has to run
    explorer.settle()
    explorer.set(block_M=64)
    wait_for(lambda: explorer._worker.pid)
    pid = explorer._worker.pid
    group = os.getpgid(pid)
    assert alive(pid)
    explorer.set(block_M=256)
    wait_for(lambda: not alive(pid), 2)
    found = explorer.settle()
    assert "256x128x32" in shown(explorer, "status") and found.used is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)  # also what it had started
    explorer.set(block_M=64)  # lowered already, not counted: it is taken up again
    assert explorer.found.code is not None and explorer.settle().used is not None


def test_a_late_answer_is_dropped(explorer, monkeypatch):
    explorer.settle()
    real, gate, entered = compilers.lowered, threading.Event(), threading.Event()

    def slow(build, arguments, *rest):
        if arguments["block_M"] == 64:
            entered.set()
            assert gate.wait(20)
        return real(build, arguments, *rest)

    monkeypatch.setattr(explorer_module.compilers, "lowered", slow)
    explorer.set(block_M=64)
    assert entered.wait(20)
    explorer.set(block_M=256)
    status = shown(explorer, "status")
    gate.set()
    explorer.settle()
    assert "256x128x32" in status and "256x128x32" in shown(explorer, "status")
    assert explorer.found.code.grid[1] == 4


def test_many_quick_moves_end_in_the_last(explorer):
    for block_M in [16, 32, 64, 128, 192, 256] * 5 + [64]:
        explorer.controls.knobs["block_M"].value = block_M
    found = explorer.settle()
    assert found.code.grid[1] == 16 and "64x128x32" in shown(explorer, "status")


def test_the_slot_survives_what_a_job_raises():
    slot = Latest("test")
    seen = []

    def superseded(ticket):
        raise Superseded

    slot.submit(superseded)
    assert slot.settle(5)
    slot.submit(lambda ticket: seen.append(ticket.valid))
    assert slot.settle(5) and seen == [True]


def test_the_interpreter_ends_with_a_compiler_at_work(tmp_path):
    """No thread keeps it, and no nvcc outlives it."""
    code = ("import labkit as lab, time\n"
            "e = lab.ScheduleExplorer(lab.kernel('02', 'gemm'), lab.Gemm(512, 512, 512), "
            "gpu='A100')\n"
            "e.set(block_M=64)\n"
            "while not e._worker.pid: time.sleep(0.005)\n"
            "print(e._worker.pid, flush=True)\n")
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LABKIT_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert not alive(int(done.stdout)), time.monotonic() - start


# --- any schedule at all


@pytest.mark.parametrize(("more", "said"), [
    ({"start": {"block_M": 0}}, "block_M is 0; give a whole number of at least 1"),
    ({"start": {"block_M": None}}, "block_M is None; give a whole number"),
    ({"start": {"threads": "a"}}, "threads is 'a'; give a whole number"),
    ({"start": {"num_stages": 2.5}}, "num_stages is 2.5; give a whole number of at least 0"),
    ({"start": {"warps": "nope"}}, "warps is 'nope'; it takes 'Square'"),
    ({"start": {"M": 5}}, "M belongs to the problem"),
    ({"start": {"dtype": "float32"}}, "dtype belongs to the problem"),
    ({"space": {"M": [1]}}, "M belongs to the problem"),
    ({"space": {"block_M": [64, 0]}}, "block_M is 0"),
    ({"space": "block_M"}, "space is of type str"), ({"start": 5}, "start is of type int"),
])
def test_values_that_no_kernel_takes_are_refused_at_once(more, said):
    with pytest.raises(BadArgument, match=said):
        lab.ScheduleExplorer(GEMM, lab.Gemm(256, 256, 256), **more)


def test_a_control_cannot_be_emptied(explorer):
    with pytest.raises(BadArgument, match="block_M is None; it offers"):
        explorer.set(block_M=None)
    assert explorer.schedule["block_M"] == PLAIN["block_M"]


def test_blocks_that_stay_are_counted_as_such_by_default():
    made = lab.ScheduleExplorer(GELU, lab.Gemm(8192, 8192, 8192, epilogue="bias_gelu"), gpu="H100")
    try:
        assert made.schedule["blocks"] == 132
        assert "2,048 tiles in 16 waves" in made._repr_mimebundle_()["text/plain"]
    finally:
        made.close()
    with pytest.raises(BadArgument, match="blocks is 0; give a whole number of at least 1"):
        lab.ScheduleExplorer(GELU, lab.Gemm(64, 64, 64), start={"blocks": 0})


def any_schedule(rng, problem, build):
    taken = inspect.signature(build).parameters
    schedule = {knob: rng.choice(values) for knob, values in problem.space().items()
                if knob in taken}
    if rng.random() < 0.15:
        knob = rng.choice([k for k in schedule if k.startswith("block")])
        schedule[knob] = rng.choice([8, 24, 40, 100, 512])
    if rng.random() < 0.05:
        schedule["threads"] = rng.choice([16, 100, 2048])
    return schedule


@pytest.mark.parametrize("lowered_one_in", [
    50, pytest.param(1, marks=pytest.mark.slow)])
def test_300_schedules_end_in_a_result_or_a_sentence(lowered_one_in):
    """All of them are refused in words or traced; every so many go on to be lowered, and of these
    every tenth to nvcc, if its tile is not so large that nvcc takes a minute."""
    rng = random.Random(7)
    gemm, attention = lab.Gemm(1000, 1000, 1000), lab.Attention(1, 2, 1000, 64)
    made = ((GEMM, gemm), (GELU, replace(gemm, epilogue="bias_gelu")), (ATTENTION, attention),
            (ATTENTION, replace(attention, causal=True)))
    explained = lowered = 0
    for turn in range(300):
        build, problem = made[turn % len(made)]
        gpu = ALL[turn // 4 % len(ALL)]
        schedule = any_schedule(rng, problem, build)
        explorer = lab.ScheduleExplorer(build, problem, start=schedule, gpu=gpu)
        assert explorer.schedule == schedule | ({"blocks": 132} if build is GELU else {})
        found = explorer.found
        if not problem.illegal(schedule, gpu):
            tuning_space.trace(build, {**problem.arguments(), **schedule})
            if turn % lowered_one_in == 0:
                lowered += 1
                found = compilers.lowered(build, {**problem.arguments(), **schedule}, gpu, None)
                explorer._kept[explorer.choice] = found
                if found.code and lowered % 10 == 1 and problem.accumulators(schedule) < 128:
                    found = explorer.settle()
                    assert found.used is not None, found.failure
                explorer._draw(explorer.choice, found)
        sentence = shown(explorer, "status").split("<b>")[1].split("</b>")[0]
        assert sentence.endswith(".") and 25 < len(sentence) < 400, sentence
        assert "explorer failed" not in sentence and "Traceback" not in sentence
        assert "TileLang could not compile" not in sentence, sentence
        if found.code is not None:
            assert instant(problem, schedule, gpu).threads == found.code.threads
        elif found.final:
            explained += 1
            assert sentence.startswith(("Not possible. ", "Does not compile. "))
    assert 60 < explained < 240 and lowered >= 2, (explained, lowered)


def test_a_rule_forbids_only_what_cannot_be_compiled():
    """A rule that is too strict would hide schedules that work."""
    rng = random.Random(11)
    for turn in range(8):
        build, problem = ((GEMM, lab.Gemm(512, 512, 512)),
                          (ATTENTION, lab.Attention(1, 2, 512, 64, causal=turn % 4 == 1)))[turn % 2]
        gpu = ALL[turn % len(ALL)]
        while not problem.illegal(schedule := any_schedule(rng, problem, build), gpu):
            pass
        found = compilers.lowered(build, {**problem.arguments(), **schedule}, gpu, None)
        if found.code is not None:  # TileLang does not know the hardware's own limits
            assert found.code.threads > 1024 or schedule["block_K"] % 16, (schedule, gpu.name)


def test_buffers_that_come_later_share_the_space():
    from labkit.widgets.problems import Part

    parts = [Part("A", 100), Part("B", 50), Part("C", 120, later=True)]
    assert shared_bytes(aligned(parts, lookup("A100"))) == 150
    assert shared_bytes(aligned(parts, lookup("H100"))) == 2048


# --- one output


def test_one_output_carries_widget_picture_and_words(explorer):
    bundle = explorer._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "image/svg+xml",
                           "text/plain"}
    assert bundle["image/svg+xml"].startswith("<svg ") and len(bundle["image/svg+xml"]) < 60_000
    assert "shared memory a block" in bundle["text/plain"]
    again = lab.ScheduleExplorer(GEMM, lab.Gemm(1024, 1024, 1024), start=PLAIN, gpu="A100")
    other = again._repr_mimebundle_()
    assert all(other[key] == bundle[key] for key in ("image/svg+xml", "text/plain"))
    explorer.settle()
    assert explorer._repr_mimebundle_()["text/plain"] == bundle["text/plain"]  # however far it is


def test_headless_without_widget_state(tmp_path):
    """nbclient keeps no state, and the stored notebook has the picture."""
    import nbformat
    from nbclient import NotebookClient

    cell = ("import labkit as lab\n"
            "lab.ScheduleExplorer(lab.kernel('02', 'gemm'), lab.Gemm(512, 512, 512), gpu='A100')")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=False,
                   resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook.cells[0].outputs
    assert "<svg" in output["data"]["image/svg+xml"] and "widgets" not in notebook.metadata


# --- what was recorded


@pytest.fixture
def recorded(no_recordings):
    trials = [{"schedule": PLAIN, "kernel_ms": 0.5, "error": 1e-3},
              {"schedule": LARGE, "kernel_ms": 0.2, "error": 1e-3},
              {"schedule": dict(PLAIN, block_M=256), "failure": "it spills"}]
    shape = {"M": 1024, "N": 1024, "K": 1024}
    content = {"gpu": "NVIDIA A100", "date": "2026-01-02", "flops": 2 * 1024**3,
               "baselines": {"cuBLAS": 0.25},
               "schedules": [{**t, "shape": shape, "dtype": "float16"} for t in trials]}
    (no_recordings / "a100-sweep-gemm_explored.json").write_text(json.dumps(content))


def test_a_recorded_figure_is_marked(recorded, explorer):
    explorer.set(**LARGE)
    status = shown(explorer, "status")
    assert "On the NVIDIA A100, 2026-01-02 (RECORDED there, not measured here): 0.2 ms" in status
    assert "place 1 of 2" in status and "cuBLAS took 0.25 ms" in status
    assert "RECORDED" in shown(explorer, "roof")
    explorer.set(**PLAIN)
    assert "place 2 of 2; the fastest took 0.2 ms" in shown(explorer, "status")
    explorer.set(block_M=256)
    assert "it spills" in shown(explorer, "status")
    for other in (dict(block_M=64), dict(block_M=128, gpu="H100"),
                  dict(gpu="A100", dtype="bfloat16"), dict(dtype="float16", warps="FullRow")):
        explorer.set(**other)
        assert "RECORDED" not in shown(explorer, "status"), other


def test_times_of_one_round_are_ranked_together(no_recordings):
    shape = {"M": 1024, "N": 1024, "K": 1024}
    trials = [{"schedule": dict(PLAIN, panel=p), "kernel_ms": ms, "round": round, "shape": shape,
               "dtype": "float16"} for p, ms, round in
              ((0, 0.5, "full"), (1, 0.4, "full"), (2, 0.1, "short"), (4, 0.2, "short"))]
    content = {"gpu": "NVIDIA A100", "date": "2026-01-02", "flops": 1, "schedules": trials}
    (no_recordings / "a100-sweep-mine.json").write_text(json.dumps(content))
    made = lab.ScheduleExplorer(GEMM, lab.Gemm(1024, 1024, 1024), start=PLAIN, gpu="A100",
                                sweeps="mine")
    assert "place 2 of 2 in the full round; the fastest took 0.4 ms" in shown(made, "status")
    made.set(panel=2)
    assert "place 1 of 2 in the short round" in shown(made, "status")


def test_a_gpu_without_a_data_sheet_of_its_own():
    """Its architecture's limits are known, its rates and multiprocessors are not."""
    made = lab.ScheduleExplorer(GEMM, lab.Gemm(1024, 1024, 1024), start=PLAIN, gpu="sm_90")
    assert shown(made, "roof") == "" and "waves" in shown(made, "figures")
    assert "waves are not known" in shown(made, "grid")
    assert "sm_90a" in shown(made, "status") and "<svg" in shown(made, "memory")
    bundle = made._repr_mimebundle_()
    assert "<svg" in bundle["image/svg+xml"]
    assert made.settle().used is not None


def test_measuring_needs_the_gpu_that_is_chosen(explorer):
    with pytest.raises(NeedsGPU, match="not in this machine"):
        explorer.measure()
    assert explorer.page._button.disabled


def test_recording_writes_what_the_explorer_reads(no_recordings, capsys):
    assert record.main([str(no_recordings), "gemm_skinny", "--tiny"]) == 0
    assert "3 timed, 0 failed" in capsys.readouterr().err
    data = results.recorded_sweep("gemm_skinny", "cpu")
    assert data["gpu"] == "CPU, TileLang's C backend" and len(data["schedules"]) == 3
    assert all(t["error"] < 1e-2 and t["kernel_ms"] > 0 for t in data["schedules"])


def test_recording_refuses_what_it_cannot_do(tmp_path, monkeypatch):
    with pytest.raises(BadArgument, match="no sweep 'gemm_fast'"):
        record.main([str(tmp_path), "gemm_fast"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NeedsGPU, match="Recording needs a CUDA GPU"):
        record.main([str(tmp_path)])


@pytest.mark.parametrize(("name", "least"), [
    ("gemm_explored", 200), ("gemm_skinny", 200), ("gemm_bias_gelu_explored", 60),
    ("flash_attention_explored", 60), ("flash_attention_causal_explored", 60)])
def test_recipes_are_wide_enough(name, least):
    recipe = record.RECIPES[name]
    schedules = recipe.schedules(lookup("H200"))
    assert len(schedules) >= least and recipe.start == schedules[0]
    assert f"{recipe.problem.name}_explored" == name or name == "gemm_skinny"
    assert record.rounded({"a": [0.123456789, 12, "x", float("inf")]}) == {
        "a": [0.12346, 12, "x", float("inf")]}


def test_a_failure_stays_in_the_recording_with_its_reason(tmp_path, monkeypatch):
    recipe = record.tiny(record.RECIPES["gemm_explored"])
    monkeypatch.setattr(record.Bench, "prepare", _prepare_wrongly(record.Bench.prepare))
    data = record.record("gemm_explored", recipe, tmp_path, "cpu", 3)
    failures = [t["failure"] for t in data["schedules"] if "failure" in t]
    assert any("WRONG" in why for why in failures) and len(failures) < 3, data["schedules"]


def _prepare_wrongly(prepare):
    """The second schedule's kernel writes zeros."""
    turn = []

    def prepared(self, kernel, schedule):
        turn.append(schedule)
        if len(turn) == 2:
            launch = kernel.launch
            kernel.launch = lambda *tensors: (launch(*tensors), tensors[-1].zero_())
        return prepare(self, kernel, schedule)

    return prepared


def test_settling_has_an_end(explorer, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr(explorer_module.compilers, "lowered",
                        lambda *_: (gate.wait(20), compilers.Compiled(final=True))[1])
    explorer.set(block_M=64)
    with pytest.raises(LabError, match=r"longer than 0\.2 s"):
        explorer.settle(0.2)
    gate.set()
    explorer.settle()


@pytest.fixture
def pretended(monkeypatch):
    """The button's way on the CPU: kernels run and are checked there, and a clock times them."""
    assert compiler.resolve_device("cpu") == "cpu"  # it has its own name for the function
    monkeypatch.setattr(machine, "resolve_device", lambda device: "gpu")
    monkeypatch.setattr(machine, "own_gpu", lambda: lookup("A100"))
    monkeypatch.setattr(measuring, "Bench", functools.partial(measuring.Bench, device="cpu"))
    monkeypatch.setattr(benchmark, "time_each", lambda calls, milliseconds: record._time(
        calls, "cpu"))


def test_the_button_adds_to_the_history(pretended):
    def build(M, N, K, block_M=64, num_stages=1):
        return GEMM(M, N, K if num_stages < 3 else K - 32, block_M=block_M, block_N=32,
                    num_stages=num_stages)

    made = lab.ScheduleExplorer(build, lab.Gemm(70, 50, 64))
    made.settle()
    assert made.choice.gpu.name == "A100" and not made.page._button.disabled
    made.page._button.click()
    assert "Right (relative error" in shown(made, "message"), shown(made, "message")
    assert not made.page._button.disabled and "measured now" in shown(made, "roof")
    made.set(block_M=32)
    made.page._button.click()
    made.set(num_stages=3)
    made.page._button.click()
    assert "has shape [70, 64], but the program was built for" in shown(made, "message")
    measured = list(made._measured.values())
    assert [m.ms is not None for m in measured] == [True, True, False]
    assert all(m.baseline[0] == "cuBLAS" for m in measured[:2])
    assert shown(made, "history").count("<svg") == 1
    made.set(gpu="T4")
    assert made.page._button.disabled


def test_a_wrong_kernel_is_never_timed(pretended):
    def reference(A, B):
        return A.float() @ B.float() + 1

    made = lab.ScheduleExplorer(GEMM, lab.Gemm(70, 50, 64), start=PLAIN, reference=reference,
                                baseline=("mine", lambda A, B: A @ B))
    result = made.measure()
    assert result.ms is None and "WRONG" in result.failure


@pytest.mark.gpu
def test_the_button_checks_and_times(cuda):
    made = lab.ScheduleExplorer(GEMM, lab.Gemm(1024, 1024, 1024), start=PLAIN)
    made.settle()
    made.page._button.click()
    assert "Right (relative error" in made.page.parts["message"].value
    assert made._measured[made.choice].baseline[0] == "cuBLAS"
    assert "128x128x32" in made.page.parts["history"].value
    wrong = lab.ScheduleExplorer(lambda M, N, K, block_M=64: GEMM(M, N, K - 32, block_M=block_M),
                                 lab.Gemm(1024, 1024, 1024))
    wrong.page._button.click()
    assert "Right" not in wrong.page.parts["message"].value
