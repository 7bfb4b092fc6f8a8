"""What the kit keeps on disk, met damaged, hostile, or written by several processes at once."""

from __future__ import annotations

import ast
import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import labkit
import labkit as lab
from labkit import cache, cpu_build, crosscompile, ptxas, results
from labkit.errors import LabError
from labkit.tuning_store import Store

pytestmark = pytest.mark.faults

ROOT = Path(labkit.__file__).parents[1]
VERSION_2 = "0.0.other"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))
    crosscompile._lowered.cache_clear()
    return tmp_path / "cache"


def at_once(code: str, count: int, tmp_path: Path) -> list[str]:
    """What `count` processes print that run `code` at the same time; each has its number in
    sys.argv[1], and waits for the others in `go()`."""
    (tmp_path / "started").mkdir()
    head = (f"import os, sys, time\nfrom pathlib import Path\nme = int(sys.argv[1])\n"
            f"def go():\n    here = Path({str(tmp_path / 'started')!r})\n"
            "    (here / str(me)).touch()\n"
            f"    while len(list(here.iterdir())) < {count}:\n        time.sleep(0.005)\n")
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    processes = [subprocess.Popen([sys.executable, "-c", head + code, str(number)], text=True,
                                  env={**os.environ, "PYTHONPATH": paths},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for number in range(count)]
    ended = [process.communicate(timeout=240) for process in processes]
    assert not any(process.returncode for process in processes), ended
    return [out for out, _ in ended]


def test_a_file_is_whole_whoever_writes_it(folder, tmp_path):
    """Four processes write one file 200 times, each its own letter, and read it in between."""
    shown = at_once(
        "from labkit import cache\npath = cache.directory() / 'one'\n"
        "mine = bytes([97 + me]) * (1000 + 5000 * me)\ncache.store(path, mine)\ngo()\n"
        "for _ in range(200):\n    cache.store(path, mine)\n    seen = path.read_bytes()\n"
        "    assert len(set(seen)) == 1 and len(seen) == 1000 + 5000 * (seen[0] - 97)\n"
        "print('whole')", 4, tmp_path)
    assert shown == ["whole\n"] * 4
    assert [path.name for path in folder.iterdir()] == ["one"], "a temporary file was left"


def test_tuning_results_of_three_processes_are_all_kept(folder, tmp_path):
    at_once("from labkit.tuning_store import Store\nstore = Store('gemm', 'NVIDIA H200')\ngo()\n"
            "for n in range(60):\n    store.add(stage='short', key=f'{me}-{n}', ms=1.5, "
            "spread_ms=0.1, error=0.0)\n", 3, tmp_path)
    kept = Store("gemm", "NVIDIA H200").short
    assert kept.keys() == {f"{me}-{n}" for me in range(3) for n in range(60)}


def test_two_processes_compile_one_program(folder, tmp_path):
    shown = at_once(
        "import torch, labkit as lab\nprogram = lab.kernel('01', 'vector_add')(500)\ngo()\n"
        "add = lab.compile(program, out_idx=-1, device='cpu')\nx = torch.arange(500.)\n"
        "print(torch.equal(add(x, x), 2 * x))", 2, tmp_path)
    assert shown == ["True\n"] * 2
    stored, = (folder / "cpu").iterdir()
    assert sorted(path.name for path in stored.iterdir()) == ["kernel.json", "kernel.so"]


def test_what_another_version_kept_is_not_used(folder, monkeypatch):
    import tilelang

    program = lab.kernel("01", "vector_add")(1 << 10)
    first = lab.cross_compile(program, "A100")
    monkeypatch.setattr(tilelang, "__version__", VERSION_2)
    crosscompile._lowered.cache_clear()
    assert lab.cross_compile(program, "A100") == first
    assert len(list(folder.glob("lowered/*.json"))) == 2


def test_machine_code_that_was_cut_off_is_made_anew(folder):
    found = lab.cross_compile(lab.kernel("01", "vector_add")(1 << 10), "A100")
    arguments = (found.source, found.entry, "sm_80")
    whole = ptxas.cubin(*arguments)
    kept, = folder.glob("ptxas/*/kernel.cubin")
    kept.write_bytes(whole[:100])
    assert ptxas.cubin(*arguments) == whole == kept.read_bytes()


class Traitor:
    def __reduce__(self):
        return (os.mkdir, (os.environ["LABKIT_CACHE_DIR"] + "/ran",))


def test_nothing_that_lies_in_a_cache_is_executed(folder):
    """Python objects in the place of data: each file is made anew, and no code in it runs."""
    program = lab.kernel("01", "vector_add")(1 << 10)
    first = lab.cross_compile(program, "A100")
    used = first.resources
    Store("add", "NVIDIA H200")
    lab.compile(program, out_idx=-1, device="cpu")
    files = [path for path in folder.rglob("*.json*") if path.is_file()]
    assert {path.parent.name if path.suffix == ".jsonl" else path.name for path in files} >= {
        "tuning", "kernel.json", "resources.json"}
    for path in files:
        path.write_bytes(pickle.dumps(Traitor()))
    crosscompile._lowered.cache_clear()
    again = lab.cross_compile(program, "A100")
    assert again == first and again.resources == used
    assert not Store("add", "NVIDIA H200").short
    lab.compile(program, out_idx=-1, device="cpu")
    assert not (folder / "ran").exists()


def test_the_kit_imports_nothing_that_executes_data_or_fetches():
    forbidden = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "urllib.request",
                 "http", "http.client", "requests", "httpx", "ftplib", "socket"}
    for path in sorted((ROOT / "labkit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [])
            assert not forbidden & set(names), f"{path.name} imports {names}"


@pytest.mark.parametrize("spoil", [
    lambda stored: stored.parent.parent.chmod(0o777), lambda stored: stored.parent.chmod(0o770),
    lambda stored: stored.chmod(0o707), lambda stored: (stored / "kernel.so").chmod(0o666),
    lambda stored: (stored / "kernel.so").rename(stored / "x") and (
        stored / "kernel.so").symlink_to("x")])
def test_a_library_that_others_may_write_is_not_loaded(folder, monkeypatch, spoil):
    """It is built anew where nobody else may write, and works."""
    import torch

    program, x = lab.kernel("01", "vector_add")(300), torch.arange(300.)
    lab.compile(program, out_idx=-1, device="cpu")
    stored, = (folder / "cpu").iterdir()
    before = (stored / "kernel.so").stat().st_mtime_ns
    loaded = []
    load = cpu_build.ctypes.CDLL
    monkeypatch.setattr(cpu_build.ctypes, "CDLL",
                        lambda name, *a, **k: loaded.append(str(name)) or load(name, *a, **k))
    lab.compile(program, out_idx=-1, device="cpu")
    assert str(stored / "kernel.so") in loaded
    loaded.clear()
    spoil(stored)
    add = lab.compile(program, out_idx=-1, device="cpu")
    assert torch.equal(add(x, x), 2 * x)
    assert not [name for name in loaded if str(folder) in name]
    assert (stored / "kernel.so").stat().st_mtime_ns == before


def test_a_cache_folder_is_ours_alone(folder):
    assert cache.directory() == folder and folder.stat().st_mode & 0o777 == 0o700
    assert cache.private("cpu", "x") == folder / "cpu" / "x"


# Recorded results that lie

def places(data, path=()):
    """Every place in nested data."""
    yield path
    inner = data.items() if isinstance(data, dict) else (
        enumerate(data) if isinstance(data, list) else ())
    for key, value in inner:
        yield from places(value, (*path, key))


def changed(data, path, value):
    """`data` with `value` at `path`; None there removes what is there."""
    if not path:
        return value
    result = copy.copy(data)
    if len(path) == 1 and value is None:
        del result[path[0]]
    else:
        result[path[0]] = changed(data[path[0]], path[1:], value)
    return result


LIES = st.sampled_from([None, True, -1, 0, 1.5, 10**400, float("nan"), float("inf"), "", "x", [],
                        {}, [[]], {"x": []}, "\ud800", "<script>"])


@pytest.mark.parametrize("kind", ["h200", "h200-sweep-gemm"])
def test_a_results_file_that_lies_anywhere(tmp_path, monkeypatch, kind):
    """400 changes at random places: one sentence, or something that can be shown."""
    whole = json.loads((results.FOLDER / f"{kind}.json").read_text())
    spots = list(places(whole))
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    refused = []

    @settings(max_examples=400, derandomize=True, deadline=None, database=None,
              suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(spots), LIES)
    def one(path, lie):
        (tmp_path / f"{kind}.json").write_text(json.dumps(changed(whole, path, lie)))
        try:
            if kind == "h200":
                found = results.recorded("h200")
                json.dumps([m.as_dict() for m in found.measurements])
                for m in found.measurements:
                    assert m.kernel_ms > 0 and found.find(m.name)
            else:
                for trial in results.recorded_sweep("gemm")["schedules"]:
                    assert "failure" in trial or trial["kernel_ms"] > 0
        except LabError as error:
            assert "\n" not in str(error)
            refused.append(path)

    one()
    assert len(refused) > 40
