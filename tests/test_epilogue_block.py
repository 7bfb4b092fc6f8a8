"""The autograd functions against float64 finite differences and against autograd of plain torch,
and a block that learns as its PyTorch twin does."""

from __future__ import annotations

import pytest
import torch

from labkit.epilogue import functions, pairs
from labkit.epilogue.block import Block, Model
from labkit.errors import BadArgument


def _error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def _parts():
    """name -> (what the part computes, its float64 twin, inputs that have gradients)."""
    torch.manual_seed(3)
    T, d, f, V = 10, 16, 24, 19
    x, h = torch.randn(T, d), torch.randn(T, 24)
    gamma, after = 1 + 0.3 * torch.randn(d), 1 + 0.3 * torch.randn(d)
    position = torch.arange(T).float()
    frequency = torch.tensor([1.0, 0.5, 0.1, 0.02, 1.0, 0.5, 0.1, 0.02] + [0.0] * 8)
    W_rope, W_in = torch.randn(32, d) / 4, torch.randn(2 * f, d) / 4
    W_out, W, head = torch.randn(d, f) / 5, torch.randn(d, 24) / 5, torch.randn(V, d)
    target = torch.randint(0, V, (T,))
    target[4] = -100

    def norm(x, gamma):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-6)

    def rope(x, gamma, W):
        a, b = pairs.split(norm(x, gamma) @ W.T)
        angle = (position[:, None] * frequency).to(x.dtype)
        return pairs.join(a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), x

    def swiglu(x, gamma, W_in, W_out):
        gate, up = pairs.split(norm(x, gamma) @ W_in.T)
        return (x + (torch.nn.functional.silu(gate) * up) @ W_out.T,)

    def loss(x, gamma, W):
        return (torch.nn.functional.cross_entropy(norm(x, gamma) @ W.T, target),)

    def stream(x, gamma):
        return functions.enter(x, gamma.detach())

    return {
        "NormRope": (lambda x, g, W: functions.NormRope.apply(
            *stream(x, g), g, W, position, frequency), rope, [x, gamma, W_rope]),
        "ProjectResidual": (lambda h, x, W: functions.ProjectResidual.apply(
            h, x, W, after, 1e-6)[:1], lambda h, x, W: (x + h @ W.T,), [h, x, W]),
        "NormSwiGLU": (lambda x, g, W_in, W_out: functions.NormSwiGLU.apply(
            *stream(x, g), g, W_in, W_out, after, 1e-6)[:1], swiglu, [x, gamma, W_in, W_out]),
        "NormCrossEntropy": (lambda x, g, W: (functions.NormCrossEntropy.apply(
            *stream(x, g), g, W, target, -100),), loss, [x, gamma, head]),
    }


@pytest.mark.parametrize("name", ["NormRope", "ProjectResidual", "NormSwiGLU", "NormCrossEntropy"])
def test_gradients_against_finite_differences(name):
    """Central differences of the float64 twin, in eight random directions of each input."""
    part, twin, inputs = _parts()[name]
    inputs = [t.requires_grad_() for t in inputs]
    outputs = part(*inputs)
    exact = [t.detach().double() for t in inputs]
    values = twin(*exact)
    for found, value in zip(outputs, values, strict=True):
        assert _error(found.detach(), value) < 1e-5
    weights = [torch.randn_like(v) for v in values]
    gradients = torch.autograd.grad(
        sum((w.float() * o).sum() for w, o in zip(weights, outputs, strict=True)), inputs)

    def total(number, moved):
        changed = [*exact[:number], moved, *exact[number + 1:]]
        return sum((w * o).sum() for w, o in zip(weights, twin(*changed), strict=True)).item()

    step = 1e-5
    for number, gradient in enumerate(gradients):
        for _ in range(8):
            way = torch.randn_like(exact[number])
            measured = (total(number, exact[number] + step * way)
                        - total(number, exact[number] - step * way)) / (2 * step)
            size = gradient.double().norm().item() * way.norm().item()
            assert abs((gradient.double() * way).sum().item() - measured) < 1e-5 * size, number


def test_the_next_norm_gets_its_scaled_rows_and_rstd():
    part = _parts()["ProjectResidual"]
    h, x, W = part[2]
    gamma = 1 + 0.3 * torch.randn(16)
    _, scaled, rstd = functions.ProjectResidual.apply(h, x, W, gamma, 1e-6)
    exact = x.double() + h.double() @ W.double().T
    assert _error(scaled, exact * gamma.double()) < 1e-6
    assert _error(rstd, (exact.square().mean(1) + 1e-6).rsqrt()) < 1e-6
    assert not scaled.requires_grad and not rstd.requires_grad


def _model(dtype, seed=0):
    torch.manual_seed(seed)
    model = Model(vocabulary=29, d=32, heads=2, f=40, layers=2, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(("dtype", "allowed"), [
    (torch.float32, 3e-6), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)], ids=str)
def test_a_model_and_all_its_gradients(dtype, allowed):
    model, tokens = _model(dtype), torch.randint(0, 29, (3, 11))
    target = tokens.roll(-1, 1)
    target[:, -1] = -100
    loss = model(tokens, target)
    loss.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    exact = model.double().reference(tokens, target, torch.float64)
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=allowed)
    for name, parameter in model.named_parameters():
        assert _error(found[name], parameter.grad) < allowed, name


def test_sixteen_bit_gradients_are_no_worse_than_torch_s_own():
    """Against float64: this model rounds less often than the plain one of the same dtype."""
    tokens = torch.randint(0, 29, (4, 16))
    target = tokens.roll(-1, 1)

    def gradients(loss, model):
        model.zero_grad()
        loss.backward()
        return torch.cat([p.grad.double().flatten() for p in model.parameters()])

    model = _model(torch.bfloat16)
    ours = gradients(model(tokens, target), model)
    plain = gradients(model.reference(tokens, target, torch.bfloat16), model)
    model = model.double()
    exact = gradients(model.reference(tokens, target, torch.float64), model)
    assert _error(ours, exact) < 1.1 * _error(plain, exact)


def test_training_follows_pytorch():
    """Learns to say which token came two places before; the plain model, same start, same data."""
    def train(call, model, steps=60):
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        losses = []
        for _ in range(steps):
            tokens = torch.randint(0, 29, (8, 16))
            target = tokens.roll(2, 1)
            target[:, :2] = -100
            loss = call(tokens, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    fused, plain = (_model(torch.float32) for _ in range(2))
    ours, theirs = train(fused, fused), train(plain.reference, plain)
    assert ours[-1] < 0.2 * ours[0]
    assert ours[:20] == pytest.approx(theirs[:20], rel=1e-3)
    assert ours == pytest.approx(theirs, rel=0.1, abs=0.05)


def test_sizes_that_do_not_fit():
    with pytest.raises(BadArgument, match="heads of a multiple of 16"):
        Block(d=24, heads=3, f=16)


def test_rope_turns_pairs_and_leaves_values():
    block = Block(d=32, heads=2, f=16, dtype=torch.float32)
    turning = block.frequency > 0
    assert turning.tolist() == [True] * 32 + [False] * 16
    assert block.frequency[0] == 1 and block.frequency[8] == 1  # each head starts anew
