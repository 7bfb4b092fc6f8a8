"""Wrong answers to the exercises of lessons 12 to 16, as in planted_answers.py."""

from __future__ import annotations

Planted = tuple[str, tuple[tuple[str, str], ...], str]

CUDNN: dict[str, list[Planted]] = {}

CUDNN["12.1"] = [
    ("row-major", (("[H * W * C, 1, W * C, C]", "[C * H * W, H * W, W, 1]"),), "That is row-major"),
    ("order of memory", (("[H * W * C, 1, W * C, C]", "[H * W * C, W * C, C, 1]"),),
     "as they lie in memory"),
    ("one channel a pixel", (("[H * W * C, 1, W * C, C]", "[H * W, 1, W, 1]"),),
     "A pixel is C elements wide"),
    ("bytes", (("[H * W * C, 1, W * C, C]", "[2 * H * W * C, 2, 2 * W * C, 2 * C]"),),
     "strides count elements"),
    ("columns outside", (("[H * W * C, 1, W * C, C]", "[H * W * C, 1, C, H * C]"),),
     "H and W have changed places"),
    ("a tuple of another order", (("[H * W * C, 1, W * C, C]", "(1, H * W * C, W * C, C)"),),
     "expected [401408, 1"),
]
CUDNN["12.2"] = [
    ("relu before the residual", (("summed = graph.add(a=biased, b=R)",
                                   "activated = graph.relu(input=biased)"),
                                  ("Y = graph.relu(input=summed)",
                                   "Y = graph.add(a=activated, b=R)")),
     "The ReLU comes before the residual"),
    ("no output", ((".set_output(True)", ""),), "is virtual, so it never reaches memory"),
    ("row-major by hand", (("Y.set_dim(list(y.shape)).set_stride(list(y.stride()))",
                            "N, K, H, W = y.shape\n"
                            "    Y.set_dim([N, K, H, W]).set_stride([K * H * W, H * W, W, 1])"),),
     "is pinned to the strides [3360, 140, 10, 1], and its memory has [3360, 1, 240, 24]"),
    ("always channels last", (("Y.set_dim(list(y.shape)).set_stride(list(y.stride()))",
                               "n, k, p, q = y.shape\n"
                               "    Y.set_dim([n, k, p, q]).set_stride([k * p * q, 1, q * k, k])"),
                              ), "Right at 1 size before."),
    ("not pinned", (("    Y.set_dim(list(y.shape)).set_stride(list(y.stride()))\n", ""),),
     "y is not pinned"),
    ("residual left out", (("Y = graph.relu(input=summed)", "Y = graph.relu(input=biased)"),),
     "The residual is missing"),
    ("bias left out", (("graph.add(a=biased, b=R)", "graph.add(a=conv, b=R)"),),
     "The bias is missing"),
    ("no relu", (("Y = graph.relu(input=summed)", "Y = summed"),), "The ReLU is missing"),
    ("sum in memory", (("summed = graph.add(a=biased, b=R)\n",
                        "summed = graph.add(a=biased, b=R)\n    summed.set_output(True)\n"),),
     "is an output too"),
    ("half sums", (("dilation=[1, 1])", "dilation=[1, 1], "
                    "compute_data_type=cudnn_graph.data_type(x.dtype))"),),
     "sums of many products need float32"),
    ("half between", (("    biased =", "    conv.set_data_type(cudnn_graph.data_type(x.dtype))\n"
                       "    biased ="),),
     "leave what is virtual in float32"),
    ("no padding", (("padding=[1, 1]", "padding=[0, 0]"),), "it does not run:"),
    ("a number", (('graph.tensor(name="B", **cudnn_graph.describe(b))', "graph.tensor_like(b)"),),
     "tensor_like makes one of every tensor on the CPU"),
    ("not in the pack", ((", R: r, ", ", "),), "The pack has no tensor for 'R'"),
    ("nothing returned", (("    return graph, {X: x, W: w, B: b, R: r, Y: y}", ""),),
     "returns nothing, where (graph, pack) belongs"),
]
CUDNN["12.3"] = [
    ("dilation not in the dims", (("dilation[axis] * (w.shape[2 + axis] - 1) + 1",
                                   "w.shape[2 + axis]"),), "The dilation is missing from the dims"),
    ("stride not in the dims", ((" // stride[axis] + 1)", " + 1)"),),
     "The stride is missing from the dims"),
    ("padding on one side", (("2 * padding[axis]", "padding[axis]"),),
     "so it counts twice"),
    ("axes swapped", (("stride=stride, dilation=dilation", "stride=stride[::-1], "
                       "dilation=dilation"),), "make the two agree"),
    ("dilation not in the graph", (("dilation=dilation)", "dilation=[1, 1])"),),
     "make the two agree"),
    ("row-major", (("    y = y.to(memory_format=torch.channels_last)\n", ""),),
     "channels last would be"),
    ("float32", (("dtype=x.dtype, device", "dtype=torch.float32, device"),), "y is float32"),
    ("y not returned", ((", Y: y}, y", ", Y: y}"),), "where (graph, pack, y) belongs"),
    ("not pinned", ((".set_stride(list(y.stride()))", ""),), "call set_stride with"),
]
