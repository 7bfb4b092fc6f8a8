"""GEMMs with epilogues on a GPU: layouts, races and the schedules' knobs, which a CPU run cannot
check, against the same functions in float64."""

from __future__ import annotations

import pytest
import torch
from epilogue_cases import finished, named, operands

import labkit as lab
from labkit.epilogue import SCHEDULES, catalogue, matmul, schedule
from labkit.epilogue.block import Model

pytestmark = pytest.mark.gpu
SIMPLE = {90: SCHEDULES[90]}  # without blocks that stay
KNOBS = [None, {}, {"blocks": 40, "piece": 32}, {"prefetch": 1}, {"prefetch": 2},
         {"panel": 0, "num_stages": 2},
         {"block_N": 128, "block_M": 64, "threads": 128, "piece": 32}]


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
@pytest.mark.parametrize("name", [e.name for e in catalogue.ALL])
@pytest.mark.parametrize(("M", "N", "K"), [(1000, 1040, 520), (512, 1024, 512)])
def test_every_epilogue(cuda, name, knobs, M, N, K):
    torch.manual_seed(0)
    chosen = named(name)
    major, minor = torch.cuda.get_device_capability()
    dtype = "bfloat16" if major >= 8 else "float16"
    A = torch.randn(M, K, device="cuda").to(getattr(torch, dtype))
    B = (torch.randn(N, K, device="cuda") / K**0.5).to(A.dtype)
    given = {key: value.cuda() if isinstance(value, torch.Tensor) else value
             for key, value in operands(chosen, M, N, dtype).items()}
    sm = 10 * major + minor
    simple = SIMPLE.get(sm) or schedule(sm, chosen, dtype)
    expected = chosen.reference(A.double() @ B.double().T, **given)
    for _ in range(3):  # a race need not show at once
        found = matmul(chosen, A, B, transpose_B=True,
                       knobs=None if knobs is None else simple | knobs, **given)
        for o in chosen.outputs:
            value = finished(o, found[o.name])
            if o.kind == "store":
                lab.check(value, expected[o.name], name=f"{name}.{o.name}", tile=(128, 128))
            else:  # the fast exponential and division err by more than float32's own rounding
                error = (value.double() - expected[o.name]).norm() / expected[o.name].norm()
                assert error < 1e-5, f"{name}.{o.name}: {error}"


def test_a_model_and_its_gradients(cuda):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if torch.cuda.get_device_capability() >= (8, 0) else torch.float16
    model = Model(vocabulary=1000, d=256, heads=4, f=640, layers=2, dtype=dtype).cuda()
    tokens = torch.randint(0, 1000, (4, 200), device="cuda")
    target = tokens.roll(-1, 1)
    target[:, -1] = -100
    loss = model(tokens, target)
    loss.backward()
    found = {name: p.grad.double() for name, p in model.named_parameters()}
    model.zero_grad()
    exact = model.double().reference(tokens, target, torch.float64)
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=1e-2)
    for name, parameter in model.named_parameters():
        error = (found[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 5e-2, f"{name}: {error}"
