"""A TileLang program -> something to call with torch tensors, on the GPU or on the CPU.

    program = vector_add(N)                      # a @T.prim_func
    add = lab.compile(program, out_idx=-1)       # on the GPU if there is one, else on the CPU
    c = add(a, b)

Both devices take the same program object, check the same arguments, and return outputs that
were filled with NaN before the run, so an element that the program never wrote is seen.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labkit.errors import BadArgument, LabError
from labkit.machine import resolve_device


class Extent:
    """A size or a stride that is known from the tensors only: a variable, or an expression."""

    def __init__(self, expression: Any) -> None:
        from tvm import tirx

        self.expression, self.text = expression, str(expression)
        self.variables: dict[str, Any] = {}

        def visit(node: Any) -> None:
            if isinstance(node, tirx.Var):
                self.variables[node.name] = node

        tirx.stmt_functor.post_order_visit(tirx.Evaluate(expression), visit)
        self.plain = isinstance(expression, tirx.Var)

    def value(self, sizes: dict[str, int]) -> int | None:
        """Its value with these sizes, None if one of them is not known."""
        from tvm import arith, tirx

        if self.plain:
            return sizes.get(self.text)
        if not self.variables.keys() <= sizes.keys():
            return None
        known = {variable: tirx.IntImm(variable.dtype, sizes[name])
                 for name, variable in self.variables.items()}
        number = arith.Analyzer().simplify(tirx.stmt_functor.substitute(self.expression, known))
        return int(number)

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Parameter:
    """One argument of a program: a tensor, or a number (shape None)."""

    name: str
    dtype: str
    shape: tuple[int | Extent, ...] | None
    strides: tuple[int | Extent, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{'' if self.shape is None else list(self.shape)}"


def compile(program: Any, out_idx: int | Sequence[int] | None = None, device: str = "auto",
            pass_configs: dict[str, Any] | None = None) -> Kernel | JitFunction:
    """Compiles a TileLang program for the GPU that is there, or for the CPU.

    program: a `@T.prim_func`, or a function decorated with `@tilelang.jit` (lazy or eager); the
        latter gives a `JitFunction` that is called as before. An `@autotune` above it is passed
        over: the function runs with the values it is given and its defaults.
    out_idx: position or positions of the parameters that the call allocates and returns; the
        call then takes the others. None: the call takes all of them and returns nothing.
    device: "auto" (the GPU if torch sees one), "gpu" or "cpu".
    pass_configs: TileLang's compiler options; the CPU run ignores them.

    Raises BadArgument, NeedsGPU, NotOnCPU (a construct the CPU run cannot execute),
    MissingTool (no compiler) or CompileFailed, each with one sentence that says what to change.
    """
    from tilelang.autotuner.tuner import AutoTuneImpl
    from tilelang.jit import JITImpl
    from tilelang.language.eager import PrimFunc

    from labkit.diagnose import patterns

    device = resolve_device(device)
    if isinstance(program, AutoTuneImpl):
        program = program.jit_impl
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
    patterns.warn(program)
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
            made = [self.parameters[i].name for i in self.outputs]
            raise BadArgument(
                f"{self.name} takes {len(taken)} arguments ({', '.join(str(p) for p in taken)}), "
                f"but got {len(inputs)}; it returns {' and '.join(made) or 'nothing'}, as out_idx "
                "says.")
        sizes: dict[str, int] = {}
        for parameter, value in zip(taken, inputs, strict=True):
            self._check_kind(parameter, value)
            if parameter.shape is not None:
                _learn(parameter, value, sizes)
        for parameter, value in zip(taken, inputs, strict=True):
            if parameter.shape is not None:
                self._check_layout(parameter, value, sizes)
        given = iter(inputs)
        return [self._allocate(p, sizes) if i in self.outputs else next(given)
                for i, p in enumerate(self.parameters)]

    def _check_kind(self, parameter: Parameter, value: Any) -> None:
        """Number or tensor, dtype, device."""
        import torch

        name = f"{self.name}: argument {parameter.name}"
        if parameter.shape is None:
            _check_number(name, parameter.dtype, value)
            return
        if not isinstance(value, torch.Tensor):
            raise BadArgument(f"{name} is a tensor {parameter.dtype}{list(parameter.shape)}, but "
                              f"got {type(value).__name__}; pass a torch tensor.")
        if value.layout != torch.strided or value.is_nested or value.is_quantized:
            raise BadArgument(f"{name} is a sparse, nested or quantised tensor; pass a dense one, "
                              "for example with .to_dense().")
        found = str(value.dtype).removeprefix("torch.")
        if found != parameter.dtype:
            raise BadArgument(f"{name} has dtype {found}, but the program declares "
                              f"{parameter.dtype}; convert it with .to(torch.{parameter.dtype}), "
                              "or build the program for the dtype you have.")
        expected = "cuda" if self.device == "gpu" else "cpu"
        if value.device.type != expected:
            raise BadArgument(f"{name} lies on {value.device.type}, but the kernel runs on the "
                              f"{self.device.upper()}; move it with .to({expected!r}).")
        if value.is_neg() or value.is_conj():
            raise BadArgument(f"{name} is a view whose sign or conjugation torch has not carried "
                              "out yet; pass .resolve_neg().resolve_conj().")

    def _check_layout(self, parameter: Parameter, value: Any, sizes: dict[str, int]) -> None:
        """Shape, strides, and that the memory is there."""
        name = f"{self.name}: argument {parameter.name}"
        shape, strides = _known(parameter.shape, sizes), _known(parameter.strides, sizes)
        if len(shape) != value.dim() or any(
                want is not None and want != have
                for have, want in zip(value.shape, shape, strict=True)):
            expected = [declared if want is None else want
                        for declared, want in zip(parameter.shape, shape, strict=True)]
            raise BadArgument(f"{name} has shape {list(value.shape)}, but the program was built "
                              f"for {expected}; build the program for this shape, or change the "
                              "tensor.")
        if value.numel() and any(
                length > 1 and want is not None and want != have for have, want, length
                in zip(value.stride(), strides, value.shape, strict=True)):
            raise BadArgument(f"{name} has strides {tuple(value.stride())}, but the program "
                              f"expects {tuple(strides)}: the tensor is not contiguous; "
                              "pass it through .contiguous().")
        needed = (value.storage_offset() + _span(value)) * value.element_size()
        if value.untyped_storage().nbytes() < needed:
            raise BadArgument(f"{name} has lost its memory: its storage was resized; "
                              "pass a tensor that owns its elements.")

    def _allocate(self, parameter: Parameter, sizes: dict[str, int]) -> Any:
        import torch

        shape = _known(parameter.shape or (), sizes)
        if None in shape:
            unknown = parameter.shape[shape.index(None)]
            raise BadArgument(f"{self.name}: the size {unknown} of output {parameter.name} "
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
        try:
            self.function.signature.bind(*args, **kwargs)
        except TypeError as error:
            name = self.function.signature
            raise BadArgument(f"{self.function.func.orig_func.__name__}{name} was called with "
                              f"other arguments: {error}.") from error
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


def _extents(expressions: Any) -> tuple[int | Extent, ...]:
    from tvm import tirx

    return tuple(int(e) if isinstance(e, (int, tirx.IntImm)) else Extent(e) for e in expressions)


def _outputs(out_idx: int | Sequence[int] | None, parameters: list[Parameter]) -> list[int]:
    """Positions of the outputs, in the order in which the call returns them."""
    single = isinstance(out_idx, int) or not isinstance(out_idx, Sequence)
    chosen = [] if out_idx is None else [out_idx] if single else list(out_idx)
    for index in chosen:
        if not isinstance(index, int) or isinstance(index, bool):
            raise BadArgument(f"out_idx is {out_idx!r}; give the position of an output, such as "
                              "-1, or a list of positions.")
        if not -len(parameters) <= index < len(parameters):
            raise BadArgument(f"out_idx {index} is outside the program's {len(parameters)} "
                              f"parameters ({', '.join(p.name for p in parameters)}).")
    positions = [index % len(parameters) for index in chosen]
    if len(set(positions)) != len(positions):
        raise BadArgument(f"out_idx {out_idx!r} names a parameter twice; name each output once.")
    return positions


def _learn(parameter: Parameter, value: Any, sizes: dict[str, int]) -> None:
    """Gives each size and stride that is a plain variable its value, from the first tensor that
    has it."""
    for declared, found in ((parameter.shape, value.shape), (parameter.strides, value.stride())):
        if len(declared) == len(found):
            for extent, number in zip(declared, found, strict=True):
                if isinstance(extent, Extent) and extent.plain:
                    sizes.setdefault(extent.text, number)


def _known(extents: Sequence[int | Extent], sizes: dict[str, int]) -> list[int | None]:
    return [e.value(sizes) if isinstance(e, Extent) else e for e in extents]


def _span(value: Any) -> int:
    """Elements from a tensor's first to its last in memory."""
    if not value.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(value.shape, value.stride(), strict=True))


