"""Looks at the GPU and the packages; each probe says what it found and judges nothing.

Whatever can crash or hang (an import, a kernel, `nvidia-smi`) runs in a subprocess.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

SMI_TIMEOUT = 20.0  # seconds; an idle host with many GPUs can take ten
IMPORT_TIMEOUT = 60.0
KIT_TIMEOUT = 180.0  # imports from a cold disk, one kernel
GPU_TRACES = ("/dev/nvidia[0-9]*", "/dev/dxg")  # the second one is WSL's
PCI_VENDORS = "/sys/bus/pci/devices/*/vendor"


@dataclass(frozen=True)
class Outcome:
    """How a command ended: `code` is its exit status, None if it was ended after `limit`."""

    code: int | None
    output: str
    errors: str
    limit: float

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if self.code is None:
            return f"no answer within {self.limit:g} s"
        if self.code < 0:
            return f"the process died of {signal.Signals(-self.code).name}"
        if "Traceback" in self.errors:
            return self.errors.strip().splitlines()[-1][:200]
        lines = [line.strip() for line in (self.errors + "\n" + self.output).splitlines()]
        lines = [line for line in lines if line] or [f"exit status {self.code}"]
        telling = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
        return (telling or lines)[0][:200]


def run(command: list[str], limit: float, **options: object) -> Outcome:
    """Runs `command`; ends it and all that it started when `limit` seconds have passed."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace",
                                   start_new_session=True, **options)
    except OSError as error:
        return Outcome(127, "", f"{command[0]}: {error.strerror}", limit)
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.stderr.close()
        with suppress(subprocess.TimeoutExpired):  # inside a driver call a process can outlive that
            process.wait(2)
        return Outcome(None, "", "", limit)
    return Outcome(process.returncode, output, errors, limit)


def installed(package: str) -> str:
    """The installed version of a pip package, or ""."""
    try:
        return metadata.version(package) or ""
    except metadata.PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: str  # "9.0"; "" if unknown
    memory: str = ""

    def __str__(self) -> str:
        sm = f"sm_{self.capability.replace('.', '')}" if self.capability else ""
        return ", ".join(part for part in (self.name, sm, self.memory) if part)


@dataclass(frozen=True)
class Smi:
    """What nvidia-smi says. `failure` is "" if it answered or is not there (`found` is False)."""

    found: bool
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    failure: str = ""


def nvidia_smi() -> Smi:
    """The GPUs and the driver that nvidia-smi lists."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Smi(found=False)
    query = "--query-gpu=name,compute_cap,driver_version,memory.total"
    done = run([program, query, "--format=csv,noheader"], SMI_TIMEOUT)
    rows = [[field.strip() for field in line.rsplit(",", 3)] for line in done.output.splitlines()]
    rows = [row for row in rows if len(row) == 4]
    if done.code != 0 or not rows:
        return Smi(found=True, failure=done.reason)
    numbered = [row[1] if re.fullmatch(r"\d+\.\d+", row[1]) else "" for row in rows]
    gpus = tuple(Gpu(row[0], capability, row[3])
                 for row, capability in zip(rows, numbered, strict=True))
    return Smi(found=True, gpus=gpus, driver=rows[0][2])


def gpu_hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible is not None and visible.split(",")[0].strip() in ("", "-1", "NoDevFiles")


def nvidia_hardware() -> bool:
    """Whether the system shows an NVIDIA device, with or without a driver."""
    if any(glob.glob(pattern) for pattern in GPU_TRACES):
        return True
    return any(Path(path).read_text().strip() == "0x10de" for path in glob.glob(PCI_VENDORS))


_STAGES = ("torch", "tilelang", "kernel")
# TileLang reads a program's source text, so this is written to a real file and run from there.
_KIT = """\
import json, sys, warnings
sys.path.append(sys.argv[1])

def torch_sums():
    import torch
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gpu = torch.cuda.is_available()
    total = torch.ones(8, device="cuda" if gpu else "cpu").sum().item()
    if total != 8:
        raise ArithmeticError(f"the sum of eight ones came out as {total}")
    capability = "%d.%d" % torch.cuda.get_device_capability() if gpu else ""
    return {"cuda": torch.version.cuda or "", "capability": capability,
            "gpu": torch.cuda.get_device_name() if gpu else "",
            "warning": str(caught[0].message) if caught else ""}

