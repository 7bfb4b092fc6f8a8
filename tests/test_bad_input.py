"""Bad input to the smaller parts: one clear sentence, and never a silent wrong result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import programs
import pytest
import tilelang
import tilelang.language as T
import torch
from test_runner import write

import labkit as lab
from labkit import cache, crosscompile, lessons, pictures, ptxas, results
from labkit.cli import main
from labkit.errors import BadArgument, LabError
from labkit.roofline import Floors


def said(call, kind=BadArgument) -> str:
    """The message of the error that `call` raises: one line, one sentence."""
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and ";" in message
    return message


# --- the cache


def program(layout):
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared((64, 64), "float16")
            u = T.alloc_shared((64, 64), "float16")
            T.annotate_layout({t: layout(t), u: layout(u)})
            T.copy(X, t)
            T.copy(t, u)
            T.copy(u, Y)

    return main


def same_program_elsewhere(layout):
    @T.prim_func
    def main(X: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared((64, 64), "float16")
            u = T.alloc_shared((64, 64), "float16")
            T.annotate_layout({t: layout(t), u: layout(u)})
            T.copy(X, t)
            T.copy(t, u)
            T.copy(u, Y)

    return main


def padded(_):
    return T.Layout((64, 64), lambda i, j: i * 72 + j)


def swizzled(tile):
    return tilelang.layout.make_swizzled_layout(tile)


def test_program_text_tells_layouts_apart_and_not_places():
    first, second = program(padded), program(swizzled)
    assert first.script() == second.script()
    assert cache.program_text(first) != cache.program_text(second)
    for layout in (padded, swizzled):
        assert cache.program_text(program(layout)) == cache.program_text(
            same_program_elsewhere(layout))


def test_program_text_is_the_same_in_every_process():
    code = ("from test_bad_input import *; import sys; sys.stdout.write(cache.key("
            "cache.program_text(program(padded)), cache.program_text(program(swizzled)), "
            "cache.program_text(programs.pipelined_gemm('float16'))))")
    keys = {subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parent, env={**os.environ, "PYTHONHASHSEED": seed}).stdout[-32:]
        for seed in ("1", "2")}
    assert keys == {cache.key(*map(cache.program_text, (
        program(padded), program(swizzled), programs.pipelined_gemm("float16"))))}


def test_programs_that_differ_in_layout_are_lowered_apart():
    first, second = (lab.cross_compile(program(layout), "A100") for layout in (padded, swizzled))
    assert "72" in first.source and first.source != second.source


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "lowered").write_text("in the way")
    assert "LABKIT_CACHE_DIR" in said(lambda: cache.store(tmp_path / "lowered" / "x", b""))
    (tmp_path / "folder").mkdir()
    assert "cannot be written" in said(lambda: cache.store(tmp_path / "folder", b""))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "lowered"]
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    crosscompile._lowered.cache_clear()
    said(lambda: lab.cross_compile(programs.pipelined_gemm("float16"), "T4"))

    def refused(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache.tempfile, "mkstemp", refused)
    assert "Permission denied" in said(lambda: cache.store(tmp_path / "new", b""))


WHOLE = {"name": "f", "source": "s", "grid": [1, None, 1], "threads": 1, "shared_bytes": 0,
         "landmarks": {"mma": 1}, "global_access": {"16": 2}}


@pytest.mark.parametrize("damage", [
    {"name": None}, {"source": 3}, {"grid": 5}, {"grid": ["a", 1, 1]}, {"grid": [1]},
    {"threads": "128"}, {"threads": True}, {"shared_bytes": 1.5}, {"landmarks": []},
    {"landmarks": {"mma": "x"}}, {"landmarks": {"nonsense": 1}}, {"global_access": {"wide": 1}},
    {"global_access": {"16": None}}, {"more": 1}])
def test_cached_fields_of_wrong_types_are_made_anew(tmp_path, damage):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(WHOLE))
    assert crosscompile._read(path) == WHOLE
    path.write_text(json.dumps({**WHOLE, **damage}))
    assert crosscompile._read(path) is None


@pytest.mark.parametrize("content", ["[]", "3", "{", "[" * 100_000, '{"registers": 1e999}',
                                     json.dumps(dict.fromkeys(
                                         ptxas.Resources.__dataclass_fields__, "1"))])
def test_cached_files_that_are_something_else_are_made_anew(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    assert crosscompile._read(path) is None and ptxas._read(path) is None


# --- cross-compilation


@pytest.mark.parametrize("options", [["tl.enable_fast_math"], [], "fast", 3,
                                     {"tl.enable_fast_math": object()}, {"x": {1, 2}}])
def test_pass_configs(options):
    gemm = programs.pipelined_gemm("float16")
    assert "pass_configs" in said(lambda: lab.cross_compile(gemm, "T4", options))


@pytest.mark.parametrize("gpus", [[], (), None, "T4", 3])
def test_landmark_table_needs_gpus(gpus):
    gemm = programs.pipelined_gemm("float16")
    assert "at least one GPU" in said(lambda: lab.landmark_table(gemm, gpus))


# --- compare


@pytest.mark.parametrize("tile", [0, -1, (0, 4), (4, -4), "ab", 4.5, (4,), (1, 2, 3), (1.5, 2),
                                  ("a", "b"), [], {}, numpy.ones(2)])
def test_tile(tile):
    out = torch.ones(4, 4)
    assert "tile is" in said(lambda: lab.compare(out, out, tile=tile))


@pytest.mark.parametrize("tile", [2, numpy.int64(2), (1, numpy.int32(2)), [1, 2], (2**70, 2)])
def test_tiles_that_fit(tile):
    out, reference = torch.ones(4, 4), torch.ones(4, 4)
    out[0, 3] = 0
    assert lab.compare(out, reference, tile=tile).bad_tiles == [(0, 1)]


@pytest.mark.parametrize("other", [
    numpy.ones(3, "float32"), [1.0, 1.0, 1.0], None, 1.0, torch.ones(3, device="meta"),
    torch.ones(3).to_sparse()], ids=["array", "list", "None", "number", "meta", "sparse"])
def test_only_dense_tensors_are_compared(other):
    dense = torch.ones(3)
    assert said(lambda: lab.compare(other, dense, name="y")).startswith("y ")
    assert said(lambda: lab.compare(dense, other, name="y")).startswith("y: the reference ")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])
    assert "nested" in said(lambda: lab.compare(nested, nested))


def test_complex_tensors():
    plain, complex_ = torch.ones(3), torch.ones(3, dtype=torch.complex64)
    assert "complex64" in said(lambda: lab.compare(complex_, plain))
    assert "complex64" in said(lambda: lab.compare(plain, complex_))


# --- lessons


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(tmp_path))
    return tmp_path


def damage(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("change", [
    lambda d: d["metadata"].update(labkit=None), lambda d: d["metadata"].update(labkit=["title"]),
    lambda d: d["metadata"].update(labkit="title"), lambda d: d.update(metadata=None),
    lambda d: d["metadata"]["labkit"].update(title=None),
    lambda d: d["metadata"]["labkit"].update(minutes="long"),
    lambda d: d["metadata"]["labkit"].update(sm80_cells=None)])
def test_front_matter(folder, capsys, change):
    damage(write(folder, "01_one", ["1"]), change)
    write(folder, "02_two", ["1"])
    assert main(["lessons"]) == 0
    one, two = capsys.readouterr().out.splitlines()
    assert "01_one.ipynb" in one and "A title" in two
    assert "01_one.ipynb" in said(lambda: lessons.find("1").front_matter, LabError)


@pytest.mark.parametrize("change", [
    lambda d: d["cells"][2]["metadata"].update(tags=None),
    lambda d: d["cells"][2]["metadata"].update(tags="kernel"),
    lambda d: d["cells"][2].update(metadata=None), lambda d: d["cells"][2].update(source=5),
    lambda d: d["cells"].append(None), lambda d: d.update(cells=None)])
def test_cells(folder, change):
    damage(write(folder, "01_one", ["x = 1"]), change)
    assert "01_one.ipynb" in said(lambda: lab.kernel("01", "x"), LabError)


# --- pictures


FLOORS = Floors("a GPU", "test", 4000.0, {"float16": 800.0})


@pytest.mark.parametrize("call", [
    lambda: pictures.stack([]), lambda: pictures.stack([1]), lambda: pictures.stack(None),
    lambda: pictures.stack(pictures.pipeline(1)),
    lambda: pictures.gemm_tiles(8, 8, 8, 4, 4, 4, by="0"),
    lambda: pictures.gemm_tiles(8, 8, 8, 4, 4, 4, k=0.5),
    lambda: pictures.launch_order(4, 4, -1), lambda: pictures.block_order(4, 4, 4, "2"),
    lambda: pictures.roofline(FLOORS, []), lambda: pictures.roofline(FLOORS, None),
    *(lambda point=point: pictures.roofline(FLOORS, [("a", 1.0, 1.0), point]) for point in [
        ("k", 0, 1.0), ("k", 1.0, 0.0), ("k", -1.0, 1.0), ("k", float("nan"), 1.0),
        ("k", 1.0, float("inf")), ("k", "1", 1.0), ("k", 1.0), (None, 1.0, 1.0), 5])])
def test_pictures(call):
    said(call)


@pytest.mark.parametrize("call", [
    lambda: pictures.gemm_tiles(4096, 4096, 4096, 16, 16, 16),
    lambda: pictures.pipeline(2, 100_000), lambda: pictures.pipeline(10**9),
    lambda: pictures.block_order(1000, 1000, 132), lambda: pictures.block_order(10**6, 10**6, 1)])
def test_pictures_too_large_to_see(call):
    assert "larger tiles or smaller sizes" in said(call)


@pytest.mark.parametrize("call", [
    lambda: pictures.gemm_tiles(4096, 4096, 4096, 128, 128, 64), lambda: pictures.pipeline(3, 2900),
    lambda: pictures.block_order(70, 80, 132, 10),
    lambda: pictures.roofline(FLOORS, iter([("k", numpy.float32(3), 1)]))])
def test_pictures_just_small_enough(call):
    assert 1000 < len(call().svg) < 2_000_000


# --- recorded results


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Copies of the shipped results that a test may damage."""
    for name in ("h200.json", "h200-sweep-gemm.json"):
        (tmp_path / name).write_bytes((results.FOLDER / name).read_bytes())
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize("gpu", [None, 5, "", "x" * 5000, "../results/h200", "a\0b",
                                 "h200-sweep-gemm"])
