"""Programs and calls that fail, one or more for each kind of error that labkit explains.

`PROVOKE` maps the name of a kind to functions that raise it. The line that the explanation has to
name ends in `# here`.
"""

import linecache
import math

import tilelang
import tilelang.language as T
import torch
from tilelang import tvm

import labkit as lab
from labkit import ptxas

PROVOKE: dict[str, list] = {}
WITHOUT_GPU = {"no-gpu-target", "torch-without-cuda", "cudnn-not-loaded", "cudnn-no-driver",
               "no-arch"}  # what a machine with a GPU does not raise


def raises(kind):
    def keep(function):
        PROVOKE.setdefault(kind, []).append(function)
        return function

    return keep


def lower(program, arch="sm_80"):
    """TileLang's own lowering, without labkit."""
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    with tvm.transform.PassContext(opt_level=3), target:
        return tilelang.lower(program, target=target)  # here


def resources(program, gpu="A100"):
    return lab.cross_compile(program, gpu).resources  # here


def element(body, dtype="float32", out="float32"):
    """A kernel whose one line is `body(X, Y, i)`, run while it is traced."""

    @T.prim_func
    def main(X: T.Tensor((16,), dtype), Y: T.Tensor((16,), out)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                body(X, Y, i)

    return main


def copied(width, threads=128):
    @T.prim_func
    def main(X: T.Tensor((1, width), "float32"), Y: T.Tensor((1, width), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((1, width), "float32")  # here
            T.copy(X, x)
            T.copy(x, Y)

    return main


def summed(width, threads):
    @T.prim_func
    def main(X: T.Tensor((1, width), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((1, width), "float32")
            y = T.alloc_fragment((1,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, y, dim=1)
            T.copy(y, Y)

    return main


def gemm(a=(64, 32), b=(32, 64), c=(64, 64), a_dtype="float16", b_dtype="float16",
         c_dtype="float32", threads=128, **more):
    @T.prim_func
    def main(A: T.Tensor(a, a_dtype), B: T.Tensor(b, b_dtype), C: T.Tensor(c, c_dtype)):
        with T.Kernel(1, threads=threads):
            A_tile = T.alloc_shared(a, a_dtype)
            B_tile = T.alloc_shared(b, b_dtype)
            acc = T.alloc_fragment(c, c_dtype)
            T.copy(A, A_tile)
            T.copy(B, B_tile)
            T.clear(acc)
            T.gemm(A_tile, B_tile, acc, **more)  # here
            T.copy(acc, C)

    return main


def on_cpu():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.serial(32):
                Y[i] = X[i]

    return main


def run(*arguments):
    return tilelang.compile(on_cpu(), target="c", out_idx=-1)(*arguments)


def text(source, name):
    """Executes a kernel's source so that its text can be found."""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"T": T}
    exec(compile(source, name, "exec"), space)
    return space


# --- tracing

SCALE = '''
def scale(N, dtype="float32"):
    @T.prim_func  # here
    def main(X: T.Tensor((N,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                X[i] = 2 * X[i]

    return main
'''


@raises("no-source")
def _():
    space = {"T": T}
    exec(SCALE, space)
    space["scale"](32)


@raises("postponed-annotations")
def _():
    text("from __future__ import annotations\n" + SCALE, "<postponed>")["scale"](32)


@raises("undefined-name")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                X[i] = X[i] * factor  # noqa: F821 # here


@raises("used-before")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(X, x)  # noqa: F821 # here
            x = T.alloc_fragment((16,), "float32")  # noqa: F841


@raises("no-prim-func")
def _():
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):  # here
            X[0] = 1.0

    main(torch.zeros(16))


@raises("no-annotation")
def _():
    @T.prim_func  # here
    def main(X):
        with T.Kernel(1, threads=32):
            X[0] = 1.0


@raises("unknown-attribute")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            T.alloc_fragments((16,), "float32")  # here


@raises("unknown-dtype")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "fp16")):  # here
        with T.Kernel(1, threads=32):
            X[0] = 1.0


@raises("unexpected-keyword")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, thread=32):  # here
            X[0] = 1.0


@raises("unexpected-keyword")
def _():
    gemm(k_pack=3)


@raises("missing-argument")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            T.alloc_shared((16,))  # here


@raises("no-return")
def _():
    @tilelang.jit(target="c")
    def builder(N):
        @T.prim_func
        def main(X: T.Tensor((N,), "float32")):
            with T.Kernel(1, threads=32):
                X[0] = 1.0

    builder(32)  # here


@raises("not-a-prim-func")
def _():
    tilelang.compile(copied, target="c")  # here


@raises("called-program")
def _():
    copied(128)(torch.zeros(1, 128), torch.zeros(1, 128))  # here


@raises("python-logic")
def _():
    element(lambda X, Y, i: max(X[i], 0.0))  # here


@raises("python-math")
def _():
    element(lambda X, Y, i: math.exp(X[i]))  # here


@raises("python-math")
def _():
    element(lambda X, Y, i: torch.exp(X[i]))  # here


@raises("python-math")
def _():
    element(lambda X, Y, i: float(X[i]))  # here


@raises("true-division")
def _():
    element(lambda X, Y, i: X[i / 2])  # here


@raises("float-size")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(32 / 8, threads=32) as bx:  # here
            X[bx] = 1.0


@raises("float-floor")
def _():
    element(lambda X, Y, i: X[i] // 2)  # here


@raises("float-bits")
def _():
    element(lambda X, Y, i: X[i] & 1)  # here


@raises("whole-tile")
def _():
    element(lambda X, Y, i: X + Y)  # here


@raises("tile-method")
def _():
    element(lambda X, Y, i: X.sum())  # here


@raises("tile-method")
def _():
    element(lambda X, Y, i: len(X))  # here


@raises("not-iterable")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            for i, _x in enumerate(X):  # here
                X[i] = 1.0


@raises("literal-range")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                X[i] = -1e30  # here


@raises("gemm-shapes")
def _():
    gemm(b=(48, 64))


@raises("gemm-shapes")
def _():
    gemm(c=(32, 64))


@raises("gemm-symbolic")
def _():
    M = T.dynamic("M")
    gemm(a=(M, 32), c=(M, 64))


@raises("index-rank")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(4, 8):
                X[i, j] = X[i]  # here


@raises("index-rank")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                X[i] = 1.0  # here


@raises("copy-shapes")
def _():
    @T.prim_func
    def main(X: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((16, 8), "float32")
            T.copy(X, x)  # here


@raises("reduce-shape")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 32), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((4, 32), "float32")
            y = T.alloc_fragment((32,), "float32")
            T.reduce_sum(x, y, dim=1)  # here


@raises("loop-targets")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(32):  # here
                X[i, j] = 1.0


@raises("loop-targets")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(4, threads=32) as (bx, by):  # here
            X[bx, by] = 1.0


@raises("index-tuple")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4, 8):
                X[i, 0] = X[i, 1]  # here


@raises("extent-tuple")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel((4, 8), threads=32):  # here
            X[0, 0] = 1.0


@raises("option-type")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Pipelined(4, num_stages="2"):  # here
                X[i, 0] = 1.0


@raises("step-slice")
def _():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(X[0:32:2], Y)  # here


@raises("view-bits")
def _():
    @T.prim_func
    def main(X: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((256,), "float32")
            T.view(x, (256,), "float16")  # here


@raises("out-of-scope")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            total = 0.0
            for i in T.serial(16):
                total = total + X[i]
            Y[0] = total  # here


@raises("returned-parameter")
def _():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            X[0] = 1.0
            return X  # here


@raises("eager-out-idx")
def _():
    @tilelang.jit(out_idx=-1)
    def double(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i]
        return B

    double(torch.zeros(32))  # here


# --- lowering


@raises("no-layout")
def _():
    lower(copied(1000))


@raises("no-layout")
def _():
    lab.cross_compile(copied(1000), "T4")


@raises("reduce-layout")
def _():
    @T.prim_func
    def main(X: T.Tensor((1, 96), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((1, 96), "float32")  # here
            y = T.alloc_fragment((1,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, y, dim=1)
            T.copy(y, Y)

    lower(main)


@raises("reduce-threads")
def _():
    lower(summed(96, 96))  # here


@raises("two-indices")
def _():
    @T.prim_func
    def main(X: T.Tensor((128,), "float32"), Y: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((128,), "float32")  # here
            T.copy(X, x)
            for i in T.Parallel(128):
                Y[i] = x[i] + x[(i + 1) % 128]

    lower(main)


def indexed(index, elements=128):
    @T.prim_func
    def main(X: T.Tensor((elements,), "float32"), Y: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((elements,), "float32")
            T.copy(X, x)
            for i in T.Parallel(128):
                Y[i] = x[index(i)]

    return main


@raises("shifted-fragment")
def _():
    lower(indexed(lambda i: (i + 1) % 128))  # here


@raises("strided-fragment")
def _():
    lower(indexed(lambda i: 2 * i, 256))  # here


@raises("serial-fragment")
def _():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")  # here
            total = T.alloc_fragment((64,), "float32")
            T.copy(A, a)
            T.clear(acc)
            T.clear(total)
            T.gemm(a, a, acc)
            for i in T.Parallel(64):
                for j in T.serial(64):
                    total[i] += acc[i, j]
            T.copy(total, Y)

    lower(main)


@raises("fragment-element")
def _():
    @T.prim_func
    def main(Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_fragment((8,), "float32")
            x[3] = 1.0
            T.copy(x, Y)

    lower(main)  # here


@raises("layout-conflict")
def _():
    lower(two_products())


def two_products(block_M=64, threads=256):
    policy = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(Q: T.Tensor((64, 64), "float16"), Out: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=threads):
            q = T.alloc_shared((64, 64), "float16")
            scores = T.alloc_fragment((64, 64), "float32")  # here
            weights = T.alloc_fragment((64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.copy(Q, q)
            T.clear(scores)
            T.clear(acc)
            T.gemm(q, q, scores, transpose_B=True, policy=policy)
            T.copy(scores, weights)
            T.gemm(weights, q, acc, policy=policy)
            T.copy(acc, Out)

    return main


@raises("no-layout-for")
def _():
    tilelang.compile(copied(128), target="c")


@raises("local-in-parallel")
def _():
    @T.prim_func
    def main(X: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_local((64,), "float32")  # here
            for i in T.Parallel(64):
                x[i] = X[i]

    lower(main)


@raises("tile-op-in-parallel")
def _():
    @T.prim_func
    def main(X: T.Tensor((4, 64), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_shared((64,), "float32")
            for i in T.Parallel(4):
                T.copy(X[i, 0:64], x)  # here

    lower(main)


def of_size(alloc):
    N = T.dynamic("N")

    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            x = alloc((N,), "float32")  # here
            T.copy(X, x)
            T.copy(x, Y)

    return main


@raises("symbolic-fragment")
def _():
    lower(of_size(T.alloc_fragment))


@raises("symbolic-shared")
def _():
    lab.cross_compile(of_size(T.alloc_shared), "A100")  # here


@raises("warps")
def _():
    lower(gemm(threads=96))


@raises("gemm-rows")
def _():
    lower(gemm(a=(24, 32), c=(24, 64)))


@raises("gemm-depth-stride")
def _():
    lower(gemm(a=(64, 20), b=(20, 64)))


@raises("gemm-depth")
def _():
    lower(gemm(a=(64, 24), b=(24, 64)))


@raises("gemm-dtypes")
def _():
    lower(gemm(b_dtype="bfloat16"))


@raises("gemm-scope")
def _():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.gemm(A, A, acc)  # here
            T.copy(acc, C)

    lower(main)


@raises("gemm-accumulator")
def _():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            acc = T.alloc_shared((64, 64), "float32")  # here
            T.copy(A, a)
            T.clear(acc)
            T.gemm(a, a, acc)
            T.copy(acc, C)

    lab.cross_compile(main, "A100")


@raises("gemm-arguments")
def _():
    lower(gemm(policy="FullRow"))


@raises("symbolic-wait")
def _():
    attention = lab.kernel("06", "flash_attention")
    lower(attention(1, 1, 1, 256, 256, 64, causal=True, num_stages=2))  # here


@raises("copy-range")
def _():
    @T.prim_func
    def main(X: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((8, 16), "float32")  # here
            T.copy(X[0:16, 0:16], x)

    lower(main)


@raises("region-extent")
def _():
    @T.prim_func
    def main(Y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            x = T.alloc_shared((8,), "float32")
            T.fill(x[6:16], 1.0)  # here
            T.copy(x, Y)

    lower(main)


@raises("no-kernel")
def _():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32")):
        for i in T.Parallel(32):
            X[i] = 1.0

    lower(main)  # here


@raises("nested-kernels")
def _():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32), T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                X[i] = 1.0

    lower(main)  # here


@raises("odd-dtype")
def _():
    @T.prim_func
    def main(X: T.Tensor((32,), "float31"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            T.copy(X, Y)

    lower(main)  # here


@raises("unknown-option")
def _():
    lab.cross_compile(copied(128), "T4", pass_configs={"tl.enable_fast_maths": True})  # here


@raises("thread-count")
def _():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=0):  # here
            X[0] = 1.0

    lower(main)


# --- compiling


@raises("reserved-name")
def _():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            new = T.alloc_fragment((32,), "float32")  # here
            T.copy(X, new)
            T.copy(new, Y)

    resources(main)


@raises("static-shared")
def _():
    @T.prim_func
    def main(X: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((128, 128), "float32")
            T.copy(X, x)
            T.print(x)

    resources(main)  # here


@raises("mma-dtypes")
def _():
    resources(gemm(a_dtype="bfloat16", b_dtype="bfloat16", c_dtype="float16"))


@raises("loop-exit")
def _():
    @T.prim_func
    def main(X: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                if i > 2:
                    break  # here
                X[i] = 1.0

    resources(main)


@raises("atomic-dtype")
def _():
    @T.prim_func
    def main(X: T.Tensor((64,), "int8"), Y: T.Tensor((64,), "int8")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                T.atomic_add(Y[i], X[i])  # here

    resources(main)


@raises("random-header")
def _():
    @T.prim_func
    def main(Y: T.Tensor((32,), "uint32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = T.rng_rand()

    resources(main)  # here


@raises("old-nvcc")
def _():
    ptxas.resources('extern "C" __global__ void k() {}', "k", "sm_999")  # here


@raises("no-arch")
def _():
    tilelang.compile(copied(128), target="cuda")  # here


# --- arguments and set-up


@raises("stride")
def _():
    run(torch.zeros(32, 2)[:, 0])


@raises("rank")
def _():
    run(torch.zeros(4, 8))


@raises("shape")
def _():
    run(torch.zeros(31))


@raises("dtype")
def _():
    run(torch.zeros(32, dtype=torch.float16))


@raises("device")
def _():
    run(torch.zeros(32, device="meta"))


@raises("not-a-tensor")
def _():
    run(torch.zeros(32).numpy())


@raises("argument-count")
def _():
    run(torch.zeros(32), torch.zeros(32))


@raises("out-idx")
def _():
    tilelang.compile(on_cpu(), target="c", out_idx=5)  # here


@raises("no-gpu-target")
def _():
    tilelang.compile(copied(128))  # here


@raises("target-text")
def _():
    tilelang.compile(copied(128), target="cuda -arch=sm_80")  # here


@raises("target-arch")
def _():
    lower(copied(128), "sm_9x")  # here


@raises("torch-without-cuda")
def _():
    torch.zeros(1, device="cuda")  # here


# --- cuDNN


def graph():
    import cudnn

    made = cudnn.pygraph(io_data_type=cudnn.data_type.HALF,
                         intermediate_data_type=cudnn.data_type.FLOAT,
                         compute_data_type=cudnn.data_type.FLOAT)
    return made, lambda *dim, **more: made.tensor(dim=list(dim), data_type=cudnn.data_type.HALF,
                                                  **more)


@raises("cudnn-not-loaded")
def _():
    import cudnn

    cudnn.create_handle()  # here


@raises("cudnn-no-driver")
def _():
    made, tensor = graph()
    made.matmul(A=tensor(1, 64, 32), B=tensor(1, 32, 64)).set_output(True)
    made.validate()  # here


@raises("cudnn-inner")
def _():
    made, tensor = graph()
    made.matmul(A=tensor(1, 64, 32), B=tensor(1, 48, 64)).set_output(True)
    made.validate()  # here


@raises("cudnn-batch")
def _():
    made, tensor = graph()
    made.matmul(A=tensor(3, 64, 32), B=tensor(2, 32, 64)).set_output(True)
    made.validate()  # here


@raises("cudnn-broadcast")
def _():
    made, tensor = graph()
    product = made.matmul(A=tensor(1, 64, 32), B=tensor(1, 32, 64))
    made.bias(input=product, bias=tensor(1, 1, 48)).set_output(True)
    made.validate()  # here


@raises("cudnn-strides")
def _():
    made, tensor = graph()
    made.matmul(A=tensor(1, 64, 32, stride=[32, 1]), B=tensor(1, 32, 64)).set_output(True)
    made.validate()  # here


@raises("cudnn-positional")
def _():
    made, tensor = graph()
    q, k, v = (tensor(1, 2, 64, 32) for _ in range(3))
    made.sdpa(q, k, v, 0.1)  # here


@raises("cudnn-method")
def _():
    made, tensor = graph()
    made.pointwise(tensor(1, 64, 32))  # here
