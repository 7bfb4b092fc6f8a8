"""Breaks a lesson's kernels one after the other in one session, as a learner edits a cell and runs
those below it again, and says how each attempt ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

SECONDS = 300  # of one cell


def attempts(path: Path, broken: Sequence[tuple[str, str, str]], folder: Path) -> dict[str, Any]:
    """What is broken -> (name of the error, its text), or None where the lesson ran through.

    path: the lesson. broken: (what, old, new) each, where `old` stands once in exactly one kernel
    cell. folder: where the lesson runs. Cells above the broken one run once, unbroken; those below
    run until one fails. A kernel that dies is that attempt's error, and the others get a new one.
    """
    names = [what for what, *_ in broken]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"MUTATIONS, {path.stem}: give each a name of its own: {twice}"
    places: dict[int, list[tuple[str, str]]] = {}
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for what, old, new in broken:
        fits = [n for n, cell in enumerate(cells)
                if "kernel" in cell.metadata.get("tags", []) and cell.source.count(old) == 1]
        assert len(fits) == 1, (f"MUTATIONS, {path.stem}, {what}: {old!r} stands once in "
                                f"{len(fits)} of the lesson's kernel cells; choose a text that "
                                "does in one")
        places.setdefault(fits[0], []).append((what, cells[fits[0]].source.replace(old, new)))
    found: dict[str, Any] = {}
    while left := {n: [one for one in sources if one[0] not in found]
                   for n, sources in places.items() if {one[0] for one in sources} - set(found)}:
        _session(cells, left, folder, found)
    return found


def _session(cells: Sequence[Any], places: dict[int, list[tuple[str, str]]], folder: Path,
             found: dict[str, Any]) -> None:
    """One kernel, until it dies or all is tried."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=SECONDS, kernel_name="python3",
                            resources={"metadata": {"path": str(folder)}})

    def run(source: str) -> None:
        client.nb.cells = [nbformat.v4.new_code_cell(source)]
        client.execute_cell(client.nb.cells[0], 0)

    with client.setup_kernel():
        for place in range(max(places) + 1):
            for what, source in places.get(place, []):
                try:
                    run(source)
                    for cell in cells[place + 1:]:
                        run(cell.source)
                    found[what] = None
                except CellExecutionError as error:
                    found[what] = error.ename, error.evalue
                except (CellTimeoutError, DeadKernelError) as error:
                    found[what] = type(error).__name__, str(error)
                    return
            run(cells[place].source)
            if "parameters" in cells[place].metadata.get("tags", []):
                run('device = "cpu"')
