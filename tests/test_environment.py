"""The doctor: each bad situation is made for real, then judged by its status and its remedy."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from labkit import environment, probes, requirements, toolchain, verdicts
from labkit.environment import Item, Report
from labkit.errors import LabError

T4 = "Tesla T4, 7.5, 550.54.15, 15360 MiB"
H200 = "NVIDIA H200, 9.0, 580.159.04, 143771 MiB"
TORCH_CPU = {"cuda": "", "gpu": "", "capability": "", "warning": ""}
TORCH_GPU = {"cuda": "13.0", "gpu": "NVIDIA H200", "capability": "9.0", "warning": ""}


def seen(**changes):
    """A machine without a GPU on which all probes are content, with `changes`."""
    kit = {"torch": TORCH_CPU, "tilelang": {"version": "0"}, "kernel": {"device": "cpu"}}
    kit.update(changes.pop("kit", {}))
    well = {"smi": probes.Smi(found=False), "kit": kit, "frontend": "", "cudnn": probes.Cudnn(),
            "cxx": toolchain.Compiler("g++", "g++ 12.2.0"),
            "nvcc": toolchain.Compiler("PATH", "12.8")}
    return verdicts.Seen(**{**well, **changes})


def with_gpu(row=H200, **changes):
    """The same with the GPU of an nvidia-smi row, which torch sees."""
    name, capability, driver, memory = row.split(", ")
    smi = probes.Smi(True, (probes.Gpu(name, capability, memory),), driver)
    kit = {"torch": TORCH_GPU, "kernel": {"device": "gpu"}, **changes.pop("kit", {})}
    cudnn = changes.pop("cudnn", probes.Cudnn("pip", "9.19.0"))
    return seen(smi=smi, kit=kit, cudnn=cudnn, **changes)


def item(machine, name) -> Item:
    items = {item.name: item for item in verdicts.judge(machine)}
    for each in items.values():
        assert each.remedy or each.good, f"{each.name} is {each.status} without a remedy"
        assert "\n" not in each.remedy and "//" not in each.remedy
    return items[name]


@pytest.fixture(autouse=True)
def plain_machine(request, monkeypatch, tmp_path):
    """No hardware and no variables of the machine that runs the tests, but where it is meant."""
    if request.node.name == "test_this_machine_is_ok":
        return
    monkeypatch.setattr(probes, "GPU_TRACES", ())
    monkeypatch.setattr(probes, "PCI_VENDORS", str(tmp_path / "no-pci"))
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "CXX", "CC"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def card(monkeypatch, tmp_path):
    """An NVIDIA device on the PCI bus."""
    (tmp_path / "vendor").write_text("0x10de\n")
    monkeypatch.setattr(probes, "PCI_VENDORS", str(tmp_path / "vendor"))


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """A PATH with nothing on it; call it to put a shell script there."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def add(name, body, folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
        return folder

    return add


