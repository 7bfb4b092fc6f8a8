"""Errors while TileLang reads the Python source of a kernel and builds the program from it."""

from __future__ import annotations

from labkit.diagnose.kind import Kind


def _kind(name: str, pattern: str, raw: str, what: str, change: str, **more: object) -> Kind:
    return Kind(name, "tracing", pattern, raw, what, change, **more)


SOURCE = (
    _kind("no-source", r"could not get source code|source code not available",
          "could not get source code",
          "TileLang reads a kernel's source text, and this function's text is in no file and no "
          "notebook cell.",
          "Define the kernel in a plain cell or a file; put a magic such as %%time on the cell "
          "that calls it.",
          cause="Likely a cell magic above the kernel, exec of a text, or python -c.",
          types=("OSError",), threads=("cupy/cupy#6329", "Nuitka/Nuitka#2552")),
    _kind("postponed-annotations", r"name '(?P<name>dtype|\w+)' is not defined",
          "name 'dtype' is not defined",
          "The annotation of a kernel's parameter uses `{name}`, which Python did not carry into "
          "the kernel.",
          "Take `from __future__ import annotations` out of this file or notebook (there it holds "
          "for all later cells), and restart the kernel.",
          types=("NameError",), threads=("tile-ai/tilelang#1079",), only_if="postponed"),
    _kind("undefined-name", r"name '(?P<name>\w+)' is not defined",
          "name 'scale' is not defined",
          "The kernel uses the name `{name}`, and nothing of that name is known there.",
          "Check the spelling; run the cell that defines it, or pass it to the function around "
          "the kernel.", types=("NameError",), only_if="tracing"),
    _kind("used-before", r"cannot access local variable '(?P<name>\w+)'|"
          r"local variable '(?P<name2>\w+)' referenced before assignment",
          "cannot access local variable 'f' where it is not associated with a value",
          "`{name}` is used before the line that makes it.",
          "Move the line that makes it above its first use.", types=("UnboundLocalError",),
          only_if="tracing"),
    _kind("no-prim-func", r"T\.Kernel\(\) can only be used inside",
          "T.Kernel() can only be used inside @tilelang.jit or @T.prim_func context. No Builder "
          "is available.",
          "A kernel's body was run as plain Python.",
          "Write @T.prim_func above the function, and return it from the builder instead of "
          "calling it."),
    _kind("no-annotation", r"main\(\) missing (?P<count>\d+) required positional argument",
          "make_closure.<locals>.main.<locals>.main() missing 1 required positional argument: 'X'",
          "A parameter of the kernel has no type.",
          'Annotate each one, as in X: T.Tensor((M, N), "float32").', types=("TypeError",),
          only_if="tracing"),
    _kind("unknown-attribute", r"module 'tilelang\.language' has no attribute '(?P<name>\w+)'",
          "module 'tilelang.language' has no attribute 'alloc_fragments'",
          "There is no T.{name} in this version of TileLang.",
          "Check the spelling; dir(T) lists what there is.", types=("AttributeError",)),
    _kind("unknown-dtype", r"unknown dtype `(?P<name>\w+)`",
          "unknown dtype `fp16`",
          "TileLang has no dtype called {name}.",
          'Use its full name: "float16", "bfloat16", "float32", "int8", "int32".'),
    _kind("unexpected-keyword", r"(?P<call>\w+)\(\) got an unexpected keyword argument "
          r"'(?P<name>\w+)'",
          "Kernel() got an unexpected keyword argument 'thread'",
          "{call} has no argument called {name}.",
          "Check the spelling; help(T.{call}) lists the arguments (the number of threads is "
          "threads=).", types=("TypeError",), threads=("tile-ai/tilelang#3035",),
          only_if="tracing"),
    _kind("missing-argument", r"(?P<call>alloc_\w+|copy|gemm|reduce_\w+|fill)\(\) missing \d+ "
          r"required positional arguments?: (?P<name>.+)",
          "alloc_shared() missing 1 required positional argument: 'dtype'",
          "T.{call} was not given {name}.",
          'Give it, as in T.alloc_shared((64, 32), "float16").', types=("TypeError",),
          only_if="tracing"),
    _kind("no-return", r"target function must be a PrimFunc but got <class 'NoneType'>",
          "target function must be a PrimFunc but got <class 'NoneType'>",
          "The function that builds the kernel returned nothing.",
          "End the builder with `return` and the kernel's name.",
          types=("AssertionError",)),
    _kind("not-a-prim-func", r"target function must be a PrimFunc but got <class '(?P<name>\w+)'>",
          "target function must be a PrimFunc but got <class 'function'>",
          "What was given to the compiler is a {name}, not a kernel.",
          "Call the builder with its sizes first, as in tilelang.compile(gemm(M, N, K)), or write "
          "@T.prim_func above the function.", types=("AssertionError",)),
    _kind("called-program", r"'PrimFunc' object is not callable",
          "'PrimFunc' object is not callable",
          "A kernel is a description of a program; it has to be compiled before it can be called.",
          "Compile it first: run = lab.compile(kernel, out_idx=-1), then run(a, b).",
          types=("TypeError",)),
)

