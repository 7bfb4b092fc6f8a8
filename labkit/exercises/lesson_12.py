"""Exercises of lesson 12: strides, a graph with one more operation, and any convolution."""

from __future__ import annotations

from typing import Any

from labkit.exercises.exercise import Exercise
from labkit.exercises.graph_trial import GraphCheck, Tensors
from labkit.exercises.trial import FunctionCheck, Sizes


def _as_list(got: Any, wanted: list[int]) -> bool:
    return isinstance(got, (list, tuple)) and list(got) == wanted


# --- 12.1

STRIDES = Exercise(
    key="12.1", title="Channels last, by hand", statement="cdn-ex-1", answer="strides",
    stub='''
def strides(N, C, H, W):
    """The strides, in elements, of a channels-last tensor of these dims, as a list of four."""
    ...
''',
    solution='''
def strides(N, C, H, W):
    """The strides, in elements, of a channels-last tensor of these dims, as a list of four."""
    # in memory the order is N, H, W, C: the channels of a pixel lie side by side. A stride is how
    # many elements the axes further in take, and they are listed as N, C, H, W all the same.
    return [H * W * C, 1, W * C, C]
''',
    hints=(
        "In which order are the axes nested in memory, from the outermost to the innermost?",
        "The innermost axis is C, so its stride is 1. One step along W goes over one pixel, which "
        "is C elements.",
        "A step along H goes over a row of W pixels, a step along N over an image of H * W "
        "pixels, each of C elements. List them in the order N, C, H, W.",
    ),
    judge=FunctionCheck(
        cases=((32, 128, 56, 56), (2, 24, 14, 10), (1, 3, 5, 7), (4, 1, 2, 3)),
        wanted=lambda N, C, H, W: [H * W * C, 1, W * C, C], same=_as_list,
        mistakes={
            "That is row-major: W is innermost there. In channels last C is.":
                lambda N, C, H, W: [C * H * W, H * W, W, 1],
            "They are listed as they lie in memory, N, H, W, C; a graph wants them as N, C, H, W.":
                lambda N, C, H, W: [H * W * C, W * C, C, 1],
            "A pixel is C elements wide, so every step along H, W and N is C times as long.":
                lambda N, C, H, W: [H * W, 1, W, 1],
            "Those are bytes of 16-bit elements; strides count elements.":
                lambda N, C, H, W: [2 * H * W * C, 2, 2 * W * C, 2 * C],
            "H and W have changed places: W is further in.":
                lambda N, C, H, W: [H * W * C, 1, C, H * C],
        }))


# --- 12.2


def _image(sizes: Sizes, generator: Any, dtype: Any) -> Tensors:
    import torch

    N, C, H, W, K = (sizes[name] for name in "NCHWK")

    def normal(*dims: int) -> Any:
        return torch.randn(dims, generator=generator).to(dtype)

    def last(x: Any) -> Any:
        return x.to(memory_format=torch.channels_last)

    R, S = sizes.get("R", 3), sizes.get("S", 3)
    return {"x": last(normal(N, C, H, W)), "w": last(normal(K, C, R, S) / (R * S * C) ** 0.5),
            "b": 2 * normal(1, K, 1, 1)}


def _with_residual(sizes: Sizes, generator: Any, dtype: Any) -> Tensors:
    import torch

    found = _image(sizes, generator, dtype)
    r = torch.randn(sizes["N"], sizes["K"], sizes["H"], sizes["W"], generator=generator).to(dtype)
    y = torch.full_like(r, float("nan"))
    if sizes["y"] == "channels last":
        y = y.to(memory_format=torch.channels_last)
    return {**found, "r": r.to(memory_format=torch.channels_last), "y": y}


def _conv(t: Tensors, **options: Any) -> Any:
    import torch.nn.functional as F

    return F.conv2d(t["x"].double(), t["w"].double(), **options)


