"""Timing, floors and recorded results: honest without a GPU, sane with one."""

from __future__ import annotations

import json

import pytest

import labkit as lab
from labkit import benchmark, results, roofline
from labkit.errors import BadArgument, LabError, NeedsGPU, WrongAnswer

CPU = lab.here("cpu")


def call(name, here=CPU, **changes):
    def never():
        raise AssertionError("called")

    arguments = dict(kernel=never, baselines={"base": never}, shape={"N": 4}, dtype="float32",
                     moved=48, output=None, check=never)
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


# --- a GPU's part, played by a clock that counts


class FakeGpu:
    """Stands in for torch.cuda: events read a clock that the calls move."""

    def __init__(self, monkeypatch):
        import torch

        self.now, self.order, fake = 0.0, [], self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = fake.now

            def elapsed_time(self, end):
                return end.at - self.at

        class Properties:
            L2_cache_size = 1 << 20

        class Eraser:
            def zero_(self):
                fake.order.append("erase")

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Fake")
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch, "empty", lambda *_, **__: Eraser())
        monkeypatch.setattr(benchmark, "clock_mhz", lambda: 1500.0)

    def call(self, name, ms):
        def run():
            self.order.append(name)
            self.now += ms

        return run


def test_every_round_runs_each_cold_and_starts_with_another(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    calls = {name: gpu.call(name, ms) for name, ms in (("a", 1.0), ("b", 2.0), ("c", 4.0))}
    times = benchmark.time_each(calls, milliseconds=40)
    assert {name: took.median for name, took in times.items()} == {"a": 1, "b": 2, "c": 4}
    assert times["a"].rounds == 10 and times["a"].clock_mhz == 1500
    assert gpu.order[:3] == ["a", "erase", "a"]  # warmed up before the first that counts
    rounds = gpu.order[-60:]
    assert rounds[::2] == ["erase"] * 30
    assert ["".join(rounds[i + 1:i + 6:2]) for i in range(0, 24, 6)] == ["abc", "bca", "cab", "abc"]


def test_a_warm_measurement_erases_nothing(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    benchmark.time_each({"a": gpu.call("a", 1.0)}, milliseconds=1, warm=True)
    assert "erase" not in gpu.order


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """`bench` on a machine whose timer writes 1 to the output where the kernel is right."""
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Fake")
    monkeypatch.setattr(roofline, "measured",
                        lambda: roofline.Floors("NVIDIA Fake", "test", 100.0, {}))
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "record.jsonl"))

    class Gpu:
        device = "gpu"

    def run(writes=True, check=None, **changes):
        out = torch.ones(4)
        monkeypatch.setattr(benchmark, "time_each", lambda calls: [
            call() for call in calls.values()] and {
            name: benchmark.Times(1.0, 0.1, 10, 1500.0) for name in calls})
        arguments = dict(kernel=(lambda: out.fill_(1)) if writes else (lambda: None),
                         baselines={"base": lambda: None}, shape={"N": 4}, dtype="float32",
                         moved=48, output=out,
                         check=check or (lambda: lab.check(out, torch.ones(4))))
        return lab.bench("ones", Gpu, **{**arguments, **changes})

    return run, tmp_path / "record.jsonl"


def test_what_was_timed_is_checked_and_recorded(measured):
    run, record = measured
    result = run()
    assert result.measurement.error == 0 and result.measurement.spreads == {"base": 0.1}
    assert json.loads(record.read_text())["measurement"]["error"] == 0


def test_a_kernel_that_writes_nothing_is_not_recorded(measured):
    run, record = measured
    with pytest.raises(WrongAnswer, match="never written"):
        run(writes=False)
    assert not record.exists()


def test_a_verdict_that_is_not_checked_counts(measured):
    import torch

    run, record = measured
    with pytest.raises(WrongAnswer, match="After the timing"):
        run(check=lambda: lab.compare(torch.zeros(4), torch.ones(4)))
    with pytest.raises(BadArgument, match="check returned NoneType"):
        run(check=lambda: None)
    assert not record.exists()


@pytest.mark.parametrize("names", [{"baselines": {"this kernel": None}},
                                   {"references": {"base": None}}])
def test_two_candidates_of_one_name(measured, names):
    with pytest.raises(BadArgument, match="share a name"):
        measured[0](**names)


# --- several shapes


def test_shapes_without_a_gpu_are_the_recorded_ones(recording):
    data = json.loads(recording.read_text())
    first = data["measurements"][0]
    data["measurements"] += [{**first, "shape": {"M": 8192}, "kernel_ms": 0.4},
                             {**first, "dtype": "bfloat16"}]
    recording.write_text(json.dumps(data))
    shown = repr(lab.bench_shapes("gemm", CPU, [{"M": 4}], make=None))
    assert "RECORDED there" in shown and "4,096" in shown and "8,192" in shown
    assert shown.count("80.0%") == 1  # one dtype a table
    with pytest.raises(LabError, match="nothing recorded as 'unknown'"):
        lab.bench_shapes("unknown", CPU, [{"M": 4}], make=None)
    with pytest.raises(BadArgument, match="No shapes"):
        lab.bench_shapes("gemm", CPU, [], make=None)


def test_the_recorded_shape_is_preferred(recording):
    data = json.loads(recording.read_text())
    first = data["measurements"][0]
    data["measurements"].append({**first, "shape": {"M": 8192}})
    recording.write_text(json.dumps(data))
    assert call("gemm", dtype="float16", shape={"M": 8192}).measurement.shape == {"M": 8192}
    assert call("gemm", dtype="float16", shape={"M": 5}).measurement.shape == {"M": 4096}


def line(**changes):
    entry = {"gpu": "a", "date": "2026-01-01", "versions": {"torch": "1"},
             "floors": {"copy_gb_s": 1.0, "tensor_tflops": {}},
             "measurement": {"name": "x", "shape": {}, "dtype": "float16"}}
    return json.dumps({**entry, **changes})


@pytest.mark.parametrize(("change", "said"), [
    ({"gpu": "b"}, "one gpu"), ({"versions": {"torch": "2"}}, "one versions"),
    ({"measurement": 3}, "not lines")])
def test_a_results_file_is_of_one_machine(change, said):
    assert results.assemble([line(), line()])["gpu"] == "a"
    with pytest.raises(BadArgument, match=said):
        results.assemble([line(), line(**change)])


def test_a_measurement_of_another_day_keeps_its_day():
    other = {"name": "y", "shape": {}, "dtype": "float16"}
    made = results.assemble([line(), line(date="2026-01-02", measurement=other)])
    assert made["date"] == "2026-01-02"
    assert [m.get("date") for m in made["measurements"]] == ["2026-01-01", None]
    again = results.assemble([line(**{**made, "measurement": m}) for m in made["measurements"]]
                             + [line(date="2026-01-03", measurement={**other, "name": "z"})])
    assert [m.get("date") for m in again["measurements"]] == ["2026-01-01", "2026-01-02", None]


def test_lines_that_are_not_json():
    with pytest.raises(BadArgument, match="not lines"):
        results.assemble(["{"])


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
                  baselines={"clone": lambda: x.clone()}, moved=2 * x.nbytes, output=y,
                  check=lambda: lab.check(y, x))
    assert result.measured_now and "measured now" in repr(result)
    kept = json.loads((tmp_path / "record.jsonl").read_text())
    assert kept["measurement"] == result.measurement.as_dict()
    content = results.assemble([json.dumps(kept)])
    assert content["measurements"] == [kept["measurement"]] and content["gpu"] == result.gpu
