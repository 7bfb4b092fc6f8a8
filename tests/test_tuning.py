"""The tuner: what it drops, what it times, what it keeps, and that nothing wrong is ever ranked.

Most tests run its GPU side on the CPU, with a timer that gives each schedule the time that the test
wants; the tests marked gpu time for real.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import tilelang.language as T
import torch

import labkit as lab
from labkit import (
    benchmark,
    compiler,
    environment,
    gpus,
    lessons,
    machine,
    ptxas,
    results,
    tuning_filter,
    tuning_store,
)
from labkit import tuning as tuning_module
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
        self.damage, self.idle, self.fail = set(), False, {}
        self.day, self.versions = "2026-01-01", {"cuda toolkit": "13.0", "driver": "580.1"}
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
        monkeypatch.setattr(tuning_module, "_gpu_name", lambda: "NVIDIA H200")
        monkeypatch.setattr(machine, "own_gpu", lambda: gpus.lookup("H200"))
        monkeypatch.setattr(ptxas, "resources", no_nvcc)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(tuning_store, "today", lambda: self.day)
        monkeypatch.setattr(tuning_store, "_versions", lambda: self.versions)
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
            if schedule["block"] in self.fail:
                raise self.fail[schedule["block"]]
            if self.idle:
                continue
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
    assert "there is no nvcc here" in steps["fits the registers"][1]
    assert steps["still right after timing"] == (
        3, "each output compared once more, after the timing")
    table = tuning.table()
    assert [row[0] for row in table.rows] == ["1", "2", ""] and "measured now" in table.title
    assert "amount=2" not in repr(table)


def test_only_what_is_close_to_the_fastest_is_timed_at_length(bench, monkeypatch):
    tuning = bench.tune()
    assert [[s["block"] for s in call] for call in bench.full] == [[128, 256]]
    assert [c.round for c in tuning.ranked] == ["full", "full", "short"]
    monkeypatch.setattr(tuning_module, "_WITHIN", 2)
    wide = bench.tune()
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


def test_what_is_wrong_after_timing_is_dropped(bench, monkeypatch):
    bench.damage = {128}
    tuning = bench.tune()
    assert tuning.winner["block"] == 256 and 128 not in blocks(tuning.ranked)
    assert any("block=128 amount=1: add: WRONG" in why for _, _, why in tuning.steps)
    bench.damage = {128, 256}  # then the short round is what is left
    assert bench.tune(fresh=True).winner["block"] == 64
    bench.damage = {64, 128, 256}
    with pytest.raises(WrongAnswer, match="still right after timing"):
        monkeypatch.setattr(tuning_module, "_WITHIN", 2)
        bench.tune(fresh=True)


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


@pytest.mark.parametrize("round", ["both", "the full one"])
def test_a_kernel_that_never_runs_while_it_is_timed_is_not_ranked(bench, monkeypatch, round):
    real = bench.time_each

    def time_each(candidates, milliseconds=200):
        bench.idle = milliseconds == 200 or round == "both"
        return real(candidates, milliseconds)

    monkeypatch.setattr(benchmark, "time_each", time_each)
    if round == "both":
        with pytest.raises(WrongAnswer, match="still right after timing"):
            bench.tune()
    else:
        result = bench.tune()
        assert blocks(result.ranked) == [64] and result.ranked[0].round == "short"
        (step,) = [s for s in result.steps if s[0] == "still right after timing"]
        assert step[1] == 1 and "2 dropped: block=128" in step[2]
    assert not any('"full"' in line for line in
                   Store("add", "NVIDIA H200").path.read_text().splitlines())


def test_a_finalist_that_fails_before_the_full_round_is_named(bench, monkeypatch):
    bench.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        bench.tune()
    bench.interrupt_at, real = None, compiler.compile

    def compile(program, **options):
        if next(s for p, s in bench.programs if p is program)["block"] == 128:
            raise RuntimeError("no space left")
        return real(program, **options)

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile", compile)
        result = bench.tune()
    steps = {step: why for step, _, why in result.steps}
    assert "block=128 amount=1: no space left" in steps["still right after timing"]
    run_once = tuning_module._Run.run_once

    def failing(self, candidate, store=None, step="gives the right result"):
        if candidate.schedule == {"block": 128, "amount": 1}:
            with self.failures(candidate, store, step):
                raise RuntimeError("cannot launch")
        return run_once(self, candidate, store, step) if not candidate.dropped else []

    monkeypatch.setattr(tuning_module._Run, "run_once", failing)
    steps = {step: why for step, _, why in bench.tune().steps}
    assert "block=128 amount=1: cannot launch" in steps["still right after timing"]


# --- kept on disk


def test_a_second_call_measures_nothing_and_runs_the_finalists_once_more(bench, monkeypatch):
    first = bench.tune()
    checked, real = [], tuning_module._Run.run_once

    def run_once(self, candidate, *rest):
        checked.append(candidate.schedule["block"])
        return real(self, candidate, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(tuning_module._Run, "run_once", run_once)
        again = bench.tune()
    assert not bench.short and not bench.full and again.new == 0
    assert sorted(s["block"] for s in bench.compiled if s["amount"] == 1) == [128, 256]
    assert [b for b in checked if b != 64][-2:] == [128, 256]
    assert again.steps[-1] == (
        "still right after timing", 2,
        "compared once more now; the other 1 were checked when they were measured")
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


def test_finalists_that_were_timed_now_are_not_run_again(bench, monkeypatch):
    bench.interrupt_at = 3
    with pytest.raises(KeyboardInterrupt):
        bench.tune()
    bench.interrupt_at, checked, real = None, [], tuning_module._Run.run_once

    def run_once(self, candidate, *rest):
        checked.append(candidate.schedule)
        return real(self, candidate, *rest)

    monkeypatch.setattr(tuning_module._Run, "run_once", run_once)
    result = bench.tune()
    assert [s["block"] for s in checked if s["amount"] == 1] == [128, 256]
    assert result.steps[-1][1] == 2 and result.origin == "measured today, 2 of 3 times in this call"


@pytest.mark.parametrize("change", ["day", "versions"])
@pytest.mark.parametrize("turn", range(1, 4))
def test_what_goes_on_on_another_day_or_with_other_versions_measures_all(bench, turn, change):
    bench.interrupt_at = turn
    with pytest.raises(KeyboardInterrupt):
        bench.tune()
    bench.interrupt_at = None
    if change == "day":
        bench.day = "2026-01-02"
    else:
        bench.versions = {**bench.versions, "python": "3.14"}
    tuning = bench.tune()
    assert tuning.new == 5 and tuning.origin == "measured now" and tuning.date == bench.day
    kept = Store("add", "NVIDIA H200")
    assert len(kept.short) == 3 and kept.full[-1]["versions"] == bench.versions
    assert all(tuning_store.same_session(e, kept.session) for e in kept.short.values())


def test_what_is_complete_is_kept_on_another_day_with_its_date_and_versions(
        bench, monkeypatch, tmp_path):
    bench.tune()
    bench.day, then = "2026-01-02", bench.versions
    bench.versions = {**then, "python": "3.14"}
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))
    again = bench.tune()
    assert again.new == 0 and again.date == "2026-01-01"
    assert again.origin == "measured here before" and "2026-01-01" in again.table().title
    assert again.plot.text.startswith("add on NVIDIA H200, 2026-01-01:")
    kept = json.loads((tmp_path / "sweep-add.json").read_text())
    assert kept["versions"] == then and kept["date"] == "2026-01-01"
    assert kept["new"] == 0 and kept["seconds"] == {}
    bench.speed[512] = 4.0
    more = bench.tune({"block": [64, 128, 256, 512], "amount": [1]})
    assert more.new == 6 and more.date == "2026-01-02"  # four in the short round, two finalists


def test_a_larger_space_measures_what_is_new_on_the_same_day(bench):
    bench.tune()
    bench.speed[512] = 4.0
    more = bench.tune({"block": [64, 128, 256, 512], "amount": [1]})
    assert more.new == 1 and more.origin == "measured today, 1 of 4 times in this call"


def test_an_interruption_while_compiling_gets_out(bench, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "compile", stop)
        with pytest.raises(KeyboardInterrupt):
            bench.tune()
    assert bench.tune().new == 5


def test_an_interruption_waits_for_what_has_begun_and_drops_the_rest(monkeypatch):
    begun, ended = [], []

    def work(item):
        begun.append(item)
        time.sleep(0.2)
        ended.append(item)

    def interrupted(items, *_):
        for item in items:
            yield item
            raise KeyboardInterrupt

    monkeypatch.setattr(tuning_filter, "progress", interrupted)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(KeyboardInterrupt):
        tuning_filter.parallel(work, range(50), "working")
    assert len(begun) < 10 and sorted(begun) == sorted(ended)
    time.sleep(0.3)
    assert len(begun) == len(ended)


@pytest.mark.parametrize("changed", ["cuda toolkit", "driver", "tilelang", "torch", "timing"])
def test_the_key_changes_with_all_that_determines_the_time(monkeypatch, changed):
    import tilelang

    def of_now():
        tuning_store._versions.cache_clear()
        return key(program, "{}", "H100")

    program, real = add(64), environment.versions()
    first = of_now()
    assert first == of_now()
    if changed == "tilelang":
        monkeypatch.setattr(tilelang, "__version__", "0.0.1")
    elif changed == "torch":
        monkeypatch.setattr(torch.version, "cuda", "1.0")
    elif changed == "timing":
        monkeypatch.setattr(tuning_store, "_TIMING", 0)
    else:
        monkeypatch.setattr(environment, "versions", lambda: {**real, changed: "1.0"})
    assert of_now() != first
    monkeypatch.undo()
    assert of_now() == first


def test_changed_source_sizes_options_or_gpu_are_measured_again(bench, monkeypatch):
    bench.tune()

    def changed(**schedule):
        program = add(**schedule, factor=0.5)
        bench.programs.append((program, schedule))
        return program

    assert bench.tune(build=changed, reference=bench.x * 0.5 + 1).new == 5
    assert bench.tune(pass_configs={"tl.enable_fast_math": True}).new == 5
    monkeypatch.setattr(tuning_module, "_gpu_name", lambda: "NVIDIA H100")
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
    b'{"stage": "short", "key": "K", "ms": 1, "spread_ms": 0}',
    b'{"stage": "short", "key": "K", "ms": 1, "spread_ms": 0, "date": 1, "versions": {}}',
    b'{"stage": "short", "key": "K", "ms": 1, "spread_ms": 0, "date": "", "versions": 1}',
    b'{"stage": "short", "key": "K", "ms": ' + b"9" * 400 + b', "spread_ms": 0, "date": "", '
    b'"versions": {}}',
    b'{"stage": "short", "key": "K", "ms": 1, "spread_ms": 0, "error": "x", "date": "", '
    b'"versions": {}}',
    b'{"stage": "full", "date": 3, "versions": {}, "times": {"K": {"ms": 1, "spread_ms": 0}}}',
    b'{"stage": "broke", "key": 3, "why": "x"}',
    b'{"stage": "broke", "key": "K", "why": null}',
    b'{"stage": "broke", "key": "K", "why": 3}'])
def test_damaged_lines_are_passed_over(bench, damage):
    first = bench.tune()
    path = Store("add", "NVIDIA H200").path
    known = key(add(block=128, amount=1), "{}", "NVIDIA H200").encode()
    path.write_bytes(path.read_bytes() + damage.replace(b'"K"', b'"' + known + b'"'))
    again = bench.tune()
    assert again.new == 0 and again.winner == first.winner and len(again.ranked) == 3
    assert [(c.schedule, c.ms) for c in again.ranked] == [(c.schedule, c.ms)
                                                          for c in first.ranked]


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


def test_a_writer_waits_for_the_other(bench):
    store = Store("race", "GPU")
    with open(store.path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        writer = threading.Thread(target=store.add, kwargs=dict(
            stage="short", key="k", ms=1.0, spread_ms=0.0))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive() and not store.path.read_bytes()
    writer.join(10)
    assert not writer.is_alive() and "k" in Store("race", "GPU").short


def test_a_cache_that_cannot_be_written_is_said_before_anything_is_compiled(
        bench, monkeypatch, tmp_path):
    (tmp_path / "tuning").write_text("not a folder")
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    with pytest.raises(BadArgument, match="cannot be written"):
        bench.tune()
    assert not bench.compiled and not bench.programs


def test_a_record_in_a_missing_folder_is_said_before_anything_is_compiled(
        bench, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "missing" / "record.jsonl"))
    with pytest.raises(BadArgument, match=r"LABKIT_RECORD names a file in .*missing"):
        bench.tune()
    assert not bench.programs


def test_a_folder_that_cannot_be_written_is_one_sentence(bench, tmp_path):
    store = Store("add", "NVIDIA H200")
    store.path = tmp_path / "file" / "x.jsonl"
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(BadArgument, match="cannot be written"):
        store.add(stage="short", key="k", ms=1.0, spread_ms=0.0)


def test_a_schedule_that_breaks_the_gpu_is_left_out_by_the_next_call(bench, monkeypatch):
    def crash(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    run_once = tuning_module._Run.judge

    def judge(self, candidate, output, step):
        if candidate.schedule["block"] == 128 and candidate.schedule["amount"] == 1:
            crash()
        run_once(self, candidate, output, step)

    with monkeypatch.context() as patch:
        patch.setattr(tuning_module._Run, "judge", judge)
        patch.setattr(torch.cuda, "synchronize", crash)
        with pytest.raises(LabError, match="illegal memory access was encountered"):
            bench.tune()
    result = bench.tune()
    assert result.winner["block"] == 256
    assert any("broke the GPU's context before" in why for _, _, why in result.steps)
    assert bench.tune(fresh=True).winner["block"] == 128


def test_a_gpu_error_while_timing_is_remembered(bench, monkeypatch):
    def crash():
        raise RuntimeError("context lost")

    bench.fail = {128: RuntimeError("CUDA error: unspecified launch failure")}
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "synchronize", crash)
        with pytest.raises(LabError, match="unspecified launch failure"):
            bench.tune()
    bench.fail = {}
    result = bench.tune()
    assert result.winner["block"] == 256
    assert any("broke the GPU's context before: CUDA error: unspecified" in why
               for _, _, why in result.steps)
    bench.fail = {128: RuntimeError("too many resources requested")}  # the GPU lives on
    result = bench.tune(fresh=True)
    assert result.winner["block"] == 256
    assert any("too many resources requested" in why for _, _, why in result.steps)


def test_the_record(bench, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))
    first = bench.tune(hand_picked={"block": 64, "amount": 1})
    (tmp_path / "sweep-add.json").rename(tmp_path / "h200-sweep-add.json")
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    shown = lab.tune("add", lab.here("cpu"), bench.build, SPACE, [bench.x], bench.x + 1, **SHAPE,
                     hand_picked={"block": 64, "amount": 1}, check_on_cpu=1)
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


def test_other_bad_arguments(bench, monkeypatch):
    with pytest.raises(BadArgument, match="build has no knob 'blok'; it takes block, amount"):
        bench.tune({"blok": [1]}, build=add)
    with pytest.raises(BadArgument, match="build is of type int"):
        bench.tune(build=3)
    with pytest.raises(BadArgument, match="forbids all 6 schedules"):
        bench.tune(legal=lambda s: False)
    with pytest.raises(BadArgument, match="legal is of type int"):
        bench.tune(legal=3)
    for name in ("", "a/b", 3, "../x"):
        with pytest.raises(BadArgument, match="as in 'gemm_tuned'"):
            bench.tune(name=name)
    for reference, message in ((3, "of type int"), (bench.x.half(), "has dtype float16"),
                               (bench.x[:5], r"has shape \[5\], but the program's .*\[1000\]")):
        with pytest.raises(BadArgument, match=f"reference {message}|reference is {message}"):
            bench.tune(reference=reference)
    for flops in (0, -1, float("nan"), float("inf"), "x", None, True):
        with pytest.raises(BadArgument, match="flops is"):
            bench.tune(flops=flops)
    for shape in (3, {}, {"M": 0}, {"M": "4"}, {3: 4}, [4]):
        with pytest.raises(BadArgument, match="shape is"):
            bench.tune(shape=shape)
    with pytest.raises(BadArgument, match="dtype is"):
        bench.tune(dtype=torch.float32)
    for count in (-1, 1.5, "x", True):
        with pytest.raises(BadArgument, match=r"count_registers is .* at least 0"):
            bench.tune(count_registers=count)
    for count in (0, -1, 1.5, "x", True):
        with pytest.raises(BadArgument, match=r"check_on_cpu is .* at least 1"):
            bench.tune(check_on_cpu=count)
    with pytest.raises(BadArgument, match=r"build returned a int; return a @T.prim_func"):
        bench.tune(build=lambda **_: 3)
    with pytest.raises(BadArgument, match="has the knob 3; knobs are names"):
        bench.tune([{3: 4}])
    assert not bench.compiled
    with monkeypatch.context() as patch:
        patch.setattr(bench, "x", bench.x.double())
        with pytest.raises(BadArgument, match="argument X has dtype float64"):
            bench.tune()
    with pytest.raises(BadArgument, match="hand_picked is 3; give a schedule"):
        bench.tune(hand_picked=3)
    with pytest.raises(BadArgument, match="pass_configs"):
        bench.tune(pass_configs=3)
    with pytest.raises(BadArgument, match="at least one bar"):
        ranking("empty", "TFLOP/s", [])


def test_a_schedule_named_twice_is_tried_once():
    assert grid([{"block": 64}, {"block": 64}]) == [{"block": 64}]
    assert grid({"block": [64, 64], "panel": (1,)}) == [{"block": 64, "panel": 1}]
    assert grid([{"block": 1, "panel": 2}, {"panel": 2, "block": 1}]) == [{"block": 1, "panel": 2}]
    kinds = [1, True, 1.0, "1", None, 1]
    for schedules in (grid({"knob": kinds}), grid([{"knob": kind} for kind in kinds])):
        assert [repr(s["knob"]) for s in schedules] == ["1", "True", "1.0", "'1'", "None"]
    start = time.monotonic()
    assert len(grid([{"block": n} for n in range(100_000)])) == 100_000
    assert time.monotonic() - start < 5


def test_two_schedules_of_one_program_are_one(bench):
    def build(**schedule):
        schedule.pop("unused")
        return bench.build(**schedule)

    space = {"block": [64, 128], "amount": [1], "unused": [0, 1]}
    result = bench.tune(space, build=build)
    steps = {step: (left, why) for step, left, why in result.steps}
    left, why = steps["each program once"]
    assert left == 2 and "unused=1: same program as block=64 amount=1 unused=0" in why
    assert len(result.ranked) == 2 and result.new == 3
    own = {"block": 64, "amount": 1, "unused": 1}
    result = bench.tune(space, build=build, hand_picked=own)
    assert own in [c.schedule for c in result.ranked] and len(result.ranked) == 2


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
    own = dict(PLAIN, num_stages=3)
    result = on_cpu([PLAIN, own, LARGE, SPILLS, ODD], hand_picked=own)
    steps = {step: (left, why) for step, left, why in result.steps}
    assert steps["lowers"][0] == 4 and "24x40x16" in steps["lowers"][1]
    assert steps["fits in shared memory"] == (
        3, "a block gets 163 KiB on the A100; 1 dropped: 256x256x128 s2 t256: takes 256 KiB")
    left, why = steps["fits the registers"]
    assert left == 2 and "nvcc compiled 3 for the A100" in why and "spills 2" in why
    assert steps["gives the right result"] == (2, "2 of 2 that ran on the CPU are right")
    assert result.winner == own
    assert "RECORDED there, not measured here" in result.table().title
    assert result.verdict() == ("No schedule beat the hand-picked one (64x64x32 s3 t128, 0.1000 "
                                "ms) on the NVIDIA H200.")


def test_a_schedule_that_is_wrong_on_the_cpu_is_not_ranked(recorded):
    def build(M, N, K, **schedule):
        return GEMM(M, N, K, **schedule) if schedule["num_stages"] == 2 else corner_of(M)

    result = on_cpu([PLAIN, dict(PLAIN, num_stages=3)], build=build, count_registers=0)
    assert result.winner == PLAIN and len(result.ranked) == 1
    assert any("64x64x32 s3 t128: gemm: WRONG" in why for _, _, why in result.steps)
    with pytest.raises(WrongAnswer, match=r"no schedule is left .*0 of 1 that ran on the CPU"):
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


def test_a_hand_picked_schedule_of_the_short_round_is_not_compared(recorded):
    result = on_cpu([PLAIN, dict(PLAIN, num_stages=3)], count_registers=0, hand_picked=PLAIN)
    assert "timed in the short round only" in result.verdict()
    assert [row[0] for row in result.table().rows] == ["1", ""]
    assert result.plot.text.endswith("The hand-picked one was in the short round only, with 10.")
    assert len(result.table(1).rows) == 2
    other = on_cpu([PLAIN, dict(PLAIN, num_stages=3)], count_registers=0)
    assert other.table(1).note.startswith("1 others are not shown.")


def test_all_can_be_checked_on_the_cpu(recorded):
    result = on_cpu([PLAIN, dict(PLAIN, num_stages=3)], count_registers=0, check_on_cpu=None)
    assert result.steps[-1] == ("gives the right result", 2,
                                "2 of 2 that ran on the CPU are right")


def test_nothing_that_compiles_on_the_cpu_is_no_wrong_answer(recorded):
    def build(M, N, K, **schedule):
        raise ValueError("not here")

    with pytest.raises(LabError, match="after the step 'compiles on this machine'") as caught:
        on_cpu([PLAIN, dict(PLAIN, num_stages=3)], build=build, count_registers=0, check_on_cpu=1)
    assert not isinstance(caught.value, WrongAnswer)


def test_a_missing_compiler_is_said_as_such(recorded, monkeypatch):
    def none(*_, **__):
        raise MissingTool("No C++ compiler found")

    monkeypatch.setattr(compiler, "compile", none)
    with pytest.raises(MissingTool):
        on_cpu([PLAIN], count_registers=0)


def test_a_damaged_recording_is_not_taken_for_none(recorded):
    recorded.write_text("{")
    with pytest.raises(LabError, match="not a sweep file"):
        on_cpu([PLAIN], count_registers=0)


def test_nothing_left_after_the_filter():
    with pytest.raises(LabError, match="after the step 'fits in shared memory'"):
        on_cpu([LARGE], gpu="T4")
    with pytest.raises(LabError, match="after the step 'lowers'"):
        on_cpu([ODD])


def test_a_schedule_may_spill_as_much_as_the_filter_says(monkeypatch):
    monkeypatch.setattr(tuning_filter, "_MOST_SPILLED", 10**6)
    result = on_cpu([SPILLS, PLAIN], check_on_cpu=1)
    spilling = result.candidates[0]
    assert spilling.spilled > 0 and spilling.registers == 255 and not spilling.dropped


# --- the picture


def test_the_plot(recorded):
    picture = on_cpu([PLAIN], count_registers=0).plot
    ElementTree.fromstring(picture.svg)
    assert picture.text == ("gemm on NVIDIA H200, 2026-01-02, recorded: 2 schedules, 1 of them "
                            "timed at length. Of these, the fastest is 64x64x32 s3 t128 with 20 "
                            "TFLOP/s, the slowest 64x64x32 s3 t128 with 20. The others' figures "
                            "are of the short round and compare with one another only.")
    assert "spread" not in picture.svg


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
