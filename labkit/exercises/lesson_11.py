"""Exercises of lesson 11: a whole Transformer block."""

from __future__ import annotations

from typing import Any

from labkit.exercises.epilogue_trial import EpilogueCheck
from labkit.exercises.exercise import Exercise, Outcome
from labkit.exercises.trial import FunctionCheck, failure


def _randn(generator: Any, *shape: int) -> Any:
    import torch

    return torch.randn(shape, generator=generator)


# --- 11.1


def _scaled_residual(product: Any, residual: Any, bias: Any, scale: Any, gamma: Any,
                     branch: Any = None, x: Any = None, squared: str = "x") -> dict[str, Any]:
    residual, bias, scale, gamma = (t.double() for t in (residual, bias, scale, gamma))
    if x is None:
        x = residual + (branch or (lambda p, b, s: s * (p + b)))(product, bias, scale)
    found = dict(x=x, scaled=x * gamma)
    return found | dict(sumsq=found[squared].square().sum(1))


LAYER_SCALE = Exercise(
    key="11.1", title="A layer scale", statement="block-ex-1", answer="scaled_residual",
    stub='''
@epilogue(tile=["residual"], rowvec=["gamma"], store=["x", "scaled"], col_reduce={"sumsq": "sum"})
def scaled_residual(acc, residual, gamma):
    x = acc + residual  # the branch is scale * (acc + bias)
    return dict(x=x, scaled=x * gamma, sumsq=x * x)
''',
    solution='''
@epilogue(tile=["residual"], rowvec=["bias", "scale", "gamma"], store=["x", "scaled"],
          col_reduce={"sumsq": "sum"})
def scaled_residual(acc, residual, bias, scale, gamma):
    # bias and scale have one value a column, as gamma has: no operand is larger than a row
    x = residual + scale * (acc + bias)
    return dict(x=x, scaled=x * gamma, sumsq=x * x)
''',
    hints=(
        "Two more operands. Does each have one value a row, or one a column?",
        'rowvec=["bias", "scale", "gamma"], and both become parameters of the function. The norm '
        "that comes next is taken of the whole new stream.",
        "x = residual + scale * (acc + bias); then scaled and sumsq of that x.",
    ),
    judge=EpilogueCheck(
        cases=(dict(M=70, N=136, K=40), dict(M=1, N=16, K=96)),
        operands=lambda s, g: dict(
            residual=_randn(g, s["M"], s["N"]).half(), bias=_randn(g, s["N"]).half(),
            scale=(0.5 + 0.3 * _randn(g, s["N"])).half(), gamma=(1 + 0.3 * _randn(
                g, s["N"])).half()),
        wanted=_scaled_residual,
        mistakes={
            "The bias was added after the scale; the scale multiplies the whole branch.":
                lambda p, **o: _scaled_residual(p, **o, branch=lambda p, b, s: s * p + b),
            "The residual was scaled, too: only the branch is.":
                lambda p, residual, bias, scale, gamma: _scaled_residual(
                    p, residual, bias, scale, gamma, x=scale * (p + bias + residual)),
            "The scale is missing.":
                lambda p, **o: _scaled_residual(p, **o, branch=lambda p, b, s: p + b),
            "The bias is missing.":
                lambda p, **o: _scaled_residual(p, **o, branch=lambda p, b, s: s * p),
            "The residual is missing.":
                lambda p, residual, bias, scale, gamma: _scaled_residual(
                    p, residual, bias, scale, gamma, x=scale.double() * (p + bias)),
            "The squares were taken of x times gamma: the rms is that of the stream itself.":
                lambda p, **o: _scaled_residual(p, **o, squared="scaled"),
        }))


# --- 11.2


def _two_layers(h: Any, W_1: Any, x: Any, gamma: Any, W_2: Any, eps: float,
                width: int | None = None, weigh: Any = None, norm: bool = True) -> tuple[Any, Any]:
    """The new stream, and swiglu of its norm times W_2: float64."""
    import torch

    from labkit.epilogue import pairs

    h, W_1, x, gamma, W_2 = (t.double() for t in (h, W_1, x, gamma, W_2))
    new = h @ W_1.t() + x
    rstd = (new.square().sum(1, keepdim=True) / (width or new.shape[1]) + eps).rsqrt()
    gate, up = pairs.split((new * (weigh or (lambda g: g))(gamma) * (rstd if norm else 1.0))
                           @ W_2.t())
    return new, torch.nn.functional.silu(gate) * up


def _case(T: int, n: int, d: int, f: int) -> tuple[Any, ...]:
    """h [T, n], W_1 [d, n], x [T, d], gamma [d], W_2 [2 f, d], eps: float32."""
    import torch

    g = torch.Generator().manual_seed(T)
    return (_randn(g, T, n), _randn(g, d, n) / n**0.5, _randn(g, T, d),
            1 + 0.3 * _randn(g, d), _randn(g, 2 * f, d) / d**0.5, 0.1)


def _is(found: Any, wanted: Any) -> bool:
    return bool((found.double() - wanted).norm() <= 1e-4 * wanted.norm())


_USUAL = {
    "The mean of the squares runs over the columns of the stream; that is x.shape[1].":
        lambda h, W_1, x, *rest: _two_layers(h, W_1, x, *rest, width=h.shape[1]),
    "The sum of the squares was not divided by the width.":
        lambda *given: _two_layers(*given, width=1),
    "gamma was applied twice: `scaled` holds it already.":
        lambda *given: _two_layers(*given, weigh=lambda g: g * g),
    "The second GEMM read x: its operand is `scaled`, which holds gamma.":
        lambda *given: _two_layers(*given, weigh=lambda g: 1.0),
    "The row factor is missing: the second GEMM has to multiply its rows by rstd.":
        lambda *given: _two_layers(*given, norm=False),
}


