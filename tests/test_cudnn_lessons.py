"""The graphs of lessons 14 to 16, taken from their cells: what they mean, and what cuDNN makes of
them for GPUs that are not here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import labkit as lab
from labkit import cudnn_graph, cudnn_plans, lessons
from labkit.cudnn_loader import Cudnn
from labkit.errors import NotSupported
from labkit.measured import _check
from labkit.verify import compare

CPU = lab.here("cpu", "H100")
ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu, "identity": lambda x: x,
               "swish": F.silu, "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh")}


@pytest.fixture
def bare():
    """A target without a libcudnn, as where only the frontend is installed."""
    lab.load_cudnn()
    return cudnn_graph.Target("H100", 90, Cudnn("1.32.0"))


def random(*dims, dtype=torch.bfloat16):
    return torch.randn(dims).to(dtype)


def nan(*dims, dtype=torch.float32):
    return torch.full(dims, float("nan")).to(dtype)


# --- lesson 14


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dims", [(1, 8, 8, 8), (3, 24, 40, 32), (2, 5, 7, 3)])
def test_matmul_epilogue(bare, dims, dtype, activation):
    batch, M, N, K = dims
    a, b = random(batch, M, K, dtype=dtype), random(batch, K, N, dtype=dtype)
    bias, alpha = random(batch, 1, N, dtype=dtype) - 1, torch.full((1, 1, 1), -0.75)
    y, amax = nan(batch, M, N, dtype=dtype), nan(1, 1, 1)
    graph, pack = lab.kernel("14", "matmul_epilogue")(bare, a, b, bias, alpha, y, amax, activation)
    cudnn_graph.try_build(graph, bare).execute(pack)
    wanted = ACTIVATIONS[activation](-0.75 * (a.float() @ b.float()) + bias.float())
    lab.check(y, wanted, name=activation)
    assert amax.item() == y.float().abs().max().item()


@pytest.mark.parametrize(("shape", "axes"), [((2, 1, 1), (1, 2)), ((2, 16, 1), (2,)),
                                             ((1, 1, 24), (0, 1))])
def test_the_shape_of_amax_says_what_is_reduced(bare, shape, axes):
    a, b, bias = random(2, 16, 8), random(2, 8, 24), random(2, 1, 24)
    y, amax = nan(2, 16, 24, dtype=torch.bfloat16), nan(*shape)
    graph, pack = lab.kernel("14", "matmul_epilogue")(bare, a, b, bias, torch.ones(1, 1, 1), y,
                                                      amax, "identity")
    cudnn_graph.try_build(graph, bare).execute(pack)
    assert torch.equal(amax, y.float().abs().amax(axes, keepdim=True))


def test_an_fp8_output_is_scaled_and_its_amax_is_not(bare):
    a, b, bias = random(2, 16, 32), random(2, 32, 24), random(2, 1, 24)
    exact = F.relu(a.float() @ b.float() + bias.float())
    scale = torch.full((1, 1, 1), 448 / exact.max().item())
    y, amax = torch.zeros(2, 16, 24).to(torch.float8_e4m3fn), nan(1, 1, 1)
    graph, pack = lab.kernel("14", "matmul_epilogue")(bare, a, b, bias, torch.ones(1, 1, 1), y,
                                                      amax, scale=scale)
    cudnn_graph.try_build(graph, bare).execute(pack)
    lab.check(y, exact * scale, name="FP8")
    assert amax.item() == pytest.approx(exact.max().item(), rel=1e-6)
    assert y.float().max() == 448  # the whole range is used


def test_fp8_is_compared_at_its_own_precision():
    x = torch.randn(100, 100)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        rounded = x.to(dtype)
        assert compare(rounded, x).ok
        assert not compare((1.3 * x).to(dtype), x).ok
        assert not compare(rounded.roll(1, 0), x).ok


# --- lesson 15


@pytest.mark.parametrize(("version", "words"), [
    ((1, 3), {"is_inference", "use_causal_mask"}), ((1, 9), {"is_inference", "use_causal_mask"}),
    ((1, 10), {"is_inference", "diagonal_alignment", "diagonal_band_right_bound"}),
    ((1, 13), {"generate_stats", "diagonal_alignment", "diagonal_band_right_bound"}),
    ((2, 0), {"generate_stats", "diagonal_alignment", "diagonal_band_right_bound"})])
def test_the_mask_in_the_words_of_each_release(version, words):
    arguments = lab.kernel("15", "sdpa_arguments")
    assert set(arguments(version, causal=True)) == words
    assert set(arguments(version, causal=False)) == words & {"is_inference", "generate_stats"}


@pytest.mark.parametrize("old", [False, True])
def test_both_words_for_causal_mean_the_same(bare, old, monkeypatch):
    import cudnn

    monkeypatch.setattr(cudnn, "__version__", "1.9.0" if old else "1.32.0")
    q, k, v = random(2, 4, 20, 16), random(2, 2, 33, 16), random(2, 2, 33, 16)
    o = nan(2, 4, 20, 16, dtype=torch.bfloat16)
    graph, pack = lab.kernel("15", "attention")(bare, q, k, v, o, causal=True)
    cudnn_graph.try_build(graph, bare).execute(pack)
    wanted = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True,
                                            enable_gqa=True)
    lab.check(o, wanted, name="attention")


# --- the helpers that these lessons brought


def test_options_reach_every_graph_of_the_target(bare, monkeypatch):
    import cudnn

    seen = {}
    monkeypatch.setattr(cudnn, "pygraph", lambda **options: seen.update(options))
    changed = bare.with_options(sm_count=7).with_options(kernel_cache="cache")
    changed.graph("g", torch.float16, sm_count=8)
    assert seen["kernel_cache"] == "cache" and seen["sm_count"] == 8
    assert not bare.options


def test_a_refusal_is_an_error_only_where_the_gpu_is(bare, monkeypatch):
    def refuse(graph, target):
        raise NotSupported("no plan, since it is too old")

    monkeypatch.setattr(cudnn_graph, "build", refuse)
    built = cudnn_graph.try_build(None, bare)
    assert built.refusal == "no plan, since it is too old" and built.refusal in repr(built)
    running = cudnn_graph.Target("T4", 75, bare.libcudnn, handle=object())
    with pytest.raises(NotSupported, match="too old"):
        cudnn_graph.try_build(None, running)


# --- the cells that measure, which only a GPU runs: here their calls, with a clock that calls once


class Clock:
    """Stands in for `time_each`: keeps what was called; returns a millisecond each."""

    def __init__(self):
        self.called = []

    def __call__(self, calls, milliseconds=200, warm=False):
        for call in calls.values():
            call()
        self.called += calls
        return {name: SimpleNamespace(median=1.0, spread=0.1) for name in calls}


def executed(lesson, monkeypatch):
    """The names of a lesson after a run on the CPU, its clock replaced."""
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    found = lessons.find(lesson)
    space = {"__name__": f"labkit.test_{found.stem}"}
    for cell in found.notebook.cells:
        if cell.cell_type == "code":
            lessons.execute(cell.source, f"<{found.stem} {cell.id}>", space)
    space["time_each"] = Clock()
    return space


def well_formed(rows, columns):
    _check({"columns": list(columns), "rows": rows})
    return [row[0] for row in rows]


@pytest.mark.slow
def test_lesson_12_takes_eager_apart(monkeypatch):
    space = executed("12", monkeypatch)
    names = well_formed(space["measure_parts"](), ("kernel", "us", "MB", "GB/s"))
    assert names == ["convolution", "bias", "ReLU", "all three: eager"]


@pytest.mark.slow
def test_lesson_14_measures_its_parts_and_every_fp8_plan(monkeypatch):
    space = executed("14", monkeypatch)
    rows = space["measure_parts"]()
    well_formed(rows, ("kernel", "us", "MB", "GB/s"))
    assert sum(row[2] or 0 for row in rows) * 1e6 == pytest.approx(6 * space["y"].nbytes)
    assert well_formed(space["measure_fp8_output"](), ("Y in", "us", "MB")) == ["16 bits", "FP8"]
    monkeypatch.setattr(cudnn_graph, "build",
                        lambda graph, target: cudnn_graph.Built(graph, target, {}))
    monkeypatch.setattr(cudnn_plans, "list_plans", lambda graph, target: [])
    monkeypatch.setattr(cudnn_plans, "checked", lambda plans, graph, pack, target, **_: (
        [], {place: lambda: cudnn_graph.evaluate(graph, pack) for place in (0, 3)}))
    assert well_formed(space["measure_fp8"](), ("inputs", "us", "TFLOP/s")) == [
        "16 bits", "FP8 inputs, place 0", "FP8 inputs, place 3", "(FP8, torch._scaled_mm)"]


# --- what cuDNN makes of them, for GPUs that are not here


@pytest.mark.parametrize("gpu", ["T4", "A100", "H100"])
def test_the_matmul_is_built_kept_and_loaded(compiling, gpu):
    import cudnn

    target = cudnn_graph.target(CPU, gpu)
    dtype = torch.bfloat16 if target.sm >= 80 else torch.float16
    square, bias = (torch.empty(dims, dtype=dtype, device="meta")
                    for dims in ((2, 64, 64), (2, 1, 64)))
    graph, _ = lab.kernel("14", "matmul_epilogue")(
        target, square, square, bias, torch.ones(1, 1, 1), square,
        torch.empty(1, 1, 1, device="meta"))
    built = cudnn_graph.build(graph, target)
    assert built.plan and built.count
    loaded = cudnn.pygraph(**target.where)
    loaded.deserialize(list(bytes(graph.serialize())))
    assert loaded.get_workspace_size() == built.workspace


@pytest.mark.parametrize(("gpu", "named"), [("T4", False), ("A100", True), ("H100", True)])
def test_attention_and_a_kernel_cache_need_capability_8(compiling, gpu, named):
    import cudnn

    target = cudnn_graph.target(CPU, gpu)
    dtype = torch.bfloat16 if target.sm >= 80 else torch.float16
    x = torch.empty(1, 2, 64, 64, dtype=dtype, device="meta")
    sharing = target.with_options(kernel_cache=cudnn.create_kernel_cache())
    graphs = [(lab.kernel("15", "attention")(target, x, x, x, x, causal=True)[0], target),
              (lab.kernel("16", "product")(sharing, x[0], x[0], x[0])[0], sharing)]
    for graph, where in graphs:
        if named:
            assert cudnn_graph.candidates(graph, where, [cudnn.heur_mode.A])
        else:
            with pytest.raises(NotSupported, match=r"T4 \(sm_75\)"):
                cudnn_graph.candidates(graph, where, [cudnn.heur_mode.A])


def test_the_program_of_lesson_15_is_python():
    (cell,) = [c for c in lessons.find("15").notebook.cells if c.id == "sdpa-program"]
    space = {}
    exec(cell.source, space)
    compile(space["PROGRAM"], "program", "exec")
