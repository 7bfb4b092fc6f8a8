"""The CPU run at its edges: where a plausible shortcut would be silently wrong."""

import ctypes
import threading

import pytest
import tilelang
import tilelang.language as T
import torch

import labkit as lab
from labkit.errors import BadArgument, LabError, NotOnCPU


def run(program, *inputs, out_idx=-1):
    return lab.compile(program, out_idx=out_idx, device="cpu")(*inputs)


def elementwise(function, dtype="float32", out=None, N=8):
    @T.prim_func
    def main(X: T.Tensor((N,), dtype), Y: T.Tensor((N,), out or dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                Y[i] = function(X[i])

    return main


# --- order and arguments


@tilelang.jit
def swapped(X):
    N = T.const("N")
    X: T.Tensor[[N], T.float32]
    C = T.empty((N,), T.float32)
    D = T.empty((N,), T.float32)
    with T.Kernel(1, threads=32):
        for i in T.Parallel(N):
            C[i] = X[i] + 1
            D[i] = X[i] + 2
    return D, C


def two_outputs(N=8):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32"),
             D: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                C[i] = X[i] + 1
                D[i] = X[i] + 2

    return main


def test_outputs_keep_the_order_that_was_asked():
    x = torch.zeros(8)
    d, c = lab.compile(swapped, device="cpu")(x)
    assert d[0] == 2 and c[0] == 1
    d, c = run(two_outputs(), x, out_idx=[2, 1])
    assert d[0] == 2 and c[0] == 1


@pytest.mark.parametrize("out_idx", [[1, 1], [1, -2], 1.0, "Z", [1.0], [None], True])
def test_odd_out_idx(out_idx):
    with pytest.raises(BadArgument, match="out_idx"):
        lab.compile(two_outputs(), out_idx=out_idx, device="cpu")


def test_misspelt_keyword_of_a_jit_function():
    with pytest.raises(BadArgument, match="blok"):
        lab.compile(swapped, device="cpu")(torch.zeros(8), blok=3)


def dynamic_3d():
    b, m, n = T.dynamic("b"), T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def main(X: T.Tensor((b, m, n), "float32"), Y: T.Tensor((b, m, n), "float32")):
        with T.Kernel(b, threads=32) as i:
            for j, k in T.Parallel(m, n):
                Y[i, j, k] = X[i, j, k]

    return main


def test_strides_that_are_expressions_are_checked():
    x = torch.randn(4, 5, 6)
    assert torch.equal(run(dynamic_3d(), x), x)
    for view in (x[:, :3], x[::2], x[..., :4]):
        with pytest.raises(BadArgument, match="not contiguous"):
            run(dynamic_3d(), view)


def test_shapes_that_are_expressions():
    m = T.dynamic("m")

    @T.prim_func
    def main(X: T.Tensor((m,), "float32"), Z: T.Tensor((m * 2,), "float32"),
             Y: T.Tensor((m * 2,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(m * 2):
                Y[i] = Z[i]

    x, z = torch.zeros(5), torch.randn(10)
    assert torch.equal(run(main, x, z), z)
    with pytest.raises(BadArgument, match=r"shape \[14\], but the program was built for \[10\]"):
        run(main, x, torch.zeros(14))


def test_a_size_may_be_called_as_a_tensor_is():
    M = T.dynamic("M")

    @T.prim_func
    def main(M: T.Tensor((M,), "float32"), new: T.Tensor((M,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(M.shape[0]):
                new[i] = M[i]

    x = torch.randn(7)
    assert torch.equal(run(main, x), x)


@pytest.mark.parametrize(("dtype", "value"), [
    ("int32", 2**40), ("int32", 3.7), ("uint32", -1), ("int8", 200), ("bool", 7),
    ("float32", 1e300), ("float32", "1"), ("int32", True),
])
def test_numbers_that_do_not_fit(dtype, value):
    with pytest.raises(BadArgument, match=f"is a {dtype} number"):
        run(scaled(dtype), torch.zeros(4), value)


def scaled(dtype):
    @T.prim_func
    def main(X: T.Tensor((4,), "float32"), s: T.dtype(dtype), Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                Y[i] = X[i] + T.Cast("float32", s)

    return main


@pytest.mark.parametrize(("dtype", "value"), [
    ("int32", -7), ("int64", 2**40), ("uint8", 200), ("float32", 2.5), ("float16", 1.5),
    ("float64", 0.1), ("int16", -300), ("bool", True),
])
def test_numbers_of_every_kind(dtype, value):
    out = run(scaled(dtype), torch.zeros(4), value)
    assert torch.equal(out, torch.full((4,), float(value)))


@pytest.mark.parametrize(("make", "sentence"), [
    (lambda: torch._neg_view(torch.ones(8)), "resolve_neg"),
    (lambda: torch.ones(8).to_sparse(), "sparse"),
    (lambda: torch.zeros(1).expand(8), "not contiguous"),
])
def test_tensors_that_are_not_plain_memory(make, sentence):
    with pytest.raises(BadArgument, match=sentence):
        run(elementwise(lambda x: x), make())


def test_a_tensor_that_lost_its_memory():
    x = torch.ones(8)
    x.untyped_storage().resize_(0)
    with pytest.raises(BadArgument, match="lost its memory"):
        run(elementwise(lambda x: x), x)


# --- arithmetic


def test_constants_are_exact():
    x = torch.ones(8)
    for constant in (1.0000001, 1 / 3, 16777217.0, 3.4028234663852886e38, 1e-40):
        out = run(elementwise(lambda v, c=constant: v * T.float32(c)), x)
        assert out[0].item() == torch.tensor(constant, dtype=torch.float32).item()
    x = torch.ones(8, dtype=torch.float64)
    out = run(elementwise(lambda v: v * T.float64(1 / 3), "float64"), x)
    assert out[0].item() == 1 / 3


def test_large_bfloat16_constant():
    out = run(elementwise(lambda v: T.max(v, T.bfloat16(-1e30)), "bfloat16"),
              torch.full((8,), -3e38, dtype=torch.bfloat16))
    assert out[0] == torch.tensor(-1e30).bfloat16()


def test_round_takes_halves_to_even():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 0.4, 2.6, -2.5])
    assert torch.equal(run(elementwise(T.round), x), x.round())


@pytest.mark.parametrize("place", [0, 3, 7])
def test_nan_gives_way_in_max_and_min(place):
    x = torch.arange(8.0)
    x[place] = torch.nan
    rest = x[~x.isnan()]

    @T.prim_func
    def main(X: T.Tensor((1, 8), "float32"), Y: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((1, 8), "float32")
            top = T.alloc_fragment((1,), "float32")
            low = T.alloc_fragment((1,), "float32")
            T.copy(X, tile)
            T.reduce_max(tile, top, dim=1)
            T.reduce_min(tile, low, dim=1)
            Y[0] = top[0]
            Y[1] = low[0]

    assert run(main, x[None]).tolist() == [rest.max().item(), rest.min().item()]
    assert run(elementwise(lambda v: T.max(v, T.float32(2.5))), x)[place] == 2.5


def test_float64_runs():
    x = torch.randn(8, dtype=torch.float64)
    assert torch.equal(run(elementwise(lambda v: v * v, "float64"), x), x * x)


# --- threads and blocks


def test_each_block_starts_with_fresh_tiles():
    @T.prim_func
    def main(X: T.Tensor((20,), "float32"), Y: T.Tensor((3,), "float32")):
        with T.Kernel(3, threads=32) as bx:
            tile = T.alloc_fragment((8,), "float32")
            total = T.alloc_fragment((1,), "float32")
            for i in T.Parallel(8):
                if bx * 8 + i < 20:
                    tile[i] = X[bx * 8 + i]
            T.reduce_sum(tile, total, dim=0)
            Y[bx] = total[0]

    out = run(main, torch.ones(20))
    assert out[:2].tolist() == [8, 8] and out[2].isnan()


def thread_program(body):
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            T.copy(X, Y)
            body(tx, Y)

    return main


def test_if_one_thread():
    @T.macro
    def first(tx, Y):
        if tx == 0:
            Y[0] = 5.0

    @T.macro
    def beyond(tx, Y):
        if tx == 40:
            Y[0] = 5.0

    assert run(thread_program(first), torch.zeros(32))[0] == 5
    assert run(thread_program(beyond), torch.zeros(32))[0] == 0


def test_a_thread_test_with_an_else_is_refused():
    @T.macro
    def both(tx, Y):
        if tx == 0:
            Y[0] = 5.0
        else:
            Y[1] = 6.0

    with pytest.raises(NotOnCPU, match="thread index"):
        run(thread_program(both), torch.zeros(32))


def test_an_atomic_of_every_thread_is_refused():
    @T.prim_func
    def main(Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            T.atomic_add(Y[0], 1.0)

    with pytest.raises(NotOnCPU, match=r"once for each thread.*T\.Parallel\(1\)"):
        lab.compile(main, device="cpu")


def test_gemm_on_a_tile_of_three_axes_is_refused_with_its_line():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((2, 32, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.clear(acc)
            T.copy(A, a[0, :, :])
            T.gemm(a[0, :, :], a[0, :, :], acc)
            T.copy(acc, C)

    with pytest.raises(NotOnCPU, match=r"T\.gemm takes matrices"):
        lab.compile(main, out_idx=-1, device="cpu")


def test_asserts():
    @T.prim_func
    def main(X: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                T.device_assert(X[i] >= 0, "negative input")
                Y[i] = X[i]

    assert torch.equal(run(main, torch.ones(4)), torch.ones(4))
    with pytest.raises(LabError, match=r"T\.device_assert does not hold\. negative input"):
        run(main, -torch.ones(4))


def test_prints_of_two_types(capfd):
    @T.prim_func
    def main(X: T.Tensor((4,), "float32"), Y: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            n = T.alloc_var("int32")
            n = 3
            T.print(n, msg="n")
            T.print(X[0], msg="x")
            T.copy(X, Y)

    run(main, torch.ones(4))
    printed = capfd.readouterr().out
    assert "msg='n' value=3" in printed and "msg='x' value=1.000000" in printed


def test_unknown_operator_is_named():
    program = elementwise(lambda v: T.popcount(v), "int32")
    with pytest.raises(NotOnCPU, match="popcount"):
        lab.compile(program, out_idx=-1, device="cpu")


@pytest.mark.parametrize("name", ["nullptr", "static_cast", "NAN", "EOF", "int32_t", "expf", "x__"])
def test_names_that_cxx_uses(name, tmp_path):
    source = f'''
import tilelang.language as T
@T.prim_func
def main({name}: T.Tensor((8,), "float16"), Y: T.Tensor((8,), "float16")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            Y[i] = T.exp({name}[i])
'''
    path = tmp_path / "program.py"
    path.write_text(source)
    space = {}
    exec(compile(source, str(path), "exec", dont_inherit=True), space)
    x = torch.randn(8).half()
    assert torch.equal(run(space["main"], x), x.float().exp().half())


# --- the process lives


def test_damaged_cache_is_made_anew(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    program, x = elementwise(lambda v: v + 1), torch.zeros(8)
    assert run(program, x)[0] == 1
    (library,) = tmp_path.glob("cpu/*/kernel.so")
    whole = library.read_bytes()
    for damage in (b"", whole[:4096], whole[:4096] + bytes(len(whole) - 4096)):
        library.unlink()  # as another file: the loaded one stays what it was
        library.write_bytes(damage)
        assert run(program, x)[0] == 1
        assert library.read_bytes() == whole or ctypes.CDLL(str(library)).labkit_run
    for text in ("", "{", "[]", '{"sha256": 1}', "\\udcff"):
        library.with_name("kernel.json").write_text(text)
        assert run(program, x)[0] == 1


def test_threads_with_small_stacks():
    @T.prim_func
    def main(X: T.Tensor((200_000,), "float32"), Y: T.Tensor((200_000,), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((200_000,), "float32")
            T.copy(X, tile)
            T.copy(tile, Y)

    kernel = lab.compile(main, out_idx=-1, device="cpu")
    x, results = torch.randn(200_000), []
    before = threading.stack_size(256 * 1024)
    try:
        threads = [threading.Thread(target=lambda: results.append(kernel(x))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        threading.stack_size(before)
    assert len(results) == 4 and all(torch.equal(r, x) for r in results)