def _check_number(name: str, dtype: str, value: Any) -> None:
    import torch

    if dtype == "bool":
        fits = isinstance(value, bool)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        fits = False
    elif dtype.startswith(("int", "uint")):
        limits = torch.iinfo(getattr(torch, dtype))
        fits = isinstance(value, int) and limits.min <= value <= limits.max
    else:
        fits = not math.isfinite(value) or abs(value) <= torch.finfo(getattr(torch, dtype)).max
    if not fits:
        shown = repr(value) if isinstance(value, (int, float)) else type(value).__name__
        raise BadArgument(f"{name} is a {dtype} number, but got {shown}; pass a Python number "
                          f"that {dtype} can hold.")


def _on_gpu(program: Any, parameters: list[Parameter], pass_configs: dict | None) -> tuple:
    # two log lines a kernel would bury what a lesson prints; a learner's own setting wins
    os.environ.setdefault("TILELANG_PRINT_ON_COMPILATION", "0")
    import tilelang

    cache_log = logging.getLogger("tilelang.cache.kernel_cache")
    if not cache_log.level:  # it warns each time a program is compiled again and found
        cache_log.setLevel(logging.ERROR)

    from labkit.diagnose import failed

    try:
        kernel = tilelang.compile(program, target="cuda", pass_configs=pass_configs)
    except LabError:
        raise
    except Exception as error:
        raise failed(f"TileLang could not compile {program.attrs['global_symbol']!r} for this "
                     "GPU", error) from error
    return kernel, kernel.get_kernel_source()


