"""Exercises of lesson 10: backward epilogues, and where a row's sum may be taken."""

from __future__ import annotations

from typing import Any

from labkit.exercises.epilogue_trial import EpilogueCheck
from labkit.exercises.exercise import Exercise, Outcome

SIZES = (dict(M=70, N=136, K=40), dict(M=1, N=8, K=96))


def _rows(generator: Any, *shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=generator)


# --- 10.1


def _relu2(dy: Any, z: Any, dz: Any = None, y: Any = None, zdz: Any = None) -> dict[str, Any]:
    z = z.double()
    dz = 2 * dy * z.relu() if dz is None else dz
    return dict(dz=dz, y=z.relu().square() if y is None else y,
                zdz=(z * dz if zdz is None else zdz).sum(1))


RELU2 = Exercise(
    key="10.1", title="Squared ReLU", statement="cob-ex-1", answer="drelu2",
    stub='''
@epilogue(tile=["z"], store=["dz", "y"], col_reduce={"zdz": "sum"})
def drelu2(dy, z):
    return dict(dz=dy, y=z, zdz=dy)  # each of the three needs more
''',
    solution='''
@epilogue(tile=["z"], store=["dz", "y"], col_reduce={"zdz": "sum"})
def drelu2(dy, z):
    # the derivative of relu(z)^2 is 2 relu(z): 2 z where z is positive, and 0 elsewhere, so the
    # gate that a derivative of ReLU needs is in it already
    dz = 2.0 * dy * ops.relu(z)
    # y is made again for the weight's gradient; z dz is one summand of the row's s
    return dict(dz=dz, y=ops.relu(z) * ops.relu(z), zdz=z * dz)
''',
    hints=(
        "Write y as a function of z on each side of zero, and take its derivative there.",
        "For z > 0, y = z² and y' = 2z. For z < 0 both are 0. One call of ops.relu says both.",
        "dz = 2 dy relu(z), y = relu(z) relu(z); zdz is z times dz.",
    ),
    judge=EpilogueCheck(
        cases=SIZES,
        operands=lambda s, g: dict(z=_rows(g, s["M"], s["N"]).half()),
        wanted=_relu2,
        mistakes={
            "The factor 2 of the derivative is missing.":
                lambda dy, z: _relu2(dy, z, dz=dy * z.double().relu()),
            "Where z is negative the derivative is 0: gate it by relu.":
                lambda dy, z: _relu2(dy, z, dz=2 * dy * z.double()),
            "That is ReLU's derivative, without the square.":
                lambda dy, z: _relu2(dy, z, dz=dy * (z > 0)),
            "y was taken for relu(z): the weight's gradient needs its square.":
                lambda dy, z: _relu2(dy, z, y=z.double().relu()),
            "zdz was taken behind the activation, as y dy.":
                lambda dy, z: _relu2(dy, z, zdz=z.double().relu().square() * dy),
        }))

# --- 10.2


