"""Plans: recorded, damaged, checked before they are timed; with a libcudnn, listed and replayed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
import torch

import labkit as lab
from labkit import benchmark, cudnn_graph, cudnn_plans, cudnn_survey, cudnn_target, gpus, results
from labkit.benchmark import Times
from labkit.cudnn_loader import Cudnn
from labkit.cudnn_plans import Plan, Plans
from labkit.errors import LabError, WrongAnswer

HERE = lab.here("cpu", "H100")
NAME = "cudnn_conv_bias_relu"


def plan(index, ms=None, **changes):
    return Plan(**{"index": index, "name": f"eng41_k2={index}", "engine": 41 if index < 9 else 0,
                   "knobs": {"TILE_SIZE": index}, "workspace": 128 * index, "kernel_ms": ms,
                   "spread_ms": 0.001 if ms else None, "error": 0.002 if ms else None, **changes})


PLANS = [plan(0, 0.0866), plan(1, 0.0865), plan(2, 0.1), plan(3, failure="wrong, by far"),
         plan(9, 120.6)]


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """A results folder with the plans of one graph; returns its file."""
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "lines.jsonl"))
    cudnn_plans._record(Plans(NAME, "NVIDIA X", "2026-01-01", "measured now", {"N": 32},
                              "bfloat16", 59e9, PLANS, {"eager": 0.19}, {"libcudnn": "9.19"}, 0.4))
    path = tmp_path / f"h200-plans-{NAME}.json"
    (tmp_path / f"plans-{NAME}.json").rename(path)
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return path


def measured():
    return cudnn_plans.measure(NAME, HERE, None, None, output=None, check=None, others={},
                               shape={}, dtype="", flops=0)


def test_recorded_plans_come_back_as_they_were(recording):
    found = measured()
    assert found.plans == PLANS and found.others == {"eager": 0.19} and found.built_s == 0.4
    assert (found.default.index, found.best.index) == (0, 1)
    assert [p.index for p in found.ranked] == [1, 0, 2, 9]
    assert found.engines == {41: 4, 0: 1}
    text = repr(found)
    assert "RECORDED" in text and "wrong, by far" in text and "682" in text  # 59 GFLOP in 86.5 us
    assert text.index("TILE_SIZE 1") < text.index("TILE_SIZE 0")


def test_a_slow_plan_has_a_rate(recording):
    """59 GFLOP in 120.6 ms."""
    rates = [row[-1] for row in measured().table().rows]
    assert rates[:4] == ["682", "681", "590", "0.49"]


def test_a_default_that_did_not_build_is_not_the_default(recording):
    damage(recording, lambda d: d["plans"][0].update(failure="did not build", kernel_ms=None))
    assert measured().default.index == 1


def test_the_table_says_what_it_leaves_out(recording):
    assert "3 more plans are not shown" in repr(measured().table(most=2))


def damage(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("change", [
    lambda d: d.pop("plans"), lambda d: d.update(plans=[]), lambda d: d.pop("others"),
    lambda d: d["plans"][0].update(kernel_ms=-1), lambda d: d["plans"][0].update(kernel_ms=None),
    lambda d: d["plans"][0].update(knobs=3), lambda d: d["plans"][0].pop("engine"),
    lambda d: d["plans"][0].update(workspace="many"), lambda d: d.update(flops=0),
    lambda d: d["others"].update(eager=float("nan"))])
def test_a_damaged_file_is_named(recording, change):
    damage(recording, change)
    with pytest.raises(LabError, match=f"{recording.name} is not a file of plans"):
        measured()


def test_nothing_recorded(recording):
    recording.unlink()
    with pytest.raises(LabError, match="No recorded plans of"):
        measured()


def test_a_file_of_plans_is_not_taken_for_a_results_file(recording):
    with pytest.raises(LabError, match="recorded are: none"):
        results.recorded()


def test_the_picture(recording):
    drawn = measured().picture()
    root = ElementTree.fromstring(drawn.svg)
    dots = [c for c in root.iter("{http://www.w3.org/2000/svg}circle") if c.get("fill") != "none"]
    assert len(dots) == 4 + 2  # the timed plans, and one for each engine in the legend
    assert "from 86.5 us (place 1) to 120.6 ms (place 9)" in drawn.text
    assert "the default, place 0, takes 86.6 us" in drawn.text
    assert "eager takes 190 us" in drawn.text


def test_listed_plans_have_no_best():
    listed = Plans(NAME, "H100", "", "listed", {}, "bfloat16", 1.0, [plan(0), plan(1)])
    with pytest.raises(LabError, match="listed, not timed"):
        listed.picture()
    assert "TFLOP" not in repr(listed)


# --- measuring, with the GPU's part replaced


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """A GPU that runs a plan by writing its number's answer; returns what was timed."""
    timed = []

    def time_each(candidates, milliseconds=200, warm=False):
        timed.append(sorted(candidates))
        for call in candidates.values():
            call()
        return {name: Times({"0": 0.3, "1": 0.1, "3": 5.0}.get(name, 0.2), 0.001, 9)
                for name in candidates}

    output = torch.zeros(4)

    def run(graph, pack, workspace, index, target):
        output.copy_(torch.full((4,), 2.0 if index != 2 else 3.0))

    found = [plan(i) for i in range(4)] + [plan(4, workspace=None, failure="did not build")]
    monkeypatch.setattr(benchmark, "time_each", time_each)
    monkeypatch.setattr(cudnn_plans, "_run", run)
    monkeypatch.setattr(cudnn_plans, "scratch", lambda size: size)
    monkeypatch.setattr(cudnn_plans, "list_plans", lambda graph, target: found)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "lines.jsonl"))
    want = torch.full((4,), 2.0)
    return SimpleNamespace(timed=timed, output=output, folder=tmp_path, check=lambda: lab.compare(
        output, want, name="plan"))


