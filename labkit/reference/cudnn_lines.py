"""cuDNN's graph API on one page. Every line builds a graph, which is then computed."""

from __future__ import annotations

import functools
from typing import Any

from labkit.reference.page import Line, Page, Ran, compared, executed, failed

NOTE = ("g is an empty `cudnn.pygraph`. On its left a line has what the graph holds, on its right "
        "\"gives\" what PyTorch holds: A [2, 8, 16], B [2, 16, 8], C [2, 8, 16], bias [2, 1, 16], "
        "alpha = 0.5 on the CPU; an image X [2, 8, 6, 6] and filters W [4, 8, 3, 3], channels "
        "last; Q, K, V [1, 2, 8, 16]. All float32; F is `torch.nn.functional`. Every line's Y was "
        "computed by the meaning of its graph, in PyTorch on the CPU, and compared.")
_DIM = "set_dim([{0}]).set_stride([{1}])"

GROUPS = {
    "Tensors": [
        Line("by dims, strides (in elements), dtype",
             'Y = g.identity(input=g.tensor(name="A", dim=[2, 8, 16], stride=[128, 16, 1], '
             "data_type=cudnn.data_type.FLOAT))", "A"),
        Line("the same from a torch tensor",
             'Y = g.identity(input=g.tensor(name="A", **cudnn_graph.describe(a)))', "A"),
        Line("transposed: other strides, same memory",
             'Y = g.identity(input=g.tensor(name="A", dim=[2, 16, 8], stride=[128, 1, 16], '
             "data_type=cudnn.data_type.FLOAT))", "A.mT"),
        Line("a number from the host: a CPU tensor",
             'Y = g.mul(a=A, b=g.tensor_like(half, name="alpha"))', "0.5 * A"),
    ],
    "Products": [
        Line("batched matrices", "Y = g.matmul(A=A, B=B)", "A @ B"),
        Line("a convolution",
             "Y = g.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])",
             "F.conv2d(X, W, padding=1)"),
        Line("with a stride",
             "Y = g.conv_fprop(image=X, weight=W, padding=[0, 0], stride=[2, 2], dilation=[1, 1])",
             "F.conv2d(X, W, stride=2)"),
        Line("attention",
             "Y, _ = g.sdpa(q=Q, k=K, v=V, attn_scale=0.25, generate_stats=False)",
             "F.scaled_dot_product_attention(Q, K, V, scale=0.25)"),
        Line("causal: each query up to its own key",
             "Y, _ = g.sdpa(q=Q, k=K, v=V, attn_scale=0.25, generate_stats=False, "
             "diagonal_alignment=cudnn.diagonal_alignment.TOP_LEFT, diagonal_band_right_bound=0)",
             "F.scaled_dot_product_attention(Q, K, V, scale=0.25, "
             "is_causal=True)"),
    ],
    "One value an element": [
        Line("sum", "Y = g.add(a=A, b=C)", "A + C"),
        Line("a row for all rows", "Y = g.add(a=A, b=bias)", "A + bias"),
        Line("difference", "Y = g.sub(a=A, b=C)", "A - C"),
        Line("product", "Y = g.mul(a=A, b=C)", "A * C"),
        Line("quotient", "Y = g.div(a=A, b=C)", "A / C"),
        Line("larger", "Y = g.max(input0=A, input1=C)", "A.maximum(C)"),
        Line("smaller", "Y = g.min(input0=A, input1=C)", "A.minimum(C)"),
        *(Line(what, f"Y = g.{name}(input={argument})", gives) for what, name, argument, gives in (
            ("ReLU", "relu", "A", "A.relu()"),
            ("ReLU with a slope below 0", "relu", "A, negative_slope=0.1",
             "F.leaky_relu(A, 0.1)"),
            ("ReLU with a top", "relu", "A, upper_clip=1.0", "A.clamp(0, 1)"),
            ("GELU, exact", "gelu", "A", "F.gelu(A)"),
            ("GELU by tanh", "gelu_approx_tanh", "A",
             "F.gelu(A, approximate='tanh')"),
            ("SiLU, here swish", "swish", "A", "F.silu(A)"),
            ("tanh", "tanh", "A", "A.tanh()"), ("sigmoid", "sigmoid", "A", "A.sigmoid()"),
            ("absolute value", "abs", "A", "A.abs()"), ("exponential", "exp", "A", "A.exp()"),
            ("square root", "sqrt", "g.abs(input=A)", "A.abs().sqrt()"),
            ("one over the root", "rsqrt", "g.abs(input=A)", "A.abs().rsqrt()"),
            ("logarithm", "log", "g.abs(input=A)", "A.abs().log()"))),
        Line("1 where larger, else 0", "Y = g.cmp_gt(input=A, comparison=C)", "(A > C).float()"),
        Line("one or the other", "Y = g.binary_select(input0=A, input1=C, "
             "mask=g.cmp_gt(input=A, comparison=C))", "torch.where(A > C, A, C)"),
    ],
    "Reductions: the output's dims say over what": [
        Line("sum of each row", "Y = g.reduction(input=A, mode=cudnn.reduction_mode.ADD)."
             + _DIM.format("2, 8, 1", "8, 1, 1"), "A.sum(2, keepdim=True)"),
        Line("mean of each column", "Y = g.reduction(input=A, mode=cudnn.reduction_mode.AVG)."
             + _DIM.format("2, 1, 16", "16, 16, 1"), "A.mean(1, keepdim=True)"),
        Line("maximum of each matrix", "Y = g.reduction(input=A, mode=cudnn.reduction_mode.MAX)."
             + _DIM.format("2, 1, 1", "1, 1, 1"), "A.amax((1, 2), keepdim=True)"),
        Line("largest absolute value of all",
             "Y = g.reduction(input=A, mode=cudnn.reduction_mode.AMAX)."
             + _DIM.format("1, 1, 1", "1, 1, 1"), "A.abs().amax().view(1, 1, 1)"),
        Line("root of the sum of squares",
             "Y = g.reduction(input=A, mode=cudnn.reduction_mode.NORM2)."
             + _DIM.format("2, 8, 1", "8, 1, 1"), "A.norm(dim=2, keepdim=True)"),
    ],
    "Chains and outputs": [
        Line("one kernel of three operations",
             "Y = g.relu(input=g.add(a=g.matmul(A=A, B=B), b=g.tensor(name=\"C\", dim=[2, 8, 8], "
             "stride=[128, 16, 1], data_type=cudnn.data_type.FLOAT)))",
             "(A @ B + C[..., :8]).relu()"),
        Line("what nobody marks stays out of memory", "Y = g.relu(input=A); T = Y.get_is_virtual()",
             shows="T"),
        Line("an output lies in memory", "Y = g.relu(input=A).set_output(True)",
             shows="not Y.get_is_virtual()"),
        Line("shapes are inferred", "Y = g.matmul(A=A, B=B); Y.set_output(True); "
             "cudnn_graph.infer(g)", shows="list(Y.get_dim())"),
        Line("a layout is pinned by strides", "Y = g.relu(input=X).set_output(True)."
             + _DIM.format("2, 8, 6, 6", "288, 1, 48, 8"), shows="list(Y.get_stride())"),
        Line("the dtype of an output", "Y = g.relu(input=A).set_output(True)."
             "set_data_type(cudnn.data_type.HALF)", shows="Y.get_data_type().name"),
    ],
}
# in order, on one graph: a convolution with bias and ReLU in float16
STEPS = [
    Line("1 check the graph", "g.validate()", shows='"valid"'),
    Line("2 hand it to libcudnn", "g.build_operation_graph()", shows='"handed over"'),
    Line("3 ask the heuristics for plans",
         "g.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])",
         shows='"ranked"'),
    Line("4 drop what cannot run", "g.check_support()",
         shows='f"{g.get_execution_plan_count()} plans"'),
    Line("5 make the first that builds", "g.build_plans(cudnn.build_plan_policy.HEURISTICS_CHOICE)",
         shows='"built"'),
    Line("scratch memory of the plan", "size = g.get_workspace_size()", shows='f"{size:,} bytes"'),
    Line("a plan's name", "name = g.get_plan_name_at_index(0)", shows="name"),
    Line("keep the built plan", "blob = bytes(g.serialize())", shows='f"{len(blob):,} bytes"'),
]


