"""The canonical form of a lesson file, and how to bring one into it.

    python tests/notebook_format.py [--execute] [FILE …]     all lessons if no file is named

Canonical: nbformat 4.5 with readable cell ids, one kernelspec, execution counts in order, streams
joined, no stderr (compilers warn only when they compile), no widget state, no metadata beyond
`tags` and `labkit`, and nothing in the outputs that differs from run to run without meaning:
temporary paths, addresses, clock times.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parent.parent
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
NOISE = [
    (re.compile(r"/tmp/ipykernel_\d+/\d+\.py"), "cell.py"),
    (re.compile(r"^\[\d\d:\d\d:\d\d\] : ", re.M), ""),
    (re.compile(r"\b0x[0-9a-f]{6,}\b"), "0x…"),
]


def canonical(notebook: dict) -> str:
    """The text of the file that `notebook` should be."""
    kept = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"},
            "labkit": notebook["metadata"].get("labkit", {})}
    cells = []
    count = 0
    for cell in notebook["cells"]:
        tags = sorted(cell["metadata"].get("tags", []))
        new = {"cell_type": cell["cell_type"], "id": cell["id"],
               "metadata": {"tags": tags} if tags else {},
               "source": _lines("".join(cell["source"]).strip("\n"))}
        if cell["cell_type"] == "code":
            count += 1
            new["execution_count"] = count
            shown = [o for o in cell["outputs"] if o.get("name") != "stderr"]
            new["outputs"] = [_output(o, count) for o in _joined(shown)]
        cells.append(new)
    document = {"cells": cells, "metadata": kept, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _clean(text: str | list[str]) -> str:
    text = "".join(text)
    for pattern, replacement in NOISE:
        text = pattern.sub(replacement, text)
    return text


def _joined(outputs: list[dict]) -> list[dict]:
    """Consecutive pieces of one stream as one, errors' stream before the other as it came."""
    joined: list[dict] = []
    for output in outputs:
        if (joined and output["output_type"] == "stream" == joined[-1]["output_type"]
                and joined[-1]["name"] == output["name"]):
            joined[-1]["text"] += "".join(output["text"])
        else:
            joined.append(dict(output))
            if output["output_type"] == "stream":
                joined[-1]["text"] = "".join(output["text"])
    return joined


def _output(output: dict, count: int) -> dict:
    kind = output["output_type"]
    if kind == "stream":
        return {"output_type": kind, "name": output["name"], "text": _lines(_clean(output["text"]))}
    if kind == "error":
        return {"output_type": kind, "ename": output["ename"], "evalue": _clean(output["evalue"]),
                "traceback": [_clean(line) for line in output["traceback"]]}
    data = {mime: value if mime.endswith("json") or mime.startswith("image/p")
            else _lines(_clean(value)) for mime, value in output["data"].items()
            if mime != "application/vnd.jupyter.widget-view+json"}
    new = {"output_type": kind, "data": data, "metadata": {}}
    if kind == "execute_result":
        new["execution_count"] = count
    return new


def execute(path: Path) -> nbformat.NotebookNode:
    """Runs the lesson on the CPU in an empty folder, as a newcomer's machine would."""
    import tempfile

    from nbclient import NotebookClient

    os.environ["LABKIT_DEVICE"] = "cpu"
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=300, kernel_name="python3",
                       resources={"metadata": {"path": folder}}).execute()
    return notebook


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--execute", action="store_true", help="run the lessons first")
    options = parser.parse_args()
    for path in options.files or sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = execute(path) if options.execute else nbformat.read(path, as_version=4)
        path.write_text(canonical(notebook))
        print(f"{path.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
