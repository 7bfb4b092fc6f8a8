"""What lesson 11 shows around a block: the law, where time goes, its pictures, the asked ops."""

from __future__ import annotations

from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch

from labkit.epilogue import asked, catalogue, compare, flow, law, spent, workloads
from labkit.errors import BadArgument, LabError
from labkit.results import Measurement, Recording


def _comparison(name, kernel, own, alone, baseline):
    return Measurement(name=name, shape=workloads.shape(name, workloads.LARGE), dtype="bfloat16",
                       kernel_ms=kernel, spread_ms=0.0, floor_ms=None, error=None,
                       schedule=dict(block_M=128, block_N=256),
                       baselines={compare.BASELINE: baseline},
                       references={compare.ALONE: alone, compare.OWN_ALONE: own})


def _recording(*measurements):
    return Recording("NVIDIA H200", "2026-11-30", {}, dict(
        copy_gb_s=4250.0, tensor_tflops=dict(bfloat16=780.0)), list(measurements))


# --- the law


def test_the_room_follows_from_bytes_and_does_not_depend_on_M_and_N():
    rooms = [law.room_of(4 * M * N, M, N, 4096, 4.8e12, 790e12)
             for M, N in ((8192, 4096), (1024, 28672))]
    assert rooms[0] == pytest.approx(rooms[1]) == pytest.approx(1 + 4 / 8192 * 790 / 4.8)
    # 12 bytes an element behind K = 4096, at the data sheet's figures
    assert law.room_of(12 * 8192 * 14336, 8192, 14336, 4096, 4.8e12, 790e12) == pytest.approx(
        1.241, abs=1e-3)


def test_the_bytes_behind_a_product_are_those_of_the_account():
    def count(name):
        return law.after_bytes(name, workloads.shape(name, workloads.LARGE), "bfloat16") / 1e6

    M, d, f = 8192, 4096, 14336
    # product, residual and both outputs, 2 bytes each; gamma and the statistic besides
    assert count("gemm_residual_rms") == pytest.approx(4 * 2 * M * d / 1e6, rel=1e-3)
    # the product, which stays, and the output of half its width
    assert count("gemm_swiglu") == pytest.approx(2 * M * 3 * f / 1e6, rel=1e-3)
    assert count("gemm_dswiglu") == pytest.approx(2 * M * 6 * f / 1e6, rel=1e-3)


def test_three_ratios_make_the_gain():
    found = law.ratios(_comparison("gemm_dswiglu", 1.9, 1.5, 1.4, 1.975))
    assert found["gain"] == pytest.approx(1.975 / 1.9)
    assert found["room"] * found["main loop"] * found["exposed"] == pytest.approx(found["gain"])


@pytest.mark.parametrize(("times", "words"), [
    ((1.9, 1.5, 1.4, 1.975), "wins: 3.9% of 41.1%"),
    ((1.1, 1.09, 1.0, 1.05), "loses: main loop 9.0% slower than cuBLAS, room 5.0%"),
    ((1.1, 1.01, 1.0, 1.05), "loses: epilogue exposed for 8.9%, room 5.0%"),
])
def test_the_verdict_names_what_eats_the_room(times, words):
    assert law.verdict(law.ratios(_comparison("gemm_swiglu", *times))) == words


def test_the_table_of_all_ops():
    assert "No comparison" in law.table(_recording())
    table = law.table(_recording(_comparison("gemm_swiglu", 2.9, 2.9, 2.8, 3.0),
                                 _comparison("gemm_dswiglu", 1.9, 1.5, 1.4, 1.975)))
    assert [row[0] for row in table.rows] == ["gemm_swiglu", "gemm_dswiglu"]
    assert table.rows[1][1] == "8,192 x 14,336 x 4,096" and table.rows[1][6] == "1.039"
    assert "RECORDED" in table.title
    down = _comparison("gemm_residual_rms, down", 1.4, 1.3, 1.2, 1.3)
    object.__setattr__(down, "name", "gemm_residual_rms")  # recorded up to the comma
    assert [row[0] for row in law.table(_recording(down)).rows] == ["gemm_residual_rms, down"]


# --- where time goes


