"""The data sheets: complete, sourced, consistent, and found under the names people use."""

import re
import subprocess
import sys

import pytest

from labkit import gpus
from labkit.errors import BadArgument
from labkit.gpus import ALL, GIB, KIB, lookup, names

EACH = pytest.mark.parametrize("gpu", ALL, ids=names())
GENERATIONS = [lookup(f"sm_{number}") for number in gpus.arch_numbers()]


@EACH
def test_every_figure_is_there_and_has_its_source(gpu):
    for key in gpus._FIGURES:
        assert getattr(gpu, key) is not None, key
        assert len(gpu.sources[key]) > 20, key
    assert set(gpu.sources) == set(gpus._FIGURES)
    assert {"float16", "int8"} <= set(gpu.tensor_tflops)
    assert ("bfloat16" in gpu.tensor_tflops) == ("tf32" in gpu.tensor_tflops) == (gpu.sm >= 80)
    assert ("float8" in gpu.tensor_tflops) == (gpu.sm >= 89)


@pytest.mark.parametrize("gpu", (*ALL, *GENERATIONS), ids=lambda gpu: gpu.name)
def test_limits_agree_with_each_other(gpu):
    assert gpu.warps_per_sm * 32 == gpu.threads_per_sm
    assert gpu.shared_per_block + gpu.shared_reserved == gpu.shared_per_sm
    assert gpu.shared_reserved == (1 * KIB if gpu.sm >= 80 else 0)
    assert gpu.shared_per_block % gpu.shared_granularity == 0
    assert gpu.shared_granularity == (128 if gpu.sm >= 80 else 256)
    assert gpu.registers_per_thread < 256 == gpu.register_granularity
    assert gpu.arch == f"sm_{gpu.sm}" + ("a" if gpu.sm >= 90 else "")


# Operations a clock and SM, multiplied out by hand: of the tensor cores in float16 with float32
# accumulation, and of the CUDA cores in float32.
PER_CLOCK = {"T4": (1024, 128), "A10G": (512, 256), "A100": (2048, 128), "L4": (1024, 256),
             "RTX 4090": (512, 256), "H100": (4096, 256), "H200": (4096, 256),
             "B200": (8192, 256), "RTX 5090": (512, 256)}


@EACH
def test_rates_follow_from_multiprocessors_and_clock(gpu):
    tensor, cores = PER_CLOCK[gpu.name]
    clocks = gpu.sms * gpu.boost_mhz * 1e6 / 1e12
    # Hopper's and Blackwell's tensor rates are quoted below the boost clock (1830 of 1980 MHz).
    low = 0.92 if gpu.sm in (90, 100) else 0.99
    assert low < gpu.tensor_tflops["float16"] / (tensor * clocks) < 1.01
    assert gpu.fp32_tflops == pytest.approx(cores * clocks, rel=0.01)


@EACH
def test_rates_of_the_dtypes_stand_in_their_proportions(gpu):
    rates = gpu.tensor_tflops
    full = rates["float16"]
    if gpu.sm >= 80:
        assert rates["bfloat16"] == full
        assert rates["tf32"] == pytest.approx(full / 2, rel=0.03)
    if gpu.sm >= 89:
        assert rates["float8"] == pytest.approx(2 * full, rel=0.01)
    # GeForce halves the float rates with float32 accumulation, and not int8.
    assert rates["int8"] == pytest.approx((4 if "GeForce" in gpu.product else 2) * full, rel=0.01)


# Bits of the memory bus times the data rate per pin in Gbit/s.
BUS = {"T4": (256, 10), "A10G": (384, 12.5), "A100": (5120, 3.186), "L4": (192, 12.5),
       "RTX 4090": (384, 21), "H100": (5120, 5.238), "H200": (6144, 6.4), "B200": (7680, 7.992),
       "RTX 5090": (512, 28)}


@EACH
def test_bandwidth_follows_from_the_memory_bus(gpu):
    bits, rate = BUS[gpu.name]
    assert gpu.bandwidth_gb_s == pytest.approx(bits * rate / 8, rel=0.03)


def test_generations_get_faster():
    def ascending(figure, *order):
        values = [figure(lookup(name)) for name in order]
        return values == sorted(values) and len(set(values)) == len(values)

    assert ascending(lambda gpu: gpu.tensor_tflops["float16"], "T4", "A10G", "L4", "RTX 4090",
                     "RTX 5090", "A100", "H100", "B200")
    assert ascending(lambda gpu: gpu.bandwidth_gb_s, "L4", "T4", "A10G", "RTX 4090", "RTX 5090",
                     "A100", "H100", "H200", "B200")
    assert lookup("H200").tensor_tflops == lookup("H100").tensor_tflops