def cudnn_graph() -> Page:
    """Runs every line of the graph API's page. Raises nothing for a line that fails: `Page.check`
    does."""
    groups = {heading: [_run(line) for line in lines] for heading, lines in GROUPS.items()}
    return Page("cuDNN's graph API on one page", groups, NOTE)


def cudnn_steps(target: Any) -> Page:
    """The steps from a graph to a plan, run for `target`, where it can plan; else each line says
    that it was not run."""
    import cudnn
    import torch

    from labkit import cudnn_graph as kit

    if not target.plans:
        ran = [Ran(line, "not run: needs a libcudnn") for line in STEPS]
    else:
        g = target.graph("reference", torch.float16)
        x, w = (torch.empty(dims, dtype=torch.float16, device="meta").to(
            memory_format=torch.channels_last) for dims in ((2, 64, 16, 16), (64, 64, 3, 3)))
        bias = torch.empty(1, 64, 1, 1, dtype=torch.float16, device="meta")
        X, W, b = (g.tensor(name=name, **kit.describe(t))
                   for name, t in (("X", x), ("W", w), ("bias", bias)))
        conv = g.conv_fprop(image=X, weight=W, padding=[1, 1], stride=[1, 1], dilation=[1, 1])
        Y = g.relu(input=g.add(a=conv, b=b))
        Y.set_output(True).set_data_type(cudnn.data_type.HALF)
        Y.set_dim(list(x.shape)).set_stride(list(x.stride()))
        names = {"g": g, "cudnn": cudnn}
        ran = [executed(line, names) for line in STEPS]
    return Page(f"From a graph to a plan, for {target.gpu}", {"In this order": ran},
                "The graph: a convolution with bias and ReLU in float16, channels last.")