def test_unknown_recordings(shipped, gpu):
    message = said(lambda: results.recorded(gpu), LabError)
    assert message.endswith("recorded are: h200.")
    said(lambda: results.recorded_sweep("gemm", gpu), LabError)
    said(lambda: results.recorded_sweep(gpu), LabError)


NUMBERS = [("kernel_ms", value) for value in (float("nan"), float("inf"), -1, 0, "1.5", None, True)]


@pytest.mark.parametrize(("field", "value"), [
    *NUMBERS, ("floor_ms", -1), ("floor_ms", "1"), ("error", -1e-3), ("error", float("nan")),
    ("spread_ms", -1), ("spread_ms", None), ("moved", "many"), ("flops", -1), ("clock_mhz", 0),
    ("baselines", {"a": float("nan")}), ("references", {"a": "1"}), ("shape", {"M": "4096"})])
def test_recorded_figures(shipped, field, value):
    damage(shipped / "h200.json", lambda d: d["measurements"][0].update({field: value}))
    message = said(lambda: results.recorded(), LabError)
    assert "h200.json is not a results file" in message and field in message


@pytest.mark.parametrize("change", [
    lambda d: d["floors"].update(copy_gb_s=0), lambda d: d["floors"].pop("tensor_tflops"),
    lambda d: d["floors"].update(tensor_tflops={"float16": "fast"})])
