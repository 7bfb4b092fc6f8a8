"""Judges what the probes found: for each part whether it serves, and the command that mends it."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from labkit import probes, requirements, toolchain

OLDEST_CAPABILITY = (7, 5)  # T4; the oldest that CUDA 13 compiles for
OLDEST_DRIVER = 525  # CUDA 12
CUDA13_DRIVER = 580
OLDEST_NVCC = Version("12.0")  # C++20, which TileLang's templates need
OLDEST_CUDNN = Version("9.8.0")  # compiles plans for a GPU that is not there
# driver -> the newest CUDA 12 toolkit made for it
TOOLKITS = ((570, "12-8"), (560, "12-6"), (550, "12-4"), (535, "12-2"), (0, "12-0"))
NEW_DRIVER = f"sudo apt-get install nvidia-driver-{CUDA13_DRIVER}"
SAME_DRIVER = f"sudo apt-get install --reinstall nvidia-driver-{CUDA13_DRIVER}"

Verdict = tuple[str, str, str]  # status, found, remedy


@dataclass(frozen=True)
class Item:
    """One part of the environment.

    status: "ok", "missing", "too old", "broken", or "absent" (not there, and not needed here).
    found: its version, or what is wrong. remedy: one shell command that mends it; empty if there
    is nothing to mend. needed: what the kit asks of it. required: whether the lessons need it on
    this machine.
    """

    name: str
    status: str
    found: str
    remedy: str
    needed: str
    required: bool = True

    @property
    def good(self) -> bool:
        return self.status in ("ok", "absent")


@dataclass(frozen=True)
class Seen:
    """What the probes found; each field is the return value of the probe of that name."""

    smi: probes.Smi
    kit: dict[str, dict[str, str]]
    cxx: toolchain.Compiler
    nvcc: toolchain.Compiler
    frontend: str
    cudnn: probes.Cudnn

    @property
    def gpu(self) -> bool:
        """Whether CUDA programs should find a GPU here."""
        return bool((self.smi.gpus and not probes.gpu_hidden()) or self.kit["torch"].get("gpu"))

    @property
    def driver(self) -> int | None:
        """The driver's major version, if one is known."""
        number = re.match(r"\d+", self.smi.driver)
        return int(number[0]) if number else None

    @property
    def old_driver(self) -> bool:
        """Whether the driver is too old for CUDA 13, so that no advice may lead there."""
        return self.driver is not None and self.driver < CUDA13_DRIVER

    @property
    def gpu_unserved(self) -> bool:
        """Whether nvidia-smi fails beside NVIDIA hardware.

        Without such hardware a failing nvidia-smi is only left over from an image.
        """
        failure = self.smi.failure
        return bool(failure) and "No devices" not in failure and probes.nvidia_hardware()


def judge(seen: Seen) -> list[Item]:
    """The parts of the environment, in the order in which to mend them."""
    want = {name: requirements.text(versions)
            for name, versions in requirements.packages().items()}
    driver = Item("driver", *_driver(seen),
                  f"{OLDEST_DRIVER} or newer for CUDA 12, {CUDA13_DRIVER} for CUDA 13")
    torch = Item("torch", *_torch(seen, driver), f"{want['torch']}, and it sees the GPU")
    cxx = Item("C++ compiler", *_cxx(seen), "g++ or clang++: builds the CPU run, serves nvcc")
    nvcc = Item("nvcc", *_nvcc(seen, cxx),
                f"{OLDEST_NVCC} or newer: builds the GPU run, counts registers", seen.gpu)
    tilelang = Item("tilelang", *_tilelang(seen, torch),
                    f"{want['tilelang']}: the kernel language")
    causes = [torch, tilelang, cxx, nvcc] if seen.gpu else [torch, tilelang, cxx]
    return [
        Item("Python", *_python(), requirements.text(requirements.pythons())),
        Item("GPU", *_gpu(seen, driver), "sm_75 or newer; without one the lessons use the CPU"),
        driver, torch, cxx, nvcc, tilelang,
        Item("kernel", *_kernel(seen, causes), "five lines of TileLang give the right numbers"),
        Item("cuDNN frontend", *_frontend(seen),
             f"{want['nvidia-cudnn-frontend']}: builds cuDNN graphs"),
        Item("libcudnn", *_libcudnn(seen, torch),
             f"{OLDEST_CUDNN} or newer: executes cuDNN graphs", seen.gpu),
        Item("Jupyter", *_jupyter(), "runs the lessons"),
    ]


def _look(package: str) -> tuple[str, str]:
    return requirements.look(package, requirements.packages()[package])


def _pin(package: str, extra: str = "") -> str:
    return f'"{package}{extra}{requirements.text(requirements.packages()[package])}"'


