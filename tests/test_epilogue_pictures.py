"""Pictures of epilogues, shares of a model's time, and exercises whose answer is an epilogue."""

from __future__ import annotations

import types
import xml.etree.ElementTree as ET

import pytest
import torch
import torch.nn.functional as F

import labkit as lab
from labkit.epilogue import catalogue, drawings, epilogue, pairs, shares
from labkit.errors import LabError
from labkit.exercises.epilogue_trial import EpilogueCheck

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture):
    return [t.text for t in ET.fromstring(picture.svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("chosen", catalogue.ALL, ids=lambda e: e.name)
def test_parts_names_everything_that_an_epilogue_reads_and_writes(chosen):
    shown = texts(drawings.parts(chosen))
    assert {*chosen.inputs, *(o.name for o in chosen.outputs), chosen.name} <= set(shown)
    assert ("pairs of columns" in shown) == chosen.takes_pairs


def test_partners_of_the_picture_are_those_of_the_layout():
    columns = torch.arange(16.0)
    gate, up = pairs.split(columns[None])
    shown = texts(drawings.pair_columns())
    for pair in range(8):
        for letter, member in (("g", gate), ("u", up)):
            place = shown.index(f"{letter}{pair}")
            assert shown[place + 1] == f"{member[0, pair]:g}"


@pytest.mark.parametrize("draw", [drawings.factors, drawings.norm_over_two_gemms])
def test_pictures_are_well_formed_and_say_it_in_words(draw):
    picture = draw()
    assert texts(picture) and len(picture.text) > 100
    width = float(ET.fromstring(picture.svg).get("width"))
    for box in ET.fromstring(picture.svg).iter(f"{SVG}rect"):
        if box.get("x"):
            assert 0 <= float(box.get("x")) <= width - float(box.get("width"))


# --- shares


def _model(x, W, gamma):
    with shares.part("norm"):
        n = F.rms_norm(x, x.shape[-1:], gamma)
    q = (n @ W).view(1, 4, 64, 16)
    mixed = F.scaled_dot_product_attention(q, q, q).reshape(64, 64)
    with shares.part("activation"):
        return F.silu(mixed) * mixed


def test_time_goes_to_products_attention_and_named_parts():
    x, W = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    gamma = torch.ones(64, requires_grad=True)
    found = shares.measure(lambda: _model(x, W, gamma).sum().backward(), "cpu")
    assert {shares.PRODUCTS, shares.ATTENTION, "norm", "activation"} <= set(found)
    assert all(us > 0 for us in found.values())
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_what_a_backward_pass_launches_belongs_to_the_part_of_its_forward_pass():
    x, W = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64, requires_grad=True)
    gamma = torch.ones(64, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        _model(x, W, gamma).sum().backward()
    found = {(name, part) for name, part, _ in shares.attributed(profiler.events(), False)}
    assert {("aten::silu", "activation"), ("aten::silu_backward", "activation"),
            ("aten::mm", shares.PRODUCTS)} <= found
    assert {part for name, part in found if "attention" in name} == {shares.ATTENTION}
    assert {part for name, part in found if name == "aten::mm"} == {shares.PRODUCTS}


def test_a_step_without_operators_is_refused():
    with pytest.raises(LabError, match="saw no kernel"):
        shares.measure(lambda: None, "cpu")


def test_the_table_of_a_gpu_run(monkeypatch):
    times = iter([{shares.PRODUCTS: 60.0, "norm": 30.0, shares.ATTENTION: 10.0},
                  {shares.PRODUCTS: 120.0, "norm": 60.0, shares.ATTENTION: 20.0}])
    monkeypatch.setattr(shares, "measure", lambda step: next(times))
    monkeypatch.setattr(shares, "measured_table",
                        lambda name, here, *, title, columns, measure, note: measure())
    rows = shares.share_table("x", types.SimpleNamespace(device="gpu"), "A model", None, None)
    assert rows[-2:] == [[shares.MEMORY_BOUND, 30.0, "30%", 60.0, "30%"],
                         ["all", 100.0, "100%", 200.0, "100%"]]
    assert [row[0] for row in rows[:3]] == [shares.PRODUCTS, "norm", shares.ATTENTION]


def test_without_a_gpu_and_a_recording_the_table_says_so():
    empty = shares.share_table("never_recorded", lab.here("cpu"), "A model", None, None)
    assert empty.rows == [] and "nothing was recorded" in repr(empty)


# --- exercises


JUDGE = EpilogueCheck(
    cases=(dict(M=33, N=72, K=24), dict(M=1, N=8, K=8)),
    operands=lambda s, g: dict(bias=torch.randn(s["N"], generator=g).half()),
    wanted=lambda p, bias: dict(y=p + bias.double(), total=p.sum(1)),
    mistakes={"The bias was taken off.": lambda p, bias: dict(y=p - bias, total=p.sum(1))})


def _answer(formula):
    @epilogue(rowvec=["bias"], store=["y"], col_reduce={"total": "sum"})
    def answer(acc, bias):
        return formula(acc, bias)
    return answer


def test_a_right_epilogue():
    found = JUDGE(_answer(lambda acc, bias: dict(y=acc + bias, total=acc)))
    assert found.ok and "Right at 2 sizes" in found.lines[0]


@pytest.mark.parametrize(("formula", "sentence"), [
    (lambda acc, bias: dict(y=acc - bias, total=acc), "The bias was taken off."),
    (lambda acc, bias: dict(y=acc + bias, total=acc * acc), "total is wrong"),
    (lambda acc, bias: dict(y=acc * bias, total=acc), "y is wrong")])
def test_wrong_epilogues_are_told(formula, sentence):
    found = JUDGE(_answer(formula))
    assert not found.ok and any(sentence in line for line in found.lines)
    assert found.picture is not None


def test_answers_that_are_none():
    assert "pass the function that stands below" in JUDGE(lambda acc: acc).lines[0]

    @epilogue(store=["y"])
    def less(acc):
        return dict(y=acc)

    assert "declares the operands none; this exercise has bias" in JUDGE(less).lines[0]
