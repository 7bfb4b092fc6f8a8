"""The tuner: what it drops, what it times, what it keeps, and that nothing wrong is ever ranked.

Most tests run its GPU side on the CPU, with a timer that gives each schedule the time that the test
wants; the tests marked gpu time for real.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import tilelang.language as T
import torch

import labkit as lab
from labkit import benchmark, compiler, gpus, lessons, machine, ptxas, results, tuning
from labkit.errors import BadArgument, LabError, MissingTool, WrongAnswer
from labkit.ranking import Bar, ranking
from labkit.tuning_space import grid
from labkit.tuning_store import Store, key

GEMM = lab.kernel("02", "gemm")
N = 1000
SPACE = {"block": [64, 128, 256], "amount": [1, 2]}  # amount 2 is wrong
SPEED = {64: 3.0, 128: 2.0, 256: 2.1}  # milliseconds
SHAPE = dict(shape={"N": N}, dtype="float32", flops=N)


def add(block, amount=1, threads=64, factor=1.0):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
            for i in T.Parallel(block):
                if bx * block + i < N:
                    Y[bx * block + i] = X[bx * block + i] * factor + amount

    return main


class Bench:
    """A GPU that is not there: kernels run on the CPU, and the timer says what `speed` says."""

    def __init__(self, monkeypatch, cache):
        self.here = SimpleNamespace(device="gpu", gpu=gpus.lookup("H200"), torch_device="cpu")
        self.x = torch.randn(N)
        self.speed, self.programs, self.launches = dict(SPEED), [], {}
        self.short, self.full, self.compiled, self.interrupt_at = [], [], [], None
        self.damage = set()
        real = compiler.compile

        def compile(program, out_idx, device, pass_configs):
            kernel = real(program, out_idx=out_idx, device="cpu", pass_configs=pass_configs)
            self.launches[kernel.launch] = next(s for p, s in self.programs if p is program)
            self.compiled.append(self.launches[kernel.launch])
            return kernel

        def no_nvcc(*_):
            raise MissingTool("no nvcc")

        monkeypatch.setattr(compiler, "compile", compile)
        monkeypatch.setattr(benchmark, "time_each", self.time_each)
        monkeypatch.setattr(tuning, "_gpu_name", lambda: "NVIDIA H200")
        monkeypatch.setattr(machine, "own_gpu", lambda: gpus.lookup("H200"))
        monkeypatch.setattr(ptxas, "resources", no_nvcc)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setenv("LABKIT_CACHE_DIR", str(cache))
        shutil.rmtree(cache / "tuning", ignore_errors=True)
        monkeypatch.delenv("LABKIT_RECORD", raising=False)

    def build(self, **schedule):
        program = add(**schedule)
        self.programs.append((program, schedule))
        return program

    def time_each(self, candidates, milliseconds=200):
        if self.interrupt_at == len(self.short) + len(self.full):
            raise KeyboardInterrupt
        timed = [self.launches[call.func] for call in candidates.values()]
        (self.short if milliseconds < 200 else self.full).append(timed)
        for call, schedule in zip(candidates.values(), timed, strict=True):
            call()
            if schedule["block"] in self.damage and milliseconds == 200:
                call.args[-1][7] = 0
        return {name: benchmark.Times(self.speed[schedule["block"]], 0.1, 10, 1000.0)
                for name, schedule in zip(candidates, timed, strict=True)}

    def tune(self, space=SPACE, name="add", reference=None, **options):
        self.short, self.full, self.compiled = [], [], []
        wanted = self.x + 1 if reference is None else reference
        return lab.tune(name, self.here, options.pop("build", self.build), space, [self.x], wanted,
                        **{**SHAPE, **options})


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Programs are lowered and compiled once for all tests; what was measured is not kept."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def bench(monkeypatch, cache):
    return Bench(monkeypatch, cache)


def blocks(candidates):
    return [c.schedule["block"] for c in candidates]


# --- the loop


def test_the_fastest_right_schedule_wins_and_wrong_ones_are_named_never_timed(bench):
    tuning = bench.tune()
    assert tuning.winner == {"block": 128, "amount": 1}
    assert blocks(tuning.ranked) == [128, 256, 64]
    assert all(s["amount"] == 1 for call in bench.short + bench.full for s in call)
    assert tuning.origin == "measured now" and tuning.new == 3 + 2
    steps = {step: (left, why) for step, left, why in tuning.steps}
    assert steps["all combinations"][0] == 6
    left, why = steps["gives the right result"]
    assert left == 3 and "3 dropped: block=64 amount=2: add: WRONG." in why
    assert "there is no nvcc here" in steps["spills nothing"][1]
    table = tuning.table()
    assert [row[0] for row in table.rows] == ["1", "2", "3"] and "measured now" in table.title
    assert "amount=2" not in repr(table)


def test_only_what_is_close_to_the_fastest_is_timed_at_length(bench):
    tuning = bench.tune()
    assert [[s["block"] for s in call] for call in bench.full] == [[128, 256]]
    assert [c.round for c in tuning.ranked] == ["full", "full", "short"]
    wide = bench.tune(within=2)
    assert sorted(s["block"] for s in bench.full[0]) == [64, 128, 256]
    assert [c.round for c in wide.ranked] == ["full"] * 3


def test_a_fast_short_round_does_not_decide(bench, monkeypatch):
    real = bench.time_each

    def other_at_length(candidates, milliseconds=200):
        bench.speed = {**SPEED, 128: 2.0 if milliseconds < 200 else 2.2}
        return real(candidates, milliseconds)

    monkeypatch.setattr(benchmark, "time_each", other_at_length)
    tuning = bench.tune()
    assert tuning.winner["block"] == 256


def test_the_hand_picked_schedule_is_timed_to_the_end(bench):
    tuning = bench.tune(hand_picked={"block": 64, "amount": 1})
    assert sorted(s["block"] for s in bench.full[0]) == [64, 128, 256]
    assert tuning.verdict().endswith("2.0000 ms and the hand-picked block=64 amount=1 3.0000 ms: "
                                     "50.0% more.")
    assert "(hand-picked)" in repr(tuning.table(1)) and len(tuning.table(1).rows) == 2
    best = bench.tune(hand_picked={"block": 128, "amount": 1})
    assert best.verdict().startswith("No schedule beat the hand-picked one")
    close = bench.tune(hand_picked={"block": 256, "amount": 1}, fresh=True)
    bench.speed[256] = 2.05
    close = bench.tune(hand_picked={"block": 256, "amount": 1}, fresh=True)
    assert close.verdict().endswith("less than the spread of the runs.")


def test_a_hand_picked_schedule_outside_the_space_is_added(bench):
    bench.speed[512] = 1.0
    tuning = bench.tune(hand_picked={"block": 512, "amount": 1})
    assert tuning.winner["block"] == 512 and len(tuning.candidates) == 7


def test_a_rule_prunes(bench):
    tuning = bench.tune(legal=lambda s: s["block"] > 64 and s["amount"] == 1)
    assert ("the lesson's rule", 2, "4 break it") in tuning.steps
    assert blocks(tuning.ranked) == [128, 256]


def test_what_is_wrong_after_timing_is_dropped(bench):
    bench.damage = {128}
    tuning = bench.tune()
    assert tuning.winner["block"] == 256 and 128 not in blocks(tuning.ranked)
    assert any("block=128 amount=1: add: WRONG" in why for _, _, why in tuning.steps)
    bench.damage = {128, 256}  # then the short round is what is left
    assert bench.tune(fresh=True).winner["block"] == 64
    bench.damage = {64, 128, 256}
    with pytest.raises(WrongAnswer, match="still right after timing"):
        bench.tune(fresh=True, within=2)


def test_all_wrong(bench):
    with pytest.raises(WrongAnswer, match=r"no schedule is left after the step 'gives the right"):
        bench.tune({"block": [64, 128], "amount": [2]})


def test_a_schedule_that_cannot_be_built_is_dropped_with_its_reason(bench):
    def build(**schedule):
        if schedule["block"] == 64:
            raise ValueError("64 is not for me")
        return bench.build(**schedule)

    tuning = bench.tune(build=build)
    assert blocks(tuning.ranked) == [128, 256]
    assert any("64 is not for me" in why for _, _, why in tuning.steps)


# --- kept on disk


def test_a_second_call_measures_nothing_and_runs_the_winner_once_more(bench):
    first = bench.tune()
    again = bench.tune()
    assert not bench.short and not bench.full and again.new == 0
    assert [s["block"] for s in bench.compiled if s["amount"] == 1] == [128]
    assert again.winner == first.winner and again.origin == "measured here before"
    assert repr(again.table().rows) == repr(first.table().rows)
    assert bench.tune(fresh=True).new == 5


@pytest.mark.parametrize("turn", range(4))
def test_an_interrupted_run_goes_on_where_it_stopped(bench, turn):
    bench.interrupt_at = turn  # 3 timings in the short round, then the interleaved one
    with pytest.raises(KeyboardInterrupt):
        bench.tune()
    assert len(bench.short) == min(turn, 3) and not bench.full
    bench.interrupt_at = None
    tuning = bench.tune()
    assert len(bench.short) == 3 - min(turn, 3) and len(bench.full) == 1
    assert blocks(tuning.ranked) == [128, 256, 64]


def test_an_interruption_while_compiling_gets_out(bench, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile", stop)
        with pytest.raises(KeyboardInterrupt):
            bench.tune()
    assert bench.tune().new == 5


def test_changed_source_sizes_options_or_gpu_are_measured_again(bench, monkeypatch):
    bench.tune()

    def changed(**schedule):
        program = add(**schedule, factor=0.5)
        bench.programs.append((program, schedule))
        return program

    assert bench.tune(build=changed, reference=bench.x * 0.5 + 1).new == 5
    assert bench.tune(pass_configs={"tl.enable_fast_math": True}).new == 5
    monkeypatch.setattr(tuning, "_gpu_name", lambda: "NVIDIA H100")
    assert bench.tune().new == 5
    assert bench.tune().new == 0


def test_a_kept_time_does_not_vouch_for_a_result(bench):
    bench.tune()
    with pytest.raises(WrongAnswer, match="still right after timing"):
        bench.tune(reference=bench.x)


@pytest.mark.parametrize("damage", [
    b"\xff\xfe{", b"{", b"[]", b"null", b'{"stage": "short"}', b"[" * 100_000,
    b'{"stage": "short", "key": "K", "ms": -1, "spread_ms": 0}',
    b'{"stage": "short", "key": "K", "ms": NaN, "spread_ms": 0}',
    b'{"stage": "short", "key": "K", "ms": true, "spread_ms": 0}',
    b'{"stage": "full", "date": "today", "times": {}}',
    b'{"stage": "full", "date": "today", "times": {"K": 1}}',
    b'{"stage": "full", "times": {"K": {"ms": 1, "spread_ms": 0}}}',
    b'{"stage": "broke", "key": "K", "why": 3}'])
def test_damaged_lines_are_passed_over(bench, damage):
    bench.tune()
    path = Store("add", "NVIDIA H200").path
    known = key(add(block=128, amount=1), "{}", "NVIDIA H200").encode()
    path.write_bytes(path.read_bytes() + damage.replace(b"K", known))
    assert bench.tune().new == 0


def test_a_cut_off_file_loses_its_last_line_only(bench):
    bench.tune()
    path = Store("add", "NVIDIA H200").path
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[:-20])  # the interleaved round
    assert bench.tune().new == 2 and not bench.short
    assert bench.tune().new == 0
    path.write_bytes(b"")
    assert bench.tune().new == 5


WRITER = """
import sys
from labkit.tuning_store import Store
store = Store("race", "GPU")
for i in range(300):
    store.add(stage="short", key=f"{sys.argv[1]}-{i}", ms=1.0, spread_ms=0.0, pad="x" * 3000)
