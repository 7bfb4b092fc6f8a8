"""TileLang on one page. Every line stands in a kernel that is compiled and run."""

from __future__ import annotations

import functools
import re
import textwrap
from typing import Any

from labkit.exercises.trial import quiet
from labkit.reference.page import Line, Page, Ran, compared, executed, failed

# name in a line -> what makes it at the start of the kernel, {} being the line's number
_PREPARED = {
    "S": 'S{0} = T.alloc_shared((64, 64), "float32"); T.copy(X, S{0})',
    "F": 'F{0} = T.alloc_fragment((64, 64), "float32"); T.copy(X, F{0})',
    "A": 'A{0} = T.alloc_shared((64, 64), "float16"); T.copy(G, A{0})',
    "B": 'B{0} = T.alloc_shared((64, 64), "float16"); T.copy(H, B{0})',
    "acc": 'acc{0} = T.alloc_fragment((64, 64), "float32"); T.clear(acc{0})',
    "f": 'f{0} = T.alloc_fragment((64,), "float32")',
    "strip": 'strip{0} = T.alloc_shared((16, 64), "float32")',
    "t": "", "n": "",  # the line makes them itself
}
NOTE = ("In memory: X [64, 64] and v [64] in float32, G and H [64, 64] in float16. The same X in "
        "shared memory: S, in registers: F; G and H in shared memory: A and B. acc: a fragment "
        "[64, 64] of zeros. f: a fragment [64]. strip: shared memory [16, 64]. Y [64, 64] and "
        "y [64] begin as zeros; \"gives\" is what Y or y holds after the line, and was compared.")

