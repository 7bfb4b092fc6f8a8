"""A file of parameters for the lessons: what is taken, and what is refused in one sentence."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_runner import output, write

from labkit import lessons, parameters, runner
from labkit.cli import main
from labkit.errors import BadArgument

OWN = ('device = "auto"  # or "cpu"\ngpu = ""\nquick = False\nsize = 4096  # M = N = K\n'
       "share: float = 0.5\nname = 'ab'\ntiles = [64, 128]\ncomputed = size * 2\n")
GOOD = {"all": {"size": 1024}, "02": {"size": 8, "share": 1, "name": 'a"\\\n\'{b}',
                                      "tiles": [32]}}


def lesson(folder, stem, cells=("1",), source=OWN, **matter):
    path = write(folder, stem, list(cells), **matter)
    text = json.loads(path.read_text())
    text["cells"][1]["source"] = source
    path.write_text(json.dumps(text))
    return path


@pytest.fixture
def folder(tmp_path):
    (folder := tmp_path / "lessons").mkdir()
    lesson(folder, "01_one")
    lesson(folder, "02_two", ["print([size, share, name, tiles, computed])"])
    lesson(folder, "03_three", source='device = "auto"\ngpu = ""\nquick = False')
    return folder


def checked(folder, given, names=()):
    chosen = [lessons.find(name, folder) for name in names] or lessons.all_lessons(folder)
    return parameters.check(given, chosen, folder, "class.json")


def test_all_and_one(folder):
    assert checked(folder, GOOD) == {
        "01_one": {"size": 1024},
        "02_two": {"size": 8, "share": 1.0, "name": 'a"\\\n\'{b}', "tiles": [32]}}
    assert checked(folder, {"two": {"size": 3}, "01_one.ipynb": {"tiles": []}}) == {
        "01_one": {"tiles": []}, "02_two": {"size": 3}}
    assert checked(folder, {"01": {"size": 3}}, ["02"]) == {}  # for a lesson that does not run
    assert checked(folder, {}) == {}


@pytest.mark.parametrize(("given", "words"), [
    ({"04": {"size": 1}}, "names the lesson '04', which does not exist"),
    ({"": {"size": 1}}, "names the lesson '', which does not exist"),
    ({"01": {"size": 1}, "one": {"size": 2}}, "names lesson 01_one twice"),
    ({"01": {"sise": 1}}, "sets 'sise', which lesson 01_one does not have; known are: size, share"),
    ({"all": {"sise": 1}}, "sets 'sise', which no lesson of this run has"),
    ({"03": {"size": 1}}, "lesson 03_three does not have; known are: none"),
    ({"01": {"computed": 1}}, "sets 'computed'"),
    ({"01": {"device": "cpu"}}, "sets 'device', which holds for a whole run; leave it out, and use "
                                "the option --device"),
    ({"all": {"quick": True}}, "--quick"),
    ({"all": {"gpu": "T4"}}, "--gpu"),
    ({"01": {"size": "8"}}, "gives '8' to size of lesson 01_one, where a value of type"),
    ({"01": {"size": 8.0}}, "type int belongs, as in 4096"),
    ({"01": {"size": True}}, "gives True to size"),
    ({"01": {"size": None}}, "gives None to size"),
    ({"01": {"share": "0.5"}}, "type float belongs, as in 0.5"),
    ({"01": {"share": 10 ** 400}}, "type float"),
    ({"01": {"name": 1}}, "type str"),
    ({"01": {"name": "\ud800"}}, "type str"),
    ({"01": {"tiles": 64}}, "type list"),
    ({"01": {"tiles": [64, "128"]}}, "type list"),
    ({"01": {"tiles": [[64]]}}, "type list"),
    ({"01": {"tiles": {"a": 1}}}, "type list"),
    ({"01": {"size": "x" * 10_000}}, "gives 'xxxxx"),
])
def test_refused_in_one_sentence(folder, given, words):
    with pytest.raises(BadArgument) as refused:
        checked(folder, given)
    text = str(refused.value)
    assert words in text and text.startswith("class.json ") and "\n" not in text
    assert len(text) < 400


@pytest.mark.parametrize(("content", "words"), [
    (b"", "cannot be read as JSON"),
    (b"{", "cannot be read as JSON"),
    (b"\xff\xfe{\x00", "cannot be read as JSON"),
    (b"[]", "does not hold an object of objects"),
    (b'{"01": 1}', "does not hold an object of objects"),
    (b'{"01": {"size": NaN}}', "NaN is not a JSON number"),
    (b'{"01": {"size": 1, "size": 2}}', "'size' stands twice"),
    (b'{"01": {}, "01": {}}', "'01' stands twice"),
    (b'{"01": {"size": ' + b"9" * 5000 + b"}}", "cannot be read as JSON"),
    (b"[" * 100_000, "cannot be read as JSON"),
    (b"size: 3\nname: !!python/object/apply:os.system ['false']\n", "cannot be read as JSON"),
    (b" " * 1_000_001, "larger than 1 MB"),
])
def test_a_file_that_is_not_one(tmp_path, content, words):
    path = tmp_path / "class.json"
    path.write_bytes(content)
    with pytest.raises(BadArgument) as refused:
        parameters.read(path)
    assert words in str(refused.value) and str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_path_that_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nowhere", "/dev/zero", "a\0b",
                 "x" * 5000):
        with pytest.raises(BadArgument, match=r"is not a file|cannot be read"):
            parameters.read(path)


def test_with_a_byte_order_mark(tmp_path):
    (tmp_path / "class.json").write_bytes(b'\xef\xbb\xbf{"01": {"size": 1}}')
    assert parameters.read(tmp_path / "class.json") == {"01": {"size": 1}}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["\ud800", "\x00", 2**70, 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner,
                                                                max_size=2), max_leaves=6)
keys = st.sampled_from(["size", "share", "name", "tiles", "computed", "device"]) | st.text(
    max_size=6)
files = st.dictionaries(
    st.sampled_from(["all", "01", "1", "two", "03_three", "../02"]) | st.text(max_size=6),
    st.dictionaries(keys, values, max_size=4) | values, max_size=4)
broken = st.builds(lambda text, cut, more: text[:cut] + more + text[cut:],
                   files.map(lambda file: json.dumps(file).encode()), st.integers(0, 80),
                   st.binary(max_size=4))


def test_500_random_files_give_a_result_or_one_sentence(folder, tmp_path):
    path, seen = tmp_path / "class.json", {"taken": 0, "refused": 0}
    kinds = {"size": int, "share": float, "name": str, "tiles": list}

    @settings(max_examples=500, derandomize=True, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(files.map(lambda file: json.dumps(file).encode()) | broken)
    def one(content):
        path.write_bytes(content)
        try:
            found = parameters.check(parameters.read(path), lessons.all_lessons(folder), folder,
                                     str(path))
        except BadArgument as refused:
            text = str(refused)
            text.encode()  # can be shown
            assert text.startswith(str(path)) and "\n" not in text and text.endswith(".")
            seen["refused"] += 1
        else:
            assert all(type(value) is kinds[name] for own in found.values()
                       for name, value in own.items())
            seen["taken"] += 1

    one()
    assert seen["taken"] > 20 and seen["refused"] > 100, seen


@pytest.mark.parametrize("content", ['{"02": {"size": true}}', "{", '{"99": {}}',
                                     '{"all": {"\\u001b[2J": 1}}'])
def test_the_command_says_it_in_one_sentence(folder, tmp_path, monkeypatch, capsys, content):
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(folder))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "class.json").write_text(content)
    assert main(["run", "--device", "cpu", "--parameters", "class.json"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("labkit: class.json ") and shown.err.count("\n") == 1
    assert shown.err.strip().isprintable() and not shown.out
    assert not (tmp_path / "runs").exists()


def test_a_lesson_runs_with_them_and_the_report_says_so(folder, tmp_path):
    path = tmp_path / "class.json"
    path.write_text(json.dumps(GOOD))
    report = runner.run(["2"], device="cpu", out=tmp_path / "out", folder=folder,
                        parameter_file=path)
    values = [8, 1.0, 'a"\\\n\'{b}', [32], 8192]
    # `computed` is made in the parameters cell, before what the file sets
    assert output(tmp_path / "out" / "02_two.ipynb") == f"{values}\n"
    saved = json.loads((tmp_path / "out" / "report.json").read_text())
    assert saved["parameters"] == report.parameters == {"02_two": {
        "size": 8, "share": 1.0, "name": 'a"\\\n\'{b}', "tiles": [32]}}
    again = runner.run(out=tmp_path / "out", folder=folder, resume=True, parameter_file=path)
    assert again.parameters == report.parameters and again.lessons[0].status == "passed"
    path.write_text('{"02": {"size": 9}}')
    with pytest.raises(BadArgument, match=r"started otherwise \(parameters\)"):
        runner.run(out=tmp_path / "out", folder=folder, resume=True, parameter_file=path)