"""


def test_two_writers_at_once(bench):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, name]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(Store("race", "GPU").short) == 600


def test_a_folder_that_cannot_be_written_is_one_sentence(bench, tmp_path):
    store = Store("add", "NVIDIA H200")
    store.path = tmp_path / "file" / "x.jsonl"
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BadArgument, match="cannot be written"):
        store.add(stage="short", key="k", ms=1.0, spread_ms=0.0)


def test_a_schedule_that_breaks_the_gpu_is_left_out_by_the_next_call(bench, monkeypatch):
    def crash(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    run_once = tuning._Run.judge

    def judge(self, candidate, output, step):
        if candidate.schedule["block"] == 128 and candidate.schedule["amount"] == 1:
            crash()
        run_once(self, candidate, output, step)

    with monkeypatch.context() as patch:
        patch.setattr(tuning._Run, "judge", judge)
        patch.setattr(torch.cuda, "synchronize", crash)
        with pytest.raises(LabError, match="illegal memory access was encountered"):
            bench.tune()
    result = bench.tune()
    assert result.winner["block"] == 256
    assert any("broke the GPU's context before" in why for _, _, why in result.steps)
    assert bench.tune(fresh=True).winner["block"] == 128


def test_the_record(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))
    first = bench.tune(hand_picked={"block": 64, "amount": 1})
    (tmp_path / "sweep-add.json").rename(tmp_path / "h200-sweep-add.json")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    shown = lab.tune("add", lab.here("cpu"), add, SPACE, [bench.x], bench.x + 1, **SHAPE,
                     hand_picked={"block": 64, "amount": 1}, check_on_cpu=0)
    assert shown.table().rows == first.table().rows
    assert shown.origin.startswith("RECORDED")
    kept = json.loads((tmp_path / "h200-sweep-add.json").read_text())
    assert sum("failure" in s for s in kept["schedules"]) == 3 and kept["new"] == 6
    assert {"filter", "compile", "measure"} == set(kept["seconds"])


# --- bad input


@pytest.mark.parametrize(("space", "message"), [
    ({}, "is empty"), ([], "is empty"), ({"block": []}, "has no values"),
    ({"block": 3}, "give a name and a list"), ({"block": "64"}, "give a name and a list"),
    ({3: [1]}, "give a name and a list"), ([3], "of type list"), (3, "of type int"),
    (None, "of type NoneType"), ({"block": [object()]}, "numbers, texts or booleans"),
    ({"blok": [64]}, "unexpected keyword argument 'blok'"),
    ({"threads": [64]}, "missing 1 required positional argument: 'block'"),
    ({"block": range(1000), "threads": range(1001)}, "more than 1,000,000 combinations"),
    ({"block": range(1, 1002)}, "1,001 schedules are left")])
def test_a_bad_space_is_one_sentence(bench, space, message):
    with pytest.raises(BadArgument, match=message):
        bench.tune(space)


def test_other_bad_arguments(bench):
    with pytest.raises(BadArgument, match="build has no knob 'blok'; it takes block, amount"):
        bench.tune({"blok": [1]}, build=add)
    with pytest.raises(BadArgument, match="build is of type int"):
        bench.tune(build=3)
    with pytest.raises(BadArgument, match="forbids all 6 schedules"):
        bench.tune(legal=lambda s: False)
    with pytest.raises(BadArgument, match="legal is of type int"):
        bench.tune(legal=3)
    for within in (0.5, "x", None, float("nan")):
        with pytest.raises(BadArgument, match="factor of at least 1"):
            bench.tune(within=within)
    for name in ("", "a/b", 3, "../x"):
        with pytest.raises(BadArgument, match="as in 'gemm_tuned'"):
            bench.tune(name=name)
    with pytest.raises(BadArgument, match="hand_picked is 3; give a schedule"):
        bench.tune(hand_picked=3)
    with pytest.raises(BadArgument, match="pass_configs"):
        bench.tune(pass_configs=3)
    with pytest.raises(BadArgument, match="at least one bar"):
        ranking("empty", "TFLOP/s", [])


def test_a_schedule_named_twice_is_tried_once():
    assert grid([{"block": 64}, {"block": 64}]) == [{"block": 64}]
    assert grid({"block": [64, 64], "panel": (1,)}) == [{"block": 64, "panel": 1}]


# --- without a GPU

LARGE = dict(block_M=256, block_N=256, block_K=128, num_stages=2, threads=256)
SPILLS = dict(block_M=128, block_N=256, block_K=32, num_stages=2, threads=128)
PLAIN = dict(block_M=64, block_N=64, block_K=32, num_stages=2, threads=128)
ODD = dict(block_M=24, block_N=40, block_K=16, num_stages=2, threads=128)


def on_cpu(space, build=GEMM, gpu="A100", **options):
    torch.manual_seed(0)
    a, b = (torch.randn(70, 70).half() for _ in range(2))
    return lab.tune("gemm", lab.here("cpu", gpu), lambda **s: build(70, 70, 70, **s), space, [a, b],
                    a.float() @ b.float(), build_for_gpu=lambda **s: GEMM(512, 512, 512, **s),
                    shape={"M": 70}, dtype="float16", flops=2 * 70**3, **options)


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    def entry(schedule, **rest):
        return {"schedule": schedule, "shape": {"M": 512}, "dtype": "float16", **rest}

    content = {"gpu": "NVIDIA H200", "date": "2026-01-02", "flops": 2e9, "schedules": [
        entry(PLAIN, kernel_ms=0.2, spread_ms=0.01, error=0, round="short"),
        entry(dict(PLAIN, num_stages=3), kernel_ms=0.1, spread_ms=0.01, error=0, round="full"),
        entry(LARGE, failure="fits in shared memory: takes 256 KiB")]}
    path = tmp_path / "h200-sweep-gemm.json"
    path.write_text(json.dumps(content))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return path


def test_without_a_gpu_it_filters_checks_and_ranks_the_recording(recorded):
    result = on_cpu([PLAIN, dict(PLAIN, num_stages=3), LARGE, SPILLS, ODD], hand_picked=PLAIN)
    steps = {step: (left, why) for step, left, why in result.steps}
    assert steps["lowers"][0] == 4 and "24x40x16" in steps["lowers"][1]
    assert steps["fits in shared memory"] == (
        3, "a block gets 163 KiB on the A100; 1 dropped: 256x256x128 s2 t256: takes 256 KiB")
    left, why = steps["spills nothing"]
    assert left == 2 and "nvcc compiled 3 for the A100" in why and "spills 2" in why
    assert steps["gives the right result"] == (2, "2 of 2 that ran on the CPU are right")
    assert result.winner == dict(PLAIN, num_stages=3)
    assert "RECORDED there, not measured here" in result.table().title
    assert "takes 0.1000 ms and the hand-picked" in result.verdict()


def test_a_schedule_that_is_wrong_on_the_cpu_is_not_ranked(recorded):
    def build(M, N, K, **schedule):
        return GEMM(M, N, K, **schedule) if schedule["num_stages"] == 2 else corner_of(M)

    result = on_cpu([PLAIN, dict(PLAIN, num_stages=3)], build=build, count_registers=0)
    assert result.winner == PLAIN and len(result.ranked) == 1
    assert any("64x64x32 s3 t128: gemm: WRONG" in why for _, _, why in result.steps)
    with pytest.raises(WrongAnswer, match="no schedule is left"):
        on_cpu([dict(PLAIN, num_stages=3), dict(PLAIN, num_stages=4)], build=build, check_on_cpu=1,
               count_registers=0)


def corner_of(size):
    """Writes A's upper left element everywhere."""

    @T.prim_func
    def main(A: T.Tensor((size, size), "float16"), B: T.Tensor((size, size), "float16"),
             C: T.Tensor((size, size), "float16")):
        with T.Kernel(size, threads=64) as row:
            for j in T.Parallel(size):
                C[row, j] = A[0, 0]

    return main


