"""Listings of cuDNN's plans, made once and shipped: `results/listed-<what>-<name>.json`.

They are asked of descriptions of GPUs, so they belong to no GPU and hold no times.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from labkit.errors import LabError
from labkit.results import record_path

Listing = TypeVar("Listing")


def keep(found: Any, kind: str) -> None:
    """Writes `found` beside the file that `$LABKIT_RECORD` names, where that is set."""
    path = record_path(found.name, kind)
    if path is not None:
        content = asdict(found)
        del content["listed_now"]
        path.write_text(json.dumps(content, indent=1) + "\n")


def shipped(path: Path, of: type[Listing], missing: str, what: str, again: str) -> Listing:
    """The listing in `path`. Raises LabError: `missing` if it is not there; if it is damaged, that
    it is not `what`, and how to list it again."""
    if not path.exists():
        raise LabError(missing)
    try:
        found = of(**json.loads(path.read_text()), listed_now=False)
        found.table()
        return found
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
        raise LabError(f"{path.name} is not {what} of labkit ({type(error).__name__}: {error}); "
                       f"list it again with {again}.") from error