def _python() -> Verdict:
    status = requirements.status(platform.python_version(), requirements.pythons())
    remedy = "pip install uv && python -m uv venv --python 3.12 labkit-venv"
    return status, platform.python_version(), "" if status == "ok" else remedy


def _gpu(seen: Seen, driver: Item) -> Verdict:
    names = "; ".join(map(str, seen.smi.gpus))
    if seen.smi.gpus and probes.gpu_hidden():
        return "absent", f"{names}, hidden by CUDA_VISIBLE_DEVICES", "unset CUDA_VISIBLE_DEVICES"
    if seen.smi.gpus:
        known = [tuple(map(int, g.capability.split("."))) for g in seen.smi.gpus if g.capability]
        if known and max(known) < OLDEST_CAPABILITY:
            return "too old", names, 'export CUDA_VISIBLE_DEVICES=""'
        return "ok", names, ""
    if seen.gpu:
        torch = seen.kit["torch"]
        return "ok", f"{probes.Gpu(torch['gpu'], torch['capability'])}, seen by torch alone", ""
    if seen.gpu_unserved:
        return "broken", "its driver does not answer", driver.remedy
    return "absent", "none", ""


def _driver(seen: Seen) -> Verdict:
    smi = seen.smi
    if seen.driver is not None:
        old = seen.driver < OLDEST_DRIVER
        return "too old" if old else "ok", smi.driver, NEW_DRIVER if old else ""
    if "not a valid field" in smi.failure:
        return "too old", "too old to tell the compute capability", NEW_DRIVER
    if seen.gpu_unserved:
        stuck = "no answer" in smi.failure or "mismatch" in smi.failure
        return "broken", f"nvidia-smi: {smi.failure}", "sudo reboot" if stuck else SAME_DRIVER
    if not smi.found and not seen.gpu and probes.nvidia_hardware():
        return "absent", "none for the NVIDIA card of this machine", NEW_DRIVER
    return "absent", f"nvidia-smi: {smi.failure}" if smi.failure else smi.driver or "none", ""


def _install_torch(seen: Seen, instead: bool = False) -> str:
    if seen.old_driver:  # pip's own torch is built for CUDA 13; uv can choose another build
        return ("pip install uv && python -m uv pip install --torch-backend=cu128 "
                f"--reinstall-package torch {_pin('torch')}")
    return f"pip install {'--force-reinstall ' if instead else ''}{_pin('torch')}"


def _torch(seen: Seen, driver: Item) -> Verdict:
    status, found = _look("torch")
    tried = seen.kit["torch"]
    if status != "ok":
        return status, found, _install_torch(seen)
    if "error" in tried:
        return "broken", f"{found} fails: {tried['error']}", _install_torch(seen, instead=True)
    if tried["gpu"] or not seen.gpu:
        return "ok", f"{found}, adds up on the {'GPU' if tried['gpu'] else 'CPU'}", ""
    if not tried["cuda"]:
        return ("broken", f"{found} is built for the CPU alone, beside a GPU",
                _install_torch(seen, instead=True))
    if tried["cuda"].startswith("13") and seen.old_driver:
        why = f"it is built for CUDA {tried['cuda']}, the driver {seen.smi.driver} is older"
        remedy = _install_torch(seen, instead=True)
    elif os.environ.get("CUDA_VISIBLE_DEVICES"):
        why = f"CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']}"
        remedy = "unset CUDA_VISIBLE_DEVICES"
    else:
        why, remedy = tried["warning"] or "it gives no reason", driver.remedy or "sudo reboot"
    return "broken", f"{found} does not see the GPU: {why}", remedy


def _cxx(seen: Seen) -> Verdict:
    cxx = seen.cxx
    if not cxx.origin:
        return "missing", "not found", "sudo apt-get install g++"
    if cxx.failure:
        remedy = "unset CXX" if cxx.origin == "CXX" else "sudo apt-get install --reinstall g++"
        return "broken", f"{cxx.origin}: {cxx.failure}", remedy
    return "ok", cxx.version, ""


def _install_nvcc(seen: Seen) -> str:
    if seen.old_driver:
        toolkit = next(name for driver, name in TOOLKITS if seen.driver >= driver)
        return (f"sudo apt-get install cuda-toolkit-{toolkit} && "
                f"export CUDA_HOME=/usr/local/cuda-{toolkit.replace('-', '.')}")
    pip = f"pip install {_pin('tilelang', '[nvcc]')}"
    if seen.nvcc.origin in ("CUDA_HOME", "CUDA_PATH", "PATH"):  # they go before the pip package
        folder = "python -c 'import nvidia.cu13 as cuda; print(cuda.__path__[0])'"
        return f'{pip} && export CUDA_HOME="$({folder})"'
    return pip


