"""Graphs without a GPU and without a libcudnn: built, inferred, drawn, refused in one sentence."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch
import torch.nn.functional as F

import labkit as lab
from labkit import cudnn_graph, cudnn_support, gpus
from labkit.cudnn_devices import device_properties, memory_clock
from labkit.cudnn_loader import Cudnn
from labkit.cudnn_words import layout
from labkit.errors import BadArgument, NotSupported

HERE = lab.here("cpu", "H100")
# what cuDNN 9.19 returned on an H200: create_device_properties(0).serialize()
H200 = json.loads("""{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],
"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,
"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,"maxRegistersPerSM":65536,
"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":6,"isTccDriver":0,
"supportCoopLaunch":1,"totalGlobalMem":150109880320,"smClockRateKHz":1980000,
"memClockRateKHz":3201000,"l2CacheSize":62914560,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,
"deviceName":"NVIDIA H200"}""")


@pytest.fixture
def bare():
    """A target without a libcudnn, as where only the frontend is installed."""
    cudnn_graph.load_cudnn()
    return cudnn_graph.Target("H100", 90, Cudnn("1.32.0"))


def meta(*shape, dtype=torch.bfloat16, last=False):
    x = torch.empty(*shape, dtype=dtype, device="meta")
    return x.to(memory_format=torch.channels_last) if last else x


def conv(target, pinned=True, **options):
    graph = target.graph("conv", torch.bfloat16)
    X = graph.tensor(name="X", **cudnn_graph.describe(meta(2, 16, 14, 10, last=True)))
    W = graph.tensor(name="W", **cudnn_graph.describe(meta(24, 16, 3, 3, last=True)))
    options = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1], **options}
    B = graph.tensor(name="B", **cudnn_graph.describe(meta(1, 24, 1, 1)))
    made = graph.conv_fprop(image=X, weight=W, name="conv", **options)
    Y = graph.relu(input=graph.bias(input=made, bias=B, name="bias"), name="relu")
    Y.set_name("Y").set_output(True)
    if pinned:
        Y.set_dim([2, 24, 14, 10]).set_stride([3360, 1, 240, 24])
    return graph, Y


# --- tensors


def test_describe_gives_strides_of_the_memory():
    import cudnn

    found = cudnn_graph.describe(meta(2, 8, 5, 3, last=True))
    assert found == {"dim": [2, 8, 5, 3], "stride": [120, 1, 24, 8],
                     "data_type": cudnn.data_type.BFLOAT16}


@pytest.mark.parametrize("dtype", [torch.complex64, "float12", None])
def test_a_dtype_that_cudnn_has_not(dtype):
    with pytest.raises(BadArgument, match="cuDNN has no tensors of dtype"):
        cudnn_graph.data_type(dtype)


def test_everything_between_is_float32(bare):
    import cudnn

    graph, _ = conv(bare)
    cudnn_graph.infer(graph)
    between = graph.nodes[0].outputs["Y"]
    assert between.get_is_virtual() and between.get_data_type() == cudnn.data_type.FLOAT
    assert graph.context.compute_data_type == cudnn.data_type.FLOAT


@pytest.mark.parametrize(("shape", "want"), [
    (([2, 3, 4, 5], [60, 20, 5, 1]), "row-major"),
    (([2, 3, 4, 5], [60, 1, 15, 3]), "channels last"),
    (([8, 4, 6], [24, 1, 4]), "column-major"), (([2, 3, 4, 5], [60, 20, 5, 2]), "strided"),
    (([1, 7, 1, 1], [7, 1, 7, 7]), "row-major"), (([4, 6], [1, 4]), "column-major")])
def test_layout(shape, want):
    assert layout(*shape) == want


# --- what the frontend infers


@pytest.mark.parametrize("options", [
    {}, {"stride": [2, 2]}, {"dilation": [2, 2]}, {"padding": [0, 2]},
    {"padding": [2, 0], "stride": [1, 3], "dilation": [1, 2]}])
def test_inferred_shapes_are_those_of_torch(bare, options):
    graph, Y = conv(bare, pinned=False, **options)
    cudnn_graph.infer(graph)
    want = F.conv2d(meta(2, 16, 14, 10), meta(24, 16, 3, 3),
                    **{"padding": [1, 1], "stride": [1, 1], **options})
    assert Y.get_dim() == list(want.shape)


def test_a_graph_that_is_not_valid(bare):
    graph = bare.graph("matmul", torch.bfloat16)
    A = graph.tensor(name="A", **cudnn_graph.describe(meta(2, 8, 16)))
    B = graph.tensor(name="B", **cudnn_graph.describe(meta(2, 17, 8)))
    with pytest.raises(BadArgument, match=r"The graph is not valid: .*[Ii]nner dim"):
        graph.matmul(A=A, B=B).set_output(True)
        cudnn_graph.infer(graph)


def test_attention_that_cudnn_does_not_have(bare):
    graph = bare.graph("alibi", torch.bfloat16)
    Q = graph.tensor(name="Q", **cudnn_graph.describe(meta(1, 1, 64, 64)))
    graph.sdpa(q=Q, k=Q, v=Q, use_alibi_mask=True, generate_stats=False)[0].set_output(True)
    with pytest.raises(NotSupported, match="alibi mask"):
        cudnn_graph.infer(graph)


def test_a_failure_of_another_kind_is_not_hidden():
    class Graph:
        def validate(self):
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        cudnn_graph.infer(Graph())


def test_without_libcudnn_one_step_is_taken(bare):
    graph, _ = conv(bare)
    built = cudnn_graph.build(graph, bare)
    assert list(built.steps) == ["validate"] and not built.plan
    assert repr(built).count("not here") == 4
    assert not bare.runs and not bare.plans and bare.where == {}
    assert "labkit[deviceless]" in repr(bare)


def test_the_reasons_are_told_once(bare):
    said = RuntimeError("No valid engine configs for X\n" + 3 * "Warning: A; Reason: is_bf16\n"
                        + "".join(f"Warning: B; Reason: cause {n}\n" for n in range(4)))

    class Graph:
        def validate(self):
            raise said

    with pytest.raises(NotSupported) as refused:
        cudnn_graph._take(Graph(), bare, "validate", ())
    text = str(refused.value)
    assert text.count("is_bf16") == 1 and "(and 2 more)" in text and "\n" not in text
    assert "H100 (sm_90)" in text


def test_a_missing_driver_is_told_in_words(bare):
    error = RuntimeError("Warning: RUNTIME_PREREQUISITE_MISSING; Reason: this->libcuda == nullptr\n"
                         "Warning: A; Reason: compiler.load()")
    text = cudnn_graph._why(error, bare, "create_execution_plans")
    assert "take the NVIDIA driver" in text and "libcuda" not in text and "load()" not in text


# --- GPUs by description


@pytest.mark.parametrize("name", gpus.names())
def test_every_gpu_of_the_data_sheets_has_a_description(name):
    found = device_properties(name)
    sheet = gpus.lookup(name)
    assert found["multiProcessorCount"] == sheet.sms and found["deviceVer"] == 10 * sheet.sm
    assert all(value is not None for value in found.values())
    clock, width = memory_clock(name)
    assert 2 * clock * 1e6 * width / 8 / 1e9 == pytest.approx(sheet.bandwidth_gb_s, rel=0.03)


def test_the_description_of_the_h200_is_the_drivers():
    found = device_properties("H200")
    assert set(H200) <= set(found)
    for key in set(H200) - {"totalGlobalMem", "pciDeviceId"}:
        assert found[key] == H200[key], key
    assert found["totalGlobalMem"] == pytest.approx(H200["totalGlobalMem"], rel=0.02)


def test_a_capability_alone_is_not_enough():
    with pytest.raises(BadArgument, match="sm_90a is only a compute capability; name one of T4"):
        device_properties("sm_90")


# --- the picture


def test_picture_of_a_convolution(bare):
    graph, _ = conv(bare)
    cudnn_graph.infer(graph)
    drawn = cudnn_graph.picture(graph)
    ElementTree.fromstring(drawn.svg)
    assert drawn.svg == cudnn_graph.picture(graph).svg
    assert drawn.svg.count('stroke-dasharray="5 4"') == 3  # two virtual tensors, and the legend
    for word in ("conv_fprop", "relu", "2 × 24 × 14 × 10", "channels last", "padding 1 × 1"):
        assert word in drawn.svg, word
    assert drawn.text.splitlines()[0].startswith("conv_fprop: X (2 x 16 x 14 x 10, bfloat16, chan")
    assert "strides not set" not in drawn.text


def test_picture_marks_an_output_that_is_not_pinned(bare):
    graph, _ = conv(bare, pinned=False)
    cudnn_graph.infer(graph)
    drawn = cudnn_graph.picture(graph)
    assert "strides not set: libcudnn chooses" in drawn.svg and "strides not set" in drawn.text


def test_picture_of_a_branch_and_a_scalar(bare):
    graph = bare.graph("swish", torch.bfloat16)
    A, B = (graph.tensor(name=n, **cudnn_graph.describe(meta(2, 16, 16))) for n in "AB")
    alpha = graph.tensor_like(torch.full((1, 1, 1), 0.5))
    product = graph.mul(a=graph.matmul(A=A, B=B), b=alpha)
    Y = graph.mul(a=product, b=graph.sigmoid(input=product))
    Y.set_output(True).set_dim([2, 16, 16]).set_stride([256, 16, 1])
    cudnn_graph.infer(graph)
    drawn = cudnn_graph.picture(graph)
    root = ElementTree.fromstring(drawn.svg)
    width, height = float(root.get("width")), float(root.get("height"))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        if box.get("x"):
            assert 0 <= float(box.get("x")) <= width - float(box.get("width"))
            assert 0 <= float(box.get("y")) <= height - float(box.get("height"))
    assert "a number from the host" in drawn.text and "one number, from the host" in drawn.svg


def test_picture_of_nothing(bare):
    with pytest.raises(BadArgument, match="no operations yet"):
        cudnn_graph.picture(bare.graph("empty", "float16"))


def test_what_is_no_graph(bare):
    with pytest.raises(BadArgument, match=r"picture takes a cudnn\.pygraph, and got tuple"):
        cudnn_graph.picture((1, 2))
    with pytest.raises(BadArgument, match=r"build takes .* and got tuple and Target"):
        cudnn_graph.build((1, 2), bare)  # a lesson's function returns graph and pack
    with pytest.raises(BadArgument, match="and got pygraph and str"):
        cudnn_graph.build(bare.graph("g", "float16"), "H100")


def test_a_name_cannot_break_the_picture(bare):
    graph = bare.graph("names", torch.bfloat16)
    X = graph.tensor(name="<script>&", **cudnn_graph.describe(meta(2, 4, 4)))
    graph.relu(input=X, name="relu").set_output(True)
    cudnn_graph.infer(graph)
    ElementTree.fromstring(cudnn_graph.picture(graph).svg)


# --- with a libcudnn: planned for a GPU that is not here


def test_the_layout_trap(libcudnn):
    target = cudnn_graph.target(HERE, "A100")
    graph, Y = conv(target, pinned=False)
    cudnn_graph.infer(graph)
    early = Y.get_stride()
    built = cudnn_graph.build(graph, target)
    assert early == [3360, 140, 10, 1] and Y.get_stride() == [3360, 1, 240, 24]
    assert list(built.steps) == list(cudnn_graph.STEPS) and built.count >= 2 and built.plan


def test_no_kernel_is_compiled_ahead_for_a_convolution_without_bias(libcudnn):
    """So the driver is asked for: where there is none, the refusal says so."""
    target = cudnn_graph.target(HERE, "A100")
    graph = target.graph("conv_relu", torch.bfloat16)
    X = graph.tensor(name="X", **cudnn_graph.describe(meta(2, 16, 14, 10, last=True)))
    W = graph.tensor(name="W", **cudnn_graph.describe(meta(24, 16, 3, 3, last=True)))
    Y = graph.relu(input=graph.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1],
                                          dilation=[1, 1]))
    Y.set_output(True)
    if cudnn_support._stand_in():
        assert cudnn_graph.build(graph, target).plan
    elif libcudnn.version == "9.19.0" and target.plans:
        with pytest.raises(NotSupported, match="take the NVIDIA driver"):
            cudnn_graph.build(graph, target)


def test_a_t4_has_no_bfloat16(libcudnn):
    target = cudnn_graph.target(HERE, "T4")
    with pytest.raises(NotSupported, match=r"on T4 \(sm_75\).*bfloat16_supported"):
        cudnn_graph.build(conv(target)[0], target)
