"""What a graph means on the CPU: each operation against PyTorch, and what must not pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import labkit as lab
from labkit import cudnn_graph
from labkit.cudnn_loader import Cudnn
from labkit.errors import BadArgument, NotOnCPU


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


class Case:
    """A graph being built beside its torch tensors."""

    def __init__(self, dtype=torch.float32):
        cudnn_graph.load_cudnn()
        self.graph = cudnn_graph.Target("H100", 90, Cudnn("1.32.0")).graph("case", dtype)
        self.pack = {}

    def input(self, name, x):
        tensor = self.graph.tensor(name=name, **cudnn_graph.describe(x))
        self.pack[tensor] = x
        return tensor

    def output(self, tensor, y):
        tensor.set_output(True).set_data_type(cudnn_graph.data_type(y.dtype))
        tensor.set_dim(list(y.shape)).set_stride(list(y.stride()))
        self.pack[tensor] = y
        return y

    def run(self):
        cudnn_graph.infer(self.graph)
        cudnn_graph.evaluate(self.graph, self.pack)


UNARY = {"relu": F.relu, "gelu": F.gelu, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
         "gelu_approx_tanh": lambda x: F.gelu(x, approximate="tanh"), "swish": F.silu,
         "exp": torch.exp, "abs": torch.abs, "neg": torch.neg, "identity": lambda x: x}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}


@pytest.mark.parametrize("name", UNARY)
def test_one_input(name):
    case, x = Case(), rand(2, 5, 7)
    y = case.output(getattr(case.graph, name)(input=case.input("X", x)), torch.empty(2, 5, 7))
    case.run()
    torch.testing.assert_close(y, UNARY[name](x))


@pytest.mark.parametrize("name", BINARY)
def test_two_inputs_of_which_one_is_broadcast(name):
    case, a, b = Case(), rand(2, 5, 7), rand(2, 1, 7) + 3
    made = getattr(case.graph, name)(a=case.input("A", a), b=case.input("B", b))
    y = case.output(made, torch.empty(2, 5, 7))
    case.run()
    torch.testing.assert_close(y, BINARY[name](a, b))


def test_clipped_and_leaky_relu():
    for options, want in (({"upper_clip": 1.0}, lambda x: x.clamp(0, 1)),
                          ({"negative_slope": 0.2}, lambda x: F.leaky_relu(x, 0.2))):
        case, x = Case(), rand(2, 5, 7)
        y = case.output(case.graph.relu(input=case.input("X", x), **options), torch.empty(2, 5, 7))
        case.run()
        torch.testing.assert_close(y, want(x))


@pytest.mark.parametrize("options", [
    {"padding": [1, 1]}, {"padding": [0, 2], "stride": [2, 1]}, {"padding": [2, 2],
     "dilation": [2, 2]}, {"pre_padding": [2, 1], "post_padding": [0, 1]}])
def test_convolution(options):
    case, x, w = Case(), rand(2, 6, 9, 7), rand(4, 6, 3, 3)
    full = {"stride": [1, 1], "dilation": [1, 1], **options}
    before = options.get("pre_padding") or options["padding"]
    after = options.get("post_padding") or options["padding"]
    padded = F.pad(x, [before[1], after[1], before[0], after[0]])
    want = F.conv2d(padded, w, stride=full["stride"], dilation=full["dilation"])
    made = case.graph.conv_fprop(image=case.input("X", x), weight=case.input("W", w), **full)
    y = case.output(made, torch.empty_like(want))
    case.run()
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("mode", "dim", "want"), [
    ("AMAX", [1, 1, 1], lambda x: x.abs().amax((0, 1, 2), keepdim=True)),
    ("AMAX", [2, 5, 1], lambda x: x.abs().amax(2, keepdim=True)),
    ("ADD", [2, 1, 7], lambda x: x.sum(1, keepdim=True)),
    ("MAX", [1, 5, 7], lambda x: x.amax(0, keepdim=True)),
    ("MIN", [2, 1, 1], lambda x: x.amin((1, 2), keepdim=True)),
    ("AVG", [2, 5, 1], lambda x: x.mean(2, keepdim=True)),
    ("NORM1", [2, 1, 7], lambda x: x.abs().sum(1, keepdim=True)),
    ("NORM2", [1, 1, 7], lambda x: x.square().sum((0, 1), keepdim=True).sqrt())])
def test_reduction_takes_its_axes_from_the_output(mode, dim, want):
    import cudnn

    case, x = Case(), rand(2, 5, 7)
    made = case.graph.reduction(input=case.input("X", x), mode=getattr(cudnn.reduction_mode, mode))
    y = case.output(made, torch.empty(dim))
    case.run()
    torch.testing.assert_close(y, want(x))


def test_matmul_with_a_host_scalar_bias_relu_and_amax():
    import cudnn

    case = Case(torch.bfloat16)
    a, b = rand(3, 32, 48, dtype=torch.bfloat16), rand(3, 48, 40, dtype=torch.bfloat16) / 7
    bias, alpha = rand(3, 1, 40, dtype=torch.bfloat16), torch.full((1, 1, 1), 0.5)
    scalar = case.graph.tensor_like(alpha)
    case.pack[scalar] = alpha
    product = case.graph.matmul(A=case.input("A", a), B=case.input("B", b))
    made = case.graph.relu(input=case.graph.bias(input=case.graph.mul(a=product, b=scalar),
                                                 bias=case.input("bias", bias)))
    y = case.output(made, torch.empty(3, 32, 40, dtype=torch.bfloat16))
    top = case.output(case.graph.reduction(input=made, mode=cudnn.reduction_mode.AMAX),
                      torch.full((1, 1, 1), -1.0))
    case.run()
    want = F.relu(0.5 * (a.float() @ b.float()) + bias.float())
    lab.check(y, want)
    assert top.item() == y.abs().max().item()


@pytest.mark.parametrize("causal", ["none", "band", "old"])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention(causal, kv_heads):
    import cudnn

    case = Case()
    q = rand(2, 4, 33, 16)
    k, v = (rand(2, kv_heads, 33, 16) for _ in range(2))
    masks = {"none": {}, "old": {"use_causal_mask": True},
             "band": {"diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT,
                      "diagonal_band_right_bound": 0}}
    out, stats = case.graph.sdpa(q=case.input("Q", q), k=case.input("K", k), v=case.input("V", v),
                                 attn_scale=0.25, generate_stats=True, **masks[causal])
    o = case.output(out, torch.empty_like(q))
    s = case.output(stats, torch.empty(2, 4, 33, 1))
    case.run()
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal != "none", enable_gqa=True)
    torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-5)
    scores = 0.25 * q @ k.repeat_interleave(4 // kv_heads, 1).transpose(-1, -2)
    if causal != "none":
        scores = scores.masked_fill(torch.ones(33, 33).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(s, scores.logsumexp(-1, keepdim=True), rtol=1e-4, atol=1e-5)


def test_strides_are_followed_on_both_sides():
    case, x = Case(), rand(2, 6, 4, 3).to(memory_format=torch.channels_last)
    y = case.output(case.graph.identity(input=case.input("X", x)), torch.empty(2, 6, 4, 3))
    case.run()
    assert torch.equal(y, x)
    wrong = Case()
    X = wrong.graph.tensor(name="X", dim=[2, 6, 4, 3], stride=[72, 12, 3, 1],
                           data_type=cudnn_graph.data_type("float32"))
    wrong.pack[X] = x
    y = wrong.output(wrong.graph.identity(input=X), torch.empty(2, 6, 4, 3))
    wrong.run()
    assert not torch.equal(y, x)


# --- what must not pass


def relu(dtype=torch.float32, y=None):
    case = Case(dtype)
    x = rand(2, 3, 4, dtype=dtype)
    X = case.input("X", x)
    Y = case.graph.relu(input=X)
    Y.set_name("Y")
    case.output(Y, torch.empty(2, 3, 4, dtype=dtype) if y is None else y)
    return case, X, Y


def test_a_tensor_that_is_missing():
    case, X, _ = relu()
    del case.pack[X]
    with pytest.raises(BadArgument, match="no tensor for 'X'"):
        case.run()


def test_a_dtype_that_the_graph_does_not_say():
    case, X, _ = relu(torch.bfloat16)
    case.pack[X] = rand(2, 3, 4)
    with pytest.raises(BadArgument, match="'X' is float32, and the graph says bfloat16"):
        case.run()


def test_memory_that_is_too_small():
    case, _, Y = relu()
    case.pack[Y] = torch.empty(2, 3, 3)
    with pytest.raises(BadArgument, match=r"'Y' reaches element 23 .* holds 18"):
        case.run()


def test_a_view_that_starts_late_is_measured_from_there():
    case, X, _ = relu()
    case.pack[X] = torch.empty(30)[10:]
    with pytest.raises(BadArgument, match=r"'X' reaches element 23 .* holds 20"):
        case.run()


def test_an_output_that_is_not_pinned():
    case = Case()
    Y = case.graph.relu(input=case.input("X", rand(2, 3, 4))).set_output(True)
    case.pack[Y] = torch.empty(2, 3, 4)
    with pytest.raises(BadArgument, match="has no strides"):
        case.run()


def test_an_operation_that_is_not_here():
    case = Case()
    case.output(case.graph.erf(input=case.input("X", rand(2, 3, 4))), torch.empty(2, 3, 4))
    with pytest.raises(NotOnCPU, match=r"no 'erf'; it has .*conv_fprop"):
        case.run()


def test_an_option_of_attention_that_is_not_here():
    case = Case()
    q = rand(1, 1, 8, 8)
    Q = case.input("Q", q)
    out, _ = case.graph.sdpa(q=Q, k=Q, v=Q, use_alibi_mask=True, generate_stats=False,
                             use_causal_mask=True)
    case.output(out, torch.empty_like(q))
    with pytest.raises(NotOnCPU, match="sdpa with use_alibi_mask"):
        case.run()


# --- bad input: one clear sentence each


def one(x, y, op="identity", **options):
    """`op` of x, stored in y, as a case that is evaluated without `infer`."""
    case = Case(x.dtype)
    made = getattr(case.graph, op)(input=case.input("X", x), **options)
    made.set_name("Y")
    case.output(made, y)
    return case


def refuse(kind, match, case):
    with pytest.raises(kind, match=match) as refused:
        cudnn_graph.evaluate(case.graph, case.pack)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("number", [2**24 + 1, -(2**24) - 1, 2**31 - 1])
def test_integers_that_float32_would_round(dtype, number):
    x = torch.tensor([[[number, 1]]], dtype=dtype)
    refuse(NotOnCPU, "'X' holds integers beyond 16,777,216", one(x, torch.zeros_like(x)))
    x[0, 0, 0] = 2**24
    case = one(x, torch.zeros_like(x))
    cudnn_graph.evaluate(case.graph, case.pack)
    assert all(torch.equal(t, x) for t in case.pack.values())


@pytest.mark.parametrize("value", [2.5, -0.5, 128.0, -129.0, float("nan"), float("inf")])
def test_an_integer_output_that_cannot_hold_the_result(value):
    refuse(NotOnCPU, "'Y' is int8, and identity makes numbers that it cannot hold",
           one(torch.tensor([[[1.0, value]]]), torch.zeros(1, 1, 2, dtype=torch.int8)))


def test_an_integer_output_that_can():
    y = torch.zeros(1, 1, 3, dtype=torch.int8)
    case = one(torch.tensor([[[127.0, -128.0, 0.0]]]), y)
    cudnn_graph.evaluate(case.graph, case.pack)
    assert y.flatten().tolist() == [127, -128, 0]


@pytest.mark.parametrize("mode", ["AMAX", "NORM1", "NORM2"])
def test_a_reduction_of_no_axis_still_has_its_mode(mode):
    import cudnn

    case, x = Case(), -1 - torch.rand(2, 1, 3)
    made = case.graph.reduction(input=case.input("X", x), mode=getattr(cudnn.reduction_mode, mode))
    y = case.output(made, torch.empty(2, 1, 3))
    case.run()
    torch.testing.assert_close(y, x.abs())


def test_swish_with_beta_0_is_half():
    x, y = rand(1, 2, 3), torch.empty(1, 2, 3)
    case = one(x, y, "swish", swish_beta=0.0)
    cudnn_graph.evaluate(case.graph, case.pack)
    torch.testing.assert_close(y, x / 2)


@pytest.mark.parametrize("arguments", [(None, {}), ("graph", None), ("graph", [1])])
def test_what_is_no_graph_or_no_pack(arguments):
    graph = one(rand(1, 2, 3), rand(1, 2, 3)).graph if arguments[0] else None
    with pytest.raises(BadArgument, match=r"takes a cudnn\.pygraph and its pack"):
        cudnn_graph.evaluate(graph, arguments[1])


def test_a_number_from_the_host_that_is_two():
    case, alpha = Case(), torch.ones(1, 1, 1)
    scalar = case.graph.tensor_like(alpha, name="alpha")
    case.pack[scalar] = torch.ones(1, 1, 2)
    case.output(case.graph.mul(a=case.input("X", rand(1, 2, 3)), b=scalar), rand(1, 2, 3))
    refuse(BadArgument, "'alpha' is a number from the host, and got 2 elements", case)


def two(op, a, b, y, **names):
    case = Case()
    first, second = names.pop("ports", ("a", "b"))
    made = getattr(case.graph, op)(**{first: case.input("A", a), second: case.input("B", b)},
                                   **names)
    case.output(made, y)
    return case


def conv_of(x, w, **options):
    full = {"padding": [1, 1], "stride": [1, 1], "dilation": [1, 1], **options}
    return two("conv_fprop", x, w, rand(1, 4, 8, 8), ports=("image", "weight"), **full)


@pytest.mark.parametrize(("case", "match"), [
    (lambda: two("add", rand(1, 2, 3), rand(1, 2, 4), rand(1, 2, 3)),
     r"add cannot take IN_0 \[1, 2, 3\], IN_1 \[1, 2, 4\]: .*must match"),
    (lambda: two("matmul", rand(1, 2, 3), rand(1, 2, 4), rand(1, 2, 4), ports=("A", "B")),
     r"matmul cannot take A \[1, 2, 3\], B \[1, 2, 4\]"),
    (lambda: conv_of(rand(1, 3, 8, 8), rand(4, 2, 3, 3)), "3 channels and filters of 2"),
    (lambda: conv_of(rand(1, 2, 8, 8), rand(4, 3, 3, 3)), "2 channels and filters of 3"),
    (lambda: conv_of(rand(8, 8), rand(3, 3)), r"takes an image \[N, C, ...\]"),
    (lambda: conv_of(rand(1, 3, 8, 8), rand(4, 3, 3, 3), stride=[0, 1]),
     r"with padding = \[1, 1\], stride = \[0, 1\].*non-positive stride"),
    (lambda: conv_of(rand(1, 3, 8, 8), rand(4, 3, 3, 3), padding=1), "with padding = 1"),
    (lambda: conv_of(rand(1, 3, 1, 1), rand(4, 3, 5, 5)), "Kernel size"),
    (lambda: one(rand(1, 2, 3), rand(1, 2, 3), "relu", upper_clip="a"), "with upper_clip = a"),
])
def test_shapes_and_options_that_do_not_fit(case, match):
    refuse(BadArgument, match, case())


def test_a_reduction_to_another_number_of_axes():
    import cudnn

    case = Case()
    made = case.graph.reduction(input=case.input("X", rand(2, 4, 6)), mode=cudnn.reduction_mode.ADD)
    case.output(made, rand(1, 1))
    refuse(BadArgument, r"reads \[2, 4, 6\], and its output has the dims \[1, 1\]", case)


@pytest.mark.parametrize(("k", "v", "match"), [
    ((1, 2, 8, 8), (1, 2, 8, 8), "as many heads in Q"), ((3, 8, 8), (3, 8, 8), "as many heads"),
    ((1, 3, 8, 4), (1, 3, 8, 8), r"sdpa cannot take q \[1, 3, 8, 8\]"),
    ((1, 3, 9, 8), (1, 3, 8, 8), "sdpa cannot take")])
def test_attention_of_what_does_not_fit(k, v, match):
    case, q = Case(), rand(1, 3, 8, 8)
    out, _ = case.graph.sdpa(q=case.input("Q", q), k=case.input("K", rand(*k)),
                             v=case.input("V", rand(*v)), generate_stats=False)
    case.output(out, torch.empty_like(q))
    refuse(BadArgument, match, case)


@pytest.mark.parametrize(("stride", "match"), [
    ([24, 6], "one stride for each dim"), ([24, 6, -1], "none negative")])
def test_strides_that_are_none(stride, match):
    case, x = Case(), rand(2, 4, 6)
    X = case.graph.tensor(name="X", dim=[2, 4, 6], stride=stride,
                          data_type=cudnn_graph.data_type("float32"))
    case.pack[X] = x
    case.output(case.graph.identity(input=X), rand(2, 4, 6))
    refuse(BadArgument, match, case)


def test_an_output_over_itself():
    case = Case()
    Y = case.graph.identity(input=case.input("X", rand(2, 4, 6)))
    Y.set_name("Y").set_output(True).set_data_type(cudnn_graph.data_type("float32"))
    Y.set_dim([2, 4, 6]).set_stride([0, 6, 1])
    case.pack[Y] = rand(2, 4, 6)
    refuse(BadArgument, "'Y' has the stride 0", case)


def test_a_tensor_without_a_dtype():
    import cudnn

    graph = cudnn.pygraph()
    X = graph.tensor(name="X", dim=[1, 2, 3], stride=[6, 3, 1])
    Y = graph.identity(input=X).set_output(True)
    with pytest.raises(BadArgument, match="gives 'X' no dtype; pass data_type="):
        cudnn_graph.evaluate(graph, {X: rand(1, 2, 3), Y: rand(1, 2, 3)})


@pytest.mark.parametrize("x", [None, [1, 2], 3.0])
def test_describe_takes_a_tensor(x):
    with pytest.raises(BadArgument, match="describe takes a torch tensor, and got"):
        cudnn_graph.describe(x)


def test_the_pack_by_uid_and_by_name():
    case, X, Y = relu()
    x, y = case.pack[X], case.pack[Y]
    cudnn_graph.infer(case.graph)
    cudnn_graph.evaluate(case.graph, {"X": x, Y.get_uid(): y})
    assert torch.equal(y, F.relu(x))
