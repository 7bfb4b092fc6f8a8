"""TileLang programs for the tests, each built around one construct, with its PyTorch reference.

`CASES` maps a name to (build(dtype) -> program, shapes of the inputs, reference(*inputs), out_idx).
The reference takes and returns float64. Sizes are ragged and asymmetric on purpose.
"""

import tilelang.language as T
import torch


def pipelined_gemm(dtype, M=70, N=90, K=50, block_M=32, block_N=64, block_K=16):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_tile = T.alloc_shared((block_M, block_K), dtype)
            B_tile = T.alloc_shared((block_K, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(4)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, k * block_K], A_tile)
                T.copy(B[k * block_K, bx * block_N], B_tile)
                T.gemm(A_tile, B_tile, acc)
            T.copy(acc, C[by * block_M, bx * block_N])

    return main


def transposed_gemm(dtype, M=33, N=40, K=48):
    @T.prim_func
    def main(A: T.Tensor((K, M), dtype), B: T.Tensor((N, K), dtype),
             C: T.Tensor((M, N), "float32")):
        with T.Kernel(1, threads=128):
            A_tile = T.alloc_shared((K, 64), dtype)
            B_tile = T.alloc_shared((64, K), dtype)
            acc = T.alloc_fragment((64, 64), "float32")
            T.copy(A[0, 0], A_tile)
            T.copy(B[0, 0], B_tile)
            T.gemm(A_tile, B_tile, acc, transpose_A=True, transpose_B=True, clear_accum=True)
            T.copy(acc, C[0, 0])

    return main


def row_softmax(dtype, M=5, N=100, width=128):
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=128) as row:
            x = T.alloc_fragment((1, width), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            for i, j in T.Parallel(1, width):
                x[i, j] = T.if_then_else(
                    j < N, T.Cast("float32", X[row, j]), -T.infinity("float32"))
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(1, width):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(1, width):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[row, 0])

    return main


def sum_by_atomics(dtype, N=37, block=8):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((1,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
            x = T.alloc_fragment((block,), "float32")
            part = T.alloc_fragment((1,), "float32")
            for i in T.Parallel(block):
                x[i] = T.if_then_else(bx * block + i < N, T.Cast("float32", X[bx * block + i]), 0.0)
            T.reduce_sum(x, part, dim=0)
            for i in T.Parallel(1):
                T.atomic_add(Y[i], part[i])

    return main


def persistent_transpose(dtype, M=64, N=48, block=16):
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((N, M), dtype)):
        with T.Kernel(5, threads=32) as bx:
            tile = T.alloc_shared((block, block), dtype)
            for r, c in T.Persistent([M // block, N // block], 5, bx):
                T.copy(X[r * block, c * block], tile)
                for i, j in T.Parallel(block, block):
                    Y[c * block + i, r * block + j] = tile[j, i]

    return main


def annotated_layout(dtype, N=32):
    @T.prim_func
    def main(X: T.Tensor((N, N), dtype), Y: T.Tensor((N, N), dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((N, N), dtype)
            T.annotate_layout({tile: T.Layout((N, N), lambda i, j: (i, (i + j) % N))})
            T.copy(X[0, 0], tile)
            T.sync_threads()
            T.copy(tile, Y[0, 0])

    return main


def local_and_variables(dtype, N=24):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), "float32")):
        with T.Kernel(3, threads=32) as bx:
            held = T.alloc_local((8,), "float32")
            steps = T.alloc_var("int32")
            steps = 0
            for i in T.serial(8):
                held[i] = T.Cast("float32", X[bx * 8 + i])
                steps = steps + 1
            for i in T.serial(8):
                Y[bx * 8 + i] = held[7 - i] * steps

    return main


def dynamic_rows(dtype, N=40, block=16):
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, N), dtype), Y: T.Tensor((rows, N), dtype)):
        with T.Kernel(T.ceildiv(rows, block), threads=64) as bx:
            tile = T.alloc_fragment((block, N), dtype)
            T.copy(X[bx * block, 0], tile)
            for i, j in T.Parallel(block, N):
                tile[i, j] = tile[i, j] + tile[i, j]
            T.copy(tile, Y[bx * block, 0])

    return main


