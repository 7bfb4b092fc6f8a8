"""A TileLang program -> something to call with torch tensors, on the GPU or on the CPU.

    program = vector_add(N)                      # a @T.prim_func
    add = lab.compile(program, out_idx=-1)       # on the GPU if there is one, else on the CPU
    c = add(a, b)

Both devices take the same program object, check the same arguments, and return outputs that
were filled with NaN before the run, so an element that the program never wrote is seen.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument, CompileFailed, LabError
from labkit.machine import resolve_device


@dataclass(frozen=True)
class Parameter:
    """One argument of a program: a tensor (shape: ints, or names of sizes) or a scalar (None)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None
    strides: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{'' if self.shape is None else list(self.shape)}"


def compile(program: Any, out_idx: int | Sequence[int] | None = None, device: str = "auto",
            pass_configs: dict[str, Any] | None = None) -> Kernel | JitFunction:
    """Compiles a TileLang program for the GPU that is there, or for the CPU.

    program: a `@T.prim_func`, or a function decorated with `@tilelang.jit` (lazy or eager); the
        latter gives a `JitFunction` that is called as before.
    out_idx: position or positions of the parameters that the call allocates and returns; the
        call then takes the others. None: the call takes all of them and returns nothing.
    device: "auto" (the GPU if torch sees one), "gpu" or "cpu".
    pass_configs: TileLang's compiler options; the CPU run ignores them.

    Raises BadArgument, NeedsGPU, NotOnCPU (a construct the CPU run cannot execute),
    MissingTool (no compiler) or CompileFailed, each with one sentence that says what to change.
    """
    from tilelang.jit import JITImpl
    from tilelang.language.eager import PrimFunc

    device = resolve_device(device)
    if isinstance(program, JITImpl):
        if out_idx is not None:
            raise BadArgument("A @tilelang.jit function names its outputs itself (out_idx in the "
                              "decorator, or T.empty); leave out_idx away in lab.compile.")
        return JitFunction(program, device)
    if not isinstance(program, PrimFunc):
        hint = ("; call it with its sizes first, as in lab.compile(gemm(M, N, K))"
                if callable(program) else "")
        raise BadArgument(f"lab.compile takes a @T.prim_func or a @tilelang.jit function, "
                          f"not {type(program).__name__}{hint}.")
    attributes = program.attrs or {}
    if "tilelang_out_idx" in attributes:
        if out_idx is not None:
            raise BadArgument("The program already returns what T.empty made; "
                              "leave out_idx away in lab.compile.")
        out_idx = [int(index) for index in attributes["tilelang_out_idx"]]
    parameters = _parameters(program)
    outputs = _outputs(out_idx, parameters)
    build = _on_cpu if device == "cpu" else _on_gpu
    launch, source = build(program, parameters, pass_configs)
    return Kernel(str(attributes["global_symbol"]), device, parameters, outputs, source, launch,
                  program)