def _nvcc(seen: Seen, cxx: Item) -> Verdict:
    nvcc = seen.nvcc
    if not nvcc.origin:
        return "missing" if seen.gpu else "absent", "not found", _install_nvcc(seen)
    if not nvcc.version:
        variable = nvcc.origin if nvcc.origin.startswith("CUDA_") else ""
        return ("broken", f"{variable or 'nvcc'}: {nvcc.failure}",
                f"unset {variable}" if variable else _install_nvcc(seen))
    if Version(nvcc.version) < OLDEST_NVCC:
        return "too old", nvcc.version, _install_nvcc(seen)
    if seen.old_driver and Version(nvcc.version).major >= 13:
        return ("broken", f"{nvcc.version}, newer than the driver {seen.smi.driver} can run",
                _install_nvcc(seen))
    if not nvcc.failure:
        return "ok", nvcc.version, ""
    found = f"{nvcc.version}: {nvcc.failure}"
    if not cxx.good:
        return "broken", found, cxx.remedy
    if "Unsupported gpu architecture" in nvcc.failure:
        return "too old", found, _install_nvcc(seen)
    if "unsupported GNU version" in nvcc.failure:
        return "broken", found, "export NVCC_PREPEND_FLAGS=-allow-unsupported-compiler"
    return "broken", found, _install_nvcc(seen)


def _ffi() -> SpecifierSet:
    """The apache-tvm-ffi that the installed tilelang asks for; another one kills the process."""
    return requirements.select(metadata.requires("tilelang") or [])["apache-tvm-ffi"]


def _reinstall_tilelang() -> str:  # --no-deps: torch stays as it is
    return (f"pip install --force-reinstall --no-deps {_pin('tilelang')} "
            f'"apache-tvm-ffi{requirements.text(_ffi())}"')


def _tilelang(seen: Seen, torch: Item) -> Verdict:
    status, found = _look("tilelang")
    if status != "ok":
        return status, found, f"pip install {_pin('tilelang')}"
    status, ffi = requirements.look("apache-tvm-ffi", _ffi())
    found += f", apache-tvm-ffi {ffi}"
    if status != "ok":
        return status, found, f'pip install "apache-tvm-ffi{requirements.text(_ffi())}"'
    error = seen.kit["tilelang"].get("error")
    if error:
        return ("broken", f"{found} does not import: {error}",
                _reinstall_tilelang() if torch.good else torch.remedy)
    return "ok", found, ""


def _kernel(seen: Seen, causes: list[Item]) -> Verdict:
    tried = seen.kit["kernel"]
    cause = next((item.remedy for item in causes if not item.good), "")
    if "error" in tried:
        return "broken", tried["error"], cause or _reinstall_tilelang()
    if seen.gpu and tried["device"] != "gpu":
        return "broken", "ran on the CPU, beside a GPU", cause
    return "ok", f"ran on the {tried['device'].upper()}", ""


def _frontend(seen: Seen) -> Verdict:
    package = "nvidia-cudnn-frontend"
    status, found = _look(package)
    if status != "ok":
        return status, found, f"pip install {_pin(package)}"
    if seen.frontend:
        return ("broken", f"{found} does not import: {seen.frontend}",
                f"pip install --force-reinstall --no-deps {_pin(package)}")
    return "ok", found, ""


def _libcudnn(seen: Seen, torch: Item) -> Verdict:
    cudnn = seen.cudnn
    cuda12 = seen.old_driver or seen.kit["torch"].get("cuda", "").startswith("12")
    install = f'pip install "nvidia-cudnn-cu{12 if cuda12 else 13}>=9.21,<10"'
    if not torch.good:
        install = torch.remedy  # torch brings a libcudnn
    if not cudnn.origin:
        return ("missing", "not found", install) if seen.gpu else ("absent", "not found", "")
    if cudnn.failure:
        hijacked = cudnn.origin == "LD_LIBRARY_PATH"
        return ("broken", f"{cudnn.origin}: {cudnn.failure}",
                "unset LD_LIBRARY_PATH" if hijacked else install)
    found = f"{cudnn.version}, from {cudnn.origin}"
    if Version(cudnn.version) < OLDEST_CUDNN:
        return "too old", found, install
    if not cudnn.complete:  # as the wheel 9.20.0.48, which torch 2.12 brings
        return ("broken", f"{found}, lacks libcudnn_engines_tensor_ir",
                install if cuda12 else 'pip install "torch==2.11.*"')
    return "ok", found, ""


def _jupyter() -> Verdict:
    looks = {name: _look(name) for name in ("ipykernel", "ipywidgets", "papermill")}
    bad = {name: status for name, (status, _) in looks.items() if status != "ok"}
    found = ", ".join(f"{name} {found}" for name, (_, found) in looks.items())
    return (next(iter(bad.values()), "ok"), found,
            f"pip install {' '.join(map(_pin, bad))}" if bad else "")
