"""The autograd functions against float64 finite differences and against autograd of plain torch,
and a block that learns as its PyTorch twin does."""

from __future__ import annotations

import pytest
import torch

from labkit import benchmark
from labkit.benchmark import Times
from labkit.epilogue import catalogue, choice, functions, pairs, run
from labkit.epilogue.block import Block, Model
from labkit.epilogue.checking import finished, random_operands
from labkit.epilogue.rope import rope
from labkit.errors import BadArgument


def _error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def _parts():
    """name -> (what the part computes, its float64 twin, inputs that have gradients)."""
    torch.manual_seed(3)
    T, d, f, V = 10, 16, 24, 19
    x, h = torch.randn(T, d), torch.randn(T, 24)
    gamma, after = 1 + 0.3 * torch.randn(d), 1 + 0.3 * torch.randn(d)
    turns = rope(2, T // 2, 2, 1, 16, 100.0, torch.device("cpu"))
    W_rope, W_in = torch.randn(64, d) / 4, torch.randn(2 * f, d) / 4
    W_out, W, head = torch.randn(d, f) / 5, torch.randn(d, 24) / 5, torch.randn(V, d)
    target = torch.randint(0, V, (T,))
    target[4] = -100

    def norm(x, gamma):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], gamma, 1e-6)

    def turned(x, gamma, W):
        a, b = pairs.split(norm(x, gamma) @ W.T)
        angle = (turns.position[:, None] * turns.frequency).to(x.dtype)
        z = pairs.join(a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos())
        return *turns.views(z), x

    def swiglu(x, gamma, W_in, W_out):
        gate, up = pairs.split(norm(x, gamma) @ W_in.T)
        return (x + (torch.nn.functional.silu(gate) * up) @ W_out.T,)

    def loss(x, gamma, W):
        return (torch.nn.functional.cross_entropy(norm(x, gamma) @ W.T, target),)

    def stream(x, gamma):
        return functions.enter(x, gamma.detach())

    return {
        "NormRope": (lambda x, g, W: functions.NormRope.apply(
            *stream(x, g), g, W, turns), turned, [x, gamma, W_rope]),
        "ProjectResidual": (lambda h, x, W: functions.ProjectResidual.apply(
            h, x, W, after, 1e-6)[:1], lambda h, x, W: (x + h @ W.T,), [h, x, W]),
        "NormSwiGLU": (lambda x, g, W_in, W_out: functions.NormSwiGLU.apply(
            *stream(x, g), g, W_in, W_out, after, 1e-6, True)[:1], swiglu, [x, gamma, W_in, W_out]),
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
    (torch.float32, 3e-6), (torch.bfloat16, 3e-2),
    pytest.param(torch.float16, 4e-3, marks=pytest.mark.slow)], ids=str)
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
    tokens = torch.randint(0, 29, (3, 11))
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
    turns = rope(3, 5, 2, 1, 32, 10000.0, torch.device("cpu"))
    assert (turns.frequency > 0).tolist() == [True] * 48 + [False] * 16
    assert turns.frequency[0] == 1 and turns.frequency[16] == 1  # each head starts anew
    assert turns.position.tolist() == [0, 1, 2, 3, 4] * 3


# --- a block written the usual way: rotate-half RoPE, separate projections


def _usual_block(x, weights, batch, heads, kv_heads, eps=1e-6, base=10000.0):
    """[T, d] -> [T, d], with nothing of the kit's in it."""
    def norm(x, gamma):
        return gamma * x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()

    def turn(t):  # [batch, heads, length, head]
        half = t.shape[-1] // 2
        angle = torch.arange(t.shape[2], dtype=t.dtype)[:, None] * base ** (
            -torch.arange(half, dtype=t.dtype) / half)
        a, b = t[..., :half], t[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def split(t, heads):
        return t.view(batch, -1, heads, t.shape[1] // heads).transpose(1, 2)

    w, n = weights, norm(x, weights["norm_1"])
    q, k = (turn(split(n @ w[name].T, h)) for name, h in (("q", heads), ("k", kv_heads)))
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, split(n @ w["v"].T, kv_heads)))
    scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5
    ahead = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ v
    x = x + mixed.transpose(1, 2).reshape(x.shape) @ w["o"].T
    n = norm(x, w["norm_2"])
    gate = n @ w["gate"].T
    return x + (gate * gate.sigmoid() * (n @ w["up"].T)) @ w["down"].T