def test_recorded_floors(shipped, change):
    damage(shipped / "h200.json", change)
    assert "not a results file" in said(lambda: results.recorded(), LabError)


@pytest.mark.parametrize(("field", "value"), [
    *NUMBERS, ("error", -1e-3), ("error", float("inf")), ("shape", {"M": "x"}), ("shape", []),
    ("schedule", []), ("schedule", None)])
def test_recorded_sweeps(shipped, field, value):
    damage(shipped / "h200-sweep-gemm.json", lambda d: d["schedules"][0].update({field: value}))
    assert "not a sweep file" in said(lambda: results.recorded_sweep("gemm"), LabError)


def test_recorded_sweep_without_a_number_of_operations(shipped):
    damage(shipped / "h200-sweep-gemm.json", lambda d: d.update(flops="1e9"))
    assert "not a sweep file" in said(lambda: results.recorded_sweep("gemm"), LabError)


@pytest.mark.parametrize(("name", "read"), [
    ("h200.json", lambda: results.recorded()),
    ("h200-sweep-gemm.json", lambda: results.recorded_sweep("gemm"))])
def test_results_nested_too_deep(shipped, name, read):
    (shipped / name).write_text("[" * 100_000 + "]" * 100_000)
    assert name in said(read, LabError)


# --- the command line


@pytest.mark.parametrize("many", [1, 90])
def test_a_full_disk_under_the_output(folder, many):
    for number in range(many):
        write(folder, f"{number:02}_{'long' * 30}", ["1"])
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "labkit", "lessons"], stdout=full,
                              stderr=subprocess.PIPE, text=True, cwd=Path(lab.__file__).parents[1])
    assert done.returncode == 1
    assert done.stderr == ("labkit: the output cannot be written (No space left on device); "
                           "free some space, or send it elsewhere.\n")


def test_a_closed_output(folder):
    write(folder, "01_one", ["1"])
    done = subprocess.run(f"{sys.executable} -m labkit lessons >&-", shell=True, text=True,
                          capture_output=True, cwd=Path(lab.__file__).parents[1])
    assert (done.returncode, done.stderr) == (0, "")