EXPRESSIONS = (
    _kind("python-logic", r"Cannot use and / or / not operator to Expr",
          "Cannot use and / or / not operator to Expr, hint: use tvm.tirx.all / tvm.tirx.any "
          "instead",
          "Python asked a value of the kernel whether it is true, while the kernel is still being "
          "written down.",
          "Use T.max, T.min, T.if_then_else, and & or | between comparisons in brackets.",
          cause="Likely a Python function such as max, min, any or bool on a value of the kernel.",
          threads=("tile-ai/tilelang#1347", "apache/tvm#7102")),
    _kind("python-math", r"must be real number, not (?P<name>\w+)|must be Tensor, not "
          r"(?P<name2>BufferLoad|\w+)|float\(\) argument must be a string or a real number, not "
          r"'(?P<name3>BufferLoad|\w*Op)'|bad operand type for abs\(\): 'BufferLoad'|"
          r"loop of ufunc does not support argument \d+ of type BufferLoad|"
          r"'BufferLoad' object has no attribute",
          "must be real number, not BufferLoad",
          "A function for Python numbers or tensors was called on a value of the kernel, which "
          "has no number yet.",
          "Use TileLang's own: T.exp, T.abs, T.sqrt, T.Cast(\"float32\", x), not those of math, "
          "numpy or torch.", types=("TypeError", "AttributeError"), only_if="tracing"),
    _kind("true-division", r"TVM supports multiple types of integer divisions",
          "TVM supports multiple types of integer divisions, please call div, indexdiv/indexmod, "
          "floordiv/floormod or truncdiv/truncmod directly to avoid ambiguity in the code.",
          "Two integers of the kernel were divided with /.",
          "Use // for an index, or T.Cast(\"float32\", i) / 2 for a number.",
          threads=("apache/tvm#3977",)),
    _kind("float-size", r"TIR For nodes require a scalar integer as the (?:loop_var|extent), but "
          r"received .+? with dtype (?P<dtype>\w+)|domain of an IterVar must be an integer type.*?"
          r"dtype is (?P<dtype2>\w+)",
          "Check failed: (dtype.is_scalar() && (dtype.is_int() || dtype.is_uint())) is false: TIR "
          "For nodes require a scalar integer as the loop_var, but received bx with dtype float32",
          "The extent of a loop or of the grid is a {dtype}, and it has to be an integer.",
          "Use // or T.ceildiv(M, block_M) instead of /."),
    _kind("float-floor", r"\(a\.dtype\(\)\.is_int\(\) \|\| a\.dtype\(\)\.is_uint\(\)\) is false: "
          r"(?P<name>.+)",
          "Check failed: (a.dtype().is_int() || a.dtype().is_uint()) is false: X[i]",
          "// or % was used on `{name}`, which is no integer.",
          "For floating point use T.floor(x / y) and x - y * T.floor(x / y)."),
    _kind("float-bits", r"Expected integer argument as (?:LHS|RHS) of (?P<op>\S+) operator.*?but "
          r"received (?P<name>.+?) of type (?P<dtype>\w+)",
          "Check failed: (lhs.dtype().is_int() || lhs.dtype().is_uint() || lhs.dtype().is_bool()) "
          "is false: Expected integer argument as LHS of & operator (bitwise AND), but received "
          "X[i] of type float32",
          "{op} works on bits, and `{name}` is a {dtype}.",
          "Put comparisons in brackets, as in (i < M) & (x > 0): & binds before <."),
    _kind("whole-tile", r"unsupported operand type\(s\) for (?P<op>\S+): '(?:Buffer|BufferRegion)'"
          r"|unsupported operand type\(s\) for (?P<op2>\S+): '\w+' and 'Buffer(?:Region)?'",
          "unsupported operand type(s) for +: 'Buffer' and 'Buffer'",
          "{op} was used on a whole tile; TileLang computes element by element.",
          "Write a loop: for i, j in T.Parallel(M, N): y[i, j] = x[i, j] + z[i, j].",
          types=("TypeError",)),
    _kind("tile-method", r"'(?:Buffer|BufferRegion)' object has no attribute "
          r"'(?P<name>\w+)'|object of type 'Buffer' has no len\(\)",
          "'Buffer' object has no attribute 'sum'",
          "A tile of a kernel was used like a torch tensor; it has no `{name}`.",
          "Use the tile operators T.reduce_sum, T.reduce_max, T.copy, T.fill, and X.shape[0] "
          "for a size.", types=("AttributeError", "TypeError")),
    _kind("not-iterable", r"a TIR expression or buffer is not iterable",
          "enumerate(): a TIR expression or buffer is not iterable (got Buffer). Use range(n) or "
          "T.serial(n) in a for statement to loop over a runtime extent, or iterate over a Python "
          "container such as [expr] or buffer.shape.",
          "A Python loop over a tensor or a value of the kernel.",
          "Loop over positions: for i in T.Parallel(N), T.serial(N) or range(N).",
          types=("TypeError",)),
    _kind("literal-range", r"Literal value (?P<value>\S+) exceeds (?:minimum|maximum) of "
          r"(?P<dtype>\w+)",
          "Check failed: value >= -support::kMaxFloat16 (-1e+30 vs. -65504) : Literal value "
          "-1e+30 exceeds minimum of float16",
          "The number {value} does not fit into {dtype}.",
          "Use -T.infinity(\"{dtype}\") for a mask, or a float32 tile."),
)