def _wired(answer: Any) -> Outcome:
    """Judges `two_layers` at two sizes."""
    import torch

    if not callable(answer):
        return Outcome(False, (f"The answer is of type {type(answer).__name__}; pass the "
                               "function.",))
    for sizes in ((20, 24, 48, 24), (9, 72, 80, 16)):
        at = "At T, n, d, f = {}, {}, {}, {}".format(*sizes)
        given = _case(*sizes)
        try:
            found = answer(*(t.clone() if isinstance(t, torch.Tensor) else t for t in given))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (f"{at}: {failure(error, answer)}",))
        wanted = _two_layers(*given)
        shapes = [list(getattr(t, "shape", ())) for t in found] if isinstance(
            found, tuple) else type(found).__name__
        if shapes != [list(t.shape) for t in wanted]:
            return Outcome(False, (f"{at}: it returns {shapes}; return two tensors, the new stream "
                                   f"{list(wanted[0].shape)} and y {list(wanted[1].shape)}.",))
        for name, mine, exact in zip(("The new stream", "y"), found, wanted, strict=True):
            if not _is(mine, exact):
                told = [sentence for sentence, mistaken in _USUAL.items()
                        if all(_is(*pair) for pair in zip(found, mistaken(*given), strict=True))]
                error = (mine.double() - exact).norm() / exact.norm()
                return Outcome(False, (f"{at}: {name} is off by {error:.1e} of its size.",
                                       *told[:1]))
    return Outcome(True, ("Right at two sizes, against float64.",))


WIRING = Exercise(
    key="11.2", title="A norm between two GEMMs", statement="block-ex-2", answer="two_layers",
    stub='''
def two_layers(h, W_1, x, gamma, W_2, eps):
    found = matmul(catalogue.residual_rms, h, W_1, transpose_B=True, residual=x, gamma=gamma)
    ...  # the row statistic, then the second GEMM with catalogue.rstd_swiglu_forward
    return found["x"], ...
''',
    solution='''
def two_layers(h, W_1, x, gamma, W_2, eps):
    found = matmul(catalogue.residual_rms, h, W_1, transpose_B=True, residual=x, gamma=gamma)
    # [tiles, T] partial sums; the mean runs over the width of the stream, not over the tiles
    rstd = finalize.rstd(found["sumsq"], x.shape[1], eps)
    # gamma is in `scaled` already; only the factor of the row was left for this GEMM
    y = matmul(catalogue.rstd_swiglu_forward, found["scaled"], W_2, transpose_B=True, rstd=rstd)
    return found["x"], y["y"]
''',
    hints=(
        "The first call returns three tensors. Which one is the second GEMM's left operand, and "
        "which one becomes its row factor?",
        "finalize.rstd(partials, width, eps) ends the sums. Its width is the number of columns "
        "over which the mean runs.",
        'rstd = finalize.rstd(found["sumsq"], x.shape[1], eps); then matmul('
        'catalogue.rstd_swiglu_forward, found["scaled"], W_2, transpose_B=True, rstd=rstd)["y"].',
    ),
    judge=_wired)


# --- 11.3


def _gain(after: float, M: int, N: int, K: int, main_loop: float, exposed: float,
          bytes_s: float, flops_s: float) -> float:
    room = 1 + (after / bytes_s) / (2 * M * N * K / flops_s)
    return room * main_loop * exposed


GAIN = Exercise(
    key="11.3", title="Will it pay?", statement="block-ex-3", answer="gain",
    stub='''
def gain(after, M, N, K, main_loop, exposed, bytes_s, flops_s):
    room = ...
    return ...
''',
    solution='''
def gain(after, M, N, K, main_loop, exposed, bytes_s, flops_s):
    gemm = 2 * M * N * K / flops_s  # seconds of a product at the full rate
    room = 1 + after / bytes_s / gemm  # what the kernel behind it adds
    return room * main_loop * exposed
''',
    hints=(
        "Two times first: that of the product, and that of the kernel that fusion saves.",
        "The product has 2 M N K operations; the kernel moves `after` bytes. The room is their sum "
        "over the product's time alone.",
        "room = 1 + after / bytes_s / (2 * M * N * K / flops_s); the gain is room * main_loop * "
        "exposed.",
    ),
    judge=FunctionCheck(
        cases=((268.5e6, 8192, 4096, 4096, 0.97, 0.96, 4.2e12, 780e12),
               (1409e6, 8192, 14336, 4096, 0.95, 0.90, 4.2e12, 780e12),
               (1e9, 512, 1024, 256, 1.0, 1.0, 3e11, 65e12)),
        wanted=_gain,
        mistakes={
            "Each of the M N K steps has two operations, a multiplication and an addition.":
                lambda after, M, N, K, *rest: _gain(2 * after, M, N, K, *rest),
            "The room is the sum of both times over the product's, so it starts at 1.":
                lambda after, M, N, K, loop, exposed, b, f:
                    (_gain(after, M, N, K, 1, 1, b, f) - 1) * loop * exposed,
            "A slower main loop has to make the gain smaller: main_loop multiplies.":
                lambda after, M, N, K, loop, exposed, b, f:
                    _gain(after, M, N, K, 1 / loop, exposed, b, f),
            "A dearer epilogue has to make the gain smaller: exposed multiplies.":
                lambda after, M, N, K, loop, exposed, b, f:
                    _gain(after, M, N, K, loop, 1 / exposed, b, f),
            "That is the room alone; the main loop and what is exposed are missing.":
                lambda after, M, N, K, loop, exposed, b, f: _gain(after, M, N, K, 1, 1, b, f),
        }))

EXERCISES = (LAYER_SCALE, WIRING, GAIN)
