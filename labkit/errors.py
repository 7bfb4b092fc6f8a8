"""The errors a learner meets, each one clear sentence.

Every error that labkit raises on purpose is a `LabError`. Its text says what is wrong, what
was expected, and what to change. In a notebook it is shown without a traceback, because the
traceback would be labkit's and not the learner's.
"""

from __future__ import annotations

from typing import Any


class LabError(Exception):
    """Something the learner can mend; `str(error)` is the whole message."""

    def _render_traceback_(self) -> list[str]:
        # IPython shows these lines instead of a traceback.
        return [f"{type(self).__name__}: {self}"]


class BadArgument(LabError, ValueError):
    """A tensor, dtype, shape, name or option that does not fit."""


class NotOnCPU(LabError):
    """A TileLang construct that the CPU run cannot execute; names the construct and its line."""


class CompileFailed(LabError):
    """A program that did not compile; the message carries the compiler's own reason.

    log: everything that nvcc or the C++ compiler wrote, with the lines of the source that it is
    about. place: the learner's line that the log is about, where it is known.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log
        self.place: Any = None


class MissingTool(LabError):
    """A compiler or package that is not there; the message carries the command that installs it."""


class BrokenInstall(LabError):
    """Libraries that do not fit together; the message says which, and the command that mends it."""


class InstallFailed(LabError):
    """pip could not add what a hosted notebook service lacks; the message carries its reason."""


class RestartNeeded(LabError):
    """A package was replaced that this session has imported; the message says how to restart."""


class NotSupported(LabError):
    """A cuDNN graph that no plan can run on the GPU; the message carries cuDNN's own reasons."""


class NeedsGPU(LabError):
    """Something only a CUDA GPU can do, on a machine without one."""


class LabWarning(UserWarning):
    """A pattern in a program that the compiler accepts and is known to get wrong."""


class WrongAnswer(LabError, AssertionError):
    """A kernel's output differs from the reference by more than its dtype explains."""


def first_line(problem: BaseException) -> str:
    """What an exception says, in one line."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0]
