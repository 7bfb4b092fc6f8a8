"""Sets a hosted notebook service up for the lessons: what the setup cell calls in Colab and Kaggle.

They preinstall PyTorch, CUDA and Jupyter in versions that fit one another. So what is there stays
as it is, to the last package: only what the kit needs and is missing is added. What that did is
said, then what the machine can do, and whether the session has to be restarted.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from dataclasses import replace
from importlib import metadata

from packaging.requirements import Requirement

from labkit import hosted_install as install
from labkit.environment import Report, doctor
from labkit.errors import InstallFailed, RestartNeeded
from labkit.verdicts import Item

_MARKS = {"COLAB_RELEASE_TAG": "Colab", "COLAB_GPU": "Colab", "KAGGLE_KERNEL_RUN_TYPE": "Kaggle"}
_WHERE = {"Colab": "Runtime, then Restart session",
          "Kaggle": "Run, then Restart & clear cell outputs"}


def service() -> str:
    """ "Colab" or "Kaggle" if this runs there, else ""."""
    return next((name for mark, name in _MARKS.items() if mark in os.environ), "")


def set_up() -> None:
    """Installs what the lessons need and this service lacks, and shows what the machine can do.

    Off Colab and Kaggle it does nothing. Raises InstallFailed with pip's own reason, and
    RestartNeeded if a package was replaced that this session has imported already.
    """
    where = service()
    if not where:
        return
    start = time.monotonic()
    before = install.versions()
    missing = install.missing()
    if missing:
        names = ", ".join(Requirement(line).name for line in missing)
        print(f"{where}: installing {names} …", flush=True)
        install.add(missing)
    report, note = doctor(), ""
    if _tilelang_fails(report):
        report, note = _nightly(report)
    changed = install.changed(before)
    importlib.invalidate_caches()
    _widgets(where)
    added = [f"{name} {new}" for name, (old, new) in changed.items() if not old]
    print(f"{where} is set up in {time.monotonic() - start:.0f} s. Added: "
          f"{', '.join(added) or 'nothing'}.")
    for line in [*install.unfit(), *([note] if note else [])]:
        print(line)
    _show(report)
    replaced = install.imported({name: pair for name, pair in changed.items() if pair[0]})
    if replaced:
        names = ", ".join(f"{name} {old} by {new}" for name, (old, new) in replaced.items())
        raise RestartNeeded(f"Replaced {names}, and this session holds the old one. Restart it "
                            f"({_WHERE[where]}), then run all cells again.")


def _item(report: Report, name: str) -> Item:
    return next(item for item in report.items if item.name == name)


def _tilelang_fails(report: Report) -> bool:
    """Whether TileLang is there and does not import, while torch works."""
    return _item(report, "torch").good and _item(report, "tilelang").status == "broken"


def _nightly(report: Report) -> tuple[Report, str]:
    """TileLang's nightly build instead of its release: the report with it, and a sentence."""
    release = install.release()
    if install.is_nightly():  # from before a restart
        reason, failure = "", _nightly_fails()
    else:  # the release is there, and fails
        reason, failure = f" ({_item(report, 'tilelang').found})", _install_nightly()
        report = doctor()
    if failure:
        return report, f"TileLang {release} does not import here{reason}, {failure}"
    version = metadata.version("tilelang")
    found = f"{version}, a nightly build: the lessons are tested with {release}"
    items = [replace(item, status="ok", found=found, remedy="") if item.name == "tilelang"
             else item for item in report.items]
    return Report(items), (f"TileLang {release} does not import here; its nightly build {version} "
                           "is used instead.")


def _install_nightly() -> str:
    """Why the nightly build does not serve either, the end of a sentence; "" if it does."""
    try:
        install.nightly()
    except InstallFailed as error:
        return f"and its nightly build cannot be installed: {error}"
    return _nightly_fails()


def _nightly_fails() -> str:
    """The same for the nightly build that is installed."""
    error = install.import_error("tilelang")
    return f"nor does its nightly build {metadata.version('tilelang')} ({error})." if error else ""


def _widgets(where: str) -> None:
    """Colab's own widget manager speaks ipywidgets 7, which it preinstalls. For a newer one, which
    somebody has installed, its other manager is switched on; every widget of the kit carries a
    picture and its words besides, for where neither runs."""
    newer = int(metadata.version("ipywidgets").partition(".")[0]) > 7
    if where == "Colab" and newer:
        from google.colab import output

        output.enable_custom_widget_manager()


def _show(report: Report) -> None:
    """As a table in a notebook, as text elsewhere."""
    if "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None:
        from IPython.display import display

        display(report)
    else:
        print(report)