def test_an_h200_as_its_driver_reports_it():
    h200 = lookup("NVIDIA H200")
    assert (h200.sms, h200.boost_mhz, h200.l2_bytes) == (132, 1980, 62914560)
    assert (h200.shared_per_block, h200.shared_reserved) == (232448, 1024)
    assert (h200.threads_per_sm, h200.blocks_per_sm, h200.registers_per_sm) == (2048, 32, 65536)
    assert 0.98 < 150109880320 / h200.memory_bytes < 1
    assert h200.memory_bytes == 141 * GIB


@pytest.mark.parametrize("spelling, name", [
    ("h100", "H100"), ("RTX4090", "RTX 4090"), ("rtx 5090", "RTX 5090"), (" a10g ", "A10G"),
    ("H100 SXM5", "H100"), ("A100 SXM4 80GB", "A100"), ("4090", "RTX 4090"),
    # as torch and nvidia-smi report them
    ("Tesla T4", "T4"), ("NVIDIA A10G", "A10G"), ("NVIDIA L4", "L4"),
    ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA A100-SXM4-40GB", "A100"),
    ("A100-SXM4-40GB", "A100"), ("NVIDIA A100-PCIE-40GB", "A100"),
    ("NVIDIA A100 80GB PCIe", "A100"), ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("NVIDIA H100 80GB HBM3", "H100"), ("NVIDIA H200", "H200"), ("NVIDIA B200", "B200"),
    ("NVIDIA GeForce RTX 5090", "RTX 5090")])
def test_lookup_takes_the_names_people_and_drivers_use(spelling, name):
    assert lookup(spelling).name == name


@EACH
def test_lookup_takes_its_own_names(gpu):
    assert lookup(gpu.name) is gpu


@pytest.mark.parametrize("name", [
    "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA GB200",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A10", "NVIDIA L40S", "Tesla V100-SXM2-16GB",
    "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "sm_70", "sm_87", "", "GPU"])
def test_unknown_names_are_refused_in_one_sentence_that_lists_the_names(name):
    with pytest.raises(BadArgument) as refusal:
        lookup(name)
    sentence = str(refusal.value)
    assert repr(name) in sentence and sentence.endswith(".") and "\n" not in sentence
    assert not re.search(r"\.\s", sentence)
    assert all(known in sentence for known in (*names(), "sm_75", "sm_90a", "sm_120a"))


@pytest.mark.parametrize("spelling, arch", [
    ("sm_75", "sm_75"), ("sm_86", "sm_86"), ("sm_90", "sm_90a"), ("sm_90a", "sm_90a"),
    ("SM90", "sm_90a"), ("100a", "sm_100a"), ("sm_120", "sm_120a"), ("compute_89", "sm_89")])
def test_an_architecture_has_limits_and_no_device_figures(spelling, arch):
    gpu = lookup(spelling)
    assert gpu.arch == gpu.name == arch
    for key in ("sms", "boost_mhz", "memory_bytes", "bandwidth_gb_s", "l2_bytes", "fp32_tflops",
                "tensor_tflops"):
        assert getattr(gpu, key) is None and key not in gpu.sources
    assert gpu == lookup(arch) and hash(gpu) == hash(lookup(arch))


def test_compile_matrix():
    assert gpus.arch_numbers() == ("75", "80", "86", "89", "90a", "100a", "120a")
    assert {gpu.arch.removeprefix("sm_") for gpu in ALL} == set(gpus.arch_numbers())


@pytest.mark.parametrize("gpu", (*ALL, lookup("sm_80")), ids=lambda gpu: gpu.name)
def test_sheet_shows_units_and_sources_in_any_theme(gpu):
    text, html = str(gpu), gpu._repr_html_()
    for shown in (gpu.product, f"{gpu.shared_per_block // KIB} KiB", "255"):
        assert shown in text and shown in html
    notes = set(re.findall(r"^\[(\d+)\] ", text, re.MULTILINE))
    assert notes == set(re.findall(r" \[(\d+)\]$", text, re.MULTILINE))
    assert ("GB/s" in text) == ("TFLOP/s" in text) == (gpu in ALL)
    assert not re.search(r"<script|(?<!-)color|background|#[0-9a-f]{3}", html)


def test_a100_says_which_one_it_is():
    assert "SXM4 80GB" in lookup("NVIDIA A100-SXM4-40GB").product


def test_importing_costs_nothing():
    code = ("import sys, labkit.gpus; "
            "print([m for m in ('torch', 'numpy', 'tilelang', 'tvm') if m in sys.modules])")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
