"""`labkit bench`: what it keeps, what it survives, and its comparison of two files."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from labkit import cli, environment, results
from labkit.benching import compare, places, readme, session, workers
from labkit.benching.cases import Case
from labkit.benching.places import Place
from labkit.benching.report import Report
from labkit.errors import BadArgument, LabError
from labkit.reference import results as reference

ROOT = Path(__file__).resolve().parent.parent
NAMES = ["vector_add", "softmax"]
_find, _find_files = functools.cache(places.find), functools.cache(places.find_files)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A GPU that is not there. Call it with {name: milliseconds or what happens}."""
    plan = tmp_path / "plan"
    monkeypatch.setattr(workers.Worker, "command",
                        (sys.executable, str(ROOT / "tests" / "bench_worker.py")))
    monkeypatch.setattr(session, "resolve_device", lambda device: "gpu")
    monkeypatch.setattr(places, "find", _find)  # reading all lessons takes a second
    monkeypatch.setattr(places, "find_files", _find_files)
    monkeypatch.setattr(session, "visible_gpus", lambda: ["0"])
    versions = {"torch": "1", "gpu": "NVIDIA Test"}
    monkeypatch.setattr(environment, "versions", lambda: versions)
    monkeypatch.setenv("FAKE", str(plan))

    def set_plan(**what):
        plan.write_text(json.dumps(what))
        monkeypatch.setenv("VERSIONS", json.dumps(versions))
        Path(f"{plan}.log").write_text("")
        return lambda: Path(f"{plan}.log").read_text().splitlines()

    set_plan.versions = versions
    set_plan()
    return set_plan


def run(out, names=NAMES, **options):
    said = []
    code = session.run(names, out=out, tell=said.append, **{"jobs": 0, **options})
    return code, "\n".join(said)


def names_in(path):
    return [m.name for m in results.load(path).measurements]


def test_a_file_that_lessons_can_read(fake, tmp_path):
    fake(softmax=2.0)
    code, said = run(tmp_path / "x.json", [*NAMES, "cost_import"])
    assert code == 0
    data = json.loads((tmp_path / "x.json").read_text())
    assert names_in(tmp_path / "x.json") == NAMES
    assert data["bench"]["complete"] and data["bench"]["device"] == "gpu"
    assert [c["status"] for c in data["bench"]["cases"]] == ["measured"] * 3
    assert data["costs"][0]["name"] == "cost_import"
    assert "2.0000" in said and "2.000" in said  # ms, and the ratio to the other


def test_a_cost_above_its_limit_fails(fake, tmp_path):
    fake(cost_import=4.0)
    code, said = run(tmp_path / "x.json", ["vector_add", "cost_import"])
    assert code == 1 and "ABOVE ITS LIMIT cost_import: 0.40 s, limit 0.3 s" in said
    assert "FAILED" not in said and "2 of 2 cases" in said
    code, said = run(tmp_path / "x.json", ["cost_import"], resume=True)
    assert code == 1 and "1 of 1 cases are in x.json already" in said
    assert run(tmp_path / "x.json", ["vector_add"])[0] == 0  # nobody asked for costs


def test_everything_is_prepared_first(fake, tmp_path):
    log = fake()
    run(tmp_path / "x.json", [*NAMES, "cost_import"], jobs=2)
    order = [line.split()[0] for line in log()]
    assert order == ["prepare"] * 5 + ["measure"] * 3  # softmax in four parts, costs never


@pytest.mark.parametrize(("what", "reason"), [
    ("die", "its process died (signal SIGSEGV)"), ("hang", "took longer than 1 s"),
    ("broken", "illegal memory access")])
