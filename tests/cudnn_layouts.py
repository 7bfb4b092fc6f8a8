"""Machines with a cuDNN of any kind, made of small stub libraries, and a process that loads it.

A stub libcudnn.so.9 answers the version calls as the real one does: it opens its parts by bare
name and compares their versions with its own. The frontend is the installed one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("graph", "ops", "cnn", "adv")
_MAIN = r"""
#include <dlfcn.h>
#include <stddef.h>
size_t cudnnGetVersion(void) { return VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDA; }
static int same(const char* name) {
  void* part = dlopen(name, RTLD_NOW);
  int (*version)(void) = part ? (int (*)(void))dlsym(part, "part_version") : NULL;
  return version && version() == VERSION ? 0 : 1001;
}
int cudnnGraphVersionCheck(void) { return same("libcudnn_graph.so.9"); }
int cudnnOpsVersionCheck(void) { return same("libcudnn_ops.so.9"); }
int cudnnCnnVersionCheck(void) { return same("libcudnn_cnn.so.9"); }
int cudnnAdvVersionCheck(void) { return same("libcudnn_adv.so.9"); }
"""
_PART = 'int part_version(void) { return VERSION; } const char* part_text = TEXT;'
_REPORT = """
import json, os, sys, sysconfig
real = sysconfig.get_path
sysconfig.get_path = lambda name, *a, **k: SITE if name == "purelib" else real(name, *a, **k)
import labkit as lab
from labkit.cudnn_places import mapped
said = {"environment": os.environ.get("LD_LIBRARY_PATH")}
try:
    BEFORE
    got = lab.load_cudnn()
    import cudnn
    said.update(vars(got), found=got.found, again=lab.load_cudnn() is got, text=repr(got),
                backend=cudnn.backend_version() if got.found else None)
except lab_errors as error:
    said["error"] = [type(error).__name__, str(error)]
    try:
        lab.load_cudnn()
    except lab_errors as error:
        said["second"] = str(error)
said["kept"] = os.environ.get("LD_LIBRARY_PATH") == said["environment"]
said["pinned"] = os.environ.get("CUDNN_FRONTEND_CUDART_LIB_NAME")
for stem in ("libcudnn", "libnvrtc", "libcublasLt"):
    said[stem] = sorted(map(str, mapped(stem)))
print(json.dumps(said))
""".replace("lab_errors", "__import__('labkit.errors').errors.LabError")


def library(file: Path, source: str = _PART, **macros: object) -> Path:
    """Compiles a shared library called `file`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    values = {"VERSION": 0, "TEXT": '""', **macros}
    defines = [f"-D{name}={value}" for name, value in values.items()]
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{file.name}", *defines, "-x", "c",
                    "-", "-o", str(file), "-ldl"], input=source, text=True, check=True)
    return file


def cudnn(folder: Path, number: int = 91900, cuda: int = 13000, parts: dict | None = None,
          graph_names: str = "") -> Path:
    """A libcudnn in `folder`. parts: part -> version, where it is not `number`. graph_names: a
    library's name that the graph part mentions."""
    library(folder / "libcudnn.so.9", _MAIN, VERSION=number, CUDA=cuda)
    for part in PARTS:
        library(folder / f"libcudnn_{part}.so.9", VERSION=(parts or {}).get(part, number),
                TEXT=f'"{graph_names if part == "graph" else ""}"')
    return folder


class Box:
    """A Python of its own: one site folder with the frontend, and nothing of the machine's."""

    def __init__(self, folder: Path) -> None:
        self.site, self.folder, self.variables = folder / "site", folder, {}
        self.site.mkdir()
        for package in ("cudnn", "packaging"):
            (self.site / package).symlink_to(find_spec(package).submodule_search_locations[0])
        self.wheel = self.site / "nvidia/cudnn/lib"

    def cuda_libraries(self, major: int = 13, names=("cublasLt", "nvrtc")) -> None:
        """The libraries that cuDNN asks for, as their wheels unpack."""
        place = self.site / "nvidia/cu13/lib"
        for name in names:
            library(place / f"lib{name}.so.{major}")
        if "nvrtc" in names:
            library(place / f"libnvrtc-builtins.so.{major}.0")

    def torch(self, cuda: str | None = "13.0", version: str = "91900", loads: str = "") -> None:
        """A torch built for `cuda` that opens the library `loads`."""
        (self.site / "torch").mkdir()
        (self.site / "torch/__init__.py").write_text(
            f"import ctypes\nclass version: cuda = {cuda!r}\nclass backends:\n"
            f"    class cudnn:\n        @staticmethod\n        def version(): return {version}\n"
            + (f"ctypes.CDLL({loads!r}, mode=ctypes.RTLD_GLOBAL)\n" if loads else ""))

    def without_frontend(self) -> None:
        (self.site / "cudnn").unlink()

    def load(self, before: str = "pass") -> dict:
        """What `lab.load_cudnn` does in a new process, after the statement `before`."""
        code = _REPORT.replace("SITE", repr(str(self.site))).replace("BEFORE", before)
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{self.site}:{ROOT}",
                     "CUDA_HOME": str(self.folder / "no-toolkit"),
                     **{name: str(value) for name, value in self.variables.items()}}
        done = subprocess.run([sys.executable, "-S", "-c", code], env=variables, text=True,
                              capture_output=True, cwd=self.folder, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def move(self, source: Path, target: Path) -> None:
        shutil.move(source, target)