@pytest.fixture
def install(monkeypatch, tmp_path):
    """Installs the metadata of a package before all others; with `source`, the package too."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(name, version="", source=None, lines=()):
        if version:
            folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir()
            head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines]
            (folder / "METADATA").write_text("\n".join(head) + "\n")
        if source is not None:
            (tmp_path / f"{name}.py").write_text(source)
            monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return tmp_path

    return add


# the GPU and its driver

@pytest.mark.usefixtures("tools")
def test_no_nvidia_smi():
    machine = seen(smi=probes.nvidia_smi())
    gpu, driver = item(machine, "GPU"), item(machine, "driver")
    assert (gpu.status, gpu.remedy) == ("absent", "")
    assert (driver.status, driver.remedy) == ("absent", "")
    assert Report(verdicts.judge(machine)).ok


@pytest.mark.usefixtures("tools", "card")
def test_no_nvidia_smi_beside_a_card():
    machine = seen(smi=probes.nvidia_smi())
    assert item(machine, "driver").status == "absent"
    assert item(machine, "driver").remedy == "sudo apt-get install nvidia-driver-580"
    assert Report(verdicts.judge(machine)).ok, "a container may see the card of its host"


@pytest.mark.usefixtures("card")
def test_hanging_nvidia_smi(tools, monkeypatch, tmp_path):
    tools("nvidia-smi", f"/bin/sleep 60 & echo $! > {tmp_path}/pid; wait")
    monkeypatch.setattr(probes, "SMI_TIMEOUT", 0.5)
    start = time.monotonic()
    machine = seen(smi=probes.nvidia_smi())
    assert time.monotonic() - start < 5
    assert item(machine, "GPU").status == "broken"
    assert item(machine, "driver").found == "nvidia-smi: no answer within 0.5 s"
    assert item(machine, "driver").remedy == "sudo reboot"
    assert not Report(verdicts.judge(machine)).ok
    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z", "its child lives on"


FAILS = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"


@pytest.mark.parametrize(("says", "status", "remedy"), [
    (FAILS, "broken", "sudo apt-get install --reinstall nvidia-driver-580"),
    (MISMATCH, "broken", "sudo reboot"),
    ("No devices were found", "absent", ""),
    ('Field "compute_cap" is not a valid field to query.', "too old",
     "sudo apt-get install nvidia-driver-580"),
])
@pytest.mark.usefixtures("card")
def test_failing_nvidia_smi(tools, says, status, remedy):
    tools("nvidia-smi", f"echo {shlex.quote(says)}; echo 'NVML library version: 550.90'; exit 9")
    machine = seen(smi=probes.nvidia_smi())
    assert machine.smi.failure == says
    driver = item(machine, "driver")
    assert (driver.status, driver.remedy) == (status, remedy)


def test_failing_nvidia_smi_without_hardware_is_a_machine_without_a_gpu(tools):
    tools("nvidia-smi", f'echo "{FAILS}"; exit 9')
    machine = seen(smi=probes.nvidia_smi())
    assert item(machine, "GPU").status == "absent"
    assert FAILS in item(machine, "driver").found
    assert Report(verdicts.judge(machine)).ok


def test_two_gpus(tools):
    tools("nvidia-smi", f"echo '{H200}'; echo 'NVIDIA GB10, 12.1, 580.159.04, [N/A]'")
    smi = probes.nvidia_smi()
    assert [gpu.capability for gpu in smi.gpus] == ["9.0", "12.1"]
    gpu = item(seen(smi=smi, kit={"torch": TORCH_GPU, "kernel": {"device": "gpu"}}), "GPU")
    assert (gpu.status, gpu.remedy) == ("ok", "")
    assert gpu.found == "NVIDIA H200, sm_90, 143771 MiB; NVIDIA GB10, sm_121, [N/A]"


def test_nvidia_smi_that_prints_nonsense(tools):
    tools("nvidia-smi", "echo hello")
    assert probes.nvidia_smi().failure == "hello"


def test_old_driver(tools):
    tools("nvidia-smi", "echo 'Tesla T4, 7.5, 470.82.01, 15109 MiB'")
    driver = item(seen(smi=probes.nvidia_smi()), "driver")
    assert (driver.status, driver.found) == ("too old", "470.82.01")
    assert driver.remedy == "sudo apt-get install nvidia-driver-580"


def test_old_gpu():
    gpu = item(with_gpu("Tesla P100-PCIE-16GB, 6.0, 580.1, 16384 MiB"), "GPU")
    assert (gpu.status, gpu.remedy) == ("too old", 'export CUDA_VISIBLE_DEVICES=""')


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpu(monkeypatch, value):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    machine = with_gpu(kit={"torch": TORCH_CPU, "kernel": {"device": "cpu"}})
    assert item(machine, "GPU").status == "absent"
    assert item(machine, "GPU").remedy == "unset CUDA_VISIBLE_DEVICES"
    assert item(machine, "torch").status == "ok"
    assert Report(verdicts.judge(machine)).ok


def test_a_driver_before_580_gets_no_advice_that_leads_to_cuda_13():
    bad = with_gpu(T4, nvcc=toolchain.Compiler(), cudnn=probes.Cudnn(),
                   kit={"torch": TORCH_CPU, "kernel": {"device": "cpu"}})
    unlike = with_gpu(T4, nvcc=toolchain.Compiler("PATH", "13.0"),
                      kit={"torch": {**TORCH_CPU, "cuda": "13.0"}, "kernel": {"device": "cpu"}},
                      cudnn=probes.Cudnn("pip", "9.20.0", complete=False))
    for machine in (bad, unlike):
        for name in ("torch", "nvcc", "kernel", "libcudnn"):
            found = item(machine, name)
            assert not found.good
            assert "cu13" not in found.remedy and "[nvcc]" not in found.remedy
            assert "pip install \"torch" not in found.remedy
    assert item(bad, "nvcc").remedy == ("sudo apt-get install cuda-toolkit-12-4 && "
                                        "export CUDA_HOME=/usr/local/cuda-12.4")
    assert "newer than the driver" in item(unlike, "nvcc").found
    assert item(bad, "torch").remedy.startswith(
        "pip install uv && python -m uv pip install --torch-backend=cu128")


# torch

def test_torch_for_the_cpu_beside_a_gpu():
    machine = with_gpu(kit={"torch": TORCH_CPU, "kernel": {"device": "cpu"}})
    torch = item(machine, "torch")
    assert torch.status == "broken" and "built for the CPU alone" in torch.found
    assert torch.remedy == f"pip install --force-reinstall {verdicts._pin('torch')}"
    assert item(machine, "kernel").remedy == torch.remedy
    assert not Report(verdicts.judge(machine)).ok


def test_torch_that_does_not_see_the_gpu(monkeypatch):
    blind = {**TORCH_CPU, "cuda": "12.8", "warning": "CUDA unknown error"}
    machine = with_gpu(kit={"torch": blind, "kernel": {"device": "cpu"}})
    torch = item(machine, "torch")
    assert (torch.status, torch.remedy) == ("broken", "sudo reboot")
    assert torch.found.endswith("does not see the GPU: CUDA unknown error")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert item(machine, "torch").remedy == "unset CUDA_VISIBLE_DEVICES"


def test_torch_sees_a_gpu_that_nvidia_smi_does_not_list():
    machine = seen(kit={"torch": TORCH_GPU, "kernel": {"device": "gpu"}})
    assert item(machine, "GPU").status == "ok"
    assert item(machine, "GPU").found == "NVIDIA H200, sm_90, seen by torch alone"


def test_torch_that_does_not_import(install):
    install("torch", source="raise ImportError('libtorch is torn')")
    machine = seen(kit=probes.kit())
    torch = item(machine, "torch")
    assert torch.status == "broken" and "ImportError: libtorch is torn" in torch.found
    assert torch.remedy == f"pip install --force-reinstall {verdicts._pin('torch')}"
    for name in ("tilelang", "kernel"):
        assert (item(machine, name).status, item(machine, name).remedy) == ("broken", torch.remedy)


# versions

@pytest.mark.parametrize(("package", "version", "name", "status"), [
    ("torch", "2.5.1", "torch", "too old"),
    ("torch", "2.99.0", "torch", "broken"),
    ("tilelang", "0.1.9", "tilelang", "too old"),
    ("nvidia-cudnn-frontend", "1.20.0", "cuDNN frontend", "too old"),
    ("papermill", "2.0.0", "Jupyter", "too old"),
    ("ipywidgets", "99.0", "Jupyter", "broken"),
])
def test_other_versions(install, package, version, name, status):
    install(package, version)
    found = item(seen(), name)
    assert found.status == status and version in found.found
    assert found.remedy == f"pip install {verdicts._pin(package)}"
    assert ("newer than the kit allows" in found.found) == (status == "broken")


def test_nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(requirements, "PYPROJECT", tmp_path / "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text("""[project]
requires-python = ">=3.11"
dependencies = ["torch>=2.11,<2.15", "tilelang==0.1.15", "nvidia-cudnn-frontend==1.32.0",
                "ipykernel>=6.17", "ipywidgets>=7.7,<9", "papermill>=2.7,<3"]
