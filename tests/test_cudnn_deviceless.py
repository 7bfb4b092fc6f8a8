"""What cuDNN plans for GPUs that are not here: the graphs of lessons 12 to 16 on one GPU of each
generation. `make test-deviceless` brings the libcudnn and the stand-in for the driver."""

from __future__ import annotations

import pytest
import torch
from driver_stand_in import ANSWERS, source

import labkit as lab
from labkit import cudnn_graph, cudnn_support, lessons
from labkit.cudnn_support import GPUS
from labkit.errors import BadArgument, NotSupported

CPU = lab.here("cpu", "H100")


def meta(target, *dims, last=False):
    dtype = torch.bfloat16 if target.sm >= 80 else torch.float16
    x = torch.empty(dims, dtype=dtype, device="meta")
    return x.to(memory_format=torch.channels_last) if last else x


def conv(target):
    return lab.kernel("12", "conv_bias_relu")(
        target, meta(target, 8, 64, 28, 28, last=True), meta(target, 64, 64, 3, 3, last=True),
        meta(target, 1, 64, 1, 1), meta(target, 8, 64, 28, 28, last=True))[0]


def matmul(target):
    square = meta(target, 4, 512, 512)
    return lab.kernel("14", "matmul_epilogue")(
        target, square, square, meta(target, 4, 1, 512), torch.ones(1, 1, 1), square,
        torch.empty(1, 1, 1, device="meta"))[0]


def attention(target):
    x = meta(target, 2, 4, 512, 128)
    return lab.kernel("15", "attention")(target, x, x, x, x, causal=True)[0]


def shared(target):
    import cudnn

    square = meta(target, 4, 512, 512)
    cached = target.with_options(kernel_cache=cudnn.create_kernel_cache())
    return lab.kernel("16", "product")(cached, square, square, square)[0]


# graph -> GPUs that have no plan for it
GRAPHS = {conv: (), matmul: (), attention: ("T4",), shared: ("T4",)}


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("make", GRAPHS, ids=lambda make: make.__name__)
def test_the_lessons_graphs_are_planned_or_refused(compiling, make, gpu):
    target = cudnn_graph.target(CPU, gpu)
    if gpu in GRAPHS[make]:
        with pytest.raises(NotSupported, match=rf"no plan for this graph on {gpu}"):
            cudnn_graph.build(make(target), target)
        return
    built = cudnn_graph.build(make(target), target)
    assert built.plan.startswith("eng") and built.count >= 1 and built.workspace >= 0
    assert list(built.steps) == list(cudnn_graph.STEPS)


def listing(lesson, *cells):
    """The names that these cells of a lesson define, in the lesson's own order."""
    import cudnn

    space = {"lab": lab, "torch": torch, "cudnn": cudnn, "here": CPU,
             "cudnn_support": cudnn_support, **lessons.namespace(lesson)}
    for cell in lessons.find(lesson).notebook.cells:
        if cell.id in cells:
            exec(compile(cell.source, cell.id, "exec"), space)
    return space["supported"]


@pytest.mark.parametrize(("lesson", "cells"), [
    ("14", ("mma-variants", "mma-support")), ("15", ("sdpa-layout", "sdpa-support")),
    ("16", ("prod-graphs", "prod-support"))])
def test_the_listings_now_are_those_that_are_shipped(compiling, lesson, cells):
    now = listing(lesson, *cells)
    assert now.listed_now and {gpu for counts in now.plans.values() for gpu in counts} == set(GPUS)
    if compiling.version == "9.19.0":  # another release names other plans
        assert now.plans == cudnn_support._recorded(now.name).plans
    for variant, counts in now.plans.items():
        assert set(now.reasons[variant]) == {gpu for gpu, count in counts.items() if not count}


def test_the_step_that_finds_an_unknown_argument(compiling):
    """As lesson 15 says: the call and validate accept it."""
    import cudnn

    target = cudnn_graph.target(CPU, "H100")

    def wrong():
        graph = target.graph("wrong", torch.bfloat16)
        Q = graph.tensor(name="Q", **cudnn_graph.describe(meta(target, 1, 2, 64, 64)))
        out, _ = graph.sdpa(q=Q, k=Q, v=Q, generate_stats=False, causal_mask_please=True)
        out.set_output(True)
        return graph

    graph = wrong()
    graph.validate()
    graph.build_operation_graph()
    with pytest.raises(TypeError, match="causal_mask_please"):
        graph.create_execution_plans([cudnn.heur_mode.A])
    with pytest.raises(BadArgument, match=r"in create_execution_plans: sdpa has no argument "
                                          r"causal_mask_please\.$"):
        cudnn_graph.build(wrong(), target)


def test_the_stand_in_says_that_there_is_no_device():
    text = source({"cuDeviceGetCount", "cuLaunchKernel"})
    assert "int cuLaunchKernel(void) { return 100; }" in text
    assert "int cuInit(void) { return 0; }" in text
    assert text.count("\n") == len(ANSWERS) + 2
