"""What the tests know of single lessons, where a lesson has a file of its own: `cases_NN.py` with
MUTATIONS, KERNELS and PLANTED, as `labkit new` writes it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from labkit import lessons

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def modules() -> dict[str, ModuleType]:
    """Lesson's stem -> its file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_[0-9][0-9].py"))
    return {lessons.find(name[-2:], NOTEBOOKS).stem: import_module(name) for name in names}
