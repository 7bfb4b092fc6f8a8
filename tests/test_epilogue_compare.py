"""The comparison of an op with its baseline: right outputs, what it finds, bytes, picture."""

from __future__ import annotations

import types
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch

import labkit as lab
from labkit.benchmark import Result, Times
from labkit.epilogue import arms, catalogue, compare, epilogue, ops, plain, workloads
from labkit.epilogue.traffic import account, products
from labkit.errors import BadArgument, WrongAnswer
from labkit.results import Measurement, Recording

HERE = lab.here("cpu")
LLAMA = workloads.LARGE


@pytest.fixture(scope="module")
def compared():
    torch.manual_seed(0)
    return {name: compare.run(name, HERE) for name in workloads.NAMES}


def test_every_op_and_its_baseline_are_right(compared):
    assert all(c.verdicts and all(v.ok for v in c.verdicts) for c in compared.values())
    reductions = {c.epilogue.name: set(c.statistics) for c in compared.values()}
    assert reductions["dswiglu"] == {"zdz"} and reductions["rstd_cross_entropy"] == {"lse",
                                                                                      "picked"}


@pytest.mark.parametrize("name", workloads.NAMES)
def test_shapes(name):
    assert workloads.make(name, workloads.CPU, torch.float32, "cpu").shape == workloads.shape(
        name, workloads.CPU)


@pytest.mark.parametrize("name", [n for n in workloads.NAMES if "," not in n])
def test_no_less_accurate_than_eager(name):
    rows = compare.error_rows(name, HERE)
    assert {seed for _, seed, _, _ in rows} == {0, 1, 2}
    assert all(0 < own <= 1.05 * eager for _, _, own, eager in rows), rows


def test_a_wrong_epilogue_is_found():
    @epilogue(pairs=["acc"], colvec=["rstd"], store=["z", "y"])
    def swapped(acc, rstd):
        gate, up = acc[0] * rstd, acc[1] * rstd
        return dict(z=(gate, up), y=gate * ops.silu(up))

    with pytest.raises(WrongAnswer, match=r"swapped and the baseline of .* differ in y: relative"):
        compare.run("gemm_swiglu", HERE, swapped)

    @epilogue(tile=["residual"], rowvec=["gamma"], store=["x", "scaled"],
              col_reduce={"sumsq": "max"})
    def largest(acc, residual, gamma):
        x = acc + residual
        return dict(x=x, scaled=x * gamma, sumsq=x * x)

    with pytest.raises(WrongAnswer, match=r"largest, sumsq finished: relative error"):
        compare.run("gemm_residual_rms", HERE, largest)


def test_a_kernel_that_is_wrong_is_found(monkeypatch):
    from labkit.epilogue.run import _compiled
    from labkit.epilogue.steps import Steps

    torch.manual_seed(0)
    work = workloads.make("gemm_residual_rms", workloads.CPU | {"d": 80}, torch.bfloat16, "cpu")
    monkeypatch.setattr(Steps, "load", lambda self, number: "")  # the residual stays what it was
    with pytest.raises(WrongAnswer, match=r"residual_rms, x: WRONG"):
        compare.measure(work, HERE)
    _compiled.cache_clear()


def test_an_epilogue_that_stores_nothing():
    @epilogue(rowvec=["bias"], col_reduce={"top": "max"})
    def row_maximum(acc, bias):
        return dict(top=acc + bias)

    torch.manual_seed(0)
    A, B, bias = torch.randn(40, 48), torch.randn(48, 72), torch.randn(72)
    work = workloads.Workload(
        "row_maximum", row_maximum, A.half(), B.half(), False, dict(bias=bias.half()),
        after=lambda p, b: dict(top=(p.float() + b.float()).amax(1)), eager=None,
        extras=(bias.half(),), view=lambda o: dict(top=o["top"]))
    found = compare.measure(work, HERE)
    assert set(found.statistics) == {"top"} and not found.verdicts
    assert "top correct" in found.correct and found.result is None
    work.extras = (bias.half() + 1,)
    with pytest.raises(WrongAnswer, match="row_maximum and the baseline of row_maximum differ"):
        compare.measure(work, HERE)


