"""What the setup cell does in Colab and Kaggle: with pip itself on small wheels made here, and what
set_up says and raises with the installation stood in for. tests/colab_rehearsal.py is the whole."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
import venv
import zipfile
from pathlib import Path

import pip
import pytest
from packaging.utils import canonicalize_name

from labkit import hosted, hosted_install, probes, requirements, setup_cell, toolchain
from labkit.environment import Item, Report
from labkit.errors import InstallFailed, RestartNeeded
from labkit.setup_cell import Address

KIT = Address("owner/name")
MISSING = hosted_install.missing


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch):
    for mark in hosted._MARKS:
        monkeypatch.delenv(mark, raising=False)


@pytest.fixture
def colab(monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_20260819")


# --- the cell


def cell(address, calls=None, found=None, monkeypatch=None, code=0, errors=""):
    """Runs the setup cell with pip and the look for labkit stood in for."""
    def run(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, code, "", errors)

    if monkeypatch:
        monkeypatch.setattr(subprocess, "run", run)
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: found)
    exec(setup_cell.text(address), {})


def test_off_colab_the_cell_does_nothing(tmp_path):
    """In a Python that could not import labkit, nor install it."""
    clean = {name: value for name, value in os.environ.items() if name not in hosted._MARKS}
    done = subprocess.run([sys.executable, "-I", "-S", "-c", setup_cell.text(KIT)], cwd=tmp_path,
                          capture_output=True, text=True, env=clean)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mark", hosted._MARKS)
def test_the_cell_knows_every_service_that_the_kit_knows(mark, monkeypatch):
    monkeypatch.setenv(mark, "1")
    assert hosted.service() in ("Colab", "Kaggle")
    called, calls = [], []
    monkeypatch.setattr(hosted, "set_up", lambda: called.append(1))
    cell(KIT, calls, None, monkeypatch)
    assert calls == [[sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", KIT.kit]]
    assert called == [1]


def test_the_kit_is_installed_once(colab, monkeypatch):
    called, calls = [], []
    monkeypatch.setattr(hosted, "set_up", lambda: called.append(1))
    cell(KIT, calls, object(), monkeypatch)
    assert calls == [] and called == [1]


def test_a_lesson_without_an_address_says_so(colab, monkeypatch):
    with pytest.raises(RuntimeError, match="does not say where the kit is"):
        cell(None, [], None, monkeypatch)


def test_what_pip_says_is_shown(colab, monkeypatch):
    with pytest.raises(RuntimeError, match="could not be installed: Could not resolve host"):
        cell(KIT, [], None, monkeypatch, 1, "Could not resolve host\n")


# --- pip, beside what must stay


def wheel(folder, name, version, needs=(), body=""):
    """A wheel of one module, `name`."""
    info = f"{name}-{version}.dist-info"
    file = folder / f"{name}-{version}-py3-none-any.whl"
    metadata = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", body)
        archive.writestr(f"{info}/METADATA",
                         f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}")
        archive.writestr(f"{info}/WHEEL",
                         "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                         "Tag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A Python of its own with base 1.0, and a shelf of wheels that pip takes for the registry."""
    folder = tmp_path_factory.mktemp("machine")
    shelf, nightly = folder / "shelf", folder / "nightly"
    shelf.mkdir()
    nightly.mkdir()
    wheel(shelf, "base", "1.0")
    wheel(shelf, "base", "2.0")
    wheel(shelf, "extra", "1.0", ["base"])
    wheel(shelf, "extra", "2.0", ["base>=2"])
    wheel(shelf, "ansatz", "1.0")
    wheel(shelf, "ansatz", "1.1.dev1")
    wheel(shelf, "tilelang", "0.1.15", ["ansatz"], "import os; os.abort()")
    wheel(nightly, "tilelang", "0.1.16.dev20261120", ["ansatz"])
    home = folder / "venv"
    venv.create(home)
    site = next(home.glob("lib/python*/site-packages"))
    (site / "pip").symlink_to(Path(pip.__file__).parent)  # unpacking a pip takes ten times as long
    (site / "stays.txt").touch()  # pip removes a folder that holds nothing else
    return home / "bin" / "python", shelf, nightly