@functools.cache
def _tensors() -> dict[str, Any]:
    import torch

    chance = torch.Generator().manual_seed(0)
    dims = {"A": (2, 8, 16), "B": (2, 16, 8), "C": (2, 8, 16), "bias": (2, 1, 16),
            "X": (2, 8, 6, 6), "W": (4, 8, 3, 3), "Q": (1, 2, 8, 16), "K": (1, 2, 8, 16),
            "V": (1, 2, 8, 16)}
    made = {name: torch.randn(shape, generator=chance) for name, shape in dims.items()}
    for name in ("X", "W"):
        made[name] = made[name].to(memory_format=torch.channels_last)
    return {**made, "alpha": torch.full((1, 1, 1), 0.5)}


def _run(line: Line) -> Ran:
    try:
        return _built(line)
    except Exception as error:  # it stands on the page
        return failed(line, error)


def _built(line: Line) -> Ran:
    import re

    import torch

    from labkit import cudnn_graph as kit
    from labkit.cudnn_loader import load_cudnn

    load_cudnn()
    import cudnn

    tensors = _tensors()
    g = cudnn.pygraph(name="line", io_data_type=cudnn.data_type.FLOAT,
                      intermediate_data_type=cudnn.data_type.FLOAT,
                      compute_data_type=cudnn.data_type.FLOAT)
    used = set(re.findall(r"\w+", line.code))
    names = {"g": g, "cudnn": cudnn, "cudnn_graph": kit, "a": tensors["A"],
             "half": tensors["alpha"],
             **{name: g.tensor(name=name, **kit.describe(tensor))
                for name, tensor in tensors.items()
                if name in used and f'"{name}"' not in line.code}}
    if line.shows:
        return executed(line, names)
    exec(line.code, names)
    wanted = eval(line.gives, {"torch": torch, "F": torch.nn.functional, **tensors})
    out = torch.empty_like(wanted)
    names["Y"].set_name("Y").set_output(True).set_data_type(cudnn.data_type.FLOAT)
    names["Y"].set_dim(list(out.shape)).set_stride(list(out.stride()))
    kit.infer(g)
    kit.evaluate(g, {**tensors, "Y": out})
    return compared(line, out, tensors)
