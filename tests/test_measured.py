"""Tables of measured figures: shown as recorded without a GPU, refused where they are damaged."""

from __future__ import annotations

import json

import pytest

import labkit as lab
from labkit import results
from labkit.errors import BadArgument, LabError
from labkit.measured import MeasuredTable, _check, recorded_table

CPU = lab.here("cpu")
DATA = {"gpu": "NVIDIA H200", "date": "2026-01-02", "versions": {"libcudnn": "9.19.0.56"},
        "title": "Launches of 4 x 512", "columns": ["way", ">us", ">bytes", "note"],
        "rows": [["build", 1040.25, 83000, None], ["load", 9.61, 83000, "warm"],
                 ["replay", 4.999, 0, ""]]}


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def write(folder, data=DATA, name="h200-table-launch.json"):
    (folder / name).write_text(data if isinstance(data, str) else json.dumps(data))


def never():
    raise AssertionError("measured without a GPU")


def test_without_a_gpu_the_recorded_rows_are_shown_and_called_recorded(folder):
    write(folder)
    table = lab.measured_table("launch", CPU, title="Launches of 2 x 8", columns=["way"],
                               measure=never, note="Medians.")
    text = repr(table)
    assert not table.measured_now
    assert text.splitlines()[0] == ("Launches of 4 x 512, on NVIDIA H200, 2026-01-02 "
                                    "(RECORDED there, not measured here)")
    assert "1,040" in text and "9.61" in text and "5.00" in text and "83,000" in text
    assert text.endswith("Medians.") and "RECORDED" in table._repr_html_()


def test_a_row_by_its_label(folder):
    write(folder)
    table = recorded_table("launch")
    assert table.row("load") == {"way": "load", "us": 9.61, "bytes": 83000, "note": "warm"}
    with pytest.raises(BadArgument, match="no row 'lod'; it has build, load, replay"):
        table.row("lod")


def test_without_a_gpu_and_a_recording_it_refuses(folder):
    with pytest.raises(LabError, match="no table 'launch' was recorded on the H200"):
        lab.measured_table("launch", CPU, title="", columns=["way"], measure=never)


def test_what_is_not_required_says_that_it_is_not_recorded(folder):
    def shown():
        return lab.measured_table("launch", CPU, title="Launches", columns=["way", ">us"],
                                  measure=never, note="Medians.", required=False)

    table = shown()
    assert table.rows == [] and not table.measured_now
    assert "not recorded yet" in repr(table) and "Medians." in table._repr_html_()
    write(folder)
    assert shown().row("load")["us"] == 9.61


def test_a_name_does_not_lead_out_of_the_folder(folder):
    write(folder.parent, name="h200-table-x.json")
    with pytest.raises(LabError, match="no table"):
        recorded_table("x/../../h200-table-x")


@pytest.mark.parametrize("damage", [
    "{", "[]", json.dumps({**DATA, "rows": []}), json.dumps({**DATA, "rows": [["build", 1.0]]}),
    json.dumps({**DATA, "rows": [["build", float("nan"), 1, ""]]}),
    json.dumps({**DATA, "rows": [["build", True, 1, ""]]}),
    json.dumps({**DATA, "rows": [["build", [1], 1, ""]]}),
    *(json.dumps({key: value for key, value in DATA.items() if key != lost})
      for lost in ("gpu", "title", "columns"))])
def test_a_damaged_file_is_named(folder, damage):
    write(folder, damage)
    with pytest.raises(LabError, match=r"h200-table-launch\.json is not a table of labkit"):
        recorded_table("launch")


def test_a_table_is_not_a_recording_of_a_gpu(folder):
    write(folder)
    with pytest.raises(LabError, match="recorded are: none"):
        results.recorded("b200")


def test_rows_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="has 2 cells and there are 4 columns"):
        _check({**DATA, "rows": [["build", 1.0]]})


@pytest.mark.parametrize(("value", "shown"), [
    (1040.25, "1,040"), (99.96, "100.0"), (12.34, "12.3"), (5.0, "5.00"), (0.0, "0.00"),
    (-3.0, "-3.00"), (83000, "83,000"), ("as it is", "as it is")])
def test_figures_are_shown_to_three_places(value, shown):
    table = MeasuredTable("t", "T", "GPU", "day", True, ["a"], [[value]])
    assert table.table().rows == [[shown]]


@pytest.mark.gpu
def test_on_a_gpu_rows_are_measured_and_kept(cuda, monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_RECORD", str(tmp_path / "all.jsonl"))
    here = lab.here("gpu")
    table = lab.measured_table("launch", here, title="Launches", columns=["way", ">us"],
                               measure=lambda: [["replay", 5.0]])
    assert table.measured_now and "measured now" in repr(table)
    kept = json.loads((tmp_path / "table-launch.json").read_text())
    assert kept["rows"] == [["replay", 5.0]] and kept["gpu"] == cuda.cuda.get_device_name()
    with pytest.raises(BadArgument, match="The rows of launch do not make a table"):
        lab.measured_table("launch", here, title="", columns=["way"], measure=lambda: [["a", 1]])
