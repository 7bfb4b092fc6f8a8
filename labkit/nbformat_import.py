"""nbformat, imported in a fifth of the time.

    from labkit.nbformat_import import nbformat

jsonschema, which it imports, reads a grammar of web addresses for 1.5 s where JupyterLab has
installed one. No field of a notebook is checked against it, so it is hidden for that moment.
"""

import sys

_GRAMMAR = "rfc3987_syntax"

if _GRAMMAR in sys.modules:
    import nbformat
else:
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]
    try:
        import nbformat
    finally:
        sys.modules.pop(_GRAMMAR, None)

__all__ = ["nbformat"]
