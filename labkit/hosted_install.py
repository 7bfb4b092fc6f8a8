"""What pip adds on a hosted notebook service, beside packages that have to stay as they are."""

from __future__ import annotations

import sys
import tempfile
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from labkit import probes, requirements, toolchain
from labkit.errors import InstallFailed

FRONTEND = "nvidia-cudnn-frontend"
# may be replaced where their version does not fit; everything else stays as it is
OURS = ("tilelang", "apache-tvm-ffi", "z3-solver", "torch-c-dlpack-ext", FRONTEND)
NIGHTLY = "https://tile-ai.github.io/whl/nightly"  # as TileLang's README names it
PIP_TIMEOUT = 600.0  # seconds
_NVCC = ("nvcc.txt", "../constraints/nvcc.txt")  # in the wheel, in a checkout


def versions() -> dict[str, str]:
    """Every installed package and its version."""
    found = {}
    for package in metadata.distributions():
        if package.metadata["Name"]:
            found.setdefault(canonicalize_name(package.metadata["Name"]), package.version)
    return found


def missing() -> list[str]:
    """What has to be installed, as requirements for pip: packages that the kit needs and that are
    not there, TileLang and the cuDNN frontend also where their version is another one. The CUDA
    compiler where there is none; cuda-bindings where a libcudnn is and they are not."""
    wanted = []
    for name, needed in requirements.packages().items():
        status = requirements.look(name, needed)[0]
        if name == "tilelang" and is_nightly():
            continue  # put there because the release does not import
        if status == "missing" or (status != "ok" and name in OURS):
            wanted.append(f"{name}{requirements.text(needed)}")
    if not toolchain.cuda_home()[1]:
        wanted = [line for line in wanted if Requirement(line).name != "tilelang"]
        wanted.append(f"tilelang[nvcc]=={release()}")
    bindings = "" if probes.installed("cuda-bindings") else _bindings()
    return wanted + ([bindings] if bindings else [])


def _bindings() -> str:
    """The cuda-bindings that fit the libcudnn of pip; "" without one. The frontend imports them
    when it plans a matmul, and what else it declares, 190 MB, only Blackwell's kernels need."""
    for major, least in ((13, "13"), (12, "12.8")):
        if probes.installed(f"nvidia-cudnn-cu{major}"):
            return f"cuda-bindings>={least},<{major + 1}"
    return ""


def unfit() -> list[str]:
    """A sentence for each preinstalled package whose version the kit has not been tested with."""
    lines = []
    for name, needed in requirements.packages().items():
        status, found = requirements.look(name, needed)
        if status in ("too old", "broken") and name not in OURS:
            lines.append(f"{name} is {found.partition(',')[0]} here, and the kit is tested with "
                         f"{requirements.text(needed)}; it is left as it is.")
    return lines


def add(wanted: list[str]) -> None:
    """Installs `wanted`; what is installed keeps its version. Raises InstallFailed."""
    alone = [line for line in wanted if Requirement(line).name == FRONTEND]
    others = [line for line in wanted if line not in alone]
    if others:
        _pip(others, keep=True)
    if alone:
        _pip(["--no-deps", *alone])


def nightly() -> None:
    """Installs TileLang's newest nightly build. Raises InstallFailed."""
    # a bound that is a development version lets pip take those of TileLang, and of nothing else
    _pip(["--upgrade", "--find-links", NIGHTLY, f"tilelang>={release()}.dev0"], keep=True)


def release() -> str:
    """The version of TileLang that the kit is made for."""
    return next(iter(requirements.packages()["tilelang"])).version


def is_nightly() -> bool:
    """Whether the TileLang that is installed is a nightly build."""
    version = probes.installed("tilelang")
    return bool(version) and Version(version).is_devrelease


def import_error(module: str) -> str:
    """Why `import module` fails in another process; "" if it does not. A crash there is a line
    here, not the end of this session."""
    done = probes.run([sys.executable, "-c", f"import {module}"], probes.IMPORT_TIMEOUT)
    return "" if done.code == 0 else done.reason


def changed(before: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Package -> its version before ("" if it was not there) and now, where they differ."""
    return {name: (before.get(name, ""), new) for name, new in sorted(versions().items())
            if before.get(name, "") != new}


def imported(packages: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Those of `packages` of which this process has imported a module."""
    held: dict[str, tuple[str, str]] = {}
    if not packages:
        return held
    owners = metadata.packages_distributions()
    for module in {name.partition(".")[0] for name in sys.modules}:
        for owner in owners.get(module, []):
            if canonicalize_name(owner) in packages:
                held[canonicalize_name(owner)] = packages[canonicalize_name(owner)]
    return held


def _pip(arguments: list[str], keep: bool = False) -> None:
    """Runs `pip install`; with `keep` no installed package but OURS may change."""
    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        options = []
        if keep:
            file = Path(scratch, "installed.txt")
            file.write_text("".join(f"{line}\n" for line in _kept()))
            options = ["--constraint", str(file)]
        # without --no-compile pip compiles every file of what it adds, imported or not
        done = probes.run([sys.executable, "-m", "pip", "install", "--no-compile",
                           "--progress-bar=off", "--disable-pip-version-check", *options,
                           *arguments], PIP_TIMEOUT)
    if done.code != 0:
        conflict = done.output.partition("The conflict is caused by:")[2].partition("\n\n")[0]
        said = f"{done.errors.strip()}{conflict}".strip() or done.reason
        raise InstallFailed(f"pip could not install {' '.join(arguments)} beside what is "
                            f"preinstalled here:\n{said}\nStart a new session, or report this with "
                            "the lines above.")


def _kept() -> list[str]:
    """A line of constraints for each installed package that has to stay, and for those parts of
    the CUDA compiler that are not there: they must be of one release."""
    here = Path(__file__).resolve().parent
    parts = next(file for file in (here / name for name in _NVCC) if file.exists())
    lines = [line for line in parts.read_text().splitlines()
             if line and not line.startswith("#")
             and not probes.installed(Requirement(line).name)]
    for name, version in versions().items():
        try:
            Version(version)
        except InvalidVersion:
            continue  # pip cannot express it, nor replace it by a range
        if name not in OURS and name != "labkit":
            lines.append(f"{name}=={version}")
    return lines
