"""A run's measurements made the recorded ones of a GPU."""

from __future__ import annotations

import json

import pytest
from test_reference import LINE

from labkit import keep_results, results, supervise
from labkit.run_folder import MEASURED


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "run" / MEASURED).write_text(json.dumps(LINE) + "\n")
    (tmp_path / "run" / "table-launch.json").write_text('{"rows": []}')
    return tmp_path / "run"


def test_what_was_measured_is_kept(run, tmp_path):
    written = keep_results.keep(run, "t4", tmp_path / "kept")
    assert [path.name for path in written] == ["t4.json", "t4-table-launch.json"]
    (kept,) = results.load(tmp_path / "kept" / "t4.json").measurements
    assert kept.kernel_ms == 2.0 and kept.baselines == {"cuBLAS": 1.5}


@pytest.mark.parametrize(("gpu", "spoil", "words"), [
    ("T4", None, "short name is 'T4'"), ("../t4", None, "short name"),
    ("t4", MEASURED, "These are not lines"), ("t4", "table-launch.json", "cannot be read"),
])
def test_nothing_is_written_if_something_is_wrong(run, tmp_path, monkeypatch, capsys, gpu, spoil,
                                                  words):
    if spoil:
        (run / spoil).write_text("{")
    monkeypatch.setattr(results, "FOLDER", tmp_path / "kept")
    assert keep_results.main([str(run), gpu]) == 2
    assert words in capsys.readouterr().err
    assert not list((tmp_path / "kept").iterdir())


def test_a_run_without_measurements(tmp_path, capsys):
    assert keep_results.main([str(tmp_path), "t4"]) == 2
    assert "has no measurements" in capsys.readouterr().err
    assert keep_results.main([]) == 2


def test_a_run_on_a_gpu_keeps_what_its_lessons_measure(tmp_path, monkeypatch):
    """In its own folder, unless another place was named; on a CPU nothing is measured."""
    def told(device):
        base = tmp_path / f"base-{len(list(tmp_path.iterdir()))}"
        base.mkdir()
        job = supervise.Job(tmp_path / "02.ipynb", tmp_path / "out" / "02.ipynb", tmp_path / "log",
                            {"device": device}, 1.0, "run", None, None)
        return supervise._environment(job, base, "mark")

    monkeypatch.delenv("LABKIT_RECORD", raising=False)
    assert told("gpu")["LABKIT_RECORD"] == str(tmp_path / "out" / MEASURED)
    assert "LABKIT_RECORD" not in told("cpu")
    assert told("cpu")["LABKIT_RUN_FOLDER"] == str(tmp_path / "out")
    monkeypatch.setenv("LABKIT_RECORD", "mine")
    assert told("gpu")["LABKIT_RECORD"] == "mine"