RESIDUAL = Exercise(
    key="12.2", title="A residual", statement="cdn-ex-2", answer="conv_bias_residual",
    stub='''
def conv_bias_residual(target, x, w, b, r, y):
    graph = target.graph("conv_bias_residual", x.dtype)
    X = graph.tensor(name="X", **cudnn_graph.describe(x))
    W = graph.tensor(name="W", **cudnn_graph.describe(w))
    B = graph.tensor(name="B", **cudnn_graph.describe(b))
    R = graph.tensor(name="R", **cudnn_graph.describe(r))
    pack = {X: x, W: w, B: b, R: r}
    ...  # Y = relu(conv(X, W) + B + R), pinned as y and put into the pack
    return graph, pack
''',
    solution='''
def conv_bias_residual(target, x, w, b, r, y):
    graph = target.graph("conv_bias_residual", x.dtype)
    X = graph.tensor(name="X", **cudnn_graph.describe(x))
    W = graph.tensor(name="W", **cudnn_graph.describe(w))
    B = graph.tensor(name="B", **cudnn_graph.describe(b))
    R = graph.tensor(name="R", **cudnn_graph.describe(r))
    pack = {X: x, W: w, B: b, R: r}
    conv = graph.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
    biased = graph.bias(input=conv, bias=B)
    # the sum with R is virtual like the two before: R is read, and nothing else is added to
    # the traffic
    summed = graph.add(a=biased, b=R)
    Y = graph.relu(input=summed)
    Y.set_name("Y").set_output(True).set_data_type(cudnn_graph.data_type(y.dtype))
    # from y itself, so that the graph fits whatever layout y has
    Y.set_dim(list(y.shape)).set_stride(list(y.stride()))
    pack[Y] = y
    return graph, pack
''',
    hints=(
        "It is the lesson's graph with one operation more. Where does it stand: before the ReLU "
        "or after it?",
        "graph.add(a=..., b=...) adds two tensors of the graph. Only Y gets set_output, and it "
        "takes its dims and strides from y.",
        "summed = graph.add(a=biased, b=R); Y = graph.relu(input=summed); then set_name, "
        "set_output(True), set_data_type, set_dim and set_stride as in `conv_bias_relu`, and "
        "pack[Y] = y.",
    ),
    judge=GraphCheck(
        cases=(dict(N=2, C=16, H=14, W=10, K=24, y="channels last"),
               dict(N=1, C=8, H=5, W=3, K=8, y="row-major"),
               dict(N=3, C=8, H=1, W=1, K=16, y="channels last")),
        tensors=_with_residual, outputs=("y",), operations=4,
        reference=lambda s, t: {"y": (_conv(t, padding=1) + t["b"].double()
                                      + t["r"].double()).relu()},
        mistakes={
            "The ReLU comes before the residual; it belongs after the sum.":
                lambda s, t: {"y": (_conv(t, padding=1) + t["b"].double()).relu()
                              + t["r"].double()},
            "The residual is missing.":
                lambda s, t: {"y": (_conv(t, padding=1) + t["b"].double()).relu()},
            "The bias is missing.":
                lambda s, t: {"y": (_conv(t, padding=1) + t["r"].double()).relu()},
            "The ReLU comes before the bias; it belongs after the sum.":
                lambda s, t: {"y": _conv(t, padding=1).relu() + t["b"].double()
                              + t["r"].double()},
            "The ReLU is missing.":
                lambda s, t: {"y": _conv(t, padding=1) + t["b"].double() + t["r"].double()},
        },
        gpu=dict(N=8, C=64, H=28, W=28, K=64, y="channels last")))


# --- 12.3


def _sides(sizes: Sizes) -> dict[str, Any]:
    return {name: list(sizes[name]) for name in ("padding", "stride", "dilation")}


def _biased(t: Tensors, **options: Any) -> Tensors:
    return {"y": (_conv(t, **options) + t["b"].double()).relu()}


def _one_side(sizes: Sizes, t: Tensors) -> Tensors:
    import torch.nn.functional as F

    top, left = sizes["padding"]
    return {**t, "x": F.pad(t["x"], (left, 0, top, 0))}


def _channels_last(sizes: Sizes, wanted: Any, y: Any) -> str:
    import torch

    if y.dtype not in (torch.bfloat16, torch.float16):
        return f"y is {y.dtype}; make it of x's dtype.".replace("torch.", "")
    if not y.is_contiguous(memory_format=torch.channels_last):
        return (f"y has the strides {list(y.stride())}; channels last would be "
                f"{list(wanted.to(memory_format=torch.channels_last).stride())}.")
    return ""


