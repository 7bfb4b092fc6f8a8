"""Raw errors of TileLang, TVM, nvcc, CUDA and cuDNN -> what happened, where, what to change.

    lab.explain()          the last error, explained
    lab.explain(error)     one that was caught
    diagnose.table()       every kind of error that is known

In a notebook the explanation appears under the traceback by itself (`hook.py`). What the compiler
accepts in silence and gets wrong is warned about before compiling (`patterns.py`).

Two mistakes leave nothing to explain, because they happen while TileLang traces: a size of None, as
in T.alloc_shared((None,)) or T.ceildiv(N, None) of an autotuned function that is built with its
defaults, ends the Python process (signal 11), and Python's own sum(X) over a tensor inside a kernel
never ends.
"""

from labkit.diagnose.matching import (
    KINDS,
    Explanation,
    explain,
    failed,
    noted,
    reason,
    recognise,
    table,
)

__all__ = ["KINDS", "Explanation", "explain", "failed", "noted", "reason", "recognise", "table"]
