"""What the pattern of the errors gives away: one sentence for each of the usual mistakes.

`explain` looks at an output that was found wrong. Each rule below asks for a pattern that one kind
of mistake leaves behind and correct arithmetic does not, and the first that fits speaks. Where
none fits it says nothing: a wrong guess costs a learner more than none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.verify import Comparison, compare, tolerance

Rule = Callable[["Wrong"], str]


class Wrong:
    """A wrong output `out` beside its `reference`, in float64 as matrices of rows, with what
    `compare` found: `verdict`. `bad` marks the elements beyond the limit."""

    def __init__(self, out: Any, reference: Any, verdict: Comparison) -> None:
        import torch

        self.verdict = verdict
        columns = out.shape[-1] if out.dim() else 1
        self.shape = tuple(out.shape)
        self.extent = (1, 1, *out.shape)[-2:]  # rows, columns of one matrix
        self.out = out.detach().double().reshape(-1, columns)
        self.ref = reference.detach().double().reshape(-1, columns)
        self.dtype = out.dtype
        self.allowed = tolerance(str(out.dtype).removeprefix("torch."))
        self.nan = self.out.isnan() & ~self.ref.isnan()
        finite = self.ref.isfinite()
        rms = torch.where(finite, self.ref, 0.0).square().mean().sqrt()
        self.limit = 2 * self.allowed * (torch.where(finite, self.ref, 0.0).abs() + rms)
        off = (self.out - self.ref).abs()
        self.bad = ~((off <= self.limit) | (self.out == self.ref)
                     | (self.out.isnan() & self.ref.isnan()))

    def is_close(self, other: Any) -> bool:
        """Whether the output is `other`, a tensor of its shape, within its dtype's rounding."""
        same = self.out.reshape(self.shape).to(self.dtype)
        other = other.reshape(self.shape)
        if not other.isfinite().all() and not self.ref.isfinite().all():
            return False  # too little is known where even the reference is not finite
        return compare(same, other.double()).ok

    @property
    def last_tiles(self) -> str:
        """Where all errors lie, if that is the last tile along an axis and not the only one:
        "row of tiles", "column of tiles" or, of a single row, "tile"; else ""."""
        for axis, name in enumerate(("row of tiles", "column of tiles")):
            count = self.verdict.grid[axis]
            if count > 1 and {t[axis] for t in self.verdict.bad_tiles} == {count - 1}:
                return "tile" if self.verdict.grid[0] == 1 else name
        return ""


def explain(out: Any, reference: Any, verdict: Comparison) -> str:
    """One sentence on the likely mistake behind `verdict`, the comparison of a wrong `out` with
    its `reference`; empty if the pattern is not known."""
    wrong = Wrong(out, reference, verdict)
    return next((sentence for rule in _RULES if (sentence := rule(wrong))), "")


def _everything_nan(w: Wrong) -> str:
    if not w.nan.all():
        return ""
    return ("Every element is NaN: a tile was used before anything was written to it, most often "
            "an accumulator that was not cleared, or the output was never stored.")


def _last_tile_not_written(w: Wrong) -> str:
    if not w.last_tiles or not w.nan.any() or not bool((w.bad == w.nan).all()):
        return ""
    return (f"The last {w.last_tiles} was never written: the grid or a loop rounds down where "
            "T.ceildiv rounds up.")


def _whole_rows_nan(w: Wrong) -> str:
    rows = w.nan.all(1)
    if not rows.any() or not bool((w.nan.any(1) == rows).all()) or len(rows) == 1:
        return ""
    return (f"{int(rows.sum())} of {len(rows)} rows are NaN from end to end: no block wrote them "
            "(is every index of the grid in the output's index?), or they hold −∞ − (−∞) or 0 / 0, "
            "where a row has nothing that counts.")


def _some_nan(w: Wrong) -> str:
    if not w.nan.any():
        return ""
    return (f"{int(w.nan.sum()):,} elements are NaN: no thread wrote them, or what they were made "
            "of was not written.")


