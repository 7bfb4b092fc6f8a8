"""The folder of one run: found or made, proved writable, and held against a second run."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from labkit.errors import BadArgument

RUNS = Path("runs")  # where runs go that name no folder
MEASURED = "measurements.jsonl"  # what the lessons of a run measured on a GPU


@contextmanager
def claimed(out: str | Path | None, notebooks: Path, resume: bool) -> Iterator[Path]:
    """The folder `out`, else a new one in `runs`, else, with `resume`, the newest there; held
    while the context lasts, also against other processes. `notebooks`: the folder of the lessons.

    Raises BadArgument if it cannot be written, is the lessons' own, or another run holds it.
    """
    folder = Path(out).absolute() if out else _newest() if resume else _new()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() == notebooks.resolve():
            raise BadArgument(f"The output folder {folder} is the lessons' own, and would "
                              "overwrite them; choose another one with --out.")
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except (OSError, ValueError) as error:
        raise _unwritable(folder, error) from error
    try:
        _hold(handle, folder)  # the system lets go of it when this process ends, however it ends
        try:
            probe = folder / ".labkit-probe"
            probe.write_text("probe")
            probe.unlink()
            (folder / "logs").mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield folder
    finally:
        os.close(handle)


def _unwritable(folder: Path, error: Exception) -> BadArgument:
    if isinstance(error, BadArgument):
        return error
    why = getattr(error, "strerror", None) or error
    return BadArgument(f"The output folder {folder} cannot be written ({why}); choose another one "
                       "with --out.")


def _hold(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise BadArgument(f"Another run is writing to {folder}; wait for its end, or choose "
                              "another folder with --out.") from error
        # some network file systems lock no folders: then a second run is not noticed


def _new() -> Path:
    """A folder named by the time, which no other run has."""
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        folder = (RUNS / (name if number == 1 else f"{name}-{number}")).absolute()
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            if not folder.is_dir():
                break
        except OSError as error:
            raise _unwritable(folder, error) from error
    raise BadArgument(f"The output folder {folder} cannot be made; choose another one with --out.")


def _newest() -> Path:
    reports = sorted(RUNS.glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise BadArgument(f"There is no run to resume in {RUNS.absolute()}; leave out --resume, or "
                          "name the run's folder with --out.")
    return reports[-1].parent.absolute()
