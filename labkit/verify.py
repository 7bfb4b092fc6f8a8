"""Compares a kernel's output with a reference of higher precision, and says where it differs.

Two tests, both of which must hold, with u the unit roundoff of the output's dtype:

* relative Frobenius error  |out - ref| / |ref| <= 4 u. One rounding of every element gives
  about 0.4 u (rounding errors are spread evenly between -u and u); 4 u leaves room for the few
  further roundings that a fused kernel makes, and none for a lost row, tile or mask.
* worst element  |out - ref| <= 8 u (|ref| + rms(ref)), twice that limit. It catches the
  one wrong element that a norm over millions does not see.

u = 2^-24 (float32), 2^-11 (float16, and float32 operands of a tensor core: TF32),
2^-8 (bfloat16): IEEE 754 and Higham, Accuracy and Stability of Numerical Algorithms, ch. 2.
A float32 sum of K terms adds about sqrt(K) 2^-24, so float32 allows 64 u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import BadArgument, WrongAnswer

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11,
                 "bfloat16": 2.0**-8}
_TILES_SHOWN = (16, 48)


def tolerance(dtype: str) -> float:
    """The relative Frobenius error allowed for outputs of `dtype` (see the module's reasons)."""
    if dtype not in UNIT_ROUNDOFF:
        raise BadArgument(f"No tolerance is known for {dtype}; "
                          f"the dtypes are {', '.join(UNIT_ROUNDOFF)}.")
    return UNIT_ROUNDOFF[dtype] * (64 if dtype in ("float32", "float64") else 4)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: `ok`, the errors, and where they lie.

    error: relative Frobenius error; inf where a NaN or an infinity stands that the reference
    lacks. allowed: its limit. worst: index of the worst element, `got` and `wanted` its values.
    nans: NaNs that the reference does not have. bad_tiles: (row, column) of each tile with an
    element beyond the limit, out of `grid` = (rows, columns) of tiles.
    """

    name: str
    dtype: str
    error: float
    allowed: float
    worst: tuple[int, ...]
    got: float
    wanted: float
    nans: int
    wrong: int
    size: int
    grid: tuple[int, int]
    tile: tuple[int, int]
    bad_tiles: list[tuple[int, int]] = field(repr=False)

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed and not self.wrong

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        if self.ok:
            return (f"{self.name}: correct. Relative error {_bound(self.error)}; "
                    f"{self.dtype} allows {self.allowed:.0e}.")
        error = f"{self.error:.1e}" if math.isfinite(self.error) else "not finite"
        lines = [f"{self.name}: WRONG. Relative error {error}; {self.dtype} allows "
                 f"{self.allowed:.0e}. Worst element {list(self.worst)}: got {self.got:.6g}, "
                 f"expected {self.wanted:.6g}. {self.wrong:,} of {self.size:,} elements are off."]
        if self.nans:
            lines.append(f"{self.nans:,} elements are NaN. Outputs start as NaN, so these were "
                         "never written, or were computed from something that was not.")
        if self.bad_tiles:
            rows, columns = self.grid
            size = " x ".join(str(n) for n in self.tile[self.tile[0] == 1 and rows == 1:])
            lines.append(f"Errors lie in {len(self.bad_tiles)} of {rows * columns} tiles of "
                         f"{size}{self._place()}:")
            lines.append(self.tile_map())
        return "\n".join(lines)

    def _place(self) -> str:
        rows, columns = self.grid
        if len(self.bad_tiles) == rows * columns:
            return " (all)"
        bad_rows, bad_columns = ({t[axis] for t in self.bad_tiles} for axis in (0, 1))
        if bad_rows == {rows - 1} and rows > 1:
            return ", in the last row of tiles"
        if bad_columns == {columns - 1} and columns > 1:
            return ", in the last tile" if rows == 1 else ", in the last column of tiles"
        return ""

    def tile_map(self) -> str:
        """The grid of tiles as text: `x` holds an error, `.` does not."""
        rows, columns = (min(n, shown) for n, shown in zip(self.grid, _TILES_SHOWN, strict=True))
        bad = set(self.bad_tiles)
        lines = ["  " + "".join("x" if (r, c) in bad else "." for c in range(columns))
                 for r in range(rows)]
        if (rows, columns) != self.grid:
            lines.append(f"  (the first {rows} x {columns} of {self.grid[0]} x {self.grid[1]})")
        return "\n".join(lines)


def compare(out: Any, reference: Any, *, tile: tuple[int, int] | int | None = None,
            name: str = "output", tf32: bool = False) -> Comparison:
    """Compares `out` with `reference`, which must be float32 or float64 and of the same shape.

    tile: (block_M, block_N) of the last two axes, or block_N of a vector, in elements; the
    comparison says which tiles hold errors. None: an eighth of each axis.
    tf32: the products were made by tensor cores from float32 operands (a 10-bit mantissa).
    Equal infinities agree, and so do NaNs where the reference has NaN too.
    Raises BadArgument for shapes or dtypes that cannot be compared.
    """
    import torch

    dtype = str(out.dtype).removeprefix("torch.")
    kind = "tf32" if tf32 and dtype == "float32" else dtype
    if reference.dtype not in (torch.float32, torch.float64):
        raise BadArgument(f"{name}: the reference has dtype {str(reference.dtype)[6:]}; compute "
                          "it in float32 or float64 (upcast the inputs with .float()), so that "
                          "its own rounding stays out of the comparison.")
    if out.shape != reference.shape:
        raise BadArgument(f"{name} has shape {list(out.shape)}, but the reference has "
                          f"{list(reference.shape)}; compare tensors of one shape.")
    if not out.numel():
        raise BadArgument(f"{name} is empty; there is nothing to compare.")
    allowed = tolerance(kind)
    x, ref = out.detach().double().cpu(), reference.detach().double().cpu()
    same = (x == ref) | (x.isnan() & ref.isnan())
    finite = x.isfinite() & ref.isfinite()
    difference = torch.where(same, 0.0, torch.where(finite, (x - ref).abs(), math.inf))
    size = torch.where(ref.isfinite(), ref, 0.0)
    norm = size.norm().item()
    error = difference.norm().item() / norm if norm else (math.inf if difference.any() else 0.0)
    limit = 2 * allowed * (size.abs() + norm / math.sqrt(ref.numel()))
    bad = difference > limit
    if error > allowed and not bad.any():  # many small errors: name every element that adds to them
        bad = difference > allowed * size.abs()
    index = int(difference.argmax())
    worst = tuple(int(i) for i in torch.unravel_index(torch.tensor(index), ref.shape))
    shape = _matrix_shape(ref.shape)
    tile_shape = _tile_shape(tile, shape)
    return Comparison(
        name=name, dtype="float32 with TF32 products" if kind == "tf32" else dtype, error=error,
        allowed=allowed, worst=worst, got=x[worst].item(), wanted=ref[worst].item(),
        nans=int((x.isnan() & ~ref.isnan()).sum()), wrong=int(bad.sum()), size=ref.numel(),
        grid=(math.ceil(shape[1] / tile_shape[0]), math.ceil(shape[2] / tile_shape[1])),
        tile=tile_shape, bad_tiles=_bad_tiles(bad.reshape(shape).any(0), tile_shape))


def check(out: Any, reference: Any, *, tile: tuple[int, int] | int | None = None,
          name: str = "output", tf32: bool = False) -> Comparison:
    """`compare`, but a difference raises WrongAnswer with the whole verdict."""
    result = compare(out, reference, tile=tile, name=name, tf32=tf32)
    if not result.ok:
        raise WrongAnswer(repr(result))
    return result


def _bound(error: float) -> str:
    """'0', or 'below' the next power of ten: the figure that does not change between runs."""
    return "0" if error == 0 else f"below 1e{math.floor(math.log10(error)) + 1:+03d}"


def _matrix_shape(shape: Any) -> tuple[int, int, int]:
    """(everything else, rows, columns)."""
    rows, columns = (1, *shape)[-2:] if len(shape) else (1, 1)
    return math.prod(shape) // (rows * columns), rows, columns


def _tile_shape(tile: Any, shape: tuple[int, int, int]) -> tuple[int, int]:
    if tile is None:
        return math.ceil(shape[1] / 8), math.ceil(shape[2] / 8)
    return (1, tile) if isinstance(tile, int) else (int(tile[0]), int(tile[1]))


def _bad_tiles(bad: Any, tile: tuple[int, int]) -> list[tuple[int, int]]:
    rows, columns = bad.nonzero(as_tuple=True)
    return sorted(set(zip((rows // tile[0]).tolist(), (columns // tile[1]).tolist(), strict=True)))