def measure_on(gpu, **changes):
    arguments = {"output": gpu.output, "check": gpu.check, "others": {"eager": lambda: None},
                 "shape": {"N": 4}, "dtype": "float32", "flops": 1e9, **changes}
    return cudnn_plans.measure(NAME, SimpleNamespace(device="gpu"), None, lambda: (None, {}),
                               **arguments)


def test_a_wrong_plan_and_one_that_did_not_build_are_not_timed(gpu):
    found = measure_on(gpu)
    assert gpu.timed == [["0", "1", "3"], ["0", "1", "eager"]]  # near the fastest: again
    assert "WRONG" in found.plans[2].failure and found.plans[2].kernel_ms is None
    assert found.plans[4].failure == "did not build"
    assert [p.index for p in found.ranked] == [1, 0, 3] and found.others == {"eager": 0.2}
    assert found.origin == "measured now"


def test_what_is_measured_is_recorded(gpu, monkeypatch):
    found = measure_on(gpu)
    (gpu.folder / f"plans-{NAME}.json").rename(gpu.folder / f"h200-plans-{NAME}.json")
    monkeypatch.setattr(results, "FOLDER", gpu.folder)
    assert measured().plans == found.plans


def test_no_plan_is_right(gpu):
    with pytest.raises(WrongAnswer, match="None of the 5 plans"):
        measure_on(gpu, check=lambda: lab.compare(gpu.output, torch.full((4,), 7.0), name="plan"))


# --- listing


def test_listing_needs_a_libcudnn():
    target = cudnn_graph.Target("H100", 90, Cudnn("1.32.0"))
    with pytest.raises(LabError, match=r"labkit\[deviceless\]"):
        cudnn_plans.list_plans(None, target)


def meta_convolution(target):
    dtype = torch.bfloat16 if target.sm >= 80 else torch.float16
    on = {"device": "meta", "dtype": dtype}
    last = {"memory_format": torch.channels_last}
    tensors = (torch.empty(32, 128, 56, 56, **on).to(**last),
               torch.empty(256, 128, 3, 3, **on).to(**last), torch.empty(1, 256, 1, 1, **on),
               torch.empty(32, 256, 56, 56, **on).to(**last))
    graph, _ = lab.kernel("12", "conv_bias_relu")(target, *tensors)
    return graph, str(dtype).removeprefix("torch.")


def test_the_survey_that_is_shipped(monkeypatch):
    monkeypatch.setattr(cudnn_survey, "load_cudnn", lambda: Cudnn("1.32.0"))
    found = cudnn_survey.survey(NAME, HERE, None)
    assert not found.listed_now and "RECORDED" in repr(found)
    assert tuple(found.counts) == gpus.names()
    for gpu, by_mode in found.counts.items():
        assert sum(found.engines[gpu].values()) == by_mode["A + B + FALLBACK"]
    with pytest.raises(LabError, match="no plans were listed of 'other'"):
        cudnn_survey.survey("other", HERE, None)


def test_beside_a_gpu_another_one_is_not_planned_for(monkeypatch):
    found = Cudnn("1.32.0", version="9.19.0", folder="/somewhere")
    assert found.found
    for module in (cudnn_survey, cudnn_target):
        monkeypatch.setattr(module, "load_cudnn", lambda: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not cudnn_survey.survey(NAME, HERE, None).listed_now
    target = cudnn_graph.target(HERE, "A100")
    assert not target.plans and "beside a GPU" in repr(target)


@pytest.mark.parametrize("text", ["{}", "[1]", "no json", '{"name": 3}'])
def test_a_damaged_survey_is_named(monkeypatch, tmp_path, text):
    monkeypatch.setattr(cudnn_survey, "load_cudnn", lambda: Cudnn("1.32.0"))
    monkeypatch.setattr(cudnn_survey, "FOLDER", tmp_path)
    (tmp_path / f"listed-plans-{NAME}.json").write_text(text)
    with pytest.raises(LabError, match="is not a survey of labkit"):
        cudnn_survey.survey(NAME, HERE, None)


def test_the_survey_now_is_the_one_that_is_shipped(libcudnn, monkeypatch):
    """But for engine 52, which is compiled when it is built and so takes a driver."""
    now = cudnn_survey.survey(NAME, HERE, meta_convolution)
    assert now.listed_now
    if now.cudnn != "9.19.0":
        return  # another release names other plans
    monkeypatch.setattr(cudnn_survey, "load_cudnn", lambda: Cudnn("1.32.0"))
    shipped = cudnn_survey.survey(NAME, HERE, None)
    for gpu, engines in shipped.engines.items():
        assert {k: n for k, n in now.engines[gpu].items() if k != "52"} == engines, gpu
        for mode in ("A", "B", "A + B"):
            assert now.counts[gpu][mode] == shipped.counts[gpu][mode], gpu


def test_a_plan_is_built_again_by_engine_and_knobs(libcudnn):
    target = cudnn_graph.target(HERE, "A100")
    plans = cudnn_plans.list_plans(meta_convolution(target)[0], target)
    assert len({p.engine for p in plans}) > 1 and plans[0].workspace is not None
    for chosen in plans[:: max(1, len(plans) // 4)]:
        graph, _ = meta_convolution(target)
        again = cudnn_graph.build(graph, target, plan=(chosen.engine, chosen.knobs))
        assert (again.plan, again.workspace, again.count) == (chosen.name, chosen.workspace, 1)