@pytest.fixture
def packages(machine, monkeypatch):
    """That machine in the place of this one, freshly with base 1.0; lists its packages."""
    python, shelf, nightly = machine
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(hosted_install, "NIGHTLY", str(nightly))

    def installed():
        listed = subprocess.run([python, "-m", "pip", "list", "--format=json"],
                                capture_output=True, text=True)
        return {canonicalize_name(entry["name"]): entry["version"]
                for entry in json.loads(listed.stdout)
                if entry["name"] not in ("pip", "setuptools")}

    monkeypatch.setattr(hosted_install, "versions", installed)
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "extra", "tilelang", "ansatz",
                    "base", "nvidia-cudnn-frontend"], check=True, capture_output=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "base==1.0"], check=True)
    return installed


def test_what_is_preinstalled_keeps_its_version(packages):
    hosted_install.add(["extra"])
    assert packages() == {"base": "1.0", "extra": "1.0"}  # not 2.0, which would need a newer base


def test_without_a_version_that_fits_nothing_moves_and_pips_reason_is_said(packages):
    with pytest.raises(InstallFailed, match=r"(?s)extra>=2.*base") as raised:
        hosted_install.add(["extra>=2"])
    assert packages() == {"base": "1.0"} and "Start a new session" in str(raised.value)


def test_the_frontend_comes_without_what_it_declares(packages, machine):
    wheel(machine[1], "nvidia_cudnn_frontend", "1.32.0", ["enormous>=1"])
    hosted_install.add(["nvidia-cudnn-frontend==1.32.0"])
    assert packages()["nvidia-cudnn-frontend"] == "1.32.0" and "enormous" not in packages()


def test_a_crash_at_import_is_a_line_and_the_nightly_build_replaces_it(packages):
    hosted_install.add(["tilelang==0.1.15"])
    assert "died of SIGABRT" in hosted_install.import_error("tilelang")
    hosted_install.nightly()
    assert hosted_install.import_error("tilelang") == ""
    # a nightly build of TileLang, and of nothing else
    assert packages() == {"base": "1.0", "tilelang": "0.1.16.dev20261120", "ansatz": "1.0"}


# --- what is missing, what was replaced


@pytest.fixture
def here(monkeypatch):
    """A machine whose packages the test says, with nvcc and without a libcudnn."""
    found = {"torch": "2.11.0+cu128", "numpy": "2.1.3", "cuda-bindings": "12.9.7"}
    monkeypatch.setattr(requirements, "installed", lambda name: found.get(name, ""))
    monkeypatch.setattr(probes, "installed", lambda name: found.get(name, ""))
    monkeypatch.setattr(toolchain, "cuda_home", lambda: (Path("/usr/local/cuda"), "PATH"))
    wanted = {name: versions for name, versions in requirements.packages().items()
              if name in ("torch", "numpy", "tilelang", "nvidia-cudnn-frontend", "papermill")}
    monkeypatch.setattr(requirements, "packages", lambda: wanted)
    return found


def test_only_what_is_not_there_is_asked_for(here):
    assert sorted(hosted_install.missing()) == [
        "nvidia-cudnn-frontend==1.32.0", "papermill>=2.7,<3", "tilelang==0.1.15"]
    here |= {"tilelang": "0.1.15", "nvidia-cudnn-frontend": "1.32.0", "papermill": "2.7.0"}
    assert hosted_install.missing() == []


def test_another_tilelang_is_replaced_and_another_torch_is_not(here):
    here |= {"tilelang": "0.1.11", "torch": "2.10.0+cu128", "nvidia-cudnn-frontend": "1.32.0",
             "papermill": "2.7.0"}
    assert hosted_install.missing() == ["tilelang==0.1.15"]
    assert hosted_install.unfit() == ["torch is 2.10.0+cu128 here, and the kit is tested with "
                                      ">=2.11,<2.15; it is left as it is."]