_TILE = '    s = T.alloc_shared((16, 64), "float32")\n'
GROUPS = {
    "Kernels": [
        Line("4 blocks of 128 threads", "with T.Kernel(4, threads=128) as b:\n" + _TILE +
             "    T.copy(X[16 * b, 0], s); T.copy(s, Y[16 * b, 0])", "X"),
        Line("a grid of 2 x 4 blocks", "with T.Kernel(2, 4, threads=128) as (bx, by):\n" + _TILE +
             "    T.copy(X[16 * by, 32 * bx], s)\n"
             "    T.copy(s[0:16, 0:32], Y[16 * by, 32 * bx])", "X"),
        Line("2 blocks that stay, and share 4 tiles",
             "with T.Kernel(2, threads=128) as b:\n" + _TILE +
             "    for by, bx in T.Persistent([4, 1], 2, b):\n"
             "        T.copy(X[16 * by, 64 * bx], s)\n"
             "        T.copy(s, Y[16 * by, 64 * bx])", "X"),
    ],
    "Tiles": [
        Line("in shared memory",
             't = T.alloc_shared((64, 64), "float32"); T.copy(X, t); T.copy(t, Y)', "X"),
        Line("in registers, spread over the threads",
             't = T.alloc_fragment((64, 64), "float32"); T.copy(X, t); T.copy(t, Y)', "X"),
        Line("an array of each thread",
             't = T.alloc_local((2,), "float32"); t[0] = X[0, 0]; y[0] = t[0]', "X[0, :1]"),
        Line("a variable", 'n = T.alloc_var("int32", init=3); y[0] = n', "torch.tensor([3.0])"),
        Line("every element to one value", "T.fill(F, 2.0); T.copy(F, Y)", "2 + 0 * X"),
        Line("every element to 0", "T.clear(F); T.copy(F, Y)", "0 * X"),
    ],
    "Copies": [
        Line("a tile from a first index on", "T.copy(X[16, 0], strip); T.copy(strip, Y[0, 0])",
             "X[16:32]"),
        Line("over the edge: zeros", "T.copy(X[56, 0], strip); T.copy(strip, Y[0, 0])",
             "torch.cat([X[56:], 0 * X[:8]])"),
        Line("a slice", "T.copy(X[8:24, 0:64], strip); T.copy(strip, Y[0, 0])", "X[8:24]"),
        Line("with another dtype: rounds", "T.copy(X, A); T.copy(A, Y)", "X.half()"),
        Line("to registers and back", "T.copy(S, F); T.copy(F, Y)", "X"),
    ],
    "Loops": [
        Line("over elements, shared out to threads",
             "for i, j in T.Parallel(64, 64): Y[i, j] = X[i, j] + v[j]", "X + v"),
        Line("over tiles, copies ahead of the work",
             "for k in T.Pipelined(4, num_stages=2): T.copy(X[16 * k, 0], strip); "
             "T.copy(strip, Y[16 * k, 0])", "X"),
        Line("one after the other, in each thread", "for i in T.serial(64): y[i] = v[i]", "v"),
        Line("the same, unrolled", "for i in T.unroll(8): y[i] = v[i]", "v[:8]"),
        Line("in wide accesses", "for i in T.vectorized(4): y[i] = v[i]", "v[:4]"),
        Line("nested", "for i, j in T.grid(64, 64): Y[i, j] = X[j, i]", "X.T"),
        Line("while", 'n = T.alloc_var("int32", init=0)\nwhile n < 4: n += 1\ny[0] = n',
             "torch.tensor([4.0])"),
        Line("a guard", "for i, j in T.Parallel(64, 99):\n    if j < 64: Y[i, j] = X[i, j]", "X"),
    ],
    "Arithmetic": [
        Line("one value or another",
             "for i, j in T.Parallel(64, 64): Y[i, j] = T.if_then_else(i < j, X[i, j], 0.0)",
             "X.triu(1)"),
        Line("the same, as Python writes it",
             "for i, j in T.Parallel(64, 64): Y[i, j] = X[i, j] if i < j else 0.0", "X.triu(1)"),
        *(Line(name, f"for i in T.Parallel(64): y[i] = T.{code}", gives) for name, code, gives in (
            ("exponential", "exp(v[i])", "v.exp()"), ("power of 2", "exp2(v[i])", "v.exp2()"),
            ("logarithm", "log(T.abs(v[i]))", "v.abs().log()"),
            ("square root", "sqrt(T.abs(v[i]))", "v.abs().sqrt()"),
            ("one over the root", "rsqrt(T.abs(v[i]))", "v.abs().rsqrt()"),
            ("hyperbolic tangent", "tanh(v[i])", "v.tanh()"),
            ("sigmoid", "sigmoid(v[i])", "v.sigmoid()"),
            ("larger, smaller", "min(T.max(v[i], 0.0), 1.0)", "v.clamp(0, 1)"),
            ("another dtype", 'Cast("float16", v[i])', "v.half().float()"),
            ("infinity", 'max(v[i], -T.infinity("float32"))', "v"))),
        Line("add to memory, no thread in between",
             "for i, j in T.Parallel(64, 64): T.atomic_add(y[j], X[i, j])", "X.sum(0)"),
    ],
    "Reductions": [
        Line("sum of each row", "T.reduce_sum(F, f, dim=1); T.copy(f, y)", "X.sum(1)"),
        Line("of each column", "T.reduce_sum(F, f, dim=0); T.copy(f, y)", "X.sum(0)"),
        Line("maximum", "T.reduce_max(F, f, dim=1); T.copy(f, y)", "X.amax(1)"),
        Line("minimum", "T.reduce_min(F, f, dim=1); T.copy(f, y)", "X.amin(1)"),
        Line("largest absolute value", "T.reduce_absmax(F, f, dim=1); T.copy(f, y)",
             "X.abs().amax(1)"),
        Line("on top of what is there",
             "T.fill(f, 9.0); T.reduce_max(F, f, dim=1, clear=False); T.copy(f, y)",
             "X.amax(1).clamp(min=9)"),
    ],
    "Products": [
        Line("tile times tile, added to acc", "T.gemm(A, B, acc); T.copy(acc, Y)",
             "G.float() @ H.float()"),
        Line("the second one transposed", "T.gemm(A, B, acc, transpose_B=True); T.copy(acc, Y)",
             "G.float() @ H.float().T"),
        Line("the first one transposed", "T.gemm(A, B, acc, transpose_A=True); T.copy(acc, Y)",
             "G.float().T @ H.float()"),
        Line("not added: acc is cleared first",
             "T.fill(acc, 7.0); T.gemm(A, B, acc, clear_accum=True); T.copy(acc, Y)",
             "G.float() @ H.float()"),
        Line("each warp whole rows",
             "T.gemm(A, B, acc, policy=T.GemmWarpPolicy.FullRow); T.copy(acc, Y)",
             "G.float() @ H.float()"),
    ],
    "Blocks and threads": [
        Line("blocks that share data run near each other", "T.use_swizzle(10); T.copy(X, Y)", "X"),
        Line("wait for the other threads",
             "T.sync_threads(); T.copy(X, Y)", "X"),
        Line("stop with a message", 'T.device_assert(X[0, 0] < 99.0, "too large"); T.copy(X, Y)',
             "X"),
    ],
}
# lines of plain Python; program(n) copies a tensor [n, 64] in blocks of 16 rows
AROUND = [
    Line("compile and run on the CPU",
         'Y = lab.compile(program(100), out_idx=-1, device="cpu")(R)', "R"),
    Line("the same where this run is",
         "Y = lab.compile(program(100), out_idx=-1, device=here.device)(R.to(here.torch_device))",
         "R"),
    Line("is it right?", "verdict = lab.check(lab.compile(program(9), -1, \"cpu\")(R[:9]), R[:9])",
         shows='"correct" if verdict.ok else ""'),
    Line("compile for a GPU that is not here", 'code = lab.cross_compile(program(100), "T4")',
         shows="code.gpu.arch"),
    Line("the blocks that it launches", 'code = lab.cross_compile(program(100), "A100")',
         shows="code.grid"),
    Line("which instruction multiplies",
         'code = lab.cross_compile(lab.kernel("02", "gemm")(512, 512, 512), "H100")',
         shows="code.tensor_core"),
    Line("on an older GPU",
         'code = lab.cross_compile(lab.kernel("02", "gemm")(512, 512, 512), "T4")',
         shows="code.tensor_core"),
    Line("shared memory of a block, bytes",
         'code = lab.cross_compile(lab.kernel("02", "gemm")(512, 512, 512), "A100")',
         shows="code.shared_bytes"),
    Line("what each pass of the compiler did", 'passes = lab.lower(program(100), "H100")',
         shows='f"{len(passes.passes)} passes"'),
]
_PROGRAM = '''
import tilelang.language as T


def program(n):
    @T.prim_func
    def copy(X: T.Tensor((n, 64), "float32"), Y: T.Tensor((n, 64), "float32")):
        with T.Kernel(T.ceildiv(n, 16), threads=128) as b:
            tile = T.alloc_shared((16, 64), "float32")
            T.copy(X[16 * b, 0], tile)
            T.copy(tile, Y[16 * b, 0])

    return copy
'''


