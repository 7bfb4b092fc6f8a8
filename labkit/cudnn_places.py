"""The places where a libcudnn can lie, and which of them this process uses."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from types import ModuleType

from labkit.errors import BrokenInstall


def mapped(stem: str) -> dict[Path, str]:
    """The files of this process whose name starts with `stem`: real path -> "" or "(deleted)"."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[5:]
        if path and path[0].rpartition("/")[2].startswith(stem):
            file, _, deleted = path[0].partition(" (deleted)")
            found[Path(file)] = "(deleted)" if " (deleted)" in path[0] else deleted
    return found


def choose(torch: ModuleType | None) -> tuple[Path | None, str]:
    """The folder of the libcudnn to use and which place it is; (None, "") if there is none.
    Raises BrokenInstall if the process holds two already."""
    held = mapped("libcudnn")
    if any(held.values()):
        raise BrokenInstall("libcudnn was replaced on disk while this process holds the old one; "
                            "restart the kernel.")
    folders = {file.parent for file in held}
    if len(folders) > 1:
        raise BrokenInstall(two(folders))
    own = beside(torch)
    if folders:
        (folder,) = folders
        at_torch = any(place.resolve() == folder for place in own)
        return folder, "torch's own copy" if at_torch else "the process, where it was loaded before"
    for origin, places in (("torch's own copy", own), ("pip's wheel", _wheels()),
                           ("conda", _conda()), ("LD_LIBRARY_PATH", search_path())):
        for place in places:
            if (place / "libcudnn.so.9").exists():
                return (place / "libcudnn.so.9").resolve().parent, origin
    try:
        ctypes.CDLL("libcudnn.so.9", mode=ctypes.RTLD_GLOBAL)  # what the linker's cache knows
    except OSError:
        return None, ""
    return next(iter(mapped("libcudnn.so"))).parent, "the system"


def beside(torch: ModuleType | None) -> list[Path]:
    """The folders in which a torch with CUDA brings its libcudnn."""
    if torch is None or not torch.version.cuda:
        return []
    home = Path(torch.__file__).parent
    return [home.parent / "nvidia/cudnn/lib", home / "lib"]


def _wheels() -> list[Path]:
    return [Path(entry, "nvidia/cudnn/lib") for entry in sys.path if entry]


def _conda() -> list[Path]:
    prefix = os.environ.get("CONDA_PREFIX")
    return [Path(prefix, "lib")] if prefix else []


def search_path() -> list[Path]:
    """The folders of LD_LIBRARY_PATH."""
    named = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [Path(folder) for folder in named if folder]


def others(folder: Path | None) -> list[Path]:
    """The folders of LD_LIBRARY_PATH that hold another libcudnn than the chosen one."""
    files = [(place, place / name) for place in search_path()
             for name in ("libcudnn.so.9", "libcudnn.so")]
    return list(dict.fromkeys(place for place, file in files
                              if file.exists() and file.resolve().parent != folder))


def two(folders: set[Path]) -> str:
    """What to tell somebody whose process holds parts of libcudnn from several folders."""
    named = " and ".join(sorted(map(str, folders)))
    hijack = [str(place) for place in search_path() if place.resolve() in folders]
    cure = ("unset LD_LIBRARY_PATH" if hijack else
            "keep one of them, call lab.load_cudnn() before anything imports cudnn")
    return f"This process holds parts of two cuDNNs, from {named}; {cure} and restart the kernel."