def _vectors(D: Any, x: Any, mean: Any, rstd: Any, unit: Any = None) -> dict[str, Any]:
    if unit is None:
        unit = (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    return dict(dgamma=(D * unit).sum(0), dbeta=D.sum(0))


def _swapped(D: Any, x: Any, mean: Any, rstd: Any) -> dict[str, Any]:
    right = _vectors(D, x, mean, rstd)
    return dict(dgamma=right["dbeta"], dbeta=right["dgamma"])


LAYERNORM = Exercise(
    key="10.2", title="LayerNorm's vectors", statement="cob-ex-2", answer="dvectors",
    stub='''
@epilogue(store=["D_again"])
def dvectors(D):
    return dict(D_again=D)  # not this: dgamma and dbeta, added up over the rows
''',
    solution='''
@epilogue(tile=["x"], colvec=["mean", "rstd"], row_reduce={"dgamma": "sum", "dbeta": "sum"})
def dvectors(D, x, mean, rstd):
    # n = gamma unit + beta: the derivative by gamma is unit, the one by beta is 1; the sums down
    # the columns are what row_reduce does, so each element returns its own summand
    unit = (x - mean) * rstd
    return dict(dgamma=D * unit, dbeta=D)
''',
    hints=(
        "n depends on γ and β of its own column only. What are the derivatives of n by each?",
        "∂n/∂γ is the normalised x, ∂n/∂β is 1. Times D, the gradient of n, and summed over rows: "
        "x is a tile, mean and rstd are colvecs, both outputs are of row_reduce.",
        "dgamma = D * (x - mean) * rstd and dbeta = D; no store is needed.",
    ),
    judge=EpilogueCheck(
        cases=SIZES,
        operands=lambda s, g: dict(x=2 + _rows(g, s["M"], s["N"]).half(), mean=1 + _rows(g, s["M"]),
                                   rstd=0.5 + _rows(g, s["M"]).abs()),
        wanted=_vectors,
        mistakes={
            "The mean was not taken off: that is RMSNorm's.": lambda D, x, mean, rstd: _vectors(
                D, x, mean, rstd, unit=x.double() * rstd.double()[:, None]),
            "The mean comes off before the division: (x - mean) * rstd.":
                lambda D, x, mean, rstd: _vectors(
                    D, x, mean, rstd,
                    unit=x.double() * rstd.double()[:, None] - mean.double()[:, None]),
            "dgamma lacks rstd: γ multiplies the normalised x.":
                lambda D, x, mean, rstd: _vectors(D, x, mean, rstd,
                                                  unit=x.double() - mean.double()[:, None]),
            "dgamma and dbeta have changed places.": _swapped,
            "dgamma lacks D: that sums the normalised x.": lambda D, x, mean, rstd: dict(
                dgamma=_vectors(D * 0 + 1, x, mean, rstd)["dgamma"], dbeta=D.sum(0)),
        }))

# --- 10.3

_FACTORS = {"ReLU": 1, "squared ReLU": 2, "gate times up": 2, "RoPE": 1, "SiLU": "none"}


def _sums(name: str) -> list[float]:
    """Σ z dz over Σ y dy on two random rows, by autograd in float64."""
    import torch
    from torch.nn import functional as F

    maps = {
        "ReLU": F.relu, "squared ReLU": lambda z: F.relu(z).square(), "SiLU": F.silu,
        "gate times up": lambda z: z[:8] * z[8:],
        "RoPE": lambda z: torch.cat([0.6 * z[:8] - 0.8 * z[8:], 0.8 * z[:8] + 0.6 * z[8:]])}
    found = []
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(16, generator=generator, dtype=torch.float64).requires_grad_()
        y = maps[name](z)
        dy = torch.rand(y.shape, generator=generator, dtype=torch.float64) + y.detach()
        (dz,) = torch.autograd.grad(y, z, dy)
        found.append(((z * dz).sum() / (y * dy).sum()).item())
    return found


def _judge_factors(answer: Any) -> Outcome:
    if not isinstance(answer, dict) or set(answer) != set(_FACTORS):
        return Outcome(False, ("factors is not the dictionary of the cell; keep its five names: "
                               f"{', '.join(_FACTORS)}.",))
    for name, wanted in _FACTORS.items():
        given = answer[name]
        if isinstance(given, bool) or given != wanted:
            first, second = _sums(name)
            return Outcome(False, (
                f"{name}: {given!r} is not right. On two random rows Σ z dz over Σ y dy is "
                f"{first:.4f} and {second:.4f}.",))
    return Outcome(True, ("Right for all five, as random rows in float64 confirm.",))


PLACE = Exercise(
    key="10.3", title="The place of the sum", statement="cob-ex-3", answer="factors",
    stub='''
factors = {"ReLU": ..., "squared ReLU": ..., "gate times up": ..., "RoPE": ..., "SiLU": ...}
''',
    solution='''
# dz_j = sum_i dy_i dy_i/dz_j, so the sum over z_j dz_j is that over dy_i times sum_j z_j dy_i/dz_j.
# Scale z by t: if f(t z) = t^c f(z), the derivative by t at t = 1 says that this inner sum is c y_i
# (Euler's theorem on homogeneous functions). So c is how often f multiplies z by itself:
# once in ReLU and in a rotation, twice in a square and in a product of two. SiLU has no such power.
factors = {"ReLU": 1, "squared ReLU": 2, "gate times up": 2, "RoPE": 1, "SiLU": "none"}
''',
    hints=(
        "Try it: take y = z² for one number. What are dz, z dz and y dy?",
        "What becomes of f(z) if z is doubled? Doubled, four times as large, or neither?",
        "If doubling z doubles f(z), the factor is 1; if it makes f(z) four times as large, 2. "
        "Where the answer depends on z, it is \"none\".",
    ),
    judge=_judge_factors)

EXERCISES = (RELU2, LAYERNORM, PLACE)
