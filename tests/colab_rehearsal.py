"""Rehearses Colab: a lesson, alone in an empty folder, in Colab's Python packages, top to bottom.

    python tests/colab_rehearsal.py [--python PYTHON …] [--lessons 00 … | all] [--out DIR]

For each Python (default: python3.12 and python3.13) it makes a virtual environment with the
packages of colab_preinstalled.txt, and a git repository with the last commit of this one, which
takes the place of the address on GitHub that the lesson is stamped with. The lesson's first cell
then installs the kit as it would in Colab. A run fails if a cell fails, if the setup cell takes
longer than the limit, or if a preinstalled package has another version afterwards.

What differs from Colab: no GPU, some 30 packages instead of 600, torch built for CUDA 13, packages
that come from this machine's pip settings, and no browser: no widget is seen.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from labkit import lessons, setup_cell

ROOT = Path(__file__).resolve().parent.parent
PREINSTALLED = Path(__file__).with_name("colab_preinstalled.txt")
ADDRESS = setup_cell.Address("colab-rehearsal/labkit", "rehearsed")
MARK = "COLAB_RELEASE_TAG"  # the setup cell takes this for Colab


def run(*command: object, **options: object) -> str:
    """A command's output; its errors end the rehearsal."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def find(name: str) -> str:
    """A Python on the PATH or of pyenv; its absence ends the rehearsal."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    of_pyenv = sorted(versions.glob(f"*/bin/{Path(name).name}"))
    try:  # pyenv puts a program of every name on the PATH, also of those that are not chosen
        subprocess.run([name, "--version"], capture_output=True, check=True)
        return name
    except (OSError, subprocess.CalledProcessError):
        if of_pyenv:
            return str(of_pyenv[-1])
    raise SystemExit(f"There is no {name} here; install it, or name another one with --python.")


def freeze(python: Path) -> dict[str, str]:
    """Package -> version in the environment of `python`."""
    listed = json.loads(run(python, "-m", "pip", "list", "--format=json",
                            "--disable-pip-version-check"))
    return {entry["name"].lower().replace("_", "-"): entry["version"] for entry in listed}


def environment(python: str, folder: Path, torch: str) -> tuple[Path, dict[str, str]]:
    """A virtual environment with what Colab preinstalls, and nothing else: its Python and its
    packages. One that an earlier rehearsal left is cleaned of what that one added."""
    version = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    home = folder / f"python{version}-torch{torch}"
    inside, record = home / "bin" / "python", home / "preinstalled.json"
    if not record.exists():
        shutil.rmtree(home, ignore_errors=True)
        run(python, "-m", "venv", home)
        lines = PREINSTALLED.read_text().replace("torch==2.11.0", f"torch=={torch}")
        (folder / "preinstalled.txt").write_text(lines)
        print(f"Python {version}: installing Colab's packages …", flush=True)
        run(inside, "-m", "pip", "install", "--quiet", "-r", folder / "preinstalled.txt")
        record.write_text(json.dumps(freeze(inside)))
    before = json.loads(record.read_text())
    added = sorted(set(freeze(inside)) - set(before))
    if added:
        run(inside, "-m", "pip", "uninstall", "--quiet", "--yes", *added)
    if freeze(inside) != before:
        raise SystemExit(f"{home} is no longer as it was made; remove it and start again.")
    return inside, before


def repository(folder: Path) -> Path:
    """A bare git repository that holds the last commit of this one as the rehearsed branch."""
    bare = folder / "kit.git"
    shutil.rmtree(bare, ignore_errors=True)
    run("git", "init", "--quiet", "--bare", bare)
    run("git", "-C", ROOT, "push", "--quiet", bare, f"HEAD:refs/heads/{ADDRESS.branch}")
    return bare


def kernel(python: Path, folder: Path, bare: Path) -> dict[str, str]:
    """Makes a Jupyter kernel of `python`, called colab; the environment to run it in."""
    place = folder / "jupyter" / "kernels" / "colab"
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.json").write_text(json.dumps({
        "argv": [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Colab", "language": "python"}))
    kept = {name: value for name, value in os.environ.items()
            if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith("LABKIT_")}
    return kept | {
        MARK: "rehearsal", "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "LABKIT_DEVICE": "cpu", "LABKIT_CACHE_DIR": str(folder / "cache"),
        "LABKIT_PROGRESS": str(folder / "progress.json"),
        "GIT_CONFIG_COUNT": "1",  # the address leads to the local repository
        "GIT_CONFIG_KEY_0": f"url.file://{bare}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://github.com/{ADDRESS.repo}"}


def stamped(lesson: lessons.Lesson) -> nbformat.NotebookNode:
    """The lesson as a learner gets it by its badge."""
    from labkit import badges

    return nbformat.reads(badges.stamped(lesson, ADDRESS), as_version=4)


def rehearse(lesson: lessons.Lesson, folder: Path, env: dict[str, str]) -> dict[str, object]:
    """Runs one lesson alone in an empty folder: its seconds, the setup cell's, and what failed."""
    empty = folder / f"alone-{lesson.stem}"
    shutil.rmtree(empty, ignore_errors=True)
    empty.mkdir()
    notebook, start = stamped(lesson), time.monotonic()
    client = NotebookClient(notebook, timeout=900, kernel_name="colab",
                            resources={"metadata": {"path": str(empty)}})
    error = ""
    try:
        client.execute(env=env)
    except CellExecutionError as failed:
        error = str(failed)
    seconds = time.monotonic() - start
    nbformat.write(notebook, folder / lesson.path.name)
    cell = next(cell for cell in notebook.cells if cell.id == setup_cell.CELL_ID)
    times = cell.metadata.get("execution", {})
    begun, ended = (datetime.fromisoformat(times[key]) for key in
                    ("iopub.execute_input", "shell.execute_reply"))
    return {"lesson": lesson.stem, "seconds": seconds, "error": error,
            "setup": (ended - begun).total_seconds(), "said": text(cell)}


