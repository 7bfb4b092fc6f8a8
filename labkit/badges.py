"""Writes the setup cell and the badge into every lesson and the README, and checks that they agree.

    labkit badges --repo OWNER/NAME [--branch BRANCH]
    labkit badges --unstamped        the same cell, without an address
    labkit badges --check

The address stands in the README, between two comments; lessons are compared with it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from labkit import lessons, setup_cell
from labkit.errors import BadArgument, LabError
from labkit.setup_cell import Address

BEGIN, END = "<!-- labkit badges writes from here -->", "<!-- to here -->"
_BLOCK = re.compile(re.escape(BEGIN) + r"\n(.*?)" + re.escape(END), re.S)
_KIT = re.compile(r'labkit @ git\+https://github\.com/([^@\s"]+)@([^\s"`]+)')


def checkout() -> Path:
    """The repository's folder: the lessons' parent. Raises BadArgument outside a checkout."""
    root = lessons.directory().resolve().parent
    if not (root / "README.md").is_file() or not (root / "notebooks").is_dir():
        raise BadArgument(f"{root} is not a checkout of the kit: it lacks README.md or notebooks; "
                          "call this in one.")
    return root


def stamp(address: Address | None, root: Path) -> list[Path]:
    """Writes `address`, or with None the form without one, into the lessons and the README of the
    checkout `root`. Outputs stay as they are. Returns the files that changed. Raises LabError for
    a README without the two comments, before anything is written."""
    texts = {root / "README.md": _readme(root, address)}
    for lesson in lessons.all_lessons(root / "notebooks"):
        texts[lesson.path] = stamped(lesson, address)
    changed = [path for path, text in texts.items() if path.read_text() != text]
    for path in changed:
        path.write_text(texts[path])
    return changed


def stamped_address(root: Path) -> Address | None:
    """The address in the README; None if there is none. Raises LabError for a README without the
    two comments."""
    found = _KIT.search(_block(root)[1])
    return Address(found[1], found[2]) if found else None


def problems(root: Path) -> list[str]:
    """What disagrees with the README's address, a sentence a file; empty if nothing does."""
    address = stamped_address(root)
    wanted = address.kit if address else "no address"
    wrong = []
    if (root / "README.md").read_text() != _readme(root, address):
        wrong.append("README.md: the lines between its two comments are not those that "
                     f"`labkit badges` writes for {wanted}.")
    for lesson in lessons.all_lessons(root / "notebooks"):
        notebook = json.loads(lesson.path.read_text())
        path = f"notebooks/{lesson.path.name}"
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        first = code[0] if code else {"id": "", "source": [], "metadata": {}}
        title = "".join(notebook["cells"][0]["source"])
        if first["id"] != setup_cell.CELL_ID or "setup" not in first["metadata"].get("tags", []):
            wrong.append(f"{path}: its first code cell is not the setup cell.")
        elif "".join(first["source"]) != setup_cell.text(address):
            wrong.append(f"{path}: its setup cell is not the one for {wanted}.")
        if title != setup_cell.with_badge(title, address, path):
            wrong.append(f"{path}: its badge is not the one for this file and {wanted}.")
    return wrong


def _block(root: Path) -> tuple[str, str]:
    """The README's text, and what stands between its two comments."""
    text = (root / "README.md").read_text()
    found = _BLOCK.findall(text)
    if len(found) != 1:
        raise LabError(f"README.md holds {len(found)} places between {BEGIN} and {END}, where one "
                       "belongs; restore it from the repository.")
    return text, found[0]


def _readme(root: Path, address: Address | None) -> str:
    """The README's text with the badges and the install command of `address`."""
    text, _ = _block(root)
    block = f"{BEGIN}\n"
    if address:
        names = [lesson.path.name for lesson in lessons.all_lessons(root / "notebooks")]
        first, *others = [(name[:2], address.badge(f"notebooks/{name}")) for name in names]
        links = " ".join(f"[{number}]({badge.rpartition('](')[2]}" for number, badge in others)
        block += (f"{first[1]} lesson {first[0]}; the others: {links}\n\n"
                  f'With pip: `pip install "{address.kit}"`\n')
    return _BLOCK.sub(lambda _: block + END, text)


def stamped(lesson: lessons.Lesson, address: Address | None) -> str:
    """The text of a lesson's file with the setup cell first among its code cells."""
    notebook = json.loads(lesson.path.read_text())
    cells = notebook["cells"]
    title = cells[0]
    title["source"] = _lines(setup_cell.with_badge("".join(title["source"]), address,
                                                   f"notebooks/{lesson.path.name}"))
    source = _lines(setup_cell.text(address))
    ours = [cell for cell in cells if cell["id"] == setup_cell.CELL_ID]
    if ours:
        ours[0]["source"] = source
    else:
        place = next(n for n, cell in enumerate(cells) if cell["cell_type"] == "code")
        _retag(cells[place])
        cells.insert(place, {"cell_type": "code", "execution_count": None, "metadata":
                             {"tags": ["setup"]}, "outputs": [], "source": source,
                             "id": setup_cell.CELL_ID})
        _renumber(cells)
    return json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _retag(cell: dict[str, Any]) -> None:
    """The cell that was the first one holds the lesson's own imports."""
    tags = cell["metadata"].get("tags", [])
    cell["metadata"]["tags"] = sorted("imports" if tag == "setup" else tag for tag in tags)


def _renumber(cells: list[dict[str, Any]]) -> None:
    """Execution counts, in order."""
    for count, cell in enumerate((c for c in cells if c["cell_type"] == "code"), 1):
        cell["execution_count"] = count
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = count


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