""")
    expected = {
        "torch": 'pip install "torch>=2.11,<2.15"',
        "tilelang": 'pip install "tilelang==0.1.15"',
        "cuDNN frontend": 'pip install "nvidia-cudnn-frontend==1.32.0"',
        "Jupyter": 'pip install "ipykernel>=6.17" "ipywidgets>=7.7,<9" "papermill>=2.7,<3"',
    }
    for name, remedy in expected.items():
        assert (item(seen(), name).status, item(seen(), name).remedy) == ("missing", remedy)
    missing = with_gpu(nvcc=toolchain.Compiler())
    assert item(missing, "nvcc").remedy == 'pip install "tilelang[nvcc]==0.1.15"'


def test_versions_come_from_the_installed_labkit(install):
    install("labkit", "9.0", lines=[
        "Requires-Python: >=3.0", "Requires-Dist: torch>=99", "Requires-Dist: tilelang==9.9",
        "Requires-Dist: jupyterlab>=4; extra == 'lab'"])
    assert requirements.text(requirements.pythons()) == ">=3.0"
    assert {name: str(versions) for name, versions in requirements.packages().items()} == {
        "torch": ">=99", "tilelang": "==9.9"}


def test_labkit_without_requirements(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(requirements, "PYPROJECT", tmp_path / "pyproject.toml")
    with pytest.raises(LabError, match="reinstall it with pip"):
        environment.doctor()


@pytest.mark.parametrize(("version", "status"), [("3.10.12", "too old"), ("3.14.0", "broken")])
def test_other_pythons(monkeypatch, version, status):
    monkeypatch.setattr(platform, "python_version", lambda: version)
    python = item(seen(), "Python")
    assert (python.status, python.found) == (status, version)
    assert python.remedy == "pip install uv && python -m uv venv --python 3.12 labkit-venv"


# tilelang and the kernel

def test_tilelang_that_kills_the_process(install):
    install("tilelang", source="import os; os.abort()")
    machine = seen(kit=probes.kit())
    tilelang, kernel = item(machine, "tilelang"), item(machine, "kernel")
    assert tilelang.status == "broken" and "died of SIGABRT" in tilelang.found
    assert tilelang.remedy == verdicts._reinstall_tilelang()
    assert "--no-deps" in tilelang.remedy and "apache-tvm-ffi>=" in tilelang.remedy
    assert kernel.status == "broken" and kernel.found == "not tried, since tilelang failed"
    assert kernel.remedy == tilelang.remedy
    assert item(machine, "torch").status == "ok"


@pytest.mark.parametrize(("version", "status"), [("0.1.5", "too old"), ("0.1.99", "broken")])
def test_tilelang_beside_another_tvm_ffi(install, version, status):
    wanted = requirements.text(verdicts._ffi())
    install("apache-tvm-ffi", version)
    tilelang = item(seen(), "tilelang")
    assert tilelang.status == status and f"apache-tvm-ffi {version}" in tilelang.found
    assert tilelang.remedy == f'pip install "apache-tvm-ffi{wanted}"'


def test_kernel_that_fails_takes_the_remedy_of_its_cause():
    failed = {"kernel": {"error": "CompileFailed: no"}}
    assert item(seen(kit=failed), "kernel").remedy == verdicts._reinstall_tilelang()
    without = seen(kit=failed, cxx=toolchain.Compiler())
    assert item(without, "kernel").remedy == "sudo apt-get install g++"
    stale = with_gpu(kit=failed, nvcc=toolchain.Compiler("CUDA_HOME", "", "no nvcc in /gone/bin"))
    assert item(stale, "kernel").remedy == "unset CUDA_HOME"


# the C++ compiler

def test_no_cxx(tools):
    cxx = item(seen(cxx=toolchain.cxx()), "C++ compiler")
    assert (cxx.status, cxx.remedy) == ("missing", "sudo apt-get install g++")


def test_cxx_names_nothing(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    cxx = item(seen(cxx=toolchain.cxx()), "C++ compiler")
    assert (cxx.status, cxx.remedy) == ("broken", "unset CXX")
    assert cxx.found == "CXX: no-such-compiler: No such file or directory"


@pytest.mark.parametrize(("body", "found"), [
    ("echo 'sum.cpp:1:10: fatal error: cmath: No such file' >&2; exit 1", "fatal error: cmath"),
    ("exit 0", "cannot open shared object"),
])
def test_cxx_that_does_not_compile(tools, body, found):
    tools("g++", body)
    cxx = item(seen(cxx=toolchain.cxx()), "C++ compiler")
    assert cxx.status == "broken" and found in cxx.found
    assert cxx.remedy == "sudo apt-get install --reinstall g++"


def test_cxx_that_miscompiles(monkeypatch):
    monkeypatch.setattr(toolchain, "_CXX", toolchain._CXX.replace("+=", "-="))
    assert "came out as -10.0" in item(seen(cxx=toolchain.cxx()), "C++ compiler").found


# nvcc

@pytest.fixture
def no_nvcc(tools, monkeypatch):
    monkeypatch.setattr(toolchain, "NVCC_PACKAGE", "labkit-no-such-package")
    monkeypatch.setattr(toolchain, "CUDA_FALLBACKS", ())
    return tools


@pytest.mark.usefixtures("no_nvcc")
def test_no_nvcc():
    nvcc = toolchain.nvcc("")
    assert nvcc == toolchain.Compiler()
    remedy = f"pip install {verdicts._pin('tilelang', '[nvcc]')}"
    alone, beside = item(seen(nvcc=nvcc), "nvcc"), item(with_gpu(nvcc=nvcc), "nvcc")
    assert (alone.status, alone.remedy, alone.required) == ("absent", remedy, False)
    assert (beside.status, beside.remedy, beside.required) == ("missing", remedy, True)


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH"])
def test_stale_cuda_variable(monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(tmp_path / "gone"))
    nvcc = item(with_gpu(nvcc=toolchain.nvcc("9.0")), "nvcc")
    assert (nvcc.status, nvcc.remedy) == ("broken", f"unset {variable}")
    assert nvcc.found == f"{variable}: no nvcc in {tmp_path / 'gone' / 'bin'}"


def fake_nvcc(release, then="exit 0"):
    return (f'if [ "$1" = --version ]; then echo "Cuda compilation tools, release {release}, V1"; '
            f"exit; fi; {then}")


def test_old_nvcc_on_the_path(no_nvcc, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(no_nvcc("nvcc", fake_nvcc("11.5"), tmp_path / "cuda" / "bin")))
    nvcc = item(with_gpu(nvcc=toolchain.nvcc("9.0")), "nvcc")
    assert (nvcc.status, nvcc.found) == ("too old", "11.5")
    assert nvcc.remedy.startswith(f"pip install {verdicts._pin('tilelang', '[nvcc]')} && export "
                                  'CUDA_HOME="$(python -c ')


@pytest.mark.parametrize(("then", "status", "found", "remedy"), [
    ("exit 0", "broken", "its cubin does not hold the kernel", "pip install"),
    ("echo \"nvcc fatal : Unsupported gpu architecture 'compute_120a'\" >&2; exit 1",
     "too old", "compute_120a", "pip install"),
    ("echo 'host_config.h:1: error: -- unsupported GNU version!' >&2; exit 1",
     "broken", "unsupported GNU version",
     "export NVCC_PREPEND_FLAGS=-allow-unsupported-compiler"),
])
def test_nvcc_that_does_not_compile(no_nvcc, monkeypatch, tmp_path, then, status, found, remedy):
    no_nvcc("nvcc", fake_nvcc("12.4", then), tmp_path / "cuda" / "bin")
    monkeypatch.setattr(toolchain, "CUDA_FALLBACKS", (str(tmp_path / "cuda"),))
    probed = toolchain.nvcc("12.0")
    assert (probed.origin, probed.version) == ("fallback", "12.4")
    nvcc = item(with_gpu(nvcc=probed), "nvcc")
    assert nvcc.status == status and found in nvcc.found and nvcc.remedy.startswith(remedy)
    without = item(with_gpu(nvcc=probed, cxx=toolchain.Compiler()), "nvcc")
    assert without.remedy == "sudo apt-get install g++"


def test_nvcc_is_searched_in_the_order_of_tilelang(tools, install, monkeypatch, tmp_path):
    fallback = tools("nvcc", "", tmp_path / "fallback" / "bin").parent
    monkeypatch.setattr(toolchain, "CUDA_FALLBACKS", (str(tmp_path / "gone"), str(fallback)))
    monkeypatch.setattr(toolchain, "NVCC_PACKAGE", "labkit-nvcc")
    assert toolchain.cuda_home() == (fallback, "fallback")
    site = install("labkit-nvcc", "13.0.88")
    (site / "labkit_nvcc-13.0.88.dist-info" / "RECORD").write_text("nvidia/cu13/bin/nvcc,,\n")
    assert toolchain.cuda_home() == (site / "nvidia" / "cu13", "pip")
    on_path = tools("nvcc", "", tmp_path / "toolkit" / "bin")
    monkeypatch.setenv("PATH", str(on_path))
    assert toolchain.cuda_home() == (on_path.parent, "PATH")
    monkeypatch.setenv("CUDA_PATH", "/b")
    assert toolchain.cuda_home() == (Path("/b"), "CUDA_PATH")
    monkeypatch.setenv("CUDA_HOME", "/a")
    assert toolchain.cuda_home() == (Path("/a"), "CUDA_HOME")


def test_tilelang_finds_the_same_cuda():
    program = "import tilelang.env; print(tilelang.env.CUDA_HOME)"
    theirs = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    ours = toolchain.cuda_home()[0]
    assert theirs.stdout.strip() == (str(ours) if ours and ours.exists() else ""), theirs.stderr


# cuDNN

def test_frontend_that_does_not_import(install):
    install("cudnn", source="raise OSError('libcudnn.so: cannot open shared object file')")
    frontend = item(seen(frontend=probes.frontend()), "cuDNN frontend")
    assert frontend.status == "broken" and "OSError: libcudnn.so" in frontend.found
    assert frontend.remedy == ("pip install --force-reinstall --no-deps "
                               f"{verdicts._pin('nvidia-cudnn-frontend')}")


@pytest.fixture
def library(tmp_path):
    """Builds a libcudnn of a version; returns its folder."""

    def build(number, folder=tmp_path / "cudnn", parts=()):
        folder.mkdir(parents=True)
        source = f'extern "C" unsigned long cudnnGetVersion() {{ return {number}; }}'
        subprocess.run(["g++", "-shared", "-x", "c++", "-", "-o", folder / "libcudnn.so.9"],
                       input=source, text=True, check=True)
        for name in parts:
            (folder / name).write_bytes(b"\x7fELF libcudnn_engines_tensor_ir.so.9\0")
        return folder

    return build


GRAPH, TENSOR_IR = "libcudnn_graph.so.9", "libcudnn_engines_tensor_ir.so.9"


@pytest.mark.parametrize(("number", "parts", "status", "found", "remedy"), [
    (91900, [], "ok", "9.19.0", ""),
    (92100, [GRAPH, TENSOR_IR], "ok", "9.21.0", ""),
    (90100, [], "too old", "9.1.0", 'pip install "nvidia-cudnn-cu13>=9.21,<10"'),
    (92000, [GRAPH], "broken", "9.20.0", 'pip install "torch==2.11.*"'),
])
def test_libcudnn(library, monkeypatch, number, parts, status, found, remedy):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library(number, parts=parts)))
    cudnn = item(with_gpu(cudnn=probes.libcudnn()), "libcudnn")
    assert (cudnn.status, cudnn.remedy) == (status, remedy)
    assert cudnn.found.startswith(f"{found}, from LD_LIBRARY_PATH")
    alone = seen(cudnn=probes.libcudnn())
    assert Report(verdicts.judge(alone)).ok, "without a GPU no libcudnn is needed"


def test_libcudnn_from_pip(library, install, monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    library(91900, install("unused") / "nvidia" / "cudnn" / "lib")
    assert probes.libcudnn() == probes.Cudnn("pip", "9.19.0")


def test_libcudnn_that_does_not_load(monkeypatch, tmp_path):
    (tmp_path / "libcudnn.so.9").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    cudnn = item(with_gpu(cudnn=probes.libcudnn()), "libcudnn")
    assert (cudnn.status, cudnn.remedy) == ("broken", "unset LD_LIBRARY_PATH")


def test_no_libcudnn():
    beside = item(with_gpu(cudnn=probes.Cudnn()), "libcudnn")
    assert beside.remedy == 'pip install "nvidia-cudnn-cu13>=9.21,<10"'
    assert (beside.status, beside.required) == ("missing", True)
    torch12 = {"torch": {**TORCH_GPU, "cuda": "12.8"}}
    assert "cu12" in item(with_gpu(cudnn=probes.Cudnn(), kit=torch12), "libcudnn").remedy
    assert item(seen(), "libcudnn").status == "absent"


# the report

def test_report_as_text_json_and_html():
    good = Item("GPU", "ok", "NVIDIA H200", "", "sm_75 or newer")
    bad = Item("C++ compiler", "broken", "<cmath> is gone", "sudo apt-get install g++", "g++")
    spare = Item("nvcc", "too old", "11.5", "pip install x", "12.0", required=False)
    report = Report([good, bad, spare])
    assert not report.ok
    assert Report([good, spare]).ok
    assert Report([good]).verdict == "Ready: the lessons run on the GPU."
    assert Report([spare]).verdict == "Ready: the lessons run on the CPU."

    lines = str(report).splitlines()
    assert lines[0] == "GPU           ok       NVIDIA H200"
    assert lines[1] == "C++ compiler  broken   <cmath> is gone"
    assert lines[3].strip() == "mend:   sudo apt-get install g++"
    assert lines[-1] == "Not ready: C++ compiler. First: sudo apt-get install g++"

    data = json.loads(json.dumps(report.as_dict()))
    assert data["ok"] is False and data["verdict"] == lines[-1]
    assert data["items"][1] == {
        "name": "C++ compiler", "status": "broken", "found": "<cmath> is gone", "needed": "g++",
        "remedy": "sudo apt-get install g++", "required": True}

    page = report._repr_html_()
    assert "&lt;cmath&gt; is gone" in page and "<cmath>" not in page
    assert page.count("<tr") == 3 and page.count("<code") == 2
    assert "<script" not in page and "#" not in page, "colours are the notebook's"


def test_this_machine_is_ok(capfd):
    report = environment.doctor()
    assert report.ok, f"\n{report}"
    assert [item.name for item in report.items] == [
        "Python", "GPU", "driver", "torch", "C++ compiler", "nvcc", "tilelang", "kernel",
        "cuDNN frontend", "libcudnn", "Jupyter"]
    gpu, kernel = report.items[1], report.items[7]
    assert kernel.found == f"ran on the {'GPU' if gpu.status == 'ok' else 'CPU'}"
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("no_nvcc")
def test_a_machine_without_tools():
    report = environment.doctor()
    items = {item.name: item for item in report.items}
    assert items["C++ compiler"].status == "missing"
    assert items["kernel"].status == "broken"
    assert items["kernel"].remedy == "sudo apt-get install g++"
    assert not report.ok
    assert report.verdict.endswith("First: sudo apt-get install g++")


def test_versions_without_importing_anything_heavy():
    program = ("import json, sys, labkit.environment as e; print(json.dumps(e.versions()));"
               "print({'torch', 'tilelang', 'cudnn', 'tvm_ffi'} & set(sys.modules))")
    root = Path(environment.__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True,
                          text=True, check=True, env={**os.environ})
    found, loaded = done.stdout.splitlines()
    assert loaded == "set()"
    assert json.loads(found) == environment.versions()
    assert environment.versions()["python"] == platform.python_version()
    assert environment.versions()["tilelang"] == probes.installed("tilelang")
