"""What labkit requires, read from its own list of dependencies: versions stand there alone."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from labkit.errors import LabError
from labkit.probes import installed

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def _declared() -> tuple[list[str], str]:
    """The requirement lines and the Pythons of the installed labkit, else of its checkout."""
    try:
        lines = metadata.requires("labkit")
        if lines:
            return lines, metadata.metadata("labkit")["Requires-Python"] or ""
    except metadata.PackageNotFoundError:
        if PYPROJECT.exists():
            project = tomllib.loads(PYPROJECT.read_text())["project"]
            return project["dependencies"], project["requires-python"]
    raise LabError("labkit is installed without its list of requirements; reinstall it with pip.")


def pythons() -> SpecifierSet:
    """The versions of Python that labkit takes. Raises LabError if nothing says."""
    return SpecifierSet(_declared()[1])


def packages() -> dict[str, SpecifierSet]:
    """The packages that labkit requires, and their versions. Raises LabError if nothing says."""
    return select(_declared()[0])


def select(lines: list[str]) -> dict[str, SpecifierSet]:
    """The packages of requirement lines that hold here, without extras, and their versions."""
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r.specifier for r in parsed
            if r.marker is None or r.marker.evaluate({"extra": ""})}


def text(versions: SpecifierSet) -> str:
    """As in ">=2.11,<2.15": the lower bound first."""
    return ",".join(sorted(map(str, versions), reverse=True))


def status(version: str, versions: SpecifierSet) -> str:
    """How a version fits: "ok", "missing", "too old", or "broken" if it is too new."""
    if not version:
        return "missing"
    if versions.contains(version, prereleases=True):
        return "ok"
    lowest = [Version(v.version.removesuffix(".*")) for v in versions
              if v.operator in (">=", ">", "==", "~=")]
    return "too old" if any(Version(version) < low for low in lowest) else "broken"


def look(package: str, versions: SpecifierSet) -> tuple[str, str]:
    """The status of a pip package, and what was found of it."""
    version = installed(package)
    state = status(version, versions)
    return state, (f"{version}, newer than the kit allows" if state == "broken"
                   else version or "not installed")
