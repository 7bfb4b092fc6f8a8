"""What a check looks at beside the result: the compilers' figures for a program.

Each function here returns a `Figure`: it takes the learner's builder and returns a `Finding`.
`sizes` are those at which the program is compiled; nothing is run at them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from labkit.diagnose import patterns
from labkit.diagnose.reader import PARALLEL, THREADS, Reader
from labkit.errors import CompileFailed, MissingTool


@dataclass(frozen=True)
class Finding:
    """ok: whether it is as asked; None where this machine cannot tell. text: a sentence."""

    ok: bool | None
    text: str


Figure = Callable[[Any], Finding]


def compiles(gpus: tuple[str, ...], sizes: dict[str, Any], advice: str = "",
             pass_configs: dict[str, Any] | None = None) -> Figure:
    """TileLang compiles the program for each of `gpus`: the CPU run asks for no layout, and takes
    some programs that no GPU can have."""
    def judge(build: Any) -> Finding:
        from labkit.crosscompile import cross_compile

        for gpu in gpus:
            try:
                cross_compile(build(**sizes), gpu, pass_configs)
            except CompileFailed as error:
                reason = str(error).split(": ", 1)[-1].splitlines()[0][:140].rstrip(". ")
                at = ", ".join(f"{name} = {value}" for name, value in sizes.items())
                return Finding(False, f"at {at} it does not compile for the {gpu} ({reason}), "
                               f"though it runs on the CPU{': ' + advice if advice else '.'}")
        return Finding(True, f"It compiles for the {' and the '.join(gpus)}.")
    return judge


def dealt_out(sizes: dict[str, Any]) -> Figure:
    """No serial loop goes through the elements of a fragment or stores those of a tensor: every
    thread would walk through all of it, which the CPU run, with its one thread, cannot show. Says
    nothing where all is well."""
    def judge(build: Any) -> Finding:
        program = build(**sizes)
        said = next((finding.said for finding in patterns.find(program)
                     if finding.pattern == "serial-fragment"), "") or _stored_serially(program)
        return Finding(not said, said)
    return judge


def _stored_serially(program: Any) -> str:
    reader = Reader(program)
    held = {loop.variable for one in reader.statements  # T.Parallel could not take these loops
            if one.parallel or reader.operator(one.node) for loop in one.loops}
    for one in reader.statements:
        if one.node["type"] != "tirx.BufferStore" or one.parallel:
            continue
        tile = reader.tile(one.node["data"]["buffer"])
        used = set().union(
            *map(reader.variables, reader.items(one.node["data"]["indices"]))) - held
        loops = [loop for loop in one.loops if loop.kind not in (PARALLEL, THREADS)
                 and loop.extent != 1 and loop.variable in used]
        if tile.scope == "global" and loops:
            names = ", ".join(loop.name for loop in loops)
            return (f"the loop over `{names}` is a serial one: on a GPU every thread of the block "
                    f"walks through all of it and stores each element of {tile.name} again. Use "
                    "T.Parallel, which deals the elements out to the threads.")
    return ""


def fits(gpu: str, sizes: dict[str, Any]) -> Figure:
    """A block's shared memory is within what `gpu` gives."""
    def judge(build: Any) -> Finding:
        from labkit.crosscompile import cross_compile

        compiled = cross_compile(build(**sizes), gpu)
        taken, given = compiled.shared_bytes / 1024, compiled.gpu.shared_per_block / 1024
        if taken > given:
            return Finding(False, f"it takes {taken:g} KiB of shared memory a block, and the {gpu} "
                           f"gives {given:g} KiB: use smaller tiles or fewer stages.")
        return Finding(True, f"Shared memory: {taken:g} KiB a block of the {gpu}'s {given:g} KiB.")
    return judge


def no_spills(gpu: str, sizes: dict[str, Any], pass_configs: dict[str, Any] | None = None
              ) -> Figure:
    """No register is spilled to memory on `gpu`. Where nvcc is missing it says so."""
    def judge(build: Any) -> Finding:
        from labkit.crosscompile import cross_compile

        try:
            used = cross_compile(build(**sizes), gpu, pass_configs).resources
        except MissingTool:
            return Finding(None, f"Spills on the {gpu} were not judged: nvcc is not here.")
        spilled = used.spill_stores + used.spill_loads
        if spilled:
            return Finding(False, f"on the {gpu} {spilled} bytes a thread are spilled to memory: "
                           "use smaller tiles, or more threads for them.")
        return Finding(True, f"Registers: {used.registers} a thread on the {gpu}, nothing "
                       "spilled.")
    return judge


def landmark(gpu: str, mark: str, sizes: dict[str, Any], why: str) -> Figure:
    """The instruction `mark` stands in the source for `gpu`; `why` says what its absence means."""
    def judge(build: Any) -> Finding:
        from labkit.crosscompile import cross_compile

        count = cross_compile(build(**sizes), gpu).landmarks.get(mark, 0)
        if not count:
            return Finding(False, f"the source for the {gpu} has no {mark}: {why}")
        return Finding(True, f"Landmark: {mark} x{count} on the {gpu}.")
    return judge


def reads(tensor: str, times: int, sizes: dict[str, Any], advice: str) -> Figure:
    """The program names the parameter `tensor` as a source at most `times` times: each is a read
    from global memory for each step or element."""
    def judge(build: Any) -> Finding:
        found = count_reads(build(**sizes), tensor)
        if found > times:
            return Finding(False, f"the program reads {tensor} in {found} places, where {times} "
                           f"will do: {advice}")
        return Finding(True, f"Global memory: {tensor} is read in {found} place"
                       f"{'' if found == 1 else 's'}.")
    return judge


def count_reads(program: Any, tensor: str) -> int:
    """In how many places `program`, a `@T.prim_func`, reads from the parameter `tensor`: loads of
    an element, and copies of a tile."""
    from tvm import tirx

    buffers = {buffer.name: buffer for buffer in program.buffer_map.values()}
    stored, found = 0, 0

    def visit(node: Any) -> None:
        nonlocal stored, found
        if isinstance(node, tirx.BufferLoad) and node.buffer.same_as(buffers[tensor]):
            found += 1
        if isinstance(node, tirx.Call) and getattr(node.op, "name", "").endswith("region"):
            load = node.args[0]
            if load.buffer.same_as(buffers[tensor]) and int(node.args[1]) == 2:
                stored += 1  # a region that is written names its corner by a load

    tirx.stmt_functor.post_order_visit(program.body, visit)
    return found - stored


def wide_accesses(gpu: str, sizes: dict[str, Any], least: int) -> Figure:
    """At least `least` accesses to global memory in the source for `gpu` are 16 bytes wide, and
    no other width is used."""
    def judge(build: Any) -> Finding:
        from labkit.crosscompile import cross_compile

        compiled = cross_compile(build(**sizes), gpu)
        wide = compiled.global_access.get(16, 0)
        narrow = {w: n for w, n in compiled.global_access.items() if w != 16}
        single = len(re.findall(r"\b[A-Z]\w*\[[^\]]*(?:blockIdx|threadIdx)", compiled.body))
        if wide < least or narrow or single:
            widths = [f"{n} of {w} bytes" for w, n in sorted(narrow.items())]
            widths += [f"{single} of one element"] if single else []
            return Finding(False, f"on the {gpu} {wide} accesses to global memory are 16 bytes "
                           f"wide, and {' and '.join(widths) or 'none'} narrower: give each "
                           "thread neighbours that fill 16 bytes.")
        return Finding(True, f"Global memory: all {wide} accesses are 16 bytes wide on the {gpu}.")
    return judge
