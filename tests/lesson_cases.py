"""What the tests know of single lessons, where a lesson has a file of its own: `cases_NN.py` with
MUTATIONS, KERNELS and PLANTED, as `labkit new` writes it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from labkit import lessons

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"


def modules() -> dict[str, ModuleType]:
    """Lesson's stem -> its file."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("cases_[0-9][0-9].py"))
    return {lessons.find(name[-2:], NOTEBOOKS).stem: import_module(name) for name in names}


def selected(request: Any, test: str, *parameters: str) -> list[tuple[Any, ...]]:
    """The values of these parameters for which `test` runs in this session, so that a fixture
    does no more than it is asked for, as with `pytest -k 18`."""
    items = [item for item in request.session.items if getattr(item, "originalname", "") == test
             and hasattr(item, "callspec")]  # another file may have a test of that name
    return [tuple(item.callspec.params[name] for name in parameters) for item in items
            if set(parameters) <= set(item.callspec.params)]