def test_without_a_recording_it_says_so_and_shows_the_compilers_figures(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    result = on_cpu([PLAIN, dict(PLAIN, num_stages=3)], count_registers=1, hand_picked=PLAIN)
    assert result.ranked == [] and "NOT TIMED" in result.table().title
    assert [row[1:] for row in result.table().rows] == [["16 KiB", result.table().rows[0][2]],
                                                        ["24 KiB", "not counted"]]
    assert int(result.table().rows[0][2]) <= 255 and "1 more." in result.table(1).note
    assert "NOT TIMED" in repr(result) and "NOT TIMED" in result._repr_html_()
    assert result.verdict().startswith("Nothing to compare")
    for attribute in ("winner", "plot"):
        with pytest.raises(LabError, match="no recorded sweep of it"):
            getattr(result, attribute)


def test_a_damaged_recording_is_not_taken_for_none(recorded):
    recorded.write_text("{")
    with pytest.raises(LabError, match="not a sweep file"):
        on_cpu([PLAIN], count_registers=0)


def test_nothing_left_after_the_filter():
    with pytest.raises(LabError, match="after the step 'fits in shared memory'"):
        on_cpu([LARGE], gpu="T4")
    with pytest.raises(LabError, match="after the step 'lowers'"):
        on_cpu([ODD])


def test_spills_can_be_allowed():
    result = on_cpu([SPILLS, PLAIN], allow_spills=True, check_on_cpu=1)
    spilling = result.candidates[0]
    assert spilling.spilled > 0 and spilling.registers == 255 and not spilling.dropped


# --- the picture


def test_the_plot(recorded):
    picture = on_cpu([PLAIN], count_registers=0).plot
    ElementTree.fromstring(picture.svg)
    assert picture.text == ("gemm on NVIDIA H200, 2026-01-02, recorded: 2 schedules. The fastest "
                            "is 64x64x32 s3 t128 with 20 TFLOP/s, the slowest 64x64x32 s2 t128 "
                            "with 10; 1 were timed at length. The others' figures are of the "
                            "short round and compare with one another only.")


@pytest.mark.parametrize("size", [1e-3, 0.7, 1, 9.99, 10, 762, 1e6])
def test_a_ranking_of_any_size_has_a_few_grid_lines(size):
    picture = ranking("t", "TFLOP/s", [Bar("a <b>", size), Bar("c", size / 2, own=True)])
    tree = ElementTree.fromstring(picture.svg)
    lines = [e for e in tree.iter() if e.tag.endswith("line")]
    assert 2 <= len(lines) <= 8 and picture.text.endswith(f"has rank 2 with {size / 2:,.0f}.")


# --- on a GPU


@pytest.fixture
def gpu_search(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, device="cuda").half() for _ in range(2))
    here = lab.here("gpu")

    def search(space, build=None, **options):
        return lab.tune("gemm", here, build or (lambda **s: GEMM(512, 512, 512, **s)), space,
                        [a, b], a.float() @ b.float(), shape={"M": 512, "N": 512, "K": 512},
                        dtype="float16", flops=2 * 512**3, **options)

    return search


