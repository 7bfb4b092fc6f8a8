"""The backward epilogues of the catalogue: every element against finite differences in float64, and
their errors beside eager PyTorch's; and the pictures of the lesson on them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
import torch
from epilogue_cases import named
from torch.nn import functional as F

from labkit.epilogue import backward_pictures, matmul, pairs, sum_pictures
from labkit.errors import BadArgument

M, N, K, EPS = 11, 32, 40, 1e-6
ACTIVATIONS = {"dswiglu": F.silu, "dgeglu": lambda x: F.gelu(x, approximate="tanh")}


def by_differences(loss, x, step=1e-5):
    """Derivatives of a loss [M] by x [M, n], a column at a time, rows being independent."""
    found = torch.empty_like(x)
    for j in range(x.shape[1]):
        way = torch.zeros_like(x[0])
        way[j] = step
        found[:, j] = (loss(x + way) - loss(x - way)) / (2 * step)
    return found


def error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def gated(name, z):
    gate, up = pairs.split(z)
    return ACTIVATIONS[name](gate) * up


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_units_against_finite_differences(name):
    torch.manual_seed(0)
    dout, W, z = torch.randn(M, K), torch.randn(K, N), torch.randn(M, 2 * N)
    found = matmul(named(name), dout, W, z=z)
    exact = by_differences(
        lambda z: (gated(name, z) @ W.double().t() * dout.double()).sum(1), z.double())
    assert error(found["dz"], exact) < 1e-6
    assert error(found["y"], gated(name, z.double())) < 1e-6
    assert error(found["zdz"].sum(0), (z.double() * exact).sum(1)) < 1e-6


@pytest.mark.parametrize("name", ["drms", "drms_residual"])
def test_the_norm_against_finite_differences(name):
    torch.manual_seed(0)
    x, gamma, past = 2 * torch.randn(M, N), 1 + 0.3 * torch.randn(N), torch.randn(M, N)
    W, dz = torch.randn(K, N), torch.randn(M, K)
    with_residual = name == "drms_residual"

    def norm(x, gamma):
        return F.rms_norm(x, x.shape[-1:], None, EPS) * gamma

    def loss(x, gamma):
        return ((norm(x, gamma) @ W.double().t() * dz.double()).sum(1)
                + with_residual * (x * past.double()).sum(1))

    rstd = (x.double().square().mean(1) + EPS).rsqrt().float()
    z = norm(x.double(), gamma.double()) @ W.double().t()
    s = (z * dz.double()).sum(1).float() / N
    more = dict(dresidual=past) if with_residual else {}
    found = matmul(named(name), dz, W, x=x, rstd=rstd, s=s, gamma=gamma, **more)
    rows = gamma.double().expand(M, N)
    assert error(found["dx"], by_differences(lambda x: loss(x, rows), x.double())) < 1e-6
    exact = by_differences(lambda gamma: loss(x.double(), gamma), rows).sum(0)
    assert error(found["dgamma"].sum(0), exact) < 1e-6
    assert error(found["normed"], norm(x.double(), gamma.double())) < 1e-6


def test_dgeglu_is_no_less_accurate_than_eager():
    """As dswiglu, which the comparison of ops covers."""
    for seed in range(3):
        torch.manual_seed(seed)
        dout, W, z = (t.bfloat16() for t in (torch.randn(40, 96), torch.randn(96, 64) / 8,
                                             torch.randn(40, 128)))
        found = matmul(named("dgeglu"), dout, W, z=z)
        gradients = {}
        for kind in (torch.float64, torch.bfloat16):
            leaf = z.to(kind).requires_grad_()
            y = gated("dgeglu", leaf)
            gradients[kind] = (*torch.autograd.grad(y, leaf, dout.to(kind) @ W.to(kind)), y)
        for ours, exact, eager in zip((found["dz"], found["y"]), *gradients.values(), strict=True):
            assert 0 < error(ours, exact) <= 1.05 * error(eager, exact)


# --- pictures


def test_pictures_are_well_formed_and_say_the_same_in_words():
    for draw, words in ((backward_pictures.chain, "dZ = dY f'(Z)"),
                        (backward_pictures.one_gemm_ahead, "divided by d they are s"),
                        (sum_pictures.partials, "[6, M] partial sums")):
        picture = draw()
        ElementTree.fromstring(picture.svg)
        assert picture.svg == draw().svg and words in picture.text


def test_one_sum_in_two_orders():
    text = sum_pictures.two_orders([2, -1], [[1, 0, 3], [4, -2, 5]], [1, 2, -1]).text
    assert "D = dz W is -2, 2, 1; times n, -2, 4, -1, together 1" in text
    assert "z = W n is -2, -5; times dz, -4, 5, together 1" in text


def test_influence_counts_what_lies_across_tiles():
    whole, own = torch.ones(8, 8), torch.eye(8)
    text = backward_pictures.influence({"all": whole, "own": own}, tiles=4).text
    assert "all: 16 derivatives inside a tile, 48 across tiles" in text
    assert "own: 8 derivatives inside a tile, 0 across tiles" in text
    assert "needs 3 other tiles" in text and "own tile only" in text
    # one output of two inputs each: the tiles of outputs are half as wide
    pairwise = torch.eye(4).repeat_interleave(2, 1)
    assert "8 derivatives inside a tile, 0 across" in backward_pictures.influence(
        {"pairs": pairwise}).text


def test_pictures_that_do_not_fit():
    for wrong in (torch.ones(3), torch.ones(65, 65), torch.ones(5, 4), None):
        with pytest.raises(BadArgument, match="give a matrix of at most 64 x 64"):
            backward_pictures.influence({"x": wrong})
    with pytest.raises(BadArgument, match="a column for each n"):
        sum_pictures.two_orders([1, 2], [[1, 2, 3], [4, 5]], [1, 2, 3])
    with pytest.raises(BadArgument, match="at most 8 rows"):
        sum_pictures.partials(rows=9)
