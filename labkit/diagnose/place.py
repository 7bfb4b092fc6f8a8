"""Which line of the learner's own program an error is about."""

from __future__ import annotations

import linecache
import math
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_OURS = str(Path(__file__).resolve().parent.parent) + os.sep
_LIBRARIES = tuple(str(Path(sysconfig.get_path(name)).resolve()) + os.sep
                   for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_SPAN = re.compile(r"--> (?P<file>[^\n]+?):(?P<line>\d+):\d+")


@dataclass(frozen=True)
class Place:
    """A line of the learner's. how: "" where the error is about this line itself, else how it is
    connected ("made in", "reached from")."""

    file: str
    line: int
    how: str = ""

    @property
    def text(self) -> str:
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        name = os.path.basename(self.file)
        cell = "ipykernel_" in self.file or name.startswith(("<ipython-input", "<stdin"))
        of = " of the cell" if cell else f" of {name.strip('<>')}"
        said = f"{self.how} line {self.line}{of}".strip()
        return f"{said}: {self.text}" if self.text else said


def learners(file: str) -> bool:
    """Whether a file is the learner's: text that can be shown, and not Python's, a package's or
    labkit's. (C++ files stand in tracebacks too, with the paths of another machine.)"""
    if file.startswith("<frozen") or not linecache.getlines(file):
        return False
    path = str(Path(file).resolve()) if os.path.isabs(file) else file
    inside = path.startswith(_OURS) and not path.startswith(_OURS + "notebooks")
    return not (inside or path.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in path
                or f"{os.sep}dist-packages{os.sep}" in path)


def frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    """(frame, line) of the error's traceback, outermost first."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def in_tracing(error: BaseException) -> bool:
    """Whether the error came while TileLang built a program from Python source."""
    return any("tilelang" in frame.f_code.co_filename and "eager" in frame.f_code.co_filename
               for frame, _ in frames(error))


def program_of(error: BaseException) -> Any:
    """The program that was being compiled: the innermost one in the traceback's variables."""
    found = None
    for frame, _ in frames(error):
        for value in list(frame.f_locals.values()):
            if type(value).__name__ == "PrimFunc" and hasattr(value, "buffer_map"):
                found = value
    return found


def traced_line(error: BaseException) -> Place | None:
    """The line of the kernel's source that TileLang was reading."""
    if not in_tracing(error):
        return None
    for frame, line in reversed(list(frames(error))):
        if not learners(frame.f_code.co_filename):
            continue
        if line >= frame.f_code.co_firstlineno:
            return Place(frame.f_code.co_filename, line)
        builder = frame.f_locals.get("__tb")  # of code that TileLang wrote anew
        file = getattr(builder, "current_file", None)
        number = getattr(builder, "current_line", None)
        if isinstance(file, str) and isinstance(number, int) and number > 1:
            return Place(file, number)
    return None


def span(message: str) -> Place | None:
    """The place that TVM names in a message, where the tile was made."""
    found = _SPAN.search(message)
    if found is None:
        return None
    return Place(_plain(found["file"]), int(found["line"]), "made in")


def _plain(file: str) -> str:
    """The name under which Python knows a file; TVM puts the folder before `<a cell>`."""
    return file[file.index("<"):] if "<" in file else file


def made(program: Any, *names: str | None) -> Place | None:
    """Where the first of `names` that is a tile of `program` was allocated."""
    from tvm import tirx

    places: dict[str, Place] = {}

    def visit(node: Any) -> None:
        if isinstance(node, tirx.SBlock):
            for buffer in node.alloc_buffers:
                if buffer.span is not None:
                    file = _plain(str(buffer.span.source_name.name))
                    places.setdefault(buffer.name, Place(file, int(buffer.span.line), "made in"))

    if program is not None:
        tirx.stmt_functor.post_order_visit(program.body, visit)
    return next((places[name] for name in names if name in places), None)


def operation(program: Any, name: str) -> Place | None:
    """The line of T.`name`, where the program has only one."""
    from labkit.retarget import _Graph

    if program is None:
        return None
    graph = _Graph(program)
    found = {where for index, where in graph.walk() if where and learners(_plain(where[0]))
             and graph.nodes[index]["type"] == "tirx.Call"
             and graph.operator(graph.nodes[index]) == f"tl.tileop.{name}"}
    return Place(_plain((one := found.pop())[0]), one[1]) if len(found) == 1 else None


def uneven(program: Any) -> Place | None:
    """Where the first fragment was made whose elements do not divide by the threads."""
    from tvm import tirx

    if program is None:
        return None
    blocks: list[Any] = []
    tirx.stmt_functor.post_order_visit(
        program.body, lambda node: blocks.append(node) if isinstance(node, tirx.SBlock) else None)
    threads = next((math.prod(int(n) for n in block.annotations["tl.launch_threads"])
                    for block in blocks if "tl.launch_threads" in block.annotations), 0)
    for block in blocks:
        for buffer in block.alloc_buffers:
            size = math.prod(int(n) if isinstance(n, (int, tirx.IntImm)) else 0
                             for n in buffer.shape)
            if buffer.scope() == "local.fragment" and threads and size % threads and (
                    threads % size if size else True):
                return made(program, buffer.name)
    return None


def call_line(error: BaseException) -> Place | None:
    """The learner's last line before the error: the call that led to it."""
    for entry in reversed(traceback.extract_tb(error.__traceback__)):
        if learners(entry.filename) and entry.lineno:
            return Place(entry.filename, entry.lineno, "reached from")
    return None
