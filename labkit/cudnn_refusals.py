"""What must not pass when libcudnn is loaded, and the command that mends each.

A part that is missing, parts of two releases, two cuDNNs in one process, one that is not torch's:
each raises BrokenInstall. `labkit.cudnn_loader` asks these in its order.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import ModuleType

from labkit.cudnn_places import mapped, two
from labkit.errors import BrokenInstall, first_line
from labkit.requirements import packages, text

TENSOR_IR = "libcudnn_engines_tensor_ir"
RESTART = "and restart the kernel"


def refuse_hole(folder: Path) -> None:
    """9.20.0 of CUDA 13 asks for a part that its wheel lacks; any libcudnn of the system then
    supplies it from another release."""
    graph = folder / "libcudnn_graph.so.9"
    if graph.exists() and not any(folder.glob(f"{TENSOR_IR}.so*")) \
            and TENSOR_IR.encode() in graph.read_bytes():
        raise BrokenInstall(f"The libcudnn in {folder} asks for {TENSOR_IR}.so.9 and does not "
                            "bring it, as the wheel 9.20.0.48 does, which torch 2.12 installs; "
                            "a part of another release would take its place. pip install "
                            f'"torch==2.11.*" {RESTART}.')


def refuse_patchwork(library: ctypes.CDLL, folder: Path, version: str, major: int) -> None:
    """Asks each part whether it fits the others, as cuDNN does when it first needs it."""
    for part in ("Graph", "Ops", "Cnn", "Adv"):
        if getattr(library, f"cudnn{part}VersionCheck")() != 0:
            raise BrokenInstall(f"The parts of libcudnn {version} in {folder} are of different "
                                f"releases (cudnn{part}VersionCheck says so). "
                                f"{reinstall(folder, major)}")


def refuse_two(folder: Path) -> None:
    folders = {file.parent for file in mapped("libcudnn")}
    if folders != {folder}:
        raise BrokenInstall(two(folders | {folder}))


def compare(frontend: ModuleType, torch: ModuleType | None, number: int, version: str) -> None:
    if frontend.backend_version() != number:
        raise BrokenInstall(f"The frontend uses cuDNN {frontend.backend_version()}, and {version} "
                            "is loaded: something imported cudnn before lab.load_cudnn(). Call "
                            "that first, and restart the kernel.")
    if torch is None or not torch.version.cuda:
        return
    try:
        theirs = torch.backends.cudnn.version()
    except RuntimeError as error:
        raise BrokenInstall(f"torch refuses libcudnn {version} ({first_line(error)}); pip install "
                            f"the version that torch names {RESTART}.") from error
    if theirs != number:
        raise BrokenInstall(f"torch uses cuDNN {theirs}, and {version} is loaded; unset "
                            f"LD_LIBRARY_PATH {RESTART}.")


def install_frontend(option: str = "") -> str:
    name = "nvidia-cudnn-frontend"
    return f"pip install {option}--no-deps {name}{text(packages()[name])}"


def nvidia(library: str, major: int) -> str:
    """The pip package of a CUDA library: from CUDA 13 on they have no suffix."""
    return f"nvidia-{library}" + ("" if major >= 13 else f"-cu{major}")


def reinstall(folder: Path, major: int) -> str:
    if folder.parts[-3:] != ("nvidia", "cudnn", "lib"):
        return f"Reinstall the cuDNN in {folder} {RESTART}."
    return (f"The wheels for CUDA 12 and 13 write to the same folder: pip uninstall "
            f"nvidia-cudnn-cu12 nvidia-cudnn-cu13, pip install --force-reinstall "
            f"nvidia-cudnn-cu{major} in the version that torch asks for {RESTART}.")
