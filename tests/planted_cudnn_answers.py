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
CUDNN["13.1"] = [
    ("no limit", ((" and p.workspace <= limit]", "]"),), "The limit has no effect"),
    ("below the limit", (("p.workspace <= limit", "p.workspace < limit"),), "fits, too"),
    ("first in the ranking", (("min(fitting, key=lambda p: p.kernel_ms, default=None)",
                               "next(iter(fitting), None)"),), "first one in cuDNN's order"),
    ("slowest", (("min(fitting", "max(fitting"),), "the slowest that fits"),
    ("least workspace", (("key=lambda p: p.kernel_ms", "key=lambda p: p.workspace"),),
     "the one with the least workspace"),
    ("untimed kept", (("p.kernel_ms is not None and ", ""),), "NoneType"),
    ("empty list", ((", default=None", ""),), "empty"),
    ("the time", (("return min(fitting, key=lambda p: p.kernel_ms, default=None)",
                   "return min((p.kernel_ms for p in fitting), default=None)"),),
     "a float, no plan"),
]
CUDNN["13.2"] = [
    ("no shape", ((", dtype, shape]", ", dtype]"),), "differ in one size"),
    ("no dtype", (("libcudnn, dtype, shape]", "libcudnn, shape]"),), "differ in the dtype"),
    ("no cuDNN", (("[graph, gpu, libcudnn, dtype", "[graph, gpu, dtype"),),
     "differ in cuDNN's release"),
    ("no GPU", (("[graph, gpu, libcudnn", "[graph, libcudnn"),), "differ in the GPU"),
    ("no graph", (("[graph, gpu", "[gpu"),), "differ in the graph"),
    ("in the order given", ((", sort_keys=True", ""),), "so sort it"),
    ("sizes sorted", (("dtype, shape]", "dtype, sorted(shape.values())]"),),
     "which axis has which size"),
    ("sizes joined", (("dtype, shape]",
                       'dtype, "".join(str(shape[axis]) for axis in sorted(shape))]'),),
     "have the same key"),
    ("sizes by axis, joined", (("dtype, shape]", 'dtype, "".join(str(shape.get(axis, "")) '
                                'for axis in "NCHWK")]'),), "where one number ends"),
    ("a tuple", (("return json.dumps([graph, gpu, libcudnn, dtype, shape], sort_keys=True)",
                  "return graph, gpu, libcudnn, dtype, tuple(sorted(shape.items()))"),),
     "of type tuple"),
    ("a hash", (("json.dumps([graph, gpu, libcudnn, dtype, shape], sort_keys=True)",
                 "str(hash(json.dumps([graph, gpu, libcudnn, dtype, shape], sort_keys=True)))"),),
     "another one in each process"),
]
CUDNN["13.3"] = [
    ("never stops", (("            break", "            pass"),), "is within 5 % of the floor"),
    ("no try", (("except RuntimeError", "except KeyError"),), "ends the search"),
    ("stops at a failure", (("            continue  # one", "            break  # one"),),
     "it returns None"),
    ("no workspace", (("graph.get_workspace_size_plan_at_index(index))", "0)"),),
     "and got 0: it would write past its end"),
    ("workspace of the default", (("graph.get_workspace_size_plan_at_index(index))",
                                   "graph.get_workspace_size_plan_at_index(0))"),),
     "it would write past its end"),
    ("the last one", (("        if ms < best_ms:\n            best", "        if True:\n"
                       "            best"),), "it returns place"),
    ("the time", (("    return best\n", "    return best_ms\n"),), "the place of a plan belongs"),
    ("the floor itself", (("1.05 * floor_ms", "floor_ms"),), "will do"),
    ("the first that runs", (("if best_ms <= 1.05 * floor_ms", "if best is not None"),),
     "it returns place 0"),
]
CUDNN["14.1"] = [
    ("the whole range", (("2.0 ** math.floor(math.log2(largest / amax))", "largest / amax"),),
     "is no power of two"),
    ("up", (("math.floor", "math.ceil"),), "It is rounded up"),
    ("nearest", (("math.floor", "round"),), "to the nearest power"),
    ("towards zero", (("math.floor", "int"),), "int() rounds towards zero"),
    ("the other way round", (("largest / amax", "amax / largest"),), "a small amax needs a large"),
    ("one format", (("log2(largest", "log2(448.0"),), "`largest` has no effect"),
    ("zero", (("    if amax == 0:\n        return 1.0  # nothing to scale, and no division by zero"
               "\n", ""),), "ZeroDivisionError"),
]
CUDNN["14.2"] = [
    ("alpha on the bias", (("scaled = graph.mul(a=product, b=Alpha)",
                            "shifted = graph.add(a=product, b=Bias)"),
                           ("biased = graph.add(a=scaled, b=Bias)",
                            "biased = graph.mul(a=shifted, b=Alpha)")),
     "alpha belongs to the product alone"),
    ("tanh before the bias", (("biased = graph.add(a=scaled, b=Bias)",
                               "activated = graph.tanh(input=scaled)"),
                              ("Y = graph.tanh(input=biased)",
                               "Y = graph.add(a=activated, b=Bias)")),
     "The activation comes before the bias"),
    ("amax before tanh", (("reduction(input=Y", "reduction(input=biased"),),
     "taken before the activation"),
    ("no absolute value", (("reduction_mode.AMAX", "reduction_mode.MAX"),), "MAX takes no absolute"),
    ("alpha in memory", (('graph.tensor_like(alpha, name="alpha")',
                          'graph.tensor(name="alpha", **cudnn_graph.describe(alpha))'),),
     "tensor_like makes it a number"),
    ("one bias for all", (('graph.tensor(name="bias", **cudnn_graph.describe(bias))',
                           'graph.tensor(name="bias", **{**cudnn_graph.describe(bias), '
                           '"dim": [1, 1, bias.shape[2]]})'),), "The bias of the first product"),
    ("one maximum", (("    for tensor, memory in", "    amax = amax[:1, :1]\n"
                      "    for tensor, memory in"),), "[1, 1, 1]"),
    ("amax not described", (("((Y, y), (Amax, amax))", "((Y, y),)"),), "dims not set"),
    ("amax no output", (("tensor.set_output(True)", "tensor.set_output(tensor is Y)"),),
     "stands for amax and is virtual"),
    ("Y no output", (("((Y, y), (Amax, amax))", "((Amax, amax),)"),),
     "stands for y and is virtual"),
    ("amax not in the pack", ((", Amax: amax}", "}"),), "stands for amax in the pack"),
    ("16-bit amax", (("set_data_type(cudnn_graph.data_type(memory.dtype))",
                      "set_data_type(cudnn_graph.data_type(y.dtype))"),),
     "cuDNN would read its bytes as that"),
    ("alpha left out", (("graph.add(a=scaled", "graph.add(a=product"),), "alpha has no effect"),
    ("16-bit product", (("graph.matmul(A=A, B=B)", "graph.matmul(A=A, B=B)\n"
                         "    product.set_data_type(cudnn_graph.data_type(a.dtype))"),),
     "leave what is virtual in float32"),
    ("an operation more", (("Y = graph.tanh(input=biased)",
                            "Y = graph.tanh(input=graph.identity(input=biased))"),),
     "6 operations, and 5 will do"),
]
CUDNN["14.3"] = [
    ("bias scaled", (("undone = graph.mul(a=graph.mul(a=product, b=Rows), b=Columns)",
                      "shifted = graph.add(a=product, b=Bias)"),
                     ("Y = graph.add(a=undone, b=Bias)",
                      "Y = graph.mul(a=graph.mul(a=shifted, b=Rows), b=Columns)")),
     "went in before the scales were undone"),
    ("no rows", (("graph.mul(a=product, b=Rows)", "product"),), "scales of the rows are missing"),
    ("no columns", (("graph.mul(a=graph.mul(a=product, b=Rows), b=Columns)",
                     "graph.mul(a=product, b=Rows)"),), "scales of the columns are missing"),
    ("divided", (("graph.mul(a=graph.mul(a=product, b=Rows), b=Columns)",
                  "graph.div(a=graph.div(a=product, b=Rows), b=Columns)"),), "It is divided by"),
    ("transposed", (("**cudnn_graph.describe(rows))", "**cudnn_graph.describe(rows.mT))"),),
     "they are transposed"),
    ("8-bit output", ((".set_data_type(cudnn_graph.data_type(y.dtype))", ""),), "Make the two agree"),
    ("b row-major", (("**cudnn_graph.describe(b))", "**cudnn_graph.describe("
                      "torch.empty(b.shape, dtype=b.dtype)))"),), "y is wrong"),
    ("half sums", (("graph.matmul(A=A, B=B)", "graph.matmul(A=A, B=B, "
                    "compute_data_type=cudnn_graph.data_type(y.dtype))"),),
     "sums of many products need float32"),
    ("no bias", (("Y = graph.add(a=undone, b=Bias)", "Y = undone"),), "The bias is as good as lost"),
    ("product in memory", (("    # the bias was never", "    product.set_output(True)\n"
                            "    # the bias was never"),), "is an output too"),
]
