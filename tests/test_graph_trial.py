"""What a check of a cuDNN graph says of its run on a GPU, with stand-ins for the GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import labkit as lab
from labkit import cudnn_graph, machine
from labkit.cudnn_loader import load_cudnn
from labkit.errors import NotSupported
from labkit.exercises.exercise import find, load

pytestmark = pytest.mark.exercises


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    """No test may touch the progress of whoever runs it."""
    monkeypatch.setenv("LABKIT_PROGRESS", str(tmp_path / "progress.json"))


@pytest.fixture
def gpu(monkeypatch):
    """Sets up what looks like a GPU of compute capability `sm`, on which `execute` runs; without
    it a graph is computed by its meaning there, too."""
    def set_up(sm=90, execute=None, build=None):
        here = replace(lab.here("cpu"), device="gpu")
        target = cudnn_graph.Target("a stand-in", sm, load_cudnn())
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.Tensor, "cuda", torch.Tensor.clone)
        monkeypatch.setattr(machine, "here", lambda: here)
        monkeypatch.setattr(cudnn_graph, "target", lambda here: target)
        if execute:
            monkeypatch.setattr(cudnn_graph.Built, "execute", execute)
        if build:
            monkeypatch.setattr(cudnn_graph, "build", build)
    return set_up


def solution(key):
    return load(find(key), find(key).solution)


def told(key):
    """What a check says of an answer that is right on the CPU; the kit's own is told in full."""
    return find(key).judge(solution(key))


@pytest.mark.parametrize("key", ["12.2", "12.3", "14.2", "14.3", "15.1"])
def test_right_on_both(key, gpu):
    assert find(key).judge.on_gpu(solution(key)) is None, "there is no GPU here"
    gpu()
    outcome = told(key)
    assert outcome.ok and "Run on this GPU" in outcome.lines[-1]


def test_another_result_on_the_gpu_is_wrong(gpu):
    def execute(built, pack):
        cudnn_graph.evaluate(built.graph, pack)
        for tensor, memory in pack.items():
            if tensor.get_name() == "Y":
                memory[0, 0, 0, 0] += 1

    gpu(execute=execute)
    outcome = told("12.2")
    assert not outcome.ok and "gives another y" in outcome.lines[-1]


def test_no_plan_is_no_mistake(gpu):
    def build(graph, target):
        raise NotSupported("cuDNN has no plan for this graph on a stand-in.")

    gpu(build=build)
    outcome = told("12.2")
    assert outcome.ok and "It was not run on this GPU: cuDNN has no plan" in outcome.lines[-1]


def test_an_error_on_the_gpu_is_told(gpu):
    def execute(built, pack):
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    gpu(execute=execute)
    outcome = told("14.2")
    assert not outcome.ok and "EXECUTION_FAILED" in outcome.lines[-1]
    assert "Traceback" not in str(outcome.lines)


def test_a_gpu_that_is_too_old(gpu):
    gpu(sm=75)
    assert "compute capability 8.0 or later" in told("15.1").lines[-1]
    assert "compute capability 8.9 or later" in told("14.3").lines[-1]
    assert "Run on this GPU" in told("14.2").lines[-1]


def test_sizes_of_the_gpu_are_right_on_the_cpu_too():
    for key in ("12.2", "12.3", "14.2", "14.3", "15.1"):
        judge = find(key).judge
        assert replace(judge, cases=(judge.gpu,))(solution(key)).ok, key
