"""Programs that the compiler gets wrong in silence: each warned about, and no right one is."""

from __future__ import annotations

import warnings

import programs
import pytest
import test_matrix
import tilelang.language as T

import labkit as lab
from labkit.diagnose import patterns
from labkit.errors import LabWarning


def named(program) -> list[str]:
    return [finding.pattern for finding in patterns.find(program)]


def serial(shared=False):
    alloc = T.alloc_shared if shared else T.alloc_fragment

    @T.prim_func
    def main(X: T.Tensor((16, 16), "float32"), Y: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=128):
            x = alloc((16, 16), "float32")
            T.copy(X, x)
            for i in T.serial(16):
                for j in T.serial(16):
                    Y[i, j] = x[i, j]

    return main


def two_extents(short, gemm=False):
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), Y: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            x = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(x)
            if gemm:
                T.gemm(a, a, x)
            for i, j in T.Parallel(64, short):
                x[i, j] = x[i, j] * 2.0
            T.copy(x, Y)

    return main


def beyond(guard, elements=32):
    @T.prim_func
    def main(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((elements,), "float32")
            for i in T.Parallel(64):
                if guard:
                    if i < 32:
                        x[i] = X[i]
                else:
                    x[i] = X[i]
            T.copy(x[0:32], Y[0:32])

    return main


def slice_beyond():
    @T.prim_func
    def main(Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((8,), "float32")
            T.fill(x[6:12], 1.0)
            T.copy(x, Y)

    return main


def softmax(N, width, masked=False, safe=False):
    @T.prim_func
    def main(X: T.Tensor((4, N), "float32"), Y: T.Tensor((4, N), "float32")):
        with T.Kernel(4, threads=128) as bx:
            x = T.alloc_fragment((1, width), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            if safe:
                T.annotate_safe_value({X: -T.infinity("float32")})
            T.copy(X[bx, 0], x)
            if masked:
                for i, j in T.Parallel(1, width):
                    x[i, j] = T.if_then_else(j < N, x[i, j], -T.infinity("float32"))
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(1, width):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(1, width):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx, 0])

    return main


def keys(count):
    @T.prim_func
    def main(Q: T.Tensor((64, 64), "float16"), K: T.Tensor((count, 64), "float16"),
             V: T.Tensor((count, 64), "float16"), Out: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            q = T.alloc_shared((64, 64), "float16")
            k = T.alloc_shared((64, 64), "float16")
            v = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((64, 64), "float32")
            p = T.alloc_fragment((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.copy(Q, q)
            T.clear(acc)
            for t in T.Pipelined(T.ceildiv(count, 64), num_stages=1):
                T.copy(K[t * 64, 0], k)
                T.copy(V[t * 64, 0], v)
                T.clear(s)
                T.gemm(q, k, s, transpose_B=True)
                for i, j in T.Parallel(64, 64):
                    s[i, j] = T.exp2(s[i, j])
                T.copy(s, p)
                T.gemm(p, v, acc)
            T.copy(acc, Out)

    return main


def branch_on_a_variable():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                v = T.alloc_var("float32")
                if X[i] > 0:  # noqa: SIM108 (what the program is about)
                    v = X[i]
                else:
                    v = 0.0
                Y[i] = v

    return main


def branch():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                if X[i] > 0:  # noqa: SIM108 (what the program is about)
                    v = X[i]
                else:
                    v = 0.0
                Y[i] = v

    return main


def overwritten():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            Y = X[0]  # noqa: F841

    return main


def python_branch(causal):
    @T.prim_func
    def main(X: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            factor = 1.0
            if causal:
                factor = 2.0
            for i in T.Parallel(32):
                X[i] = X[i] * factor

    return main


@pytest.mark.parametrize(("program", "patterns"), [
    (serial, ["serial-fragment"]), (lambda: serial(shared=True), []),
    (lambda: two_extents(32), ["two-extents"]), (lambda: two_extents(64), []),
    (lambda: two_extents(32, gemm=True), []),
    (lambda: beyond(False), ["beyond"]), (lambda: beyond(True), []),
    (lambda: beyond(False, 64), []), (slice_beyond, ["beyond"]),
    (lambda: softmax(100, 128), ["unmasked"]), (lambda: softmax(128, 128), []),
    (lambda: softmax(100, 128, masked=True), []), (lambda: softmax(100, 128, safe=True), []),
    (lambda: keys(250), ["unmasked"]), (lambda: keys(256), []),
    (branch, ["constant-in-branch"]), (branch_on_a_variable, []),
    (overwritten, ["unwritten", "parameter"]),
    (lambda: python_branch(True), []), (lambda: python_branch(False), [])])
def test_a_pattern_is_found_where_it_is_and_only_there(program, patterns):
    assert named(program()) == patterns


def test_the_compiler_does_get_them_wrong():
    """The CUDA of each pattern, so that a version of TileLang that mends one is noticed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabWarning)
        constant = lab.cross_compile(branch(), "A100").body
        nothing = lab.cross_compile(overwritten(), "A100").body
        everyone = lab.cross_compile(serial(), "A100").body
        truncated = lab.cross_compile(two_extents(32), "A100").body
        outside = lab.cross_compile(beyond(False), "A100").body
    assert "X[" not in constant  # the condition and the other branch are gone
    assert "Y[" not in nothing
    assert "for (int i = 0; i < 16" in everyone and "x[(j & 1)]" in everyone
    assert "x[32]" not in truncated and "float x[16]" in truncated  # room for half of it
    assert "x[((int)threadIdx.x)] = X" in outside


@pytest.mark.parametrize("name", programs.CASES)
def test_right_programs_are_not_warned_about(name):
    assert named(programs.CASES[name][0]("float16")) == []


@pytest.mark.parametrize("sm", [75, 80, 90])
def test_the_lessons_kernels_are_not_warned_about(sm):
    for build, *_ in test_matrix.KERNELS.values():
        assert named(build(sm)) == []


def test_compiling_warns_once_and_names_the_line():
    said = r"`x` is a fragment.*test_patterns\.py: Y\[i, j\] = "
    with pytest.warns(LabWarning, match=said) as all_:
        lab.cross_compile(serial(), "T4")
    assert len(all_) == 1 and all_[0].filename == __file__
    with pytest.warns(LabWarning, match="`x` is a fragment"):
        lab.compile(serial(), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", LabWarning)
        lab.cross_compile(serial(), "T4")