SHAPES = (
    _kind("gemm-shapes", r"T\.gemm (?P<axis>[MNK]) shape check failed: (?P<what>.+)",
          "T.gemm K shape check failed: K_A = 32, K_B = 48",
          "The tiles of T.gemm do not fit in {axis}: {what}.",
          "A is (M, K), B is (K, N), C is (M, N); with transpose_A A is (K, M), with transpose_B "
          "B is (N, K). Give the tiles these shapes.", types=("AssertionError",)),
    _kind("gemm-symbolic", r"T\.gemm requires static tile dimensions, but (?P<axis>\w) is symbolic"
          r": (?P<name>.+)",
          "T.gemm requires static tile dimensions, but M is symbolic: M",
          "The size {axis} of a tile of T.gemm is `{name}`, known only at run time.",
          "Give the tile a fixed size and loop over the tiles; only tensors may have sizes from "
          "T.dynamic.", threads=("tile-ai/tilelang#3010", "tile-ai/tilelang#3113")),
    _kind("index-rank", r"Buffer (?P<name>\w+) is (?P<rank>\d+)-dimensional"
          r"(?: \(shape=(?P<shape>\(.*?\))\), but (?P<given>\d+) index|, cannot be indexed)",
          "Buffer X is 2-dimensional (shape=(4, 8)), but 1 index(es) were provided: [i]. Please "
          "provide exactly 2 index/indices or slice(s).",
          "`{name}` has {rank} axes and was indexed with another number of them.",
          "Give {rank} indices, with a slice such as 0:64 for an axis that is taken whole.",
          threads=("tile-ai/tilelang#1832", "tile-ai/tilelang#340")),
    _kind("copy-shapes", r"StructuralEqual check failed, caused by lhs at .*?\n(?P<a>\(.*?\))\n"
          r"and rhs at .*?\n(?P<b>\(.*?\))",
          "StructuralEqual check failed, caused by lhs at <root>[1].value:\n(16, 16)\nand rhs at "
          "<root>[1].value:\n(16, 8)",
          "T.copy was given two whole tiles of different shape, {a} and {b}.",
          "Give equal shapes, or say which part is meant, as in T.copy(X[by * M, bx * N], tile).",
          threads=("tile-ai/tilelang#1883",)),
    _kind("reduce-shape", r"Invalid reduce output shape, buffer shape is (?P<a>\(.*?\)), dim is "
          r"(?P<dim>-?\d+), output shape is (?P<b>\[.*?\]), expected shapes are (?P<c>.+)",
          "Invalid reduce output shape, buffer shape is (4, 32), dim is 1, output shape is [32], "
          "expected shapes are [4] or [4, 1]",
          "A tile of {a}, reduced along dim={dim}, gives {c}, and the tile for it is {b}.",
          "Change dim, or the shape of the tile for the result."),
    _kind("loop-targets", r"not enough values to unpack \(expected (?P<want>\d+), got "
          r"(?P<got>\d+)\)",
          "not enough values to unpack (expected 2, got 1)",
          "{want} names stand on the left, and the loop or the grid has {got} axis.",
          "Give as many extents as names: for i, j in T.Parallel(M, N); T.Kernel(gx, gy) as "
          "(bx, by).", types=("ValueError",), only_if="tracing"),
    _kind("index-tuple", r"tirx\.Buffer(?:Load|Store)\(.*?Expected `Array<ir\.PrimExpr>` but got "
          r"`Array\[index \d+: ffi\.Array\]`",
          "Mismatched type on argument #1 when calling: `tirx.BufferLoad(0: tirx.Buffer, 1: "
          "Array<ir.PrimExpr>, 2: Optional<ir.PrimExpr>, 3: ir.Span) -> tirx.BufferLoad`. "
          "Expected `Array<ir.PrimExpr>` but got `Array[index 0: ffi.Array]`",
          "An index is a tuple of several variables.",
          "Name each axis: for i, j in T.Parallel(M, N), and T.Kernel(gx, gy) as (bx, by).",
          cause="Likely one name stands for a loop or a grid of several axes.",
          types=("TypeError",)),
    _kind("extent-tuple", r"calling: `tl\.(?P<call>KernelLaunch|Parallel|Persistent)\(.*?but got "
          r"`Array\[index \d+: ffi\.Array\]`",
          "Mismatched type on argument #0 when calling: `tl.KernelLaunch(0: Array<ir.PrimExpr>, "
          "1: Optional<Array<ir.PrimExpr>>, 2: Map<str, Any>) -> tl.KernelLaunchFrame`. Expected "
          "`Array<ir.PrimExpr>` but got `Array[index 0: ffi.Array]`",
          "The extents were given as one tuple.",
          "Give them one by one: T.Kernel(4, 8), T.Parallel(M, N).", types=("TypeError",),
          threads=("tile-ai/tilelang#1623",)),
    _kind("option-type", r"Mismatched type on argument #\d+ when calling: `tl\.Pipelined\(.*?"
          r"Expected `(?P<want>\w+)` but got `(?P<got>[\w.]+)`",
          "Mismatched type on argument #2 when calling: `tl.Pipelined(0: ir.PrimExpr, 1: "
          "ir.PrimExpr, 2: int, 3: Array<ir.PrimExpr>, 4: Array<ir.PrimExpr>, 5: Map<str, Any>) "
          "-> script.ir_builder.tirx.ForFrame`. Expected `int` but got `ffi.SmallStr`",
          "An argument of T.Pipelined is a {got}, and it has to be an {want}.",
          "num_stages is a Python integer.", types=("TypeError",)),
    _kind("step-slice", r"Buffer slicing with step is not supported",
          "Buffer slicing with step is not supported.",
          "A slice with a step, such as X[0:32:2].",
          "Write the loop: for i in T.Parallel(16): y[i] = X[2 * i].",
          threads=("tile-ai/tilelang#1301",)),
    _kind("view-bits", r"T\.view shape and dtype must preserve the logical bit count of "
          r"'(?P<name>\w+)': (?P<a>\d+) bits != (?P<b>\d+) bits",
          "T.view shape and dtype must preserve the logical bit count of 'x': 4096 bits != 8192 "
          "bits.",
          "T.view of `{name}` would have {a} bits, and the tile has {b}.",
          "A view has the same number of bytes: half the width, twice the elements.",
          threads=("tile-ai/tilelang#3040",)),
    _kind("out-of-scope", r"Immutable variable `(?P<name>\w+)` is used outside its defining "
          r"region",
          "Immutable variable `s` is used outside its defining region!",
          "`{name}` got its value inside a loop or a branch, and is used outside of it. A name in "
          "a kernel stands for one value and cannot be assigned again, as Python's can.",
          'For a sum over a loop use s = T.alloc_var("float32"), or a fragment with T.clear.',
          threads=("tile-ai/tilelang#2977", "tile-ai/tilelang#3231")),
    _kind("returned-parameter", r"Only tensor allocated from `T\.empty` can be returned in a "
          r"prim_func, got (?P<name>\w+)",
          "Only tensor allocated from `T.empty` can be returned in a prim_func, got Y(<class "
          "'tvm.tirx.buffer.Buffer'>)",
          "The kernel returns `{name}`, which is one of its parameters.",
          "Leave the return out and say out_idx=-1 when you compile, or make the tensor with "
          "T.empty."),
    _kind("eager-out-idx", r"out_idx is only supported in lazy mode",
          "out_idx is only supported in lazy mode. In eager mode, use T.empty() to declare output "
          "tensors instead.",
          "@tilelang.jit(out_idx=...) stands above a function that takes tensors itself.",
          "Leave out_idx away; make the output with T.empty and return it.",
          types=("ValueError",)),
)
KINDS = SOURCE + EXPRESSIONS + SHAPES