def test_one_that_fails_costs_only_itself(fake, tmp_path, what, reason):
    fake(vector_add=what)
    code, said = run(tmp_path / "x.json", timeout=1.0 if what == "hang" else 30)
    assert code == 1 and f"FAILED vector_add: {reason}" in said
    assert names_in(tmp_path / "x.json") == ["softmax"]
    data = json.loads((tmp_path / "x.json").read_text())
    assert not data["bench"]["complete"]
    assert [c["status"] for c in data["bench"]["cases"]] == ["failed", "measured"]


def test_a_resumed_run_measures_what_is_missing(fake, tmp_path):
    fake(softmax="die")
    assert run(tmp_path / "x.json")[0] == 1
    log = fake(softmax=3.0, vector_add=7.0)
    code, said = run(tmp_path / "x.json", resume=True)
    assert code == 0 and "1 of 2 cases are in x.json already" in said
    assert log() == ["measure softmax"]
    times = {m.name: m.kernel_ms for m in results.load(tmp_path / "x.json").measurements}
    assert times == {"vector_add": 1.0, "softmax": 3.0}
    assert results.load(tmp_path / "x.json").date == "2026-01-02"


def test_a_killed_run_leaves_what_was_measured(fake, tmp_path, monkeypatch):
    asked = workers.Worker.ask

    def killed(self, request, timeout):
        if request["name"] == "softmax":
            raise KeyboardInterrupt
        return asked(self, request, timeout)

    monkeypatch.setattr(workers.Worker, "ask", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "x.json")
    assert names_in(tmp_path / "x.json") == ["vector_add"]
    assert [path.name for path in tmp_path.glob(".x.json*")] == []


def test_some_names_are_added_to_a_file(fake, tmp_path):
    run(tmp_path / "x.json", ["vector_add"])
    run(tmp_path / "x.json", ["softmax"])
    assert sorted(names_in(tmp_path / "x.json")) == sorted(NAMES)
    fake.versions["torch"] = "2"
    fake()
    with pytest.raises(BadArgument, match="another torch"):
        run(tmp_path / "x.json", ["softmax"])


def test_a_cell_that_measures_several_names_runs_once(fake, tmp_path, monkeypatch):
    cell = (Place("09_coda_forward", "bars", sure=False),)
    monkeypatch.setattr(session.cases, "chosen", lambda *_, **__: [
        Case("one", cell), Case("two", cell), Case("two", cell, {"M_gpu": 4})])
    log = fake(one={"both": ["one", "two"]}, two=1.0)
    assert run(tmp_path / "x.json", jobs=1)[0] == 0
    assert log() == ["prepare one", "prepare two", "measure one", "measure two"]
    assert sorted(names_in(tmp_path / "x.json")) == ["one", "two"]


def test_tables_and_sweeps_go_to_files_of_their_own(fake, tmp_path):
    log = fake(cudnn_launch=5)
    assert run(tmp_path / "x.json", ["vector_add", "cudnn_launch"], jobs=1)[0] == 0
    assert log() == ["prepare vector_add", "measure vector_add", "measure cudnn_launch"]
    assert json.loads((tmp_path / "x-table-cudnn_launch.json").read_text()) == {"rows": [5]}
    assert names_in(tmp_path / "x.json") == ["vector_add"]


def test_bad_input(fake, tmp_path):
    (tmp_path / "cpu.json").write_text(json.dumps({"device": "cpu", "versions": {}}))
    (tmp_path / "odd.json").write_text("{")
    for out, said in (("cpu.json", "checks on a CPU"), ("odd.json", "no file of labkit bench"),
                      ("none/x.json", "not a folder")):
        with pytest.raises(BadArgument, match=said):
            run(tmp_path / out)
    with pytest.raises(BadArgument, match="No lesson measures"):
        run(tmp_path / "x.json", ["gem"])


