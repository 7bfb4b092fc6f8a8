"""What a kernel costs on a GPU that is not here: nvcc compiles it, ptxas counts.

The flags are TileLang's own, so the registers are those of the kernel that would run.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labkit import cache
from labkit.errors import CompileFailed, MissingTool


@dataclass(frozen=True)
class Resources:
    """Of one kernel, as ptxas prints it: 32-bit registers a thread; bytes a thread that registers
    could not hold (stores, loads) and that arrays in local memory take (stack); bytes of static
    shared memory a block."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    static_shared_bytes: int


@functools.cache
def nvcc() -> str:
    """The nvcc that TileLang uses. Raises MissingTool with the command that installs one."""
    from tilelang.contrib.nvcc import get_nvcc_compiler

    try:
        path = get_nvcc_compiler()
        subprocess.run([path, "--version"], capture_output=True, check=True)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        raise MissingTool("No CUDA compiler (nvcc) found, and counting registers needs one; "
                          'install it with `pip install "tilelang[nvcc]==0.1.15"`.') from error
    return str(path)


@functools.cache
def _version() -> str:
    return subprocess.run([nvcc(), "--version"], capture_output=True, text=True).stdout


def flags(pass_configs: dict[str, Any]) -> tuple[str, ...]:
    """What TileLang hands on to nvcc of its compiler options."""
    found = ["--use_fast_math"] if pass_configs.get("tl.enable_fast_math") else []
    level = pass_configs.get("tl.ptxas_register_usage_level")
    if level is not None:
        found.append(f"--ptxas-options=--register-usage-level={int(level)}")
    extra = pass_configs.get("tl.device_compile_flags") or []
    for flag in [extra] if isinstance(extra, str) else extra:
        found += shlex.split(str(flag))
    return tuple(found)


def _command(arch: str, extra: tuple[str, ...]) -> list[str]:
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    number = arch.removeprefix("sm_")
    return [nvcc(), "-std=c++20", f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}",
            "-gencode", f"arch=compute_{number},code={arch}", "--cubin", "-w",
            "--ptxas-options=--verbose", *extra]


def resources(source: str, entry: str, arch: str, extra: tuple[str, ...] = (),
              run: Callable[..., Any] = subprocess.run) -> Resources:
    """Compiles CUDA `source` for `arch` (such as "sm_90a") and reads what kernel `entry` takes.

    Kept on disk by content. run: takes what `subprocess.run` takes, so that a caller can end the
    compiler early by raising. Raises MissingTool without nvcc, CompileFailed if nvcc rejects it.
    """
    return _compiled(source, entry, arch, extra, run)[0]


def cubin(source: str, entry: str, arch: str, extra: tuple[str, ...] = ()) -> bytes:
    """The machine code of the same compilation."""
    return _compiled(source, entry, arch, extra)[1].read_bytes()


def _compiled(source: str, entry: str, arch: str, extra: tuple[str, ...],
              run: Callable[..., Any] = subprocess.run) -> tuple[Resources, Path]:
    import tilelang

    command = _command(arch, extra)
    folder = cache.directory() / "ptxas" / cache.key(source, entry, arch, _version(),
                                                     " ".join(command), tilelang.__version__,
                                                     Path(__file__).read_text())
    counted, code = folder / "resources.json", folder / "kernel.cubin"
    found = _read(counted)
    if found is None:
        with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
            text, output = Path(scratch, "kernel.cu"), Path(scratch, "kernel.cubin")
            text.write_text(source)
            done = run([*command, str(text), "-o", str(output)], capture_output=True, text=True,
                       env={**os.environ, "TMPDIR": scratch})  # gone with it, also if ended early
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error" in line]
                raise CompileFailed(f"nvcc could not compile {entry!r} for {arch}: "
                                    f"{(errors or done.stderr.splitlines() or ['no message'])[0]}",
                                    log=done.stderr)
            found = parse(done.stderr, entry)
            machine_code = output.read_bytes()
            digest = hashlib.sha256(machine_code).hexdigest()
            cache.store(code, machine_code)
            cache.store(counted, json.dumps({**asdict(found), "sha256": digest}).encode())
    return found, code


def _read(path: Path) -> Resources | None:
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        code = path.with_name("kernel.cubin").read_bytes()
        if hashlib.sha256(code).hexdigest() != data["sha256"]:
            return None
        figures = {name: data[name] for name in Resources.__dataclass_fields__}
        return Resources(**figures) if all(type(n) is int for n in figures.values()) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # not there, or damaged: it is made anew


def parse(log: str, entry: str) -> Resources:
    """Reads ptxas's verbose output. Raises CompileFailed if `entry` is not in it."""
    section = re.search(rf"Function properties for {re.escape(entry)}\n(.*?\n.*?Used.*?)(?:\n|$)",
                        log, re.S)
    if section is None:
        raise CompileFailed(f"ptxas reported nothing for {entry!r}; its output has changed.")
    text = section[1]

    def number(pattern: str) -> int:
        match = re.search(pattern, text)
        return int(match[1]) if match else 0

    return Resources(number(r"Used (\d+) registers"), number(r"(\d+) bytes spill stores"),
                     number(r"(\d+) bytes spill loads"), number(r"(\d+) bytes stack frame"),
                     number(r"(\d+) bytes smem"))
