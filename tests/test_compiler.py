"""lab.compile: the same programs on the CPU and on the GPU, and what it refuses."""

import subprocess
import sys

import programs
import pytest
import tilelang
import tilelang.language as T
import torch

import labkit as lab
from labkit import cpu_build
from labkit.errors import BadArgument, CompileFailed, LabError, MissingTool, NeedsGPU, NotOnCPU

DTYPES = ("float16", "bfloat16", "float32")


def make_inputs(shapes, dtype, device="cpu"):
    torch.manual_seed(1)
    return [torch.randn(shape).to(device, getattr(torch, dtype)) for shape in shapes]


def verify(name, dtype, device, torch_device):
    build, shapes, reference, out_idx = programs.CASES[name]
    inputs = make_inputs(shapes, dtype, torch_device)
    out = lab.compile(build(dtype), out_idx=out_idx, device=device)(*inputs)
    lab.check(out, reference(*(x.double().cpu() for x in inputs)).to(torch_device), name=name,
              tf32=device == "gpu")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", programs.CASES)
def test_runs_on_the_cpu(name, dtype):
    verify(name, dtype, "cpu", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", programs.CASES)
def test_runs_on_the_gpu(name, dtype, cuda):
    if (name, dtype) == ("attention", "float32"):
        with pytest.raises(CompileFailed, match="Layout infer conflict"):
            verify(name, dtype, "gpu", "cuda")  # float32 operands of T.gemm in registers
        return
    verify(name, dtype, "gpu", "cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_atomics_and_two_kernels(dtype):
    (x,) = make_inputs([(37,)], dtype)
    y = torch.zeros(1)
    lab.compile(programs.sum_by_atomics(dtype), device="cpu")(x, y)
    lab.check(y, x.float().sum()[None])
    (x,) = make_inputs([(64,)], dtype)
    _, y = lab.compile(programs.two_kernels_in_one(dtype), out_idx=[1, 2], device="cpu")(x)
    lab.check(y, (2 * x.double()).flip(0))


def test_dynamic_rows_take_any_number_of_rows():
    run = lab.compile(programs.dynamic_rows("float16"), out_idx=-1, device="cpu")
    for rows in (1, 16, 17):
        (x,) = make_inputs([(rows, 40)], "float16")
        lab.check(run(x), 2 * x.double())


def test_bfloat16_rounds_where_the_program_rounds():
    (x,) = make_inputs([(29,)], "bfloat16")
    out = lab.compile(programs.elementary_functions("bfloat16"), out_idx=-1, device="cpu")(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out[0], x.float().exp().bfloat16(), rtol=0, atol=0)


def test_infinities_and_nan_pass_through():
    x = torch.randn(5, 100)
    x[1] = -torch.inf
    x[2, 7] = torch.inf
    x[3, 3] = torch.nan
    out = lab.compile(programs.row_softmax("float32"), out_idx=-1, device="cpu")(x)
    torch.testing.assert_close(out, x.softmax(1), equal_nan=True)


# --- both styles of @tilelang.jit


@tilelang.jit(out_idx=[-1])
def lazy_double(N, block=16):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * 2

    return main


@tilelang.jit
def eager_scale(X, scale: float = 3.0, block: int = 16):
    N = T.const("N")
    X: T.Tensor[[N], T.float32]
    Y = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        for i in T.Parallel(block):
            Y[bx * block + i] = X[bx * block + i] * scale
    return Y


def test_lazy_jit():
    x = torch.randn(50)
    kernel = lab.compile(lazy_double, device="cpu")(50)
    torch.testing.assert_close(kernel(x), 2 * x)


def test_eager_jit():
    run = lab.compile(eager_scale, device="cpu")
    for n in (50, 33):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), 3 * x)
    torch.testing.assert_close(run(x, scale=0.5), x / 2)


# --- printing