def _on_cpu(program: Any, parameters: list[Parameter], pass_configs: dict | None) -> tuple:
    from labkit.cpu_build import build

    library, order, source = build(program)
    name = str(program.attrs["global_symbol"])
    return cpu_launcher(library, order, name, parameters), source


def cpu_launcher(library: ctypes.CDLL, order: list[str], name: str,
                 parameters: list[Parameter]) -> Any:
    """The function that runs a program of `cpu_build.build` on all its tensors and numbers."""
    def launch(*values: Any) -> None:
        memory, kept = _memory(parameters, values)
        message = ctypes.create_string_buffer(256)
        pointers = (ctypes.c_void_p * len(order))(*(memory[key][0] for key in order))
        counts = (ctypes.c_int64 * len(order))(*(memory[key][1] for key in order))
        if library.labkit_run(pointers, counts, message, len(message)):
            raise LabError(f"{name} stopped: {message.value.decode(errors='replace').strip()}")
        del kept

    return launch


def _memory(parameters: list[Parameter], values: Sequence[Any]) -> tuple[dict, list]:
    """Name in the C++ (t_ for a tensor, v_ for a number or size) -> address and element count,
    and what has to stay alive during the call."""
    import torch

    memory: dict[str, tuple[int, int]] = {}
    kept: list[Any] = []
    sizes: dict[str, int] = {}
    for parameter, value in zip(parameters, values, strict=True):
        if parameter.shape is None:
            kept.append(torch.tensor(value, dtype=getattr(torch, parameter.dtype)))
            memory[f"v_{parameter.name}"] = (kept[-1].data_ptr(), 1)
        else:
            memory[f"t_{parameter.name}"] = (value.data_ptr(), _span(value))
            _learn(parameter, value, sizes)
    for size, number in sizes.items():
        if f"v_{size}" not in memory:
            kept.append(torch.tensor(number, dtype=torch.int64))  # int32 reads its lower half
            memory[f"v_{size}"] = (kept[-1].data_ptr(), 1)
    return memory, kept