def text(cell: nbformat.NotebookNode) -> str:
    """What a cell printed, as plain text."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", "") + "\n"
                   for output in cell.outputs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=["python3.12", "python3.13"])
    parser.add_argument("--lessons", nargs="+", default=["00"], help="numbers, or: all")
    parser.add_argument("--torch", default="2.11.0", help="default: Colab's, 2.11.0")
    parser.add_argument("--limit", type=float, default=60.0, metavar="SECONDS",
                        help="what the setup cell may take (default: 60)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "colab")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    everything = lessons.all_lessons(ROOT / "notebooks")
    chosen = (everything if options.lessons == ["all"]
              else [lessons.find(name, ROOT / "notebooks") for name in options.lessons])
    bare, wrong = repository(out), []
    for program in options.python:
        python, before = environment(find(program), out, options.torch)
        version = run(python, "--version").strip()
        env = kernel(python, out, bare)
        os.environ["JUPYTER_PATH"] = str(out / "jupyter")
        for place, lesson in enumerate(chosen):
            result = rehearse(lesson, out, env)
            print(f"{version}, {result['lesson']}: {'FAILED' if result['error'] else 'passed'} in "
                  f"{result['seconds']:.0f} s, setup cell {result['setup']:.1f} s (load "
                  f"{os.getloadavg()[0]:.0f} on {os.cpu_count()} cores)", flush=True)
            if place == 0:
                print(result["said"])
                if result["setup"] > options.limit:
                    wrong.append(f"{version}: the setup cell took {result['setup']:.0f} s.")
            if result["error"]:
                wrong.append(f"{version}, {result['lesson']}: {result['error']}")
        after = freeze(python)
        moved = {name: (old, after.get(name)) for name, old in before.items()
                 if after.get(name) != old}
        if moved:
            wrong.append(f"{version}: preinstalled packages were changed: {moved}")
        added = ", ".join(f"{name} {after[name]}" for name in sorted(set(after) - set(before)))
        print(f"{version}: {len(before)} preinstalled packages, {len(moved)} changed; added "
              f"{added}\n", flush=True)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
