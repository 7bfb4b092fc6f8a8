"""Reads what happened from an executed copy of a lesson.

Cells are numbered from 0 as in the lesson itself: those that papermill adds do not count.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

_ADDED = {"injected-parameters", "papermill-error-cell-tag"}  # tags of papermill's own cells
UNKNOWN: dict[str, Any] = {"cell": None}


def problem(name: str, message: str, cell: dict[str, Any] | None = None) -> dict[str, Any]:
    """An error as the report holds it; `cell` is from `last_started`."""
    text = message.encode("utf-8", "replace").decode()
    return {"cell": None, **(cell or {}), "name": name,
            "message": text if len(text) <= 2000 else text[:1999] + "…"}


def exit_code(code: int) -> str:
    """A process's exit code as it is shown, as in "signal 9 (SIGKILL, as when memory runs out)"."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
    return f"signal {-code} ({signal.Signals(-code).name}{hint})"


def first_error(notebook: Any) -> dict[str, Any] | None:
    """The first error in an executed notebook, also one that only an Output widget shows."""
    found = []
    cells = _cells(notebook)
    for number, cell in enumerate(cells):
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                found.append((number, output))
    models = notebook.metadata.get("widgets", {}).get(
        "application/vnd.jupyter.widget-state+json", {}).get("state", {})
    for name, model in models.items():
        for output in model.get("state", {}).get("outputs") or []:
            if isinstance(output, dict) and output.get("output_type") == "error":
                found.append((_shown_in(cells, models, name, output), output))
    if not found:
        return None
    number, output = min(found, key=lambda pair: pair[0])
    message = output.get("evalue", "")
    if output["ename"] == "SystemExit" and message in ("", "0"):  # papermill calls this a success
        message = "The lesson ended itself here; the cells after this one did not run."
    place = _place(number, cells[number]) if number < len(cells) else None
    return problem(output["ename"], message, place)


def _shown_in(cells: list, models: dict, name: str, output: dict) -> int:
    """The number of the cell that raised into the Output widget `name`, else of that showing it."""
    raised = re.search(r"In ?\[(\d+)\]", re.sub(r"\x1b\[[\d;]*m", "",
                                                   "\n".join(output.get("traceback", []))))
    shown, around = set(), {name}
    while around:  # the widget, then what contains it, and so on
        shown |= around
        around = {one for one, model in models.items() if one not in shown and any(
            f"IPY_MODEL_{inner}" in (model["state"].get("children") or []) for inner in shown)}
    for number, cell in enumerate(cells):
        if raised and cell.get("execution_count") == int(raised[1]):
            return number
        views = [output.get("data", {}).get("application/vnd.jupyter.widget-view+json", {})
                 for output in cell.get("outputs", [])]
        if not raised and any(view.get("model_id") in shown for view in views):
            return number
    return len(cells)


def _cells(notebook: Any) -> list:
    """The lesson's own cells, numbered as in the source."""
    return [cell for cell in notebook.cells if not _ADDED & set(cell.metadata.get("tags", []))]


def _place(number: int, cell: Any) -> dict[str, Any]:
    return {"cell": number, "cell_id": cell.get("id")}


def last_started(copy: Path) -> dict[str, Any] | None:
    """The cell that ran last; None if none did, `UNKNOWN` if the copy is damaged or too large."""
    from labkit.nbformat_import import nbformat

    try:
        if copy.stat().st_size > 100_000_000:
            return UNKNOWN
        cells = _cells(nbformat.read(copy, as_version=4))
    except FileNotFoundError:
        return None
    except Exception:  # a copy cut off while it was written raises what it likes
        return UNKNOWN
    started = [_place(number, cell) for number, cell in enumerate(cells)
               if cell.metadata.get("papermill", {}).get("start_time")]
    return started[-1] if started else None