def test_an_epilogue_that_does_not_fit():
    with pytest.raises(BadArgument, match=r"plain has the inputs .*; this comparison needs rstd"):
        compare.run("gemm_swiglu", HERE, plain)
    with pytest.raises(BadArgument, match=r"no workload 'gemm_gelu'; there are: gemm_residual_rms"):
        compare.run("gemm_gelu", HERE)


# --- bytes: M N of 16 bits each that one op moves more or less, from the declaration alone

def _per_element(name, kept=frozenset()):
    """Bytes an element of the product that the second kernel moves, and that fusion saves."""
    shape = workloads.shape(name, LLAMA)
    counted = account(workloads.make(name, workloads.CPU, torch.bfloat16, "cpu").epilogue,
                      **shape, kept=kept)
    gemm = 2 * (shape["M"] * shape["K"] + shape["K"] * shape["N"] + shape["M"] * shape["N"])
    size = shape["M"] * shape["N"]
    return (counted.unfused - gemm) / size, counted.saved / size


@pytest.mark.parametrize(("name", "second", "saved"), [
    ("gemm_residual_rms", 8, 4), ("gemm_swiglu", 3, 2), ("gemm_rms_rope", 4, 4),
    ("gemm_cross_entropy", 2, 2), ("gemm_dswiglu", 12, 4), ("gemm_drms", 10, 4)])
def test_bytes_an_element(name, second, saved):
    found = _per_element(name)
    assert found[0] == pytest.approx(second, rel=2e-3)
    # the partial results of a tile of 128 columns are read and written, 4 bytes each
    assert saved - 8 / 128 - 0.01 < found[1] <= saved


def test_what_the_forward_pass_kept_is_not_written_again():
    assert _per_element("gemm_drms")[0] - _per_element("gemm_drms", frozenset({"normed"}))[0] == 2


def test_outputs_that_are_the_product():
    assert products(catalogue.rstd_swiglu) == {"z"}
    assert products(catalogue.rstd_cross_entropy) == {"logits"}
    assert products(plain) == {"C"}
    for other in (catalogue.rstd_rope, catalogue.residual_rms, catalogue.dswiglu,
                  catalogue.bias_gelu):
        assert products(other) == set()


# --- times


def _recorded(*times, name="gemm_swiglu", shape=""):
    alone, own, fused, baseline = times
    return Measurement(name, workloads.shape(shape or name, LLAMA), "bfloat16", fused, 0.01, None,
                       1e-3, schedule=dict(block_M=128, block_N=256),
                       baselines={compare.BASELINE: baseline}, flops=1e12,
                       references={compare.ALONE: alone, compare.OWN_ALONE: own})


def test_recorded_times_are_shown_without_a_gpu(monkeypatch):
    found = Recording("Some GPU", "2026-01-02", {}, {}, [_recorded(2.8, 2.9, 3.0, 3.3)])
    monkeypatch.setattr("labkit.epilogue.compare.recorded", lambda: found)
    monkeypatch.setattr("labkit.benchmark.recorded", lambda: found)
    shown = compare.run("gemm_swiglu", HERE)
    assert "RECORDED there" in repr(shown) and "Some GPU" in repr(shown)
    assert shown.room == pytest.approx(3.3 / 2.8) and shown.gain == pytest.approx(1.1)
    assert shown.main_loop == pytest.approx(2.8 / 2.9)
    assert "1.179" in repr(compare.table([shown])) and "1.100" in repr(compare.table([shown]))
    assert "RECORDED there" in shown.bars().text