@pytest.mark.parametrize(("kernel", "kind"), [
    ("gemm_rstd_swiglu_kernel", spent.GEMM),
    ("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", spent.GEMM),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", spent.GEMM),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu>", spent.GEMM),
    ("void cublasLt::splitKreduce_kernel<32, 16, int>", spent.GEMM),
    ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", spent.GEMM),
    ("void pytorch_flash::flash_bwd_dot_do_o_kernel<cutlass::bfloat16_t>", spent.ATTENTION),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", spent.ATTENTION),
    ("fmha_cutlassF_f16_aligned_64x128_rf_sm75(PyTorchMemEffAttention)", spent.ATTENTION),
    ("triton_per_fused__to_copy_add_mul_sum_0", spent.REST),
    ("void at::native::vectorized_elementwise_kernel<4>", spent.REST),
    ("Memset (Device)", spent.REST)])
def test_kernels_by_name(kernel, kind):
    assert spent.kind(kernel) == kind


def test_times_are_added_up_for_one_step():
    found, kernels = spent.add_up([("nvjet_a", 1000.0), ("flash_fwd", 500.0), ("copy", 100.0)] * 5,
                                  5)
    assert found == pytest.approx({spent.GEMM: 1.0, spent.ATTENTION: 0.5, spent.REST: 0.1})
    assert kernels == 3
    with pytest.raises(LabError, match="saw no kernel"):
        spent.add_up([], 5)


def test_the_steps_of_a_table_are_profiled_in_turn(monkeypatch):
    """With a profiler that is made up: each step's one kernel takes as long as its name says."""
    calls = []

    class Profiler:
        def __init__(self, **_):
            pass

        def __enter__(self):
            self.before = len(calls)
            return self

        def __exit__(self, *_):
            self.ran = calls[self.before:]

        def events(self):
            return [SimpleNamespace(name="nvjet", device_type=torch.autograd.DeviceType.CUDA,
                                    time_range=SimpleNamespace(elapsed_us=lambda c=c: 1e3 * c))
                    for c in self.ran]

    monkeypatch.setattr(torch.profiler, "profile", Profiler)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(spent, "table_of", lambda name, here, measure, **_: measure())
    steps = {str(n): (lambda n=n: calls.append(n)) for n in (1, 2, 4)}
    rows = spent.of_each("made_up", None, steps, "made up")
    assert [[row[0], row[1], row[-1]] for row in rows] == [["1", 1, 1], ["2", 2, 1], ["4", 4, 1]]
    order = [n for i, n in enumerate(calls) if i == 0 or calls[i - 1] != n]
    turns = len(order) // 3
    assert turns >= spent._REPEATS
    assert all(set(order[3 * i:3 * i + 3]) == {1, 2, 4} for i in range(1, turns))


# --- pictures


def test_pictures_are_whole_and_say_the_same_in_words():
    times = {"eager": {"GEMMs": 10.0, "attention": 2.0, "everything else": 3.0},
             "with epilogues": {"GEMMs": 10.5, "attention": 2.0, "everything else": 0.02}}
    made = {"block": flow.block(), "stacked": flow.stacked("A step", list(times.items())),
            "curves": flow.curves("Loss", {"a": [2.0, 1.0, 0.5], "b": [2.0, 1.5, 0.0], "c": [1.0]})}
    for picture in made.values():
        ElementTree.fromstring(picture.svg)
    for epilogue in ("dSwiGLU", "dRMSNorm", "SwiGLU", "RoPE"):
        assert epilogue in made["block"].text and epilogue in made["block"].svg
    assert "with epilogues: GEMMs 10.50 ms" in made["stacked"].text
    assert "15.00 ms" in made["stacked"].svg and "b: from 2.00 to 0.00" in made["curves"].text


# --- ops that were asked for


@pytest.mark.parametrize("name", ["squared_reglu", "capped_cross_entropy", "dgelu_bias"])
def test_baselines_of_the_asked_ops_compute_what_was_asked(name):
    torch.manual_seed(0)
    work = asked.make(name, catalogue.swiglu, "nobody", workloads.CPU, torch.float32, "cpu")
    assert work.name == f"{name} by nobody"
    assert work.shape == asked.shape(name, workloads.CPU)
    given = {key: value.double() if value.is_floating_point() else value
             for key, value in work.operands.items()}
    B = work.B.t() if work.transpose_B else work.B
    wanted = asked.expected(name, work.A.double() @ B.double(), **given)
    product = work.baseline_A @ work.baseline_B
    for made in (work.after(product, *work.extras), work.eager(product, *work.extras)):
        assert set(made) == set(wanted)
        for output, value in made.items():
            error = (value.double() - wanted[output]).norm() / wanted[output].norm()
            assert error < 1e-5, output


def test_an_op_that_was_not_asked():
    with pytest.raises(BadArgument, match="There is no task"):
        asked.make("gelu", catalogue.swiglu, "nobody", workloads.CPU, torch.float32, "cpu")
