"""A cache on disk, addressed by content: what is in it never changes, and is data only.

The one exception are the libraries that labkit compiled for the CPU run, which are loaded: they are
kept where nobody else may write (`private`).

It lies in `$LABKIT_CACHE_DIR`, else `$XDG_CACHE_HOME/labkit`, else `~/.cache/labkit`.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from labkit.errors import BadArgument


def directory() -> Path:
    """The cache folder, made if it is not there. Raises BadArgument if it cannot be made."""
    chosen = os.environ.get("LABKIT_CACHE_DIR")
    if not chosen:
        chosen = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit"
    folder = Path(chosen)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(f"The cache folder {folder} cannot be made ({error.strerror}); "
                          "set LABKIT_CACHE_DIR to a folder that you may write.") from error
    return folder


def private(*parts: str) -> Path:
    """The folder `parts` of the cache, if only this user may write it and what is in it; else one
    that ends with this process. For what will be executed. Raises BadArgument as `directory`."""
    folder = directory().resolve()
    try:
        for part in parts:
            ours = _only_ours(folder)
            folder = folder / part
            if not ours:
                return _scratch().joinpath(*parts)
            folder.mkdir(mode=0o700, exist_ok=True)
        ours = all(map(_only_ours, [folder, *folder.iterdir()]))
    except OSError as error:
        raise BadArgument(f"The cache folder {folder} cannot be made ({error.strerror}); "
                          "set LABKIT_CACHE_DIR to a folder that you may write.") from error
    return folder if ours else _scratch().joinpath(*parts)


def _only_ours(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return True  # a temporary file of another process
    kind = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return (kind and found.st_uid == os.getuid()
            and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


@functools.cache
def _scratch() -> Path:
    folder = tempfile.mkdtemp(prefix="labkit-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def key(*parts: str) -> str:
    """A name for the content that `parts` determine."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]


def program_text(func: Any) -> str:
    """All that determines what a `@T.prim_func` compiles to, wherever in a file it stands.

    `script()` alone leaves out what it cannot print, such as the layouts of `T.annotate_layout`;
    the metadata holds it.
    """
    return func.script(show_meta=True)


def store(path: Path, content: bytes) -> Path:
    """Writes `content` to `path` at once or not at all, also beside other writers.

    Raises BadArgument if it cannot be written.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise BadArgument(f"{path} cannot be written ({error.strerror}); free some space, or set "
                          "LABKIT_CACHE_DIR to another folder that you may write.") from error
    return path