def tilelang_imports():
    import tilelang
    return {"version": tilelang.__version__}

def kernel_runs():
    import labkit, torch
    import tilelang.language as T

    @T.prim_func
    def add_one(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as block:
            for i in T.Parallel(128):
                B[block * 128 + i] = A[block * 128 + i] + 1.0

    device = "gpu" if torch.cuda.is_available() else "cpu"
    a = torch.arange(256, dtype=torch.float32, device="cuda" if device == "gpu" else "cpu")
    b = labkit.compile(add_one, out_idx=-1, device=device)(a)
    if not torch.equal(b, a + 1):
        raise ArithmeticError("the kernel's output is wrong")
    return {"device": device}

for stage, work in ("torch", torch_sums), ("tilelang", tilelang_imports), ("kernel", kernel_runs):
    try:
        said = work()
    except BaseException as error:
        reason = (str(error).strip().splitlines() or [""])[-1].strip()
        said = {"error": f"{type(error).__name__}: {reason}"[:200]}
    print("\\n@labkit", json.dumps([stage, said]), flush=True)
"""


def kit() -> dict[str, dict[str, str]]:
    """torch, tilelang and a kernel tried one after another in one process, by stage.

    "torch": cuda, gpu, capability, warning; "tilelang": version; "kernel": device. A stage that
    raised, or that took the process down, has "error"; so have the stages after the latter.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        script = Path(scratch, "labkit_doctor_kernel.py")
        script.write_text(_KIT)
        fresh = {name: scratch for name in ("TILELANG_CACHE_DIR", "LABKIT_CACHE_DIR")}
        done = run([sys.executable, str(script), str(Path(__file__).resolve().parent.parent)],
                   KIT_TIMEOUT, cwd=scratch, env={**os.environ, **fresh})
    said = dict(json.loads(line.removeprefix("@labkit "))
                for line in done.output.splitlines() if line.startswith("@labkit "))
    reason = done.reason
    for stage in _STAGES:
        if stage not in said:
            said[stage] = {"error": reason}
            reason = f"not tried, since {stage} failed"
    return said


def frontend() -> str:
    """ "" if the cuDNN frontend imports, else why not."""
    done = run([sys.executable, "-c", "import cudnn; cudnn.pygraph"], IMPORT_TIMEOUT)
    return "" if done.code == 0 else done.reason


@dataclass(frozen=True)
class Cudnn:
    """libcudnn. `origin`: where it lies ("" if nowhere); `complete`: no part of it is missing."""

    origin: str = ""
    version: str = ""
    complete: bool = True
    failure: str = ""


_CUDNN = """\
import ctypes, pathlib, sys
version = ctypes.CDLL(sys.argv[1]).cudnnGetVersion
version.restype = ctypes.c_size_t
number = version()
maps = pathlib.Path("/proc/self/maps").read_text().split()
folder = next(pathlib.Path(word).parent for word in maps if "/libcudnn.so" in word)
needs = any(b"libcudnn_engines_tensor_ir" in part.read_bytes()
            for part in folder.glob("libcudnn_graph.so.9*"))
has = any(folder.glob("libcudnn_engines_tensor_ir.so*"))
print(number, int(has or not needs))
"""


def libcudnn() -> Cudnn:
    """libcudnn in the order in which the frontend looks for it, its version by calling it."""
    named = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    places = [("LD_LIBRARY_PATH", Path(folder)) for folder in named if folder]
    places += [("pip", Path(folder, "nvidia/cudnn/lib")) for folder in sys.path if folder]
    if os.environ.get("CONDA_PREFIX"):
        places.append(("conda", Path(os.environ["CONDA_PREFIX"], "lib")))
    files = [(origin, folder / "libcudnn.so.9") for origin, folder in places]
    origin, file = next(((origin, str(file)) for origin, file in files if file.exists()),
                        ("system", "libcudnn.so.9"))
    done = run([sys.executable, "-c", _CUDNN, file], IMPORT_TIMEOUT)
    if done.code != 0:
        absent = origin == "system" and f"{file}: cannot open shared object" in done.errors
        return Cudnn() if absent else Cudnn(origin, failure=done.reason)
    number, complete = map(int, done.output.split()[-2:])
    version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return Cudnn(origin, version, bool(complete))
