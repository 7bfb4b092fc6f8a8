"""Under each traceback of a notebook, what labkit knows about the error.

IPython hands every finished traceback to one function that shows it and, in a kernel, sends it to
whoever runs the notebook. The explanation is added to that traceback's lines, so it is shown,
stored and captured together with it; `%debug`, papermill and nbclient see what they always saw.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def install(shell: Any = None) -> bool:
    """Explains errors in this notebook from now on; a second call changes nothing. shell: an
    IPython shell; None: the one that runs. Returns whether there is one."""
    shell = shell or _shell()
    if shell is None or not hasattr(shell, "_showtraceback"):
        return False
    shown = shell._showtraceback
    if hasattr(shown, "_labkit_plain"):
        return True

    @functools.wraps(shown)
    def explained(kind: Any, error: Any, lines: list[str], *rest: Any, **more: Any) -> Any:
        return shown(kind, error, [*lines, *_lines(error)], *rest, **more)

    explained._labkit_plain = shown
    shell._showtraceback = explained
    return True


def remove(shell: Any = None) -> bool:
    """Shows tracebacks as before. Returns whether an explanation was installed."""
    shell = shell or _shell()
    plain = getattr(getattr(shell, "_showtraceback", None), "_labkit_plain", None)
    if plain is None:
        return False
    shell._showtraceback = plain
    return True


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def _lines(error: Any) -> list[str]:
    """The explanation, set off by an empty line; nothing for an unknown error."""
    try:
        from labkit.diagnose.matching import recognise

        found = recognise(error)
    except Exception:  # whatever fails here, the learner's own error has to be shown
        return []
    return ["", *str(found).splitlines()] if found is not None else []
