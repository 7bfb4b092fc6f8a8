"""Timing, floors and recorded results: honest without a GPU, sane with one."""

from __future__ import annotations

import json

import pytest

import labkit as lab
from labkit import benchmark, results, roofline
from labkit.errors import BadArgument, LabError, NeedsGPU

CPU = lab.here("cpu")


def call(name, here=CPU, **changes):
    def never():
        raise AssertionError("called")

    arguments = dict(kernel=never, baselines={"base": never}, shape={"N": 4}, dtype="float32",
                     moved=48)
    return lab.bench(name, here, **{**arguments, **changes})


@pytest.fixture
def recording(monkeypatch, tmp_path):
    data = {"gpu": "NVIDIA H200", "date": "2026-01-02", "versions": {},
            "floors": {"copy_gb_s": 4000.0, "tensor_tflops": {"float16": 800.0}},
            "measurements": [{"name": "gemm", "shape": {"M": 4096}, "dtype": "float16",
                              "kernel_ms": 0.2, "spread_ms": 0.01, "floor_ms": 0.16, "error": 1e-4,
                              "schedule": {}, "baselines": {"cuBLAS": 0.19}, "references": {},
                              "moved": 1e8, "flops": 1.37e11}]}
    (tmp_path / "h200.json").write_text(json.dumps(data))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path / "h200.json"


def test_without_a_gpu_the_recorded_figures_are_shown_and_called_recorded(recording):
    result = call("gemm")
    text = repr(result)
    assert not result.measured_now
    assert "RECORDED there, not measured here" in text and "NVIDIA H200, 2026-01-02" in text
    assert "685" in text  # TFLOP/s of the kernel
    assert "80%" in text and "0.95" in text
    assert "RECORDED" in result._repr_html_()


def test_without_a_gpu_and_a_recording_it_refuses(recording):
    with pytest.raises(LabError, match="nothing recorded as 'unknown'"):
        call("unknown")


def test_floors_without_a_gpu_are_the_recorded_ones(recording):
    floors = roofline.floors(CPU)
    assert "recorded on 2026-01-02" in repr(floors)
    assert floors.ms(moved=4e9) == pytest.approx(1.0)
    assert floors.ms(moved=4e6, flops=8e11, dtype="float16") == pytest.approx(1.0)


@pytest.mark.parametrize("damage", [
    lambda d: d.pop("measurements"), lambda d: d["measurements"][0].pop("kernel_ms"),
    lambda d: d["measurements"][0].update(kernel_ms="fast"), lambda d: d.update(measurements=3),
    lambda d: d["measurements"][0].update(baselines=[1]),
])
def test_a_results_file_that_lies_about_its_schema(recording, damage):
    data = json.loads(recording.read_text())
    damage(data)
    recording.write_text(json.dumps(data))
    with pytest.raises(LabError, match="not a results file"):
        results.recorded()


def test_a_results_file_that_is_not_json(recording):
    recording.write_text("{")
    with pytest.raises(LabError, match=r"h200\.json is not a results file"):
        results.recorded()


def test_unknown_recording():
    with pytest.raises(LabError, match="No recorded measurements for GTX 480"):
        results.recorded("GTX 480")


def test_timing_needs_a_gpu(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NeedsGPU):
        benchmark.time_each({"x": lambda: None})
    with pytest.raises(NeedsGPU):
        roofline.measured.__wrapped__()


def test_shipped_recordings_are_readable():
    assert results.recorded().floors["copy_gb_s"] > 0
    total = sum(path.stat().st_size for path in results.FOLDER.glob("*"))
    assert total < 1 << 20


@pytest.mark.gpu
def test_timing_on_a_gpu(cuda):
    x = cuda.randn(1 << 26, device="cuda")
    y = cuda.empty_like(x)
    half = x.numel() // 2
    times = benchmark.time_each({"all": lambda: y.copy_(x),
                                 "half": lambda: y[:half].copy_(x[:half])})
    assert 1.7 < times["all"].median / times["half"].median < 2.3
    assert times["all"].spread < 0.3 * times["all"].median
    with pytest.raises(BadArgument):
        benchmark.time_each({})


@pytest.mark.gpu
def test_floors_on_a_gpu(cuda):
    floors = roofline.measured()
    sheet = lab.here("gpu").gpu
    assert floors.copy_gb_s > 50 and floors.tensor_tflops["float16"] > 5
    if sheet.bandwidth_gb_s:
        assert 0.5 < floors.copy_gb_s / sheet.bandwidth_gb_s < 1.05
        assert 0.3 < floors.tensor_tflops["float16"] / sheet.tensor_tflops["float16"] < 1.05


@pytest.mark.gpu
def test_bench_on_a_gpu_records_what_it_shows(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))
    x = cuda.randn(1 << 24, device="cuda")
    y = cuda.empty_like(x)
    result = call("copy", lab.here("gpu"), kernel=lambda: y.copy_(x),
                  baselines={"clone": lambda: x.clone()}, moved=2 * x.nbytes)
    assert result.measured_now and "measured now" in repr(result)
    kept = json.loads((tmp_path / "record.jsonl").read_text())
    assert kept["measurement"] == result.measurement.as_dict()
    content = results.assemble([json.dumps(kept)])
    assert content["measurements"] == [kept["measurement"]] and content["gpu"] == result.gpu