def test_on_the_cpu_kernels_are_checked_and_no_lesson_takes_it_for_a_gpu(tmp_path):
    code, said = run(tmp_path / "cpu.json", ["vector_add", "cost_import"], device="cpu")
    assert code == 0 and "nothing was timed" in said
    data = json.loads((tmp_path / "cpu.json").read_text())
    assert data["device"] == "cpu" and "measurements" not in data
    (check,) = data["checks"]
    assert check["name"] == "vector_add" and 0 < check["error"] <= check["allowed"]
    assert data["costs"][0]["seconds"] < data["costs"][0]["limit"]
    with pytest.raises(LabError, match="made without a GPU"):
        results.load(tmp_path / "cpu.json")


def test_a_wrong_kernel_fails(tmp_path, monkeypatch):
    import nbformat

    (tmp_path / "notebooks").mkdir()
    notebook = nbformat.read(ROOT / "notebooks" / "00_environment.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == "env-bench")
    cell.source = cell.source.replace("torch.add(a, b, out=c)", "torch.sub(a, b, out=c)")
    nbformat.write(notebook, tmp_path / "notebooks" / "00_environment.ipynb")
    monkeypatch.setenv("LABKIT_NOTEBOOKS", str(tmp_path / "notebooks"))
    code, said = run(tmp_path / "cpu.json", ["torch_add"], device="cpu")
    assert code == 1 and "FAILED torch_add: torch_add: WRONG" in said


def test_importing_labkit_is_quick():
    code = "import time; t = time.perf_counter(); import labkit; print(time.perf_counter() - t)"
    times = [float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                  check=True).stdout) for _ in range(3)]
    assert min(times) < 0.3


# --- two files


def recording(path, gpu="NVIDIA H200", scale=1.0, versions=None, names=("gemm", "softmax"),
              spread=0.01, copy=4000.0):
    path.write_text(json.dumps({
        "gpu": gpu, "date": "2026-01-02", "versions": versions or {"torch": "1"},
        "floors": {"copy_gb_s": copy, "tensor_tflops": {"float16": 800.0}},
        "measurements": [{"name": name, "shape": {"M": 4}, "dtype": "float16",
                          "kernel_ms": scale if name == "gemm" else 1.0, "spread_ms": spread,
                          "floor_ms": 0.5, "error": 1e-4, "baselines": {"cuBLAS": 1.0}}
                         for name in names]}))
    return path


def test_what_became_slower_beyond_the_spread(tmp_path):
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", scale=1.25)
    found = compare.files(a, b)
    lines = {line.a.name: line for line in found.lines}
    assert lines["gemm"].ratio == 0.8 and lines["gemm"].beyond
    assert lines["softmax"].ratio == 1 and not lines["softmax"].beyond
    assert lines["gemm"].others == 1
    assert "SLOWER" in repr(found) and "WARNING" not in repr(found)
    assert found.holds(0.8) and not found.holds(0.81)
    assert "faster" in repr(compare.files(b, a))
    wide = recording(tmp_path / "w.json", scale=1.25, spread=0.5)
    assert not compare.files(a, wide).lines[0].beyond


def test_what_makes_a_comparison_doubtful(tmp_path):
    a = recording(tmp_path / "a.json")
    b = recording(tmp_path / "b.json", gpu="NVIDIA H100", versions={"torch": "2"},
                  names=("gemm", "vector_add"), copy=3000.0)
    text = repr(compare.files(a, b))
    assert "two GPUs: NVIDIA H200 and NVIDIA H100" in text
    assert "another torch: 1 and 2" in text and "copy bandwidth differs: 4,000 and 3,000" in text
    assert "only in A: softmax 4 float16" in text and "only in B: vector_add 4 float16" in text


def test_files_that_cannot_be_compared(tmp_path):
    a = recording(tmp_path / "a.json")
    with pytest.raises(BadArgument, match="nothing to compare"):
        compare.files(a, recording(tmp_path / "b.json", names=("vector_add",)))
    with pytest.raises(BadArgument, match="is not a file"):
        compare.files(a, tmp_path / "none.json")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(BadArgument, match="not a results file"):
        compare.files(a, tmp_path / "odd.json")