@pytest.mark.gpu
def test_tuning_on_a_gpu(gpu_search, tmp_path):
    slow = dict(PLAIN, block_K=16, num_stages=1)
    huge = dict(LARGE, num_stages=4)
    first = gpu_search([PLAIN, slow, huge, ODD], hand_picked=dict(PLAIN, block_M=128))
    assert first.origin == "measured now" and len(first.ranked) == 3
    assert first.winner != slow and all(c.error < 1e-3 for c in first.ranked)
    assert first.ranked[0].round == "full" and "hand-picked" in first.verdict()
    kept = json.loads((tmp_path / "sweep-gemm.json").read_text())
    assert sum("failure" in s for s in kept["schedules"]) == 2
    again = gpu_search([PLAIN, slow, huge, ODD], hand_picked=dict(PLAIN, block_M=128))
    assert again.new == 0 and again.origin == "measured here before"
    assert again.winner == first.winner
    more = gpu_search([PLAIN, slow, dict(PLAIN, num_stages=3)])
    assert 1 <= more.new <= 4


@pytest.mark.gpu
def test_an_interrupted_tuning_on_a_gpu_goes_on(gpu_search, monkeypatch):
    real, calls = benchmark.time_each, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    space = {"block_M": [64, 128], "block_N": [64, 128], "threads": [128]}
    with monkeypatch.context() as patch:
        patch.setattr(benchmark, "time_each", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gpu_search(space)
    result = gpu_search(space)
    assert len(result.ranked) == 4
    assert result.new == 2 + sum(c.round == "full" for c in result.ranked)


@pytest.mark.gpu
def test_a_wrong_schedule_on_a_gpu_is_never_ranked(gpu_search):
    def build(**schedule):
        return (corner_of(512) if schedule["num_stages"] == 3
                else GEMM(512, 512, 512, **schedule))

    result = gpu_search([PLAIN, dict(PLAIN, num_stages=3)], build=build)
    assert result.winner == PLAIN and len(result.ranked) == 1
    assert any("64x64x32 s3 t128: gemm: WRONG" in why for _, _, why in result.steps)


@pytest.mark.gpu
def test_the_lesson_s_search_beats_the_hand_picked_schedule_in_time(cuda, monkeypatch, tmp_path):
    """Nothing cached: at least 40 schedules in 90 s where there are 16 cores, and the winner at
    least as fast as lesson 02's."""
    import tilelang

    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))
    here, size = lab.here("gpu"), 4096
    cells = {cell.id: cell.source for cell in lessons.find("07").notebook.cells}
    lesson = {"lab": lab, "here": here}
    for name in ("tune-kernel", "tune-space", "tune-rule"):
        exec(cells[name], lesson)
    dtype = "bfloat16" if here.sm >= 80 else "float16"
    torch.manual_seed(0)
    a, b = (torch.randn(size, size, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    tilelang.disable_cache()
    try:
        start = time.monotonic()
        build = functools.partial(GEMM, size, size, size, dtype=dtype, warps=lesson["warps"])
        found = lab.tune("gemm_tuned", here, build, lesson["space"], [a, b],
                         a.float() @ b.float(), legal=lesson["legal"],
                         hand_picked=lesson["hand_picked"], dtype=dtype, flops=2 * size**3,
                         shape={"M": size, "N": size, "K": size})
        seconds = time.monotonic() - start
    finally:
        tilelang.enable_cache()
    print(f"\n{found.report()}\n{found.table(12)}\n{found.verdict()}\n{seconds:.1f} s, "
          f"{found.seconds}")
    times = {tuple(sorted(c.schedule.items())): c.ms for c in found.ranked}
    assert found.ranked[0].ms <= times[tuple(sorted(lesson["hand_picked"].items()))]
    if here.sm == 90 and (os.cpu_count() or 1) >= 16:
        assert len(found.ranked) >= 40 and seconds < 90