class Kernel:
    """A compiled program. `kernel(*inputs)` checks them, runs it, and returns its outputs.

    `name`, `device` ("gpu" | "cpu"), `parameters`, `source` (the generated CUDA, or the C++ of
    a CPU run), `program` (what was compiled). `launch(*all_tensors)` runs it with nothing
    checked and nothing allocated: for timing.
    """

    def __init__(self, name: str, device: str, parameters: list[Parameter], outputs: list[int],
                 source: str, launch: Any, program: Any) -> None:
        self.name, self.device, self.parameters = name, device, parameters
        self.outputs, self.source, self.launch, self.program = outputs, source, launch, program

    def __repr__(self) -> str:
        signature = ", ".join(str(p) for p in self.parameters)
        return f"{self.name}({signature}) on the {self.device.upper()}"

    def __call__(self, *inputs: Any) -> Any:
        """Runs the program. Raises BadArgument for a tensor that does not fit."""
        arguments = self.arguments(*inputs)
        self.launch(*arguments)
        results = [arguments[index] for index in self.outputs]
        if not results:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    def arguments(self, *inputs: Any) -> list[Any]:
        """The checked inputs and freshly allocated, NaN-filled outputs, in parameter order."""
        taken = [p for i, p in enumerate(self.parameters) if i not in self.outputs]
        if len(inputs) != len(taken):
            raise BadArgument(f"{self.name} takes {len(taken)} arguments "
                              f"({', '.join(str(p) for p in taken)}), but got {len(inputs)}.")
        sizes: dict[str, int] = {}
        given = iter([self._checked(p, x, sizes) for p, x in zip(taken, inputs, strict=True)])
        return [self._allocate(p, sizes) if i in self.outputs else next(given)
                for i, p in enumerate(self.parameters)]

    def _checked(self, parameter: Parameter, value: Any, sizes: dict[str, int]) -> Any:
        import torch

        name = f"{self.name}: argument {parameter.name}"
        if parameter.shape is None:
            if isinstance(value, torch.Tensor) or not isinstance(value, (int, float)):
                raise BadArgument(f"{name} is a {parameter.dtype} number, but got "
                                  f"{type(value).__name__}; pass a Python number.")
            return value
        if not isinstance(value, torch.Tensor):
            raise BadArgument(f"{name} is a tensor {parameter.dtype}{list(parameter.shape)}, but "
                              f"got {type(value).__name__}; pass a torch tensor.")
        found = str(value.dtype).removeprefix("torch.")
        if found != parameter.dtype:
            raise BadArgument(f"{name} has dtype {found}, but the program declares "
                              f"{parameter.dtype}; convert it with .to(torch.{parameter.dtype}), "
                              "or build the program for the dtype you have.")
        expected = "cuda" if self.device == "gpu" else "cpu"
        if value.device.type != expected:
            raise BadArgument(f"{name} lies on {value.device.type}, but the kernel runs on the "
                              f"{self.device.upper()}; move it with .to({expected!r}).")
        _bind(name, parameter.shape, tuple(value.shape), sizes)
        strides = tuple(sizes.get(s, s) if isinstance(s, str) else s for s in parameter.strides)
        if value.numel() and any(
                have != want and length > 1 and not isinstance(want, str)
                for have, want, length in zip(value.stride(), strides, value.shape, strict=True)):
            raise BadArgument(f"{name} has strides {tuple(value.stride())}, but the program "
                              f"expects {strides}: the tensor is not contiguous; "
                              "pass it through .contiguous().")
        return value

    def _allocate(self, parameter: Parameter, sizes: dict[str, int]) -> Any:
        import torch

        shape = [sizes.get(s, s) if isinstance(s, str) else s for s in parameter.shape or ()]
        open_sizes = [s for s in shape if isinstance(s, str)]
        if open_sizes:
            raise BadArgument(f"{self.name}: the size {open_sizes[0]} of output {parameter.name} "
                              "follows from no input; pass the output as an argument instead.")
        where = "cuda" if self.device == "gpu" else "cpu"
        return poison(torch.empty(shape, dtype=getattr(torch, parameter.dtype), device=where))


class JitFunction:
    """A `@tilelang.jit` function bound to a device; called as the function itself is.

    Lazy style: returns a `Kernel`. Eager style: takes tensors, runs, returns the outputs.
    """

    def __init__(self, function: Any, device: str) -> None:
        self.function, self.device = function, device
        self._compiled: dict[Any, Kernel] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mode = self.function.initialize_jit_mode(*args, **kwargs)
        key, tensors = self.function.func.parse_args(*args, **kwargs)
        if key not in self._compiled:
            self._compiled[key] = compile(
                self.function.get_tir(*args, **kwargs), device=self.device,
                out_idx=self.function.out_idx, pass_configs=self.function.pass_configs)
        kernel = self._compiled[key]
        return kernel(*tensors.values()) if mode == "eager" else kernel


def poison(tensor: Any) -> Any:
    """Fills `tensor` with NaN, or with its dtype's lowest value (bool: True), and returns it."""
    import torch

    if tensor.dtype.is_floating_point:
        return tensor.fill_(math.nan)
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).min)