def test_the_command(tmp_path, capsys):
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", scale=1.25)
    assert cli.main(["bench", "--compare", str(a), str(b)]) == 0
    assert "0.800" in capsys.readouterr().out
    assert cli.main(["bench", "--compare", str(a), str(b), "--fail-below", "0.9"]) == 1
    assert cli.main(["bench", "--compare", str(b), str(a), "--fail-below", "0.9"]) == 0
    for bad in (["--fail-below", "0.9"], [], ["--out", "x.json", "--only", "gem"]):
        assert cli.main(["bench", *bad]) == 2


# --- README


def test_readme_is_up_to_date_with_the_results():
    text = (ROOT / "README.md").read_text()
    shown = text.split(readme.BEGIN)[1].split(readme.END)[0].strip()
    assert shown == readme.text(ROOT), "run: labkit bench --readme"
    found = results.recorded(readme.GPU)
    picture = readme.plot(found.measurements, found.gpu, found.date).svg
    assert (ROOT / readme.PLOT).read_text() == picture + "\n", "run: labkit bench --readme"


def test_readme_is_written_between_its_marks(tmp_path):
    (tmp_path / "README.md").write_text(f"before\n{readme.BEGIN}\nwhat was\n{readme.END}\nafter\n")
    readme.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "what was" not in text
    assert (tmp_path / readme.PLOT).read_text().startswith("<svg")
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(BadArgument, match="with its marks"):
        readme.write(tmp_path)


def test_only_others_count_in_every_table(tmp_path):
    path = recording(tmp_path / "a.json")
    m = results.load(path).measurements[0]
    simpler = results.Measurement(**{**m.as_dict(), "baselines": {"a block a tile": 0.5,
                                                                  "cuBLAS": 0.9}})
    (row,) = readme.rows([simpler])
    assert row.fastest == [("cuBLAS", 0.9)] and row.mean == pytest.approx(0.9)
    report = Report(tmp_path / "r.json", "gpu", False, {})
    data = json.loads(path.read_text()) | {"measurements": [simpler.as_dict()]}
    report.take_up(data)
    assert report.table().rows[0][5:7] == ["0.900", "cuBLAS"]
    recorded = results.Recording("", "", {}, {}, [simpler])
    assert reference._figures(recorded, simpler.name)[2] == "0.90"
    assert readme.rows([results.Measurement(**{**m.as_dict(), "baselines": {}})]) == []


@pytest.mark.gpu
def test_on_a_gpu(cuda, tmp_path):
    code, said = run(tmp_path / "x.json", ["vector_add", "gemm", "cost_import"], quick=True, jobs=2)
    assert code == 0, said
    found = results.load(tmp_path / "x.json")
    assert {m.name for m in found.measurements} == {"vector_add", "gemm"}
    assert found.gpu == cuda.cuda.get_device_name() and found.floors["copy_gb_s"] > 50
    assert all(m.error is not None and m.baselines for m in found.measurements)


def test_what_learning_costs_is_in_readme_where_it_was_measured(monkeypatch, tmp_path):
    cost = {"name": "cost_autotune", "seconds": 41.6, "limit": 60.0, "note": "36 schedules timed",
            "cores": 16, "date": "2026-01-02"}
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert readme._costs({"gpu": "NVIDIA Test", "costs": []}) == ""
    shown = readme._costs({"gpu": "NVIDIA Test", "costs": [cost]})
    assert "42 s, limit 60 s (NVIDIA Test, 2026-01-02; 36 schedules timed)" in shown
    (tmp_path / "cpu-costs.json").write_text(json.dumps({
        "costs": [{**cost, "name": "cost_import", "seconds": 0.0432, "limit": 0.3, "cores": 2}]}))
    shown = readme._costs({"gpu": "NVIDIA Test", "costs": [cost]})
    assert "`import labkit`: 43.2 ms, limit 0.30 s (2 cores, no GPU, 2026-01-02" in shown