def _weights(d, heads, kv_heads, f):
    rows = dict(q=d, k=d // heads * kv_heads, v=d // heads * kv_heads, o=d, gate=f, up=f)
    made = {name: torch.randn(n, d) / d**0.5 for name, n in rows.items()}
    return made | dict(down=torch.randn(d, f) / f**0.5, norm_1=1 + 0.3 * torch.randn(d),
                       norm_2=1 + 0.3 * torch.randn(d))


def _run(block, x, batch, **more):
    """The block on the stream that starts at x."""
    return block(functions.enter(x, block.gamma_1.detach()), torch.ones(x.shape[1]), batch, **more)


@pytest.mark.parametrize(("heads", "kv_heads", "batch", "length"), [(2, 1, 3, 4), (4, 2, 1, 33)])
def test_a_block_and_its_gradients_against_a_usual_one(heads, kv_heads, batch, length):
    torch.manual_seed(heads)
    d = 16 * heads
    weights = _weights(d, heads, kv_heads, 24)
    block = Block(d, heads, 24, torch.float32, kv_heads)
    block.load(**weights)
    assert all(torch.equal(block.usual()[name], w) for name, w in weights.items())
    x, way = torch.randn(batch * length, d, requires_grad=True), torch.randn(batch * length, d)
    found = _run(block, x, batch)[0]
    (found * way).sum().backward()
    exact = {name: w.double().requires_grad_() for name, w in weights.items()}
    start = x.detach().double().requires_grad_()
    expected = _usual_block(start, exact, batch, heads, kv_heads)
    (expected * way).sum().backward()
    assert _error(found.detach(), expected.detach()) < 2e-6
    assert _error(x.grad, start.grad) < 2e-6
    for name, gradient in block.usual(lambda p: p.grad).items():
        assert _error(gradient, exact[name].grad) < 3e-6, name


# --- in a real model


def _block(dtype=torch.float32):
    torch.manual_seed(5)
    block = Block(32, 2, 24, dtype, kv_heads=1)
    return block, torch.randn(12, 32).to(dtype)


def test_prepared_kernels_are_those_that_a_step_needs():
    block, x = _block()
    block.prepare(12)
    misses = run._compiled.cache_info().misses
    _run(block, x.requires_grad_(), 2)[0].sum().backward()
    assert run._compiled.cache_info().misses == misses


def test_a_product_may_leave_its_epilogue_to_a_kernel_behind_it(monkeypatch):
    """The same outputs, both ways, and the block with its products in two kernels."""
    block, x = _block()
    entries = {(e, M, N, K, turned, torch.float32, "cpu")
               for e, M, N, K, turned in block._products(12)}
    fused = _run(block, x.requires_grad_(), 2)[0]
    (gradient,) = torch.autograd.grad(fused.sum(), x)
    monkeypatch.setattr(choice, "_separate", entries)
    ran, separate = [], choice.separate
    monkeypatch.setattr(choice, "separate",
                        lambda e, *a, **k: ran.append(e.name) or separate(e, *a, **k))
    found = _run(block, x, 2)[0]
    (again,) = torch.autograd.grad(found.sum(), x)
    assert len(ran) == 7
    assert _error(found.detach(), fused.detach().double()) < 1e-6
    assert _error(again, gradient.double()) < 1e-6
    with choice.everything_fused():
        _run(block, x, 2)
    assert len(ran) == 7


def test_the_faster_way_of_each_product_is_kept(monkeypatch):
    """With times that are made up: no GPU is here. Both ways are run."""
    def tensors(chosen, M, N, K, transpose_B, dtype):
        A, B = torch.randn(M, K), torch.randn((N, K) if transpose_B else (K, N))
        return A, B, random_operands(chosen, M, N, "float32")

    def time_each(candidates, milliseconds):
        outputs = {name: call() for name, call in candidates.items()}
        assert set(outputs[choice.EPILOGUE]) == set(outputs[choice.KERNEL])
        for found in outputs.values():  # both times hold the kernels that end the reductions
            assert all(found[name].dim() == 1 for name in found.keys() & {"sumsq", "zdz", "dgamma"})
        deep = outputs[choice.EPILOGUE].keys() & {"sumsq", "normed"}
        return {name: Times(2.0 if (name == choice.EPILOGUE) == bool(deep) else 1.0, 0.0, 10)
                for name in candidates}

    block, _ = _block()
    monkeypatch.setattr(choice, "_tensors", tensors)
    monkeypatch.setattr(choice, "_separate", set())
    monkeypatch.setattr(benchmark, "time_each", time_each)
    rows = block.choose(12)
    kept = {(row[0], row[1].split(" x ")[2]): row[-1] for row in rows}
    assert len(rows) == 7 and all(len(row) == len(choice.COLUMNS) for row in rows)
    assert kept["dswiglu", "32"] == kept["rstd_rope", "32"] == choice.EPILOGUE
    assert kept["residual_rms", "24"] == kept["drms_residual", "48"] == choice.KERNEL
    assert {entry[0].name for entry in choice._separate} == {"residual_rms", "drms_residual"}
    assert all(entry[5:] == (torch.float32, "cuda") for entry in choice._separate)


@pytest.mark.parametrize("chosen", catalogue.ALL, ids=lambda e: e.name)
def test_both_ways_of_every_epilogue(chosen):
    torch.manual_seed(0)
    A, B = torch.randn(9, 24).half(), torch.randn(48, 24).half() / 5
    given = random_operands(chosen, 9, 48)
    wanted = chosen.reference(A.double() @ B.double().t(), **given)
    found = choice.separate(chosen, A, B, True, **given)
    for o in chosen.outputs:
        value = finished(o, found[o.name])
        assert value.dtype == (torch.float16 if o.kind == "store" else torch.float32)
        assert _error(value, wanted[o.name]) < 2e-3, o.name


def test_without_gradients_gate_and_up_are_not_stored(monkeypatch):
    block, x = _block()
    ran, made = [], functions.product
    monkeypatch.setattr(functions, "product",
                        lambda chosen, *a, **k: ran.append(chosen.name) or made(chosen, *a, **k))
    kept = _run(block, x, 2)[0]
    assert "rstd_swiglu" in ran
    ran.clear()
    with torch.no_grad():
        found = _run(block, x, 2)[0]
    assert "rstd_swiglu_forward" in ran and "rstd_swiglu" not in ran
    assert torch.equal(found, kept.detach()) and not found.requires_grad


def test_autocast_and_the_parameters_dtype_do_not_change_the_products():
    block, x = _block(torch.bfloat16)
    plain = _run(block, x, 2)[0]
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(_run(block, x, 2)[0], plain)
    other = block.to(torch.bfloat16)
    assert torch.equal(_run(other, x, 2)[0], plain)
    _run(other, x, 2)[0].sum().backward()
    assert {p.grad.dtype for p in other.parameters()} == {torch.bfloat16}


def test_a_state_dict_holds_the_weights_alone_and_fits_again():
    block, x = _block()
    state = block.state_dict()
    assert set(state) == {"gamma_1", "gamma_2", "W_qkv", "W_o", "W_in", "W_out"}
    other = Block(32, 2, 24, torch.float32, kv_heads=1)
    other.load_state_dict(state)
    assert torch.equal(_run(other, x, 3)[0], _run(block, x, 3)[0])


def test_checkpointing_gives_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    block, x = _block()
    x.requires_grad_()
    found = []
    for call in (block, lambda *a: checkpoint(block, *a, use_reentrant=False)):
        block.zero_grad()
        x.grad = None
        call(functions.enter(x, block.gamma_1.detach()), torch.ones(32), 2)[0].square().sum(
            ).backward()
        found.append([x.grad.clone(), *(p.grad.clone() for p in block.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_frozen_weights_cost_no_gradient():
    block, x = _block()
    _run(block, x, 2)[0].sum().backward()
    gamma = block.gamma_2.grad.clone()
    block.zero_grad()
    for weight in (block.W_qkv, block.W_o, block.W_in, block.W_out):
        weight.requires_grad_(False)
    _run(block, x, 2)[0].sum().backward()
    assert block.W_in.grad is None and torch.equal(block.gamma_2.grad, gamma)


def test_strided_input_and_expanded_gradients():
    block, x = _block()
    strided = x.t().contiguous().t().requires_grad_()
    assert not strided.is_contiguous()
    found = _run(block, strided, 2)[0]
    assert torch.equal(found, _run(block, x, 2)[0])
    found.sum().backward()  # the gradient of a sum is one expanded number
    assert strided.grad.isfinite().all()


def test_a_second_derivative_is_refused():
    block, x = _block()
    x.requires_grad_()
    (first,) = torch.autograd.grad(_run(block, x, 2)[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_a_compiled_model_leaves_the_block_as_it_is():
    block, x = _block()
    compiled = torch.compile(lambda x: _run(block, x * 1.0, 2)[0] + 0.0, backend="eager")
    assert torch.equal(compiled(x), _run(block, x, 2)[0])


def test_streams_that_do_not_fit():
    block, x = _block()
    with pytest.raises(BadArgument, match=r"takes float32\[batch \* length, 32\]"):
        _run(block, x.half(), 2)
    with pytest.raises(BadArgument, match=r"is float32\[12, 16\]"):
        block((x[:, :16], x, x), torch.ones(32), 2)
    with pytest.raises(BadArgument, match="12 rows, and batch is 5"):
        _run(block, x, 5)
    with pytest.raises(BadArgument, match="4 heads cannot share 3"):
        Block(64, 4, 16, kv_heads=3)
