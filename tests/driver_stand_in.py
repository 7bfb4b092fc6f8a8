"""Builds a libcuda.so.1 that lets cuDNN compile kernels on a machine without an NVIDIA driver.

    python tests/driver_stand_in.py FOLDER      then: LD_LIBRARY_PATH=FOLDER python -m pytest …

cuDNN looks for the driver's library before it compiles a kernel, and asks it for nothing that a
GPU would have to answer until a plan is run. So a library will do that has the functions by name:
those that load code and set attributes succeed, all others say that there is no device. Nothing
can be run with it. It refuses to be built where there is a driver: beside a real one it would hide
the GPU, and with the real one cuDNN 9.19 crashed over the description of another GPU.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

_NAME = re.compile(rb"\0(cu[A-Z][A-Za-z0-9_]{3,60})(?=\0)")
_NO_DEVICE = "(void) { return 100; }"  # CUDA_ERROR_NO_DEVICE
_DONE = "(void) { return 0; }"
_HANDLE = "(void **handle) { if (handle) *handle = (void *)4096; return 0; }"
_TEXT = '(int error, const char **text) { if (text) *text = "no driver"; return 0; }'


def _number(value: int) -> str:
    return f"(int *number) {{ if (number) *number = {value}; return 0; }}"


ANSWERS = {
    **dict.fromkeys(["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction",
                     "cuLibraryGetModule", "cuModuleLoadData", "cuModuleLoadDataEx",
                     "cuModuleGetFunction"], _HANDLE),
    **dict.fromkeys(["cuInit", "cuLibraryUnload", "cuModuleUnload", "cuFuncSetAttribute",
                     "cuKernelSetAttribute", "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col"],
                    _DONE),
    **dict.fromkeys(["cuFuncGetAttribute", "cuKernelGetAttribute"], _number(64)),
    **dict.fromkeys(["cuOccupancyMaxActiveBlocksPerMultiprocessor",
                     "cuOccupancyMaxActiveClusters"], _number(1)),
    "cuDriverGetVersion": _number(13000),
    **dict.fromkeys(["cuGetErrorString", "cuGetErrorName"], _TEXT),
}


def asked(folder: Path) -> set[str]:
    """The driver's functions that the libraries in `folder` name."""
    return {name.decode() for file in sorted(folder.glob("*.so*"))
            for name in _NAME.findall(file.read_bytes())}


def source(names: set[str]) -> str:
    """A C file that defines `names`, and those of `ANSWERS`."""
    return "".join(f"int {name}{ANSWERS.get(name, _NO_DEVICE)}\n"
                   for name in sorted(names | set(ANSWERS)))


def build(folder: Path, libcudnn: Path) -> Path:
    """Writes `folder`/libcuda.so.1 for the libcudnn in the folder `libcudnn`; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libcuda.c").write_text(source(asked(libcudnn)))
    made = folder / "libcuda.so.1"
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    subprocess.run([compiler or "cc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o",
                    str(made), str(folder / "libcuda.c")], check=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    if Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists():
        return _refused("This machine has an NVIDIA driver, and plans for other GPUs are not "
                        "listed beside one; run this on a machine without a GPU.")
    wheel = find_spec("nvidia.cudnn") if find_spec("nvidia") else None
    if wheel is None or not wheel.submodule_search_locations:
        return _refused('There is no libcudnn here; pip install "labkit[deviceless]".')
    print(build(folder, Path(wheel.submodule_search_locations[0]) / "lib"))
    return 0


def _refused(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