def test_print_appears_on_the_host(capfd):
    @T.prim_func
    def main(X: T.Tensor((4,), "float16"), Y: T.Tensor((4,), "float16")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((4,), "float16")
            T.copy(X, tile)
            T.print(tile, msg="tile")
            T.print(tile[1], msg="one")
            T.copy(tile, Y)

    lab.compile(main, out_idx=-1, device="cpu")(torch.arange(4.0).half())
    printed = capfd.readouterr().out
    assert "msg='tile' buffer=tile, index=3, value=3.000000" in printed
    assert "msg='one' value=1.000000" in printed


# --- what is refused, each in one sentence


def one_sentence(error) -> str:
    text = str(error.value)
    assert "\n" not in text and len(text) < 400, text
    return text


def test_thread_index_is_refused_with_its_line():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            Y[tx] = X[31 - tx]

    with pytest.raises(NotOnCPU) as error:
        lab.compile(main, out_idx=-1, device="cpu")
    assert "`Y[tx] = X[31 - tx]`" in one_sentence(error)


def test_hardware_construct_is_refused_with_its_line():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = T.warp_reduce_sum(X[i])

    with pytest.raises(NotOnCPU) as error:
        lab.compile(main, out_idx=-1, device="cpu")
    assert "warp_reduce_sum" in one_sentence(error) and " line " in one_sentence(error)


def test_two_16_bit_types_are_refused():
    @T.prim_func
    def main(X: T.Tensor((32,), "float16"), Y: T.Tensor((32,), "bfloat16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = T.Cast("bfloat16", X[i])

    with pytest.raises(NotOnCPU, match="float16 or bfloat16, not both"):
        lab.compile(main, out_idx=-1, device="cpu")


def test_float8_is_refused():
    @T.prim_func
    def main(X: T.Tensor((32,), "float8_e4m3"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                Y[i] = T.Cast("float32", X[i])

    with pytest.raises(NotOnCPU, match="float8"):
        lab.compile(main, out_idx=-1, device="cpu")


def test_an_index_outside_its_tile_is_a_sentence_not_a_crash():
    @T.prim_func
    def main(X: T.Tensor((16,), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((16,), "float32")
            T.copy(X, tile)
            for i in T.Parallel(16):
                Y[i] = tile[i + X[i].astype("int32")]

    with pytest.raises(LabError, match="index 100 of tile, which has 16 elements"):
        lab.compile(main, out_idx=-1, device="cpu")(torch.full((16,), 100.0))


GEMM_INPUTS = [(70, 50), (50, 90)]


@pytest.mark.parametrize(("change", "sentence"), [
    (lambda a, b: (a.float(), b), "argument A has dtype float32, but the program declares float16"),
    (lambda a, b: (a, b.T.contiguous().T), "not contiguous"),
    (lambda a, b: (a[:60], b), r"argument A has shape \[60, 50\]"),
    (lambda a, b: (a, b[None]), r"argument B has shape \[1, 50, 90\]"),
    (lambda a, b: (a,), "takes 2 arguments"),
    (lambda a, b: (a, 3), "got int"),
    (lambda a, b: (a, b.to("meta")), "lies on meta"),
])
def test_a_tensor_that_does_not_fit(change, sentence):
    run = lab.compile(programs.pipelined_gemm("float16"), out_idx=-1, device="cpu")
    with pytest.raises(BadArgument, match=sentence) as error:
        run(*change(*make_inputs(GEMM_INPUTS, "float16")))
    one_sentence(error)


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda p: lab.compile(p, out_idx=7), "out_idx 7 is outside"),
    (lambda p: lab.compile(p, device="tpu"), "it takes 'auto', 'gpu' or 'cpu'"),
    (lambda p: lab.compile(programs.pipelined_gemm), "call it with its sizes first"),
    (lambda p: lab.compile(7), "not int"),
    (lambda p: lab.compile(lazy_double, out_idx=-1), "leave out_idx away"),
])
def test_a_call_that_does_not_fit(call, sentence):
    with pytest.raises(BadArgument, match=sentence) as error:
        call(programs.pipelined_gemm("float16"))
    one_sentence(error)


def test_gpu_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(NeedsGPU, match="labkit doctor") as error:
        lab.compile(programs.pipelined_gemm("float16"), device="gpu")
    one_sentence(error)


def test_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(MissingTool, match="apt-get install g") as error:
        lab.compile(programs.pipelined_gemm("float16"), device="cpu")
    one_sentence(error)


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such standard' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(CompileFailed, match="no such standard") as error:
        lab.compile(programs.annotated_layout("float32"), device="cpu")
    one_sentence(error)


def test_cache_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(BadArgument, match="LABKIT_CACHE_DIR"):
        lab.compile(programs.annotated_layout("float32"), device="cpu")


def test_a_second_pass_compiles_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    lab.compile(programs.annotated_layout("float16"), device="cpu")
    monkeypatch.setattr(cpu_build, "lower", lambda func: pytest.fail("lowered again"))
    monkeypatch.setattr(cpu_build, "_compile", lambda *a: pytest.fail("compiled again"))
    (x,) = make_inputs([(32, 32)], "float16")
    run = lab.compile(programs.annotated_layout("float16"), out_idx=-1, device="cpu")
    assert torch.equal(run(x), x)


def test_the_program_is_not_changed():
    program = programs.attention("float16")
    before = program.script()
    lab.compile(program, device="cpu")
    assert program.script() == before


def test_a_schedule_of_warps_is_left_out():
    """The CPU run does its statements in the order of the program, products at once."""
    sync = T.WSSync

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 32), "float16"),
             C: T.Tensor((64, 32), "float32")):
        with T.Kernel(1, threads=128):
            A_tile = T.alloc_shared((64, 16), "float16")
            B_tile = T.alloc_shared((16, 32), "float16")
            acc = T.alloc_fragment((64, 32), "float32")
            T.annotate_ws_schedule(T.WSSchedule(
                num_warps=8,
                roles=[T.WSRole("Math", warps_lo=0, warps_hi=4, max_nreg=240),
                       T.WSRole("TMA", warps_lo=4, warps_hi=5, max_nreg=24)],
                pipelines=[T.WSPipeline("tiles", [A_tile, B_tile], depth=2)],
                scopes=[
                    T.WSScope("steps", {
                        "TMA": [sync.producer_acquire("tiles"), "load A", "load B",
                                sync.producer_commit("tiles")],
                        "Math": [sync.consumer_wait("tiles"), "multiply", "wait",
                                 sync.consumer_release("tiles")]}),
                    T.WSScope(T.WSScope.ROOT, {"TMA": ["steps"],
                                               "Math": ["clear", "steps", "store"]})]))
            T.fill(acc, 0, annotations={T.WSID: "clear"})
            for k in T.Pipelined(4, num_stages=2, annotations={T.WSID: "steps"}):
                T.copy(A[0, k * 16], A_tile, annotations={T.WSID: "load A"})
                T.copy(B[k * 16, 0], B_tile, annotations={T.WSID: "load B"})
                T.wgmma_gemm(A_tile, B_tile, acc, annotations={T.WSID: "multiply"})
                with T.ws_op("wait"):
                    T.wait_wgmma(0)
            T.copy(acc, C, annotations={T.WSID: "store"})

    A, B = make_inputs([(64, 64), (64, 32)], "float16")
    before = main.script()
    lab.check(lab.compile(main, out_idx=-1, device="cpu")(A, B), A.double() @ B.double(),
              name="product")
    assert main.script() == before
    source = lab.cross_compile(main, "H100").source
    assert "tl::wait_wgmma<0>" in source and "warpgroup_reg_alloc<240>" in source


def test_outputs_start_as_nan():
    @T.prim_func
    def main(X: T.Tensor((40,), "float32"), Y: T.Tensor((40,), "float32")):
        with T.Kernel(2, threads=32) as bx:  # 3 are needed
            for i in T.Parallel(16):
                Y[bx * 16 + i] = X[bx * 16 + i]

    x = torch.randn(40)
    out = lab.compile(main, out_idx=-1, device="cpu")(x)
    assert torch.equal(out[:32], x[:32]) and out[32:].isnan().all()


def test_unwritten_tiles_are_nan_every_time():
    @T.prim_func
    def main(Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((16,), "float32")
            for i in T.Parallel(16):
                tile[i] = tile[i] + 1.0
            T.copy(tile, Y)

    run = lab.compile(main, out_idx=-1, device="cpu")
    assert all(run().isnan().all() for _ in range(3))


def test_names_that_cxx_keeps_for_itself():
    @T.prim_func
    def main(half: T.Tensor((8,), "float16"), Y: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=32):
            double = T.alloc_shared((8,), "float16")
            T.copy(half, double)
            for new in T.Parallel(8):
                float = T.Cast("float32", double[new])
                Y[new] = T.Cast("float16", float * 2)

    x = torch.randn(8).half()
    assert torch.equal(lab.compile(main, out_idx=-1, device="cpu")(x), 2 * x)


def test_large_tiles_leave_the_stack():
    N = 1 << 20

    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((N,), "float32")
            b = T.alloc_shared((N,), "float32")
            T.copy(X, a)
            T.copy(a, b)
            T.copy(b, Y)

    x = torch.randn(N)
    assert torch.equal(lab.compile(main, out_idx=-1, device="cpu")(x), x)


# --- what the retargeting relies on, so that a new TileLang release is noticed


def test_tilelang_language_is_left_alone():
    code = ("import tilelang.language as T; before = dict(vars(T)); import labkit.compiler, "
            "labkit.retarget, labkit.cpu_build; assert dict(vars(T)) == before")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_canary_serialised_form():
    """Field names, node types and codes that labkit.retarget edits."""
    import json

    from tilelang import tvm

    nodes = json.loads(tvm.ir.save_json(programs.pipelined_gemm("bfloat16")))["nodes"]
    by_type = {}
    for node in nodes:
        by_type.setdefault(node["type"], node.get("data"))
    assert {"ir.PointerType", "tirx.For", "tirx.Call", "ir.Op", "tirx.SBlock", "ir.Span",
            "tirx.Bind", "ffi.String", "ffi.Map", "ffi.Array", "None"} <= set(by_type)
    assert set(by_type["ir.PointerType"]) == {"span", "element_type", "storage_scope"}
    assert {"kind", "loop_var", "body"} <= set(by_type["tirx.For"])
    assert {"op", "args", "dtype", "annotations"} <= set(by_type["tirx.Call"])
    assert {"source_name", "line"} <= set(by_type["ir.Span"])
    strings = [node["data"] for node in nodes if node["type"] == "ffi.String"]
    assert {"shared.dyn", "local.fragment"} <= set(strings)
    assert tvm.tirx.ForKind.PARALLEL == 1 and tvm.tirx.ForKind.SERIAL == 0
    assert tvm.tirx.ForKind.VECTORIZED == 2


def test_canary_generated_source():
    """The C++ that labkit.cpu_build completes: its include, its arrays, its signature."""
    source, names = cpu_build.lower(programs.pipelined_gemm("float16"))
    assert names == ["t_A", "t_B", "t_C"]
    assert '#include "cpu_runtime.h"' in source and "common.h" not in source
    assert "labkit::Tile<float, 2048> t_acc(labkit_t_acc" in source
    arguments = ", ".join(f"labkit::Tensor<half> t_{name}" for name in "ABC")
    assert f"main_kernel({arguments}) {{" in source


def test_canary_operators_exist():
    from tilelang import tvm

    from labkit import retarget

    known = {str(name) for name in tvm.ir.Op.list_op_names()}
    used = retarget._SAME | retarget._VANISH | set(retarget._MATH)
    assert not used - known, f"TileLang no longer has {sorted(used - known)}"
