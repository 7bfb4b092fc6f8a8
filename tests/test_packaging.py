"""What a newcomer installs: the package's data, the environment file, the README's commands."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA_ONLY = {"python", "pip", "make", "gxx"}


def declared() -> dict[str, Requirement]:
    extras = PROJECT["optional-dependencies"]
    lines = PROJECT["dependencies"] + extras["lab"] + extras["test"]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def in_environment() -> dict[str, Requirement]:
    conda = [line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
    (pip,) = [line["pip"] for line in ENVIRONMENT["dependencies"] if isinstance(line, dict)]
    lines = conda + [line for line in pip if not line.startswith("-")]
    found = [Requirement(line) for line in lines]
    names = [canonicalize_name(r.name) for r in found]
    assert len(set(names)) == len(names), "a package comes from one side only"
    return dict(zip(names, found, strict=True))


def test_environment_file_is_in_step():
    theirs, ours = in_environment(), declared()
    assert set(theirs) - CONDA_ONLY == set(ours)
    for name, requirement in ours.items():
        assert theirs[name].specifier == requirement.specifier, name
    assert theirs["python"].specifier == Requirement("x" + PROJECT["requires-python"]).specifier
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]


def test_kernel_packages_come_from_pip():
    (pip,) = [line["pip"] for line in ENVIRONMENT["dependencies"] if isinstance(line, dict)]
    names = {Requirement(line).name for line in pip if not line.startswith("-")}
    assert names == {"torch", "tilelang", "nvidia-cudnn-frontend"}


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_constraints_fit_the_requirements(kind):
    lines = [line for line in (ROOT / "constraints" / f"{kind}.txt").read_text().splitlines()
             if line and not line.startswith(("#", "--constraint "))]
    pins = {r.name: r for r in map(Requirement, lines)}
    version = next(iter(pins["torch"].specifier)).version
    assert declared()["torch"].specifier.contains(version)


def test_the_compilers_parts_are_of_one_release():
    lines = (ROOT / "constraints" / "nvcc.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len(pins) == 5 and {str(pin.specifier) for pin in pins} == {"==13.0.*"}
    for kind in ("cpu", "gpu"):
        assert "--constraint nvcc.txt" in (ROOT / "constraints" / f"{kind}.txt").read_text()
    (pip,) = [line["pip"] for line in ENVIRONMENT["dependencies"] if isinstance(line, dict)]
    assert "--constraint constraints/nvcc.txt" in pip


def test_version_stands_once():
    import labkit

    assert PROJECT["version"] == labkit.__version__


def test_readme_gives_the_commands_that_exist():
    readme, makefile = (ROOT / "README.md").read_text(), (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert {"setup", "run", "lab", "test"} <= targets
    for target in re.findall(r"\bmake ([a-z-]+)", readme):
        assert target in targets, f"README: make {target}"
    for lesson in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert f"notebooks/{lesson.name}" in readme, (
            f"README's table of the lessons has no link to notebooks/{lesson.name}; add a row")
    assert "make test" in (ROOT / ".ci" / "run").read_text() and "make test" in readme


def test_ci_does_not_skip_the_browser():
    gate = (ROOT / ".ci" / "run").read_text()
    assert "LABKIT_REQUIRE_BROWSER=1" in gate and "chromium" in gate
    (driver,) = map(Requirement, PROJECT["optional-dependencies"]["browser"])
    assert driver.name == "playwright" and "browser" in (ROOT / "Makefile").read_text()


def test_make_refuses_an_old_python_in_one_sentence(tmp_path):
    old = tmp_path / "python3"
    pretend = "import sys; sys.version_info = (3, 9, 1); exec(sys.argv[1])"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{pretend}' \"$2\"\n")
    old.chmod(0o755)
    done = subprocess.run(["make", "setup", f"PYTHON={old}", f"VENV={tmp_path / 'venv'}"], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode and "labkit needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_nothing_names_where_it_was_made():
    """No path of a machine, and no registry's host."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    assert tracked.returncode == 0, "the tests run from a git checkout"
    hosts = [f"{name}.org" for name in ("pypi", "pythonhosted", "download.pytorch", "npmjs")]
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.name in (Path(__file__).name, "test_notebooks.py") or not path.is_file():
            continue
        text = path.read_text(errors="ignore")
        for word in [*hosts, "/root/", "/work/"]:
            assert word not in text, f"{name} names {word}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir",
                    folder, ROOT], check=True)
    return next(folder.glob("labkit-*.whl"))


def test_wheel_carries_lessons_results_and_header(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for lesson in (ROOT / "notebooks").glob("*.ipynb"):
        assert f"labkit/notebooks/{lesson.name}" in names
    assert {"labkit/cpu_runtime.h", "labkit/results/h200.json", "labkit/nvcc.txt"} <= names
    assert not any(name.startswith(("tests/", "runs/")) for name in names)


def test_installed_wheel_works_in_an_empty_folder(wheel, tmp_path):
    """In a virtual environment of its own, with the heavy packages borrowed from this one."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin" / "python"
    site = Path(subprocess.run([python, "-c", "import site; print(site.getsitepackages()[0])"],
                               capture_output=True, text=True, check=True).stdout.strip())
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
                    site, wheel], check=True)
    import torch

    (site / "borrowed.pth").write_text(str(Path(torch.__file__).parent.parent) + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    code = ("import labkit, torch; print(labkit.__file__); "
            "program = labkit.kernel('01', 'vector_add')(100); "
            "add = labkit.compile(program, out_idx=-1, device='cpu'); "
            "a, b = torch.randn(100), torch.randn(100); assert torch.equal(add(a, b), a + b)")
    done = subprocess.run([python, "-c", code], cwd=empty, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(site) in done.stdout
    run = subprocess.run([python, "-m", "labkit", "run", "01", "--device", "cpu"], cwd=empty,
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [path.name for path in empty.iterdir()] == ["runs"]