def _overflow(w: Wrong) -> str:
    if not bool((w.out.isinf() & w.ref.isfinite()).any()):
        return ""
    return ("Some elements are infinite where the reference is finite: a number left the range of "
            "its dtype. float16 ends at 65,504, so sum in float32 and scale before rounding; "
            "subtract the maximum before exp.")


def _transposed(w: Wrong) -> str:
    rows, columns = w.ref.shape
    if min(rows, columns) == 1:
        return ""
    flat = w.ref.mT.reshape(w.ref.shape)  # written column by column, whatever the shape
    if w.is_close(flat) or (rows == columns and w.is_close(w.ref.mT)):
        return "The output is the transpose of what it should be: two indices are swapped."
    return ""


def _zeros(w: Wrong) -> str:
    if bool((w.out[w.bad] == 0).all()):
        return ("Every wrong element is 0: it was written, but its inputs were outside the tensor "
                "or were never added.")
    return ""


def _rearranged(w: Wrong) -> str:
    if w.ref.numel() < 8 or not w.ref.isfinite().all():
        return ""
    if not w.is_close(w.ref.flatten().sort().values[w.out.flatten().argsort().argsort()]):
        return ""
    return ("The values are right, but they stand in other places: an index of the load or of the "
            "store is wrong.")


def _one_factor(w: Wrong) -> str:
    if not w.ref.isfinite().all() or not w.ref.any():
        return ""
    factor = ((w.out * w.ref).sum() / w.ref.square().sum()).item()
    if factor == 0 or not math.isfinite(factor) or not w.is_close(w.ref * factor):
        return ""
    return (f"Every element is {factor:.4g} times what it should be: a factor is missing, or "
            "applied twice.")


def _row_factor(w: Wrong) -> str:
    if not w.ref.isfinite().all() or min(w.ref.shape) < 2:
        return ""
    norm = w.ref.square().sum(1, keepdim=True)
    factor = (w.out * w.ref).sum(1, keepdim=True) / norm.clamp_min(1e-300)
    if not w.is_close(w.ref * factor):
        return ""
    return ("Each row is off by a factor of its own: what belongs to the row, such as its sum or "
            "its scale, is missing or wrong.")


def _offset(w: Wrong) -> str:
    if not w.ref.isfinite().all() or min(w.ref.shape) < 2:
        return ""
    off = w.out - w.ref
    for axis, name, what in ((0, "column", "a bias"), (1, "row", "a maximum or a mean")):
        if w.is_close(w.ref + off.mean(axis, keepdim=True)):
            return (f"Each {name} is off by an amount of its own: what is added once a {name}, "
                    f"such as {what}, is missing or comes from another place.")
    return ""


def _first_tile_right(w: Wrong) -> str:
    rows, columns = w.verdict.grid
    every = {(r, c) for r in range(rows) for c in range(columns)}
    if rows * columns < 3 or every - set(w.verdict.bad_tiles) != {(0, 0)}:
        return ""
    return ("Only the first tile is right: the others start from what the tile before them left "
            "behind. Clear the accumulator for each tile.")


def _padding(w: Wrong) -> str:
    if not w.last_tiles:
        return ""
    return (f"Only the last {w.last_tiles} is wrong, the ragged one: what lies beyond the edge "
            "takes part. Mask it, or guard it.")


def _rounding(w: Wrong) -> str:
    if not (w.allowed < w.verdict.error <= 64 * w.allowed):
        return ""
    spread = len(w.verdict.bad_tiles) > 0.6 * w.verdict.grid[0] * w.verdict.grid[1]
    scattered = w.bad.double().mean().item()
    if not spread or scattered > 0.9:
        return ""
    return (f"Nearly right everywhere, with {w.verdict.error / w.allowed:.0f} times the error "
            "that rounding the result allows: something was rounded to 16 bits on the way. Keep "
            "sums in float32 and round once, at the end.")


_RULES: tuple[Rule, ...] = (
    _everything_nan, _last_tile_not_written, _whole_rows_nan, _some_nan, _overflow, _transposed,
    _zeros, _rearranged, _one_factor, _row_factor, _offset, _first_tile_right, _padding, _rounding)
