"""Several schedules of one kernel: their costs, their check, and honest times."""

from __future__ import annotations

import json

import pytest
import torch

import labkit as lab
from labkit import results, schedules
from labkit.errors import BadArgument, LabError, WrongAnswer

GEMM = lab.kernel("02", "gemm")
PLAIN = dict(block_M=64, block_N=64, block_K=32, num_stages=2, threads=128)
LARGE = dict(block_M=256, block_N=256, block_K=64, num_stages=3, threads=256)
ODD = dict(block_M=24, block_N=40, block_K=16, num_stages=2, threads=128)


def test_short_names():
    assert schedules.text(dict(PLAIN, panel=10)) == "64x64x32 s2 t128 p10"
    assert schedules.text({"block": 1024, "threads": 128}) == "block=1024 t128"


def test_table_of_costs():
    table = lab.schedule_table(lambda **s: GEMM(512, 512, 512, **s), [PLAIN, LARGE, ODD], "A100")
    plain, large, odd = table.rows
    assert plain[2] == "16 KiB" and int(plain[3]) < 255 and plain[-1] == ""
    assert "192 KiB of shared memory" in large[-1] and large[4].endswith(" B")
    assert "could not compile" in odd[-1]
    without = lab.schedule_table(lambda **s: GEMM(512, 512, 512, **s), [PLAIN], "A100")
    assert "cannot run because" not in without.columns


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    content = {"gpu": "NVIDIA H200", "date": "2026-01-02", "flops": 2e9, "schedules": [
        {"schedule": PLAIN, "shape": {"M": 1000}, "dtype": "float16", "kernel_ms": 0.2, "error": 0},
        {"schedule": LARGE, "shape": {"M": 1000}, "dtype": "float16", "kernel_ms": 0.1, "error": 0},
        {"schedule": ODD, "shape": {"M": 1000}, "dtype": "float16", "failure": "does not compile"}]}
    (tmp_path / "h200-sweep-gemm.json").write_text(json.dumps(content))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path / "h200-sweep-gemm.json"


def run(chosen, here=None, build=None, name="gemm"):
    torch.manual_seed(0)
    here = here or lab.here("cpu")
    a, b = (torch.randn(70, 70, device=here.torch_device).half() for _ in range(2))
    return lab.sweep(name, here, build or (lambda **s: GEMM(70, 70, 70, **s)), chosen, [a, b],
                     a.float() @ b.float(), shape={"M": 70}, dtype="float16", flops=2 * 70**3)


def test_without_a_gpu_schedules_are_checked_and_times_are_recorded_ones(recorded):
    result = run([PLAIN, dict(PLAIN, num_stages=3)])
    assert not result.measured_now and len(result.checked) == 2
    assert all(t.error < 1e-3 and not t.failure and t.kernel_ms is None for t in result.checked)
    assert result.winner == LARGE
    text = repr(result)
    assert "RECORDED there, not measured here" in text and "does not compile" in text
    assert repr(result.pick([PLAIN])).count("64x64x32") == 1
    assert result.verify() == "2 schedules ran here, and all of them gave the right result"


def test_a_wrong_schedule_is_a_failure_with_its_reason(recorded):
    def build(**schedule):
        wrong = schedule["num_stages"] == 3
        return GEMM(70, 70, 70 - 32 * wrong if wrong else 70, **schedule)

    result = run([PLAIN, dict(PLAIN, num_stages=3)], build=build)
    right, wrong = result.checked
    assert not right.failure
    assert "has shape [70, 70], but the program was built for" in wrong.failure
    assert result.verify().endswith("; 1 could not run")