@pytest.mark.parametrize("gpu", ["H100", "T4"])
def test_two_shapes_of_one_name_are_told_apart_in_any_dtype(monkeypatch, gpu):
    down = "gemm_residual_rms, down"
    found = Recording("Some GPU", "2026-01-02", {}, {}, [
        _recorded(1.0, 1.0, 1.0, 1.5, name="gemm_residual_rms"),
        _recorded(2.0, 2.0, 2.0, 2.5, name="gemm_residual_rms", shape=down)])
    monkeypatch.setattr("labkit.epilogue.compare.recorded", lambda: found)
    monkeypatch.setattr("labkit.benchmark.recorded", lambda: found)
    here = lab.here("cpu", gpu)
    assert compare.run("gemm_residual_rms", here).gain == 1.5
    assert compare.run(down, here).gain == 1.25


@pytest.mark.parametrize("name", ["gemm_residual_rms", "gemm_drms, in"])
def test_what_a_gpu_run_times_and_checks(name, monkeypatch):
    """The calls of a GPU run, made once each on the CPU: outputs start as NaN and are right."""
    def once(candidates, *_, **__):
        for call in candidates.values():
            call()
        return {key: Times(1.0 + place, 0.1, 10) for place, key in enumerate(candidates)}

    class Floors:
        def ms(self, moved, flops, dtype):
            return 0.5

    monkeypatch.setattr("labkit.benchmark.time_each", once)
    monkeypatch.setattr("labkit.roofline.measured", Floors)
    monkeypatch.setattr("labkit.benchmark.append", lambda *_: None)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Some GPU")
    work = workloads.make(name, workloads.CPU, torch.bfloat16, "cpu")
    shown = compare.measure(work, types.SimpleNamespace(device="gpu"))
    m = shown.result.measurement
    assert m.shape == work.shape and m.flops == 2 * m.shape["M"] * m.shape["N"] * m.shape["K"]
    assert m.moved == shown.account.fused and 0 < m.error < 8e-3
    assert (set(m.baselines), set(m.references)) == (
        {compare.BASELINE}, {compare.ALONE, compare.OWN_ALONE})
    assert shown.gain == 2.0 and shown.result.measured_now


def test_the_faster_one_of_the_compiled_kernels_is_the_baseline(monkeypatch):
    work = workloads.make("gemm_swiglu", workloads.CPU, torch.bfloat16, "cpu")
    made = []

    def compiled(fn, **options):
        made.append((options, lambda *given: fn(*given)))
        return made[-1][1]

    def times(candidates, milliseconds):
        for call in candidates.values():
            assert set(call()) == {"y"}
        return {key: Times(1.0 if "autotune" in key else 2.0, 0.1, 10) for key in candidates}

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr("labkit.epilogue.arms.time_each", times)
    assert arms.Arms(work)._fastest() is made[1][1]
    assert [options.get("mode") for options, _ in made] == [None, "max-autotune-no-cudagraphs"]


def test_without_times(compared):
    none = replace(next(iter(compared.values())), result=None)
    assert "No times" in repr(none) and none.room is none.gain is none.main_loop is None
    assert "No times" in none.bars().text


@pytest.mark.parametrize("times", [
    (2.8, 2.9, 3.0, 3.3), (2.8, 3.1, 3.6, 3.3), (2.8, 2.7, 2.6, 2.7)])
def test_bars(times):
    drawn = compare.bars_of([("gemm_swiglu", Result(_recorded(*times), "Some GPU", "2026-01-02",
                                                    True))],
                            compare.OWN_ALONE, compare.ALONE, compare.BASELINE, "")
    picture = ET.fromstring(drawn.svg)
    bars = [float(r.get("width")) for r in picture.iter("{http://www.w3.org/2000/svg}rect")
            if r.get("height") == "20"]
    longest = max(times)
    assert [round(b / max(bars), 3) for b in bars] == [round(t / longest, 3) for t in times]
    assert f"room {times[3] / times[0]:.3f}" in drawn.text
