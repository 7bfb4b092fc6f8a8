"""labkit: a thin helper for lessons on GPU kernels.

Names load when first used, so that `import labkit` costs nothing; torch and tilelang are
imported by the functions that need them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS = {
    "here": "machine",
    "compile": "compiler",
    "compare": "verify",
    "check": "verify",
    "kernel": "lessons",
    "hint": "exercises",
    "solution": "exercises",
    "progress": "exercises",
    "doctor": "environment",
    "bench": "benchmark",
    "bench_shapes": "benchmark",
    "floors": "roofline",
    "triton_baselines": "triton_tutorials",
    "cross_compile": "crosscompile",
    "landmark_table": "crosscompile",
    "schedule_table": "schedules",
    "sweep": "schedules",
    "lower": "lowering",
    "printed": "printing",
    "step_through": "stepping",
    "tune": "tuning",
    "ScheduleExplorer": "widgets.explorer",
    "Gemm": "widgets.problems",
    "Attention": "widgets.attention",
    "load_cudnn": "cudnn_loader",
    "measured_table": "measured",
    "explain": "diagnose",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"labkit.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module 'labkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])


if "IPython" in sys.modules:  # a notebook: explanations appear under tracebacks
    from labkit.diagnose import hook

    hook.install()
