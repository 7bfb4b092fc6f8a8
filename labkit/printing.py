"""What a kernel prints.

`T.print` writes from C or from the GPU, past Python's `sys.stdout`, and in a notebook it arrives
late. `printed` waits for it and returns it, so that a cell can count the lines and show a few.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any


def printed(call: Callable[[], Any]) -> list[str]:
    """The lines that C code or a GPU kernel writes to the process's standard output in `call()`.

    (In a notebook Python's own `print` goes to the cell, past this.) What `call` raises is
    raised, after the lines that came before it were passed on.
    """
    sys.stdout.flush()
    _flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            try:
                call()
                _wait_for_gpu()
            finally:  # also where the GPU reports an error
                sys.stdout.flush()
                _flush()
                os.dup2(kept, 1)
        except BaseException:
            file.seek(0)
            os.write(1, file.read())
            raise
        finally:
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace").splitlines()


def _flush() -> None:
    ctypes.CDLL(None).fflush(None)


def _wait_for_gpu() -> None:
    """A kernel's print is delivered when the host waits for the GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