def tilelang(here: Any) -> Page:
    """Runs every line of TileLang's page on the device of `here`, the result of `lab.here`.

    The lines of a group share one kernel; where it fails, each gets its own, so that only what is
    wrong shows as failing. Raises nothing for a line that fails: `Page.check` does.
    """
    groups = {heading: _group(lines, here) for heading, lines in GROUPS.items()}
    groups["Around the kernel"] = _around(AROUND, here)
    return Page("TileLang on one page", groups, NOTE)


def _group(lines: list[Line], here: Any) -> list[Ran]:
    together = [line for line in lines if not _alone(line)]
    found: dict[Line, Ran] = {}
    try:
        with quiet():
            found = dict(zip(together, _run(together, here), strict=True)) if together else {}
    except Exception:  # of one of the lines: each by itself says which
        pass
    for line in lines:
        if line not in found:
            try:
                with quiet():
                    (found[line],) = _run([line], here)
            except Exception as error:  # it stands on the page
                found[line] = failed(line, error)
    return [found[line] for line in lines]


def _alone(line: Line) -> bool:
    """Whether the line needs a kernel of its own: it brings one, or it has the compiler give some
    warps other work than the rest."""
    return _is_kernel(line) or "T.Pipelined" in line.code


def _is_kernel(line: Line) -> bool:
    return line.code.startswith("with T.Kernel")


def _run(lines: list[Line], here: Any) -> list[Ran]:
    import labkit as lab
    from labkit import lessons

    space: dict[str, Any] = {}
    lessons.execute(source(tuple(lines)), f"<reference lines from {lines[0].what!r} on>", space)
    kernel = lab.compile(space["build"](), device=here.device)
    inputs, host = _inputs(), {}
    for name, tensor in inputs.items():
        host[name] = tensor.to(here.torch_device)
    outputs = [_zeros(line, here) for line in lines]
    kernel(*host.values(), *outputs)
    return [compared(line, output, inputs) for line, output in zip(lines, outputs, strict=True)]


def _around(lines: list[Line], here: Any) -> list[Ran]:
    import torch

    import labkit as lab
    from labkit import lessons

    space: dict[str, Any] = {}
    lessons.execute(_PROGRAM, "<reference: a copy in blocks>", space)
    names = {"lab": lab, "here": here, "program": space["program"],
             "R": torch.randn(100, 64, generator=torch.Generator().manual_seed(1))}
    return [executed(line, names) for line in lines]


@functools.cache
def _inputs() -> dict[str, Any]:
    import torch

    chance = torch.Generator().manual_seed(0)
    X, v = torch.randn(64, 64, generator=chance), torch.randn(64, generator=chance)
    G, H = (torch.randn(64, 64, generator=chance).half() for _ in range(2))
    return {"X": X, "v": v, "G": G, "H": H}


def _vector(line: Line) -> bool:
    return bool(re.search(r"\by\b", line.code))


def _zeros(line: Line, here: Any) -> Any:
    import torch

    return torch.zeros((64,) if _vector(line) else (64, 64), device=here.torch_device)


@functools.cache
def source(lines: tuple[Line, ...]) -> str:
    """The text of `build`, which makes one kernel of these lines; each has its own tiles."""
    outputs, body = [], []
    for number, line in enumerate(lines):
        out = "y" if _vector(line) else "Y"
        outputs.append(f'{out}{number}: T.Tensor(({"64," if out == "y" else "64, 64"}), "float32")')
        names = re.findall(r"\b[A-Za-z]+\b", line.code)
        body += [made.format(number) for name, made in _PREPARED.items() if name in names and made]
        own = "|".join([out, *(name for name in _PREPARED if name in names)])
        text = re.sub(rf"\b({own})\b(?!['\"=])", rf"\g<1>{number}", line.code)
        body += text.split("\n")
    inputs = ('X: T.Tensor((64, 64), "float32"), v: T.Tensor((64,), "float32"), '
              'G: T.Tensor((64, 64), "float16"), H: T.Tensor((64, 64), "float16")')
    block = "\n".join(body)
    if not _is_kernel(lines[0]):
        block = "with T.Kernel(1, threads=128) as bx:\n" + textwrap.indent(block, " " * 4)
    return ("import tilelang.language as T\n\n\ndef build():\n    @T.prim_func\n"
            f"    def main({inputs}, {', '.join(outputs)}):\n{textwrap.indent(block, ' ' * 8)}"
            "\n\n    return main\n")