def test_the_cuda_compiler_comes_where_there_is_none(here, monkeypatch):
    monkeypatch.setattr(toolchain, "cuda_home", lambda: (None, ""))
    assert "tilelang[nvcc]==0.1.15" in hosted_install.missing()
    assert "tilelang==0.1.15" not in hosted_install.missing()


@pytest.mark.parametrize(("cudnn", "wanted"), [
    ("nvidia-cudnn-cu12", "cuda-bindings>=12.8,<13"), ("nvidia-cudnn-cu13",
                                                       "cuda-bindings>=13,<14")])
def test_cuda_bindings_come_beside_a_libcudnn(here, cudnn, wanted):
    del here["cuda-bindings"]
    assert not any("bindings" in line for line in hosted_install.missing())
    here[cudnn] = "9.19.0.56"
    assert hosted_install.missing()[-1] == wanted


def test_the_compilers_parts_are_of_one_release_where_they_are_added(here, monkeypatch):
    monkeypatch.setattr(hosted_install, "versions", lambda: {"numpy": "2.1.3", "odd": "not-a-one"})
    lines = hosted_install._kept()
    assert "nvidia-cuda-nvcc==13.0.*" in lines and "numpy==2.1.3" in lines
    assert not any(line.startswith("odd") for line in lines)
    here["nvidia-cuda-runtime"] = "13.0.96"
    assert not any(line.startswith("nvidia-cuda-runtime") for line in hosted_install._kept())


def test_what_this_session_has_imported():
    pair = ("1", "2")
    assert hosted_install.imported({"packaging": pair, "not-a-package": pair}) == {
        "packaging": pair}


# --- set_up


def report(**states):
    names = ["GPU", "torch", "tilelang", "kernel"]
    return Report([Item(name, *states.get(name, ("ok", "fine")), "", "needed") for name in names])


@pytest.fixture
def stage(monkeypatch):
    """An installation stood in for: `packages` before, `after` what `add` makes of them."""
    stage = types.SimpleNamespace(packages={"torch": "2.11.0"}, after={}, errors=(), calls=[],
                                  wanted=("tilelang==0.1.15",), reports=(report(),), fails="")

    def add(wanted):
        stage.calls.append(("add", list(wanted)))
        stage.packages = {**stage.packages, **stage.after}

    def doctor():
        stage.calls.append(("doctor",))
        stage.reports, found = stage.reports[1:] or stage.reports, stage.reports[0]
        return found

    def nightly():
        stage.calls.append(("nightly",))
        if stage.fails:
            raise InstallFailed(stage.fails)
        stage.packages = {**stage.packages, "tilelang": "0.1.16.dev1"}

    monkeypatch.setattr(hosted_install, "versions", lambda: dict(stage.packages))
    monkeypatch.setattr(hosted_install, "missing", lambda: list(stage.wanted))
    monkeypatch.setattr(hosted_install, "unfit", list)
    monkeypatch.setattr(hosted_install, "add", add)
    monkeypatch.setattr(hosted_install, "nightly", nightly)
    monkeypatch.setattr(hosted_install, "import_error", lambda _: "".join(stage.errors))
    monkeypatch.setattr(probes, "installed", lambda name: stage.packages.get(name, ""))
    monkeypatch.setattr(hosted, "doctor", doctor)
    known = {"ipywidgets": "7.7.1"}
    monkeypatch.setattr(hosted.metadata, "version",
                        lambda name: {**known, **stage.packages}.get(name, ""))
    return stage


def test_elsewhere_set_up_does_nothing(stage, capsys):
    hosted.set_up()
    assert stage.calls == [] and capsys.readouterr().out == ""


def test_it_says_what_it_added_and_what_the_machine_can_do(colab, stage, capsys):
    stage.after = {"tilelang": "0.1.15"}
    hosted.set_up()
    said = capsys.readouterr().out
    assert "Colab: installing tilelang" in said and "Added: tilelang 0.1.15." in said
    assert "Ready: the lessons run on the GPU." in said
    assert stage.calls == [("add", ["tilelang==0.1.15"]), ("doctor",)]


