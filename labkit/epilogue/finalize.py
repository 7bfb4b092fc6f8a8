"""From partial results, one row a tile, to the whole: what a reduction leaves to do.

A tile sees some columns only, so an epilogue writes partials [tiles, n] (n rows of the product, or
n columns), and these small sums end the work. They are short torch functions, so that
`torch.compile` makes one kernel of each.
"""

from __future__ import annotations

from typing import Any


def total(partials: Any) -> Any:
    """Sums: [tiles, n] -> [n]."""
    return partials.sum(0)


def maximum(partials: Any) -> Any:
    """Maxima: [tiles, n] -> [n]."""
    return partials.amax(0)


def logsumexp(partials: Any) -> Any:
    """log(sum(exp)) from the tiles' own ones: [tiles, n] -> [n]."""
    return partials.logsumexp(0)


def rstd(sumsq: Any, width: int, eps: float = 1e-6) -> Any:
    """1 / sqrt(mean of squares + eps) from sums of squares over `width` columns: [tiles, n] -> [n],
    the factor of RMSNorm (Zhang and Sennrich, arXiv 1910.07467)."""
    return (sumsq.sum(0) / width + eps).rsqrt()


def mean_rstd(sums: Any, sumsq: Any, width: int, eps: float = 1e-5) -> tuple[Any, Any]:
    """Mean and 1 / sqrt(variance + eps) of LayerNorm: two of [tiles, n] -> two of [n].

    The variance is E[x^2] - mean^2 in float32, so a row whose mean is many times its spread loses
    digits: about 2e-4 of the result at 30 times.
    """
    mean = sums.sum(0) / width
    variance = (sumsq.sum(0) / width - mean * mean).clamp_min(0)
    return mean, (variance + eps).rsqrt()


def cross_entropy(lse: Any, picked: Any, target: Any, ignore_index: int = -100) -> Any:
    """Mean of lse - picked over the rows whose target is not `ignore_index`: [tiles, n], [n], [n]
    int -> a scalar; NaN if every row is ignored, as in `torch.nn.functional.cross_entropy`."""
    import torch

    kept = target != ignore_index
    # a row that is ignored has no picked value: nothing was written there
    return torch.where(kept, logsumexp(lse) - picked, 0.0).sum() / kept.sum()