ANY = Exercise(
    key="12.3", title="Any convolution", statement="cdn-ex-3", answer="any_conv",
    stub='''
def any_conv(target, x, w, b, padding, stride, dilation):
    """Y = relu(conv(x, w) + b). padding, stride, dilation: lists, one number for H and one for W.

    Makes y itself: with the right dims, channels last, of x's dtype and on x's device.
    """
    ...  # and at the end: return graph, pack, y
''',
    solution='''
def any_conv(target, x, w, b, padding, stride, dilation):
    """Y = relu(conv(x, w) + b). padding, stride, dilation: lists, one number for H and one for W.

    Makes y itself: with the right dims, channels last, of x's dtype and on x's device.
    """
    dims = [x.shape[0], w.shape[0]]
    for axis in range(2):
        # a filter of R taps that are d apart reaches over d * (R - 1) + 1 elements
        reach = dilation[axis] * (w.shape[2 + axis] - 1) + 1
        dims.append((x.shape[2 + axis] + 2 * padding[axis] - reach) // stride[axis] + 1)
    y = torch.empty(dims, dtype=x.dtype, device=x.device)
    y = y.to(memory_format=torch.channels_last)

    graph = target.graph("any_conv", x.dtype)
    X = graph.tensor(name="X", **cudnn_graph.describe(x))
    W = graph.tensor(name="W", **cudnn_graph.describe(w))
    B = graph.tensor(name="B", **cudnn_graph.describe(b))
    # by keyword: what a positional argument means has changed between releases
    conv = graph.conv_fprop(image=X, weight=W, padding=padding, stride=stride, dilation=dilation)
    Y = graph.relu(input=graph.bias(input=conv, bias=B))
    Y.set_name("Y").set_output(True).set_data_type(cudnn_graph.data_type(y.dtype))
    Y.set_dim(list(y.shape)).set_stride(list(y.stride()))
    return graph, {X: x, W: w, B: b, Y: y}, y
''',
    hints=(
        "First the dims of y, by a formula, for H and W alike. Then the graph as in "
        "`conv_bias_relu`, with the three lists handed on.",
        "Along one axis the filter fits at (size + 2 * padding - reach) // stride + 1 places. Its "
        "reach is what it covers from its first tap to its last one, the gaps included.",
        "reach = dilation * (taps - 1) + 1. y = torch.empty([N, K, P, Q], dtype=x.dtype, "
        "device=x.device).to(memory_format=torch.channels_last); the pack holds it, and it is "
        "returned too.",
    ),
    judge=GraphCheck(
        cases=(dict(N=2, C=16, H=17, W=12, K=24, R=3, S=3, padding=(3, 1), stride=(2, 1),
                    dilation=(1, 2)),
               dict(N=1, C=8, H=9, W=12, K=8, R=3, S=5, padding=(0, 3), stride=(1, 3),
                    dilation=(2, 1)),
               dict(N=1, C=8, H=1, W=1, K=16, R=1, S=1, padding=(0, 0), stride=(1, 1),
                    dilation=(1, 1))),
        tensors=_image, outputs=("y",), options=_sides, operations=3, made=_channels_last,
        reference=lambda s, t: _biased(t, **_sides(s)),
        mistakes={
            "The dilation is missing from the dims: it widens the filter's reach.":
                lambda s, t: _biased(t, padding=s["padding"], stride=s["stride"]),
            "The stride is missing from the dims.":
                lambda s, t: _biased(t, padding=s["padding"], dilation=s["dilation"]),
            "The padding is missing from the dims: it widens the image on both sides.":
                lambda s, t: _biased(t, stride=s["stride"], dilation=s["dilation"]),
            "The padding lies on both sides of the image, so it counts twice.":
                lambda s, t: _biased(_one_side(s, t), stride=s["stride"], dilation=s["dilation"]),
            "The numbers for H and for W have changed places.":
                lambda s, t: _biased(t, **{name: side[::-1] for name, side in _sides(s).items()}),
        },
        gpu=dict(N=8, C=64, H=28, W=30, K=64, R=3, S=5, padding=(1, 2), stride=(2, 1),
                 dilation=(2, 1))))

EXERCISES = (STRIDES, RESIDUAL, ANY)
