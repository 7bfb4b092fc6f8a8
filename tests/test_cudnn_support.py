"""Which GPUs have a plan: listed where no GPU is, else as it was listed."""

from __future__ import annotations

import json

import pytest

import labkit as lab
from labkit import cudnn_support, results
from labkit.cudnn_loader import Cudnn
from labkit.cudnn_support import GPUS, Support, support
from labkit.errors import LabError, NotSupported

CPU = lab.here("cpu")
DATA = {"name": "x", "cudnn": "9.19.0", "date": "2026-01-02",
        "plans": {"plain": {"T4": 5, "H100": 3}, "FP8 inputs": {"T4": 0, "H100": 2}},
        "reasons": {"plain": {}, "FP8 inputs": {"T4": "it is too old"}}}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(cudnn_support, "load_cudnn", lambda: Cudnn("1.32.0"))
    return tmp_path


def test_a_listing_is_shown_as_recorded(folder):
    (folder / "listed-support-x.json").write_text(json.dumps(DATA))
    found = support("x", CPU, {})
    text = repr(found)
    assert "9.19.0" in text and "2026-01-02 (RECORDED, not listed here)" in text
    assert "T4 (sm_75)" in text and "H100 (sm_90)" in text
    assert found.table().rows == [["plain", "5", "3"], ["FP8 inputs", "no", "2"]]


@pytest.mark.parametrize("damage", [
    "{", "[]", json.dumps({**DATA, "plans": {}}), json.dumps({**DATA, "plans": {"a": {"T5": 1}}}),
    json.dumps({key: value for key, value in DATA.items() if key != "date"})])
def test_a_damaged_listing_is_named(folder, damage):
    (folder / "listed-support-x.json").write_text(damage)
    with pytest.raises(LabError, match=r"listed-support-x\.json is not a listing"):
        support("x", CPU, {})


def test_without_anything_it_says_what_is_missing(folder):
    with pytest.raises(LabError, match="a libcudnn and a stand-in for the driver"):
        support("x", CPU, {})


def test_a_libcudnn_without_a_driver_lists_nothing(folder, monkeypatch):
    monkeypatch.setattr(cudnn_support, "load_cudnn",
                        lambda: Cudnn("1.32.0", "9.19.0", folder))
    monkeypatch.setattr(cudnn_support, "_stand_in", lambda: False)
    (folder / "listed-support-x.json").write_text(json.dumps(DATA))
    assert not support("x", CPU, {}).listed_now


def test_plans_are_counted_and_refusals_kept(folder, monkeypatch):
    """cuDNN stands in here: a graph is its own number of plans."""
    def candidates(graph, target, modes):
        if not graph:
            raise NotSupported(f"not on {target}")
        return graph

    monkeypatch.setattr(cudnn_support, "load_cudnn", lambda: Cudnn("1.32.0", "9.19.0", folder))
    monkeypatch.setattr(cudnn_support, "_stand_in", lambda: True)
    monkeypatch.setattr(cudnn_support, "target", lambda here, gpu: gpu)
    monkeypatch.setattr(cudnn_support, "candidates", candidates)
    monkeypatch.setenv("LABKIT_RECORD", str(folder / "all.jsonl"))
    found = support("x", CPU, {"new": lambda gpu: 0 if gpu == "T4" else 3})
    assert found.listed_now and list(found.plans["new"]) == list(GPUS)
    assert found.plans["new"]["T4"] == 0 and found.plans["new"]["H100"] == 3
    assert found.reasons == {"new": {"T4": "not on T4"}}
    monkeypatch.setattr(cudnn_support, "_stand_in", lambda: False)
    assert support("x", CPU, {}).plans == found.plans  # and it was kept


def test_beside_a_gpu_nothing_is_listed(monkeypatch):
    import torch

    monkeypatch.setattr(cudnn_support.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(cudnn_support, "nvidia_smi", lambda *a: "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cudnn_support._stand_in()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not cudnn_support._stand_in()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cudnn_support, "nvidia_smi", lambda *a: "GPU 0: NVIDIA T4")
    assert not cudnn_support._stand_in()


@pytest.mark.parametrize("name", ["cudnn_matmul_amax", "cudnn_sdpa", "cudnn_kernel_cache"])
def test_the_listings_of_the_lessons(name):
    data = json.loads((results.FOLDER / f"listed-support-{name}.json").read_text())
    found = Support(**data, listed_now=False)
    for variant, counts in found.plans.items():
        assert list(counts) == list(GPUS)
        assert set(found.reasons[variant]) == {gpu for gpu, count in counts.items() if not count}
