"""A cache on disk, addressed by content: what is in it never changes and is only data or a
shared library that labkit itself compiled.

It lies in `$LABKIT_CACHE_DIR`, else `$XDG_CACHE_HOME/labkit`, else `~/.cache/labkit`.
"""

from __future__ import annotations

import hashlib
import os
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
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(f"The cache folder {folder} cannot be made ({error.strerror}); "
                          "set LABKIT_CACHE_DIR to a folder that you may write.") from error
    return folder


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
