"""Builds a retargeted program with the machine's C++ compiler, and loads it.

TileLang's `c` target lowers the program and writes its C++; labkit adds a runtime header
(`cpu_runtime.h`), an entry point that reports an index out of range, and compiles with
optimisation. Libraries are cached by content, so a program is compiled once a machine.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from labkit import cache, retarget
from labkit.diagnose import failed
from labkit.errors import CompileFailed, LabError, MissingTool, NotOnCPU

# -fno-finite-loops: an endless loop stays one, as on the GPU, instead of being optimised away
_FLAGS = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math",
          "-fno-finite-loops", "-w", "-fPIC", "-shared"]
_STACK_BYTES = 1 << 16  # tiles beyond this many bytes leave the stack
_SIZES = {"half": 2, "float": 4, "double": 8, "bool": 1}
_TILE = re.compile(r"^( *)(half|float|double|bool|u?int(?:8|16|32|64)_t) (\w+)\[(\d+)\];$", re.M)


def compiler() -> tuple[str, ...]:
    """The C++ compiler's command: `$CXX`, else g++, clang++ or c++ on the PATH. Raises
    MissingTool."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        words = shlex.split(name or "")
        found = words and shutil.which(words[0])
        if found:
            return (found, *words[1:])
    raise MissingTool("No C++ compiler found, and the CPU run needs one; install it with "
                      "`sudo apt-get install g++` (or `conda install gxx`), or set CXX.")


@functools.cache
def _compiler_identity(command: tuple[str, ...]) -> str:
    """What a compiled library depends on besides its source: compiler, flags, processor."""
    version = subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    cpu = Path("/proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:.*", cpu.read_text(), re.M) if cpu.exists() else None
    return "\n".join([version, *_FLAGS, platform.machine(), flags.group() if flags else ""])


def lower(func: Any) -> tuple[str, list[str]]:
    """The C++ of a traced program for one CPU thread, and the names of its parameters in order:
    t_name for a tensor, v_name for a number or a size.

    Raises NotOnCPU or CompileFailed.
    """
    import tilelang
    from tilelang import tvm

    program, half = retarget.for_cpu(func)
    target = tvm.target.Target("c")
    try:
        options = {"tirx.disable_vectorize": True}
        with tvm.transform.PassContext(opt_level=3, config=options), target:
            artifact = tilelang.lower(program, target=target)
    except LabError:
        raise
    except Exception as error:
        unknown = re.search(r'Unresolved call .*name="(?:tirx|tl)\.(\w+)"', str(error))
        if unknown:
            raise NotOnCPU(f"The CPU run has no `{unknown[1]}`, which the program uses; write it "
                           "with other operators, or run on a GPU.") from error
        raise failed(f"TileLang could not compile {func.attrs['global_symbol']!r} for the CPU",
                     error) from error
    functions = list(artifact.device_mod.functions.values())
    if len(functions) != 1:
        raise NotOnCPU(f"{func.attrs['global_symbol']!r} splits into {len(functions)} kernels; "
                       "the CPU run takes one. Compile each as a program of its own.")
    names = [parameter.name for parameter in functions[0].params]
    entry = functions[0].attrs["global_symbol"]
    return _complete(artifact.kernel_source, str(entry), names, half), names