def _parameters(program: Any) -> list[Parameter]:
    found = []
    for variable in program.params:
        if variable in program.buffer_map:
            buffer = program.buffer_map[variable]
            found.append(Parameter(buffer.name, str(buffer.dtype), _extents(buffer.shape),
                                   _extents(buffer.strides)))
        else:
            found.append(Parameter(variable.name, str(variable.dtype), None))
    return found


def _extents(expressions: Any) -> tuple[int | str, ...]:
    return tuple(int(e) if hasattr(e, "value") else str(e) for e in expressions)


def _outputs(out_idx: int | Sequence[int] | None, parameters: list[Parameter]) -> list[int]:
    chosen = [] if out_idx is None else [out_idx] if isinstance(out_idx, int) else list(out_idx)
    for index in chosen:
        if not -len(parameters) <= index < len(parameters):
            raise BadArgument(f"out_idx {index} is outside the program's {len(parameters)} "
                              f"parameters ({', '.join(p.name for p in parameters)}).")
    return sorted(index % len(parameters) for index in chosen)


def _bind(name: str, declared: tuple[int | str, ...], found: tuple[int, ...],
          sizes: dict[str, int]) -> None:
    """Matches a shape with the declared one; names take the first size they meet."""
    fits = len(declared) == len(found) and all(
        size == (want if isinstance(want, int) else sizes.setdefault(want, size))
        for want, size in zip(declared, found, strict=True) if _is_plain(want))
    if not fits:
        expected = [sizes.get(s, s) if isinstance(s, str) else s for s in declared]
        raise BadArgument(f"{name} has shape {list(found)}, but the program was built for "
                          f"{expected}; build the program for this shape, or change the tensor.")


def _is_plain(extent: int | str) -> bool:
    return isinstance(extent, int) or extent.isidentifier()


def _on_gpu(program: Any, parameters: list[Parameter], pass_configs: dict | None) -> tuple:
    # two log lines a kernel would bury what a lesson prints; a learner's own setting wins
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    import tilelang

    from labkit.cpu_build import reason

    try:
        kernel = tilelang.compile(program, target="cuda", pass_configs=pass_configs)
    except LabError:
        raise
    except Exception as error:
        raise CompileFailed(f"TileLang could not compile {program.attrs['global_symbol']!r} for "
                            f"this GPU: {reason(error)}") from error
    return kernel, kernel.get_kernel_source()


def _on_cpu(program: Any, parameters: list[Parameter], pass_configs: dict | None) -> tuple:
    from labkit.cpu_build import build

    run, order, source = build(program)
    name = str(program.attrs["global_symbol"])

    def launch(*values: Any) -> None:
        storage, elements = _storage(parameters, values)
        message = ctypes.create_string_buffer(256)
        n = len(order)
        pointers = (ctypes.c_void_p * n)(*(ctypes.cast(storage[key][0], ctypes.c_void_p)
                                           for key in order))
        counts = (ctypes.c_int64 * n)(*(elements.get(key, 0) for key in order))
        if run(pointers, counts, message, len(message)):
            raise LabError(f"{name} stopped: it used {message.value.decode()}. "
                           "Check the index and the guard around it.")

    return launch, source


_C_SCALARS = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
              "float64": ctypes.c_double, "bool": ctypes.c_bool, "uint32": ctypes.c_uint32}


def _storage(parameters: list[Parameter], values: Sequence[Any]) -> tuple[dict, dict]:
    """Per parameter or size name: (address or reference, what keeps it alive), element count."""
    storage: dict[str, tuple] = {}
    elements: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.shape is None:
            cell = _C_SCALARS[parameter.dtype](value)
            storage[parameter.name] = (ctypes.byref(cell), cell)
            continue
        storage[parameter.name] = (value.data_ptr(), value)
        spans = zip(value.shape, value.stride(), strict=True)
        elements[parameter.name] = value.numel() and 1 + sum((n - 1) * step for n, step in spans)
        for names, found in ((parameter.shape, value.shape), (parameter.strides, value.stride())):
            sizes.update({n: f for n, f in zip(names, found, strict=True) if isinstance(n, str)})
    for size, number in sizes.items():
        cell = ctypes.c_int32(number)
        storage.setdefault(size, (ctypes.byref(cell), cell))
    return storage, elements
