"""What the compilers say about one schedule, in two steps: TileLang's, then nvcc's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit import ptxas, tuning_space
from labkit.crosscompile import CrossCompiled, cross_compile
from labkit.errors import LabError, MissingTool, first_line
from labkit.gpus import Gpu
from labkit.occupancy import Occupancy, occupancy
from labkit.widgets.quiet import overheard

# what a compiler says -> what it means here; {} are the pattern's groups
_MEANINGS = (
    (r"No valid warp partition for T\.gemm: M=(\d+), N=(\d+) cannot be evenly covered by (\d+) "
     r"warps", "{2} warps cannot share a tile of {0} x {1}: each needs whole pieces of 16 rows and "
     "8 columns. Use fewer threads or a larger tile."),
    (r"M must be divisible by 16, but got (\d+)",
     "A tile of {0} rows is nothing for a tensor core, which takes multiples of 16."),
    (r"no available layout found", "The elements of a tile cannot be dealt out evenly to these "
     "threads. Use another number of threads or another tile."),
    (r"Layout infer conflict between (\w+) and (\w+)", "{0} and {1} would have to lie in the "
     "threads' registers in two different ways. Use fewer threads or a taller tile."),
    (r"Layout Layout\(\((\d+), (\d+)\).*has errors", "A tile of {0} x {1} in shared memory does "
     "not fit the order in which this GPU's tensor cores read it. Use sides that are powers of 2."),
    (r"Downcast from tirx\.\w+ to ir\.IntImm failed", "This TileLang cannot pipeline a loop whose "
     "length depends on the block for this GPU. Use one stage."),
)


@dataclass(frozen=True)
class Compiled:
    """code: what TileLang made of it, None if it refused. used, occupied: ptxas's figures, None
    if they are not known. failure: why there is no more, in plain words. final: nothing follows."""

    code: CrossCompiled | None = None
    used: ptxas.Resources | None = None
    occupied: Occupancy | None = None
    failure: str = ""
    final: bool = False

    @property
    def shared_bytes(self) -> int | None:
        if self.code is None:
            return None
        return self.code.shared_bytes + (self.used.static_shared_bytes if self.used else 0)


def plainly(error: BaseException) -> str:
    """What went wrong, in a sentence."""
    text = str(error)
    for pattern, meaning in _MEANINGS:
        found = re.search(pattern, text)
        if found:
            return meaning.format(*found.groups())
    text = first_line(error)
    return text if isinstance(error, LabError) else f"The builder failed: {text}"


def lowered(build: Callable[..., Any], arguments: dict[str, Any], gpu: Gpu,
            pass_configs: dict[str, Any] | None) -> Compiled:
    """The generated source, the exact shared memory and the threads."""
    try:
        with overheard():
            program = tuning_space.trace(build, arguments)
            code = cross_compile(program, gpu, pass_configs)
    except Exception as error:  # the builder is the learner's and raises what it likes
        return Compiled(failure=plainly(error), final=True)
    return Compiled(code)


def counted(compiled: Compiled, run: Callable[..., Any]) -> Compiled:
    """The same with registers, spills and occupancy. run: see `ptxas.resources`."""
    code = compiled.code
    try:
        used = ptxas.resources(code.source, code.entry, code.gpu.arch, code.nvcc_flags, run)
    except (LabError, OSError) as error:
        why = (f"Registers are not known: {first_line(error)}"
               if isinstance(error, MissingTool) else plainly(error))
        return replace(compiled, failure=why, final=True)
    occupied = occupancy(code.gpu, code.threads, used.registers,
                         code.shared_bytes + used.static_shared_bytes)
    return replace(compiled, used=used, occupied=occupied, final=True)