def _complete(source: str, entry: str, names: list[str], half: str) -> str:
    """TileLang's C++ with the runtime header, checked arrays and the entry point."""
    sizes = [(_SIZES.get(m[2]) or int(re.search(r"\d+", m[2])[0]) // 8) * int(m[4])
             for m in _TILE.finditer(source)]
    storage = "static thread_local " if sum(sizes) > _STACK_BYTES else ""
    # TileLang's own declarations of extern functions fit one type each; the header has them all
    source = re.sub(r'#ifdef __cplusplus\nextern "C"\n#endif\n[^\n{]*\);\n', "", source)
    for order, function in ((">", "labkit_max"), ("<", "labkit_min")):
        source = re.sub(rf"\(\((\w+)\) {order} \((\w+)\) \? \(\1\) : \(\2\)\)",
                        rf"{function}(\1, \2)", source)

    def tile(m: re.Match) -> str:
        indent, kind, name, size = m.groups()
        kept = "true" if len(indent) == 2 else "false"  # declared above the loop over blocks
        return (f"{indent}{storage}{kind} labkit_{name}[{size}]; labkit::Tile<{kind}, {size}> "
                f'{name}(labkit_{name}, "{name[2:]}", {kept});')

    source = _TILE.sub(tile, source)
    signature = re.search(rf"\b{entry}\(([^)]*)\) {{", source)
    parameters = [part.strip() for part in signature[1].split(",") if part.strip()]
    wrapped, arguments = [], []
    for index, (parameter, name) in enumerate(zip(parameters, names, strict=True)):
        pointer = re.fullmatch(r"(?:const )?(\w+)\s*\*\s*(?:__restrict__ )?(\w+)", parameter)
        if pointer:
            wrapped.append(f"labkit::Tensor<{pointer[1]}> {pointer[2]}")
            arguments.append(f'{{({pointer[1]}*)values[{index}], sizes[{index}], "{name[2:]}"}}')
        else:
            wrapped.append(parameter)
            arguments.append(f"*({parameter.rsplit(' ', 1)[0]}*)values[{index}]")
    source = source.replace(f"{entry}({signature[1]})", f"{entry}({', '.join(wrapped)})")
    head = f'#include "cpu_runtime.h"\n#define half labkit::Half<labkit::{half}>'
    source = source.replace("#include <tl_templates/cpp/common.h>", head)
    return source + f"""
extern "C" int32_t labkit_run(void **values, const int64_t *sizes, char *message, int room) {{
  int32_t status = 1;
  try {{
    status = {entry}({', '.join(arguments)});
  }} catch (const labkit::OutOfRange &bad) {{
    snprintf(message, room, "it used index %lld of %s, which has %lld elements. Check the index "
             "and the guard around it.", bad.index, bad.name, bad.size);
  }} catch (const labkit::AssertFailed &bad) {{
    snprintf(message, room, "its T.device_assert does not hold. %s", bad.message);
  }}
  fflush(stdout);
  return status;
}}
"""


def build(func: Any) -> tuple[ctypes.CDLL, list[str], str]:
    """Compiles `func` or finds it compiled; returns (library, parameter names, C++ source). The
    library has `labkit_run` and `labkit_watch`."""
    import tilelang

    cxx = compiler()
    header = Path(__file__).with_name("cpu_runtime.h")
    name = cache.key(cache.program_text(func), tilelang.__version__,
                     Path(retarget.__file__).read_text(), Path(__file__).read_text(),
                     header.read_text(), _compiler_identity(cxx))
    folder = cache.private("cpu", name)
    found = _whole(folder)
    if found is None:
        text, names = lower(func)
        library = _compile(cxx, text, header)
        cache.store(folder / "kernel.so", library)
        found = {"names": names, "source": text, "sha256": hashlib.sha256(library).hexdigest()}
        cache.store(folder / "kernel.json", json.dumps(found).encode())
    library = ctypes.CDLL(str(folder / "kernel.so"))
    library.labkit_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    library.labkit_watch.argtypes = [ctypes.c_void_p]
    return library, found["names"], found["source"]


def _whole(folder: Path) -> dict[str, Any] | None:
    """What was stored beside a library, if both are there and undamaged: a damaged library would
    end the process that loads it."""
    try:
        found = json.loads((folder / "kernel.json").read_text())
        digest = hashlib.sha256((folder / "kernel.so").read_bytes()).hexdigest()
        whole = digest == found["sha256"] and isinstance(found["source"], str) and all(
            isinstance(name, str) for name in found["names"])
        return found if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _compile(cxx: tuple[str, ...], text: str, header: Path) -> bytes:
    from tilelang.env import TILELANG_TEMPLATE_PATH

    with tempfile.TemporaryDirectory(prefix="labkit-") as scratch:
        source, output = Path(scratch, "kernel.cpp"), Path(scratch, "kernel.so")
        source.write_text(text)
        command = [*cxx, *_FLAGS, f"-I{TILELANG_TEMPLATE_PATH}", f"-I{header.parent}",
                   str(source), "-o", str(output)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            raise CompileFailed("The C++ that TileLang wrote for the CPU did not compile: "
                                f"{(errors or done.stderr.splitlines() or ['no message'])[0]}",
                                log=done.stderr)
        return output.read_bytes()