def elementary_functions(dtype, N=29):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((8, N), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                Y[0, i] = T.exp(X[i])
                Y[1, i] = T.tanh(X[i])
                Y[2, i] = T.sigmoid(X[i])
                Y[3, i] = T.abs(X[i])
                Y[4, i] = T.exp2(X[i])
                Y[5, i] = T.log(T.abs(X[i]))
                Y[6, i] = T.rsqrt(T.abs(X[i]))
                Y[7, i] = T.erf(X[i])

    return main


def two_kernels_in_one(dtype, N=64):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Z: T.Tensor((N,), dtype), Y: T.Tensor((N,), dtype)):
        with T.Kernel(4, threads=32) as bx:
            for i in T.Parallel(16):
                Z[bx * 16 + i] = X[bx * 16 + i] + X[bx * 16 + i]
        with T.Kernel(4, threads=32) as bx:
            for i in T.Parallel(16):
                Y[bx * 16 + i] = Z[63 - bx * 16 - i]

    return main


def attention(dtype, heads=2, Sq=45, Sk=70, D=32, block_M=64, block_N=32, causal=True):
    scale = D**-0.5 * 1.44269504  # exp2 instead of exp

    @T.prim_func
    def main(Q: T.Tensor((heads, Sq, D), dtype), K: T.Tensor((heads, Sk, D), dtype),
             V: T.Tensor((heads, Sk, D), dtype), Out: T.Tensor((heads, Sq, D), dtype)):
        with T.Kernel(T.ceildiv(Sq, block_M), heads, threads=128) as (bx, h):
            q = T.alloc_shared((block_M, D), dtype)
            k = T.alloc_shared((block_N, D), dtype)
            v = T.alloc_shared((block_N, D), dtype)
            s = T.alloc_fragment((block_M, block_N), "float32")
            p = T.alloc_fragment((block_M, block_N), dtype)
            o = T.alloc_fragment((block_M, D), "float32")
            top = T.alloc_fragment((block_M,), "float32")
            before = T.alloc_fragment((block_M,), "float32")
            shrink = T.alloc_fragment((block_M,), "float32")
            part = T.alloc_fragment((block_M,), "float32")
            total = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[h, bx * block_M : (bx + 1) * block_M, :], q)
            T.clear(o)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            for t in T.Pipelined(T.ceildiv(Sk, block_N), num_stages=1):
                T.copy(K[h, t * block_N : (t + 1) * block_N, :], k)
                for i, j in T.Parallel(block_M, block_N):
                    s[i, j] = T.if_then_else(
                        (t * block_N + j >= Sk) | (causal & (t * block_N + j > bx * block_M + i)),
                        -T.infinity("float32"), 0)
                T.gemm(q, k, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    shrink[i] = T.exp2((before[i] - top[i]) * scale)
                for i, j in T.Parallel(block_M, block_N):
                    s[i, j] = T.exp2((s[i, j] - top[i]) * scale)
                T.reduce_sum(s, part, dim=1)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * shrink[i] + part[i]
                for i, j in T.Parallel(block_M, D):
                    o[i, j] *= shrink[i]
                T.copy(s, p)
                T.copy(V[h, t * block_N : (t + 1) * block_N, :], v)
                T.gemm(p, v, o, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(block_M, D):
                o[i, j] /= total[i]
            T.copy(o, Out[h, bx * block_M : (bx + 1) * block_M, :])

    return main


def _attend(q, k, v):
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _functions(x):
    return torch.stack([x.exp(), x.tanh(), x.sigmoid(), x.abs(), x.exp2(), x.abs().log(),
                        x.abs().rsqrt(), x.erf()])


CASES = {
    "pipelined_gemm": (pipelined_gemm, [(70, 50), (50, 90)], lambda a, b: a @ b, -1),
    "transposed_gemm": (transposed_gemm, [(48, 33), (40, 48)], lambda a, b: a.T @ b.T, -1),
    "row_softmax": (row_softmax, [(5, 100)], lambda x: x.softmax(1), -1),
    "persistent_transpose": (persistent_transpose, [(64, 48)], lambda x: x.T, -1),
    "annotated_layout": (annotated_layout, [(32, 32)], lambda x: x, -1),
    "local_and_variables": (local_and_variables, [(24,)],
                            lambda x: x.view(3, 8).flip(1).reshape(-1) * 8, -1),
    "dynamic_rows": (dynamic_rows, [(37, 40)], lambda x: 2 * x, -1),
    "elementary_functions": (elementary_functions, [(29,)], _functions, -1),
    "attention": (attention, [(2, 45, 32), (2, 70, 32), (2, 70, 32)], _attend, -1),
}