def test_a_wrong_answer_in_a_sweep_raises(recorded):
    def build(**schedule):
        return GEMM(70, 70, 70, **dict(schedule, panel=0))

    torch.manual_seed(0)
    a, b = (torch.randn(70, 70).half() for _ in range(2))
    result = lab.sweep("gemm", lab.here("cpu"), build, [PLAIN], [a, b], (a.float() @ b.float()).T,
                       shape={"M": 70}, dtype="float16", flops=1)
    with pytest.raises(WrongAnswer, match=r"64x64x32 s2 t128: .*WRONG"):
        result.verify()
    with pytest.raises(WrongAnswer, match="none of 1 schedules ran here"):
        run([PLAIN], build=lambda **s: GEMM(70, 70, 64, **s)).verify()


def test_no_recording_and_nothing_to_sweep(recorded):
    with pytest.raises(LabError, match="No recorded sweep of 'softmax'"):
        run([PLAIN], name="softmax")
    with pytest.raises(BadArgument, match="at least one schedule"):
        run([])


@pytest.mark.parametrize("damage", ["{", "[]", '{"gpu": "x"}', '{"schedules": []}',
                                    '{"gpu": "x", "date": "y", "flops": 1, "schedules": [{}]}'])
def test_a_damaged_sweep_file(recorded, damage):
    recorded.write_text(damage)
    with pytest.raises(LabError, match="not a sweep file"):
        run([PLAIN])


def test_a_builder_that_raises_is_a_failure_with_its_reason(recorded):
    def build(**schedule):
        if schedule["num_stages"] == 3:
            raise ValueError("no such schedule")
        return GEMM(70, 70, 70, **schedule)

    result = run([PLAIN, dict(PLAIN, num_stages=3)], build=build)
    assert [t.failure for t in result.checked] == ["", "no such schedule"]


def test_what_is_wrong_here_has_no_recorded_rank(recorded):
    def build(**schedule):
        raise ValueError("broken")

    result = run([LARGE], build=build)
    assert result.winner == PLAIN  # LARGE has the faster recorded time
    assert "broken" in repr(result)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The sweep's way on a GPU, with kernels that run on the CPU and a timer that is told what
    to do with their outputs."""
    from labkit import benchmark, compiler

    class Gpu:
        device, torch_device = "gpu", "cpu"

    compile_here = compiler.compile
    monkeypatch.setattr(compiler, "compile", lambda program, **options: compile_here(
        program, **{**options, "device": "cpu"}))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Fake")

    def timer(touch):
        def time_each(calls, **_):
            for place, call in calls.items():
                touch(int(place), call)
            return {place: benchmark.Times(1.0 + int(place), 0.1, 10, 1500.0) for place in calls}

        monkeypatch.setattr(benchmark, "time_each", time_each)
        return Gpu

    return timer


def test_a_sweep_checks_what_it_timed(recorded, as_on_a_gpu):
    two = [PLAIN, dict(PLAIN, num_stages=3)]
    result = run(two, here=as_on_a_gpu(lambda _, call: call()))
    assert result.winner == PLAIN and result.clock_mhz == 1500 and len(result.ranked) == 2
    assert "measured now" in repr(result) and "1,500 MHz" in repr(result)


def test_a_kernel_that_was_timed_and_wrote_nothing_is_a_failure(recorded, as_on_a_gpu):
    two = [PLAIN, dict(PLAIN, num_stages=3)]
    result = run(two, here=as_on_a_gpu(lambda place, call: call() if place else None))
    assert [t.schedule for t in result.ranked] == two[1:]
    assert "wrong after timing" in result.trials[0].failure
    with pytest.raises(WrongAnswer, match="wrong after timing"):
        result.verify()


@pytest.mark.gpu
def test_sweep_on_a_gpu(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))
    huge = dict(block_M=256, block_N=256, block_K=128, num_stages=4, threads=256)
    result = run([PLAIN, huge, ODD], here=lab.here("gpu"))
    assert result.measured_now and len(result.ranked) == 1 and result.winner == PLAIN
    assert all(t.failure for t in result.trials[1:])
    kept = json.loads((tmp_path / "sweep-gemm.json").read_text())
    assert [("failure" in s) for s in kept["schedules"]] == [False, True, True]