def test_a_second_time_nothing_is_installed(colab, stage, capsys):
    stage.wanted = ()
    hosted.set_up()
    assert stage.calls == [("doctor",)] and "Added: nothing." in capsys.readouterr().out


BROKEN = ("broken", "0.1.15 does not import: the process died of SIGABRT")
NEWER = ("broken", "0.1.16.dev1, newer than the kit allows")


def test_the_nightly_build_serves_where_the_release_does_not_import(colab, stage, capsys):
    stage.after = {"tilelang": "0.1.15"}
    stage.reports = (report(tilelang=BROKEN, kernel=("broken", "not tried")),
                     report(tilelang=NEWER))
    hosted.set_up()
    said = capsys.readouterr().out
    assert stage.calls == [("add", ["tilelang==0.1.15"]), ("doctor",), ("nightly",), ("doctor",)]
    assert "TileLang 0.1.15 does not import here; its nightly build 0.1.16.dev1 is used" in said
    assert "Ready: the lessons run" in said and "tested with 0.1.15" in said


def test_a_nightly_build_from_before_the_restart_stays(colab, stage, capsys, monkeypatch):
    stage.packages["tilelang"], stage.wanted, stage.reports = "0.1.16.dev1", (), (
        report(tilelang=NEWER),)
    hosted.set_up()
    assert stage.calls == [("doctor",)]
    assert "its nightly build 0.1.16.dev1 is used instead" in capsys.readouterr().out
    assert not any(line.startswith("tilelang") for line in MISSING())


@pytest.mark.parametrize(("fails", "says"), [
    ("", "nor does its nightly build 0.1.16.dev1 (also SIGSEGV)."),
    ("no such host", "and its nightly build cannot be installed: no such host"),
])
def test_where_neither_serves_the_report_says_so(colab, stage, capsys, fails, says):
    stage.after, stage.errors, stage.fails = {"tilelang": "0.1.15"}, ("also SIGSEGV",), fails
    stage.reports = (report(tilelang=BROKEN),)
    hosted.set_up()
    said = capsys.readouterr().out
    assert says in said and "SIGABRT" in said and "Not ready: tilelang" in said


def test_a_broken_torch_is_no_reason_for_another_tilelang(colab, stage):
    stage.reports = (report(torch=("broken", "no"), tilelang=BROKEN),)
    hosted.set_up()
    assert ("nightly",) not in stage.calls


@pytest.mark.parametrize(("held", "raises"), [(True, True), (False, False)])
def test_a_restart_is_asked_for_where_a_loaded_package_was_replaced(colab, stage, monkeypatch,
                                                                    held, raises):
    stage.packages = {"torch": "2.11.0", "apache-tvm-ffi": "0.1.13"}
    stage.after = {"apache-tvm-ffi": "0.1.12", "tilelang": "0.1.15"}
    monkeypatch.setattr(hosted_install, "imported", lambda packages: packages if held else {})
    if not raises:
        return hosted.set_up()
    with pytest.raises(RestartNeeded, match=r"Replaced apache-tvm-ffi 0\.1\.13 by 0\.1\.12.*"
                                            r"Restart session\), then run all cells again"):
        hosted.set_up()


@pytest.mark.parametrize(("version", "enabled"), [("7.7.1", 0), ("8.1.9", 1)])
def test_colabs_other_widget_manager_serves_newer_widgets(colab, monkeypatch, version, enabled):
    calls = []
    output = types.SimpleNamespace(enable_custom_widget_manager=lambda: calls.append(1))
    monkeypatch.setitem(sys.modules, "google", types.ModuleType("google"))
    monkeypatch.setitem(sys.modules, "google.colab", types.SimpleNamespace(output=output))
    monkeypatch.setattr(hosted.metadata, "version", lambda _: version)
    hosted._widgets("Colab")
    assert len(calls) == enabled
    hosted._widgets("Kaggle")
    assert len(calls) == enabled
