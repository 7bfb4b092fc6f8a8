"""Finds one consistent libcudnn and loads it before the cuDNN frontend looks for its own.

    lab.load_cudnn()     # then `import cudnn`

libcudnn is a small library that opens its parts (graph, ops, engines, ...) by bare name when they
are first needed, so the parts can come from another folder than the library. And the frontend
looks in LD_LIBRARY_PATH before it takes the copy that torch has loaded. Either way two cuDNNs
meet in one process, and the first graph fails, or worse, does not. So all parts are opened here,
from one folder, by full path, and what is mapped afterwards is compared. The folders, in order:
torch's own, pip's wheels, conda's, LD_LIBRARY_PATH, the system's.
"""

from __future__ import annotations

import ctypes
import glob
import os
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from labkit.cudnn_places import choose, mapped, others, search_path
from labkit.cudnn_refusals import (
    RESTART,
    compare,
    install_frontend,
    nvidia,
    refuse_hole,
    refuse_patchwork,
    refuse_two,
    reinstall,
)
from labkit.errors import BrokenInstall, MissingTool, first_line

CUDART = "CUDNN_FRONTEND_CUDART_LIB_NAME"  # which libcudart the frontend takes, from 1.25 on


@dataclass(frozen=True)
class Cudnn:
    """What `load_cudnn` loaded.

    frontend: version of the Python package. version: of libcudnn, "" where there is none; folder
    and origin: where it lies, and which of the places that is. cuda: the major version of CUDA
    that it was built with. nvrtc, cudart: the files that it will use, "" if none was found.
    notes: what was kept out, and what cannot be done.
    """

    frontend: str
    version: str = ""
    folder: str = ""
    origin: str = ""
    cuda: int = 0
    nvrtc: str = ""
    cudart: str = ""
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Whether there is a libcudnn, so that graphs can be planned."""
        return bool(self.version)

    def __repr__(self) -> str:
        if not self.found:
            return (f"cuDNN frontend {self.frontend}, and no libcudnn here: graphs are built, "
                    "validated and drawn, not planned and not run.")
        lines = [f"cuDNN frontend {self.frontend} with libcudnn {self.version} for CUDA "
                 f"{self.cuda}, from {self.origin}:", f"  {self.folder}"]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


_loaded: Cudnn | None = None


def load_cudnn() -> Cudnn:
    """Loads one libcudnn with all its parts, then the frontend, and says what it took.

    Imports torch first where it is installed, since torch brings the libcudnn that it was built
    for. Sets CUDNN_FRONTEND_CUDART_LIB_NAME to the libcudart in use. A second call returns what
    the first one found. Without a libcudnn the frontend alone is loaded.
    Raises MissingTool without the frontend, and BrokenInstall, with the command that mends it, if
    the process holds two cuDNNs, or if the one that is there lacks a part, is put together from
    two releases or is not the one that torch was built for.
    """
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def _load() -> Cudnn:
    torch = import_module("torch") if find_spec("torch") else None
    if find_spec("cudnn") is None:
        raise MissingTool(f"The cuDNN frontend is not installed; {install_frontend()}.")
    folder, origin = choose(torch)
    if folder is None:
        return Cudnn(frontend=_frontend(others(None)).__version__)
    refuse_hole(folder)
    library = _open(folder / "libcudnn.so.9")
    number, cuda = _number(library, "cudnnGetVersion"), _number(library, "cudnnGetCudartVersion")
    version, major = f"{number // 10000}.{number // 100 % 100}.{number % 100}", cuda // 1000
    nvrtc = _nvrtc(folder, major)
    if not _companion(folder, f"libcublasLt.so.{major}"):
        raise BrokenInstall(f"libcudnn {version} needs libcublasLt.so.{major}, which is not on "
                            "this machine; cuDNN ends the process where it asks for it. "
                            f"pip install {nvidia('cublas', major)} {RESTART}.")
    failed = _open_parts(folder)
    if failed:
        name, reason = next(iter(failed.items()))
        raise BrokenInstall(f"{name} of libcudnn {version} does not load ({reason}). "
                            f"{reinstall(folder, major)}")
    refuse_patchwork(library, folder, version, major)
    cudart = _pin_cudart(torch, major)
    hidden = others(folder)
    frontend = _frontend(hidden)
    refuse_two(folder)
    compare(frontend, torch, number, version)
    notes = [f"kept out: {place}, which LD_LIBRARY_PATH names" for place in hidden]
    if not nvrtc:
        notes.append(f"no libnvrtc.so.{major}: fused matmul and attention graphs cannot be "
                     f"compiled; pip install {nvidia('cuda-nvrtc', major)} {RESTART}")
    return Cudnn(frontend.__version__, version, str(folder), origin, major, nvrtc, cudart,
                 tuple(notes))


# --- opening


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BrokenInstall(f"{file.name} in {file.parent} does not load ({first_line(error)}); "
                            f"reinstall it {RESTART}.") from error


def _open_parts(folder: Path) -> dict[str, str]:
    """Opens every part in `folder`; returns those that do not load, with the reason. A part can
    need another one, so they are tried until none of the rest loads."""
    left, failed = sorted(folder.glob("libcudnn*.so.9")), {}
    while left:
        failed = {}
        for file in left:
            try:
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                failed[file.name] = first_line(error)
        if len(failed) == len(left):
            return failed
        left = [file for file in left if file.name in failed]
    return failed


def _number(library: ctypes.CDLL, function: str) -> int:
    call = getattr(library, function)
    call.restype = ctypes.c_size_t
    return call()


def _companion(folder: Path, name: str) -> str:
    """Opens a CUDA library that cuDNN asks for by name: from the wheels beside it, its own
    folder, or as the linker finds it. Returns the file's name, "" if there is none."""
    wheels = folder.parent.parent
    places = [*(wheels / place for place in ("cu13/lib", "cublas/lib", "cuda_nvrtc/lib")), folder]
    files = [file for place in places for file in sorted(glob.glob(str(place / name)))]
    toolkit = os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    for file in [*files, name, *sorted(glob.glob(f"{toolkit}/lib64/{name}"))]:
        try:
            ctypes.CDLL(file, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue  # the next place
        return Path(file).name
    return ""


def _nvrtc(folder: Path, major: int) -> str:
    """Opens the run-time compiler, its built-in headers first: it opens those by bare name."""
    _companion(folder, f"libnvrtc-builtins.so.{major}.*")
    return _companion(folder, f"libnvrtc.so.{major}")


def _pin_cudart(torch: ModuleType | None, major: int) -> str:
    """Makes the frontend take the libcudart in use: it takes the one of CUDA 12 where it sees
    that of 13 too. A choice that the learner has made stays."""
    chosen = os.environ.get(CUDART)
    if chosen:
        return chosen
    if torch is not None and torch.version.cuda:
        major = int(torch.version.cuda.partition(".")[0])
    name = f"libcudart.so.{major}"
    if any(file.name.startswith(name) for file in mapped("libcudart.so")) or _loads(name):
        os.environ[CUDART] = name
        return name
    return ""


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _frontend(hidden: list[Path]) -> ModuleType:
    """Imports the frontend; while it looks for a libcudnn, LD_LIBRARY_PATH is without `hidden`."""
    before = os.environ.get("LD_LIBRARY_PATH")
    if hidden:
        kept = [place for place in search_path() if place not in hidden]
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, kept))
    try:
        found = import_module("cudnn")
    except Exception as error:
        raise BrokenInstall(f"The cuDNN frontend does not import ({first_line(error)}); "
                            f"{install_frontend('--force-reinstall ')} {RESTART}.") from error
    finally:
        if hidden:
            os.environ["LD_LIBRARY_PATH"] = before
    if not hasattr(found, "pygraph"):
        raise BrokenInstall("The package that `import cudnn` finds is not NVIDIA's frontend; pip "
                            f"uninstall cudnn, {install_frontend()} {RESTART}.")
    return found
