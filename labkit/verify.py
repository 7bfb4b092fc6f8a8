"""Compares a kernel's output with a reference of higher precision, and says where it differs.

Two tests, both of which must hold, with u the unit roundoff of the output's dtype:

* relative Frobenius error  |out - ref| / |ref| <= 2 u. One rounding of every element gives
  about 0.4 u (rounding errors are spread evenly between -u and u); 2 u leaves room for the few
  further roundings that a fused kernel makes, and none for a lost row, tile or mask.
* worst element  |out - ref| <= 4 u (|ref| + rms), twice that limit, where rms is the larger one
  of the whole reference and of the element's row (the last axis): an element is a sum of terms,
  and its error follows their size, also where they cancel. It catches the one wrong element
  that a norm over millions does not see.

u = 2^-24 (float32), 2^-11 (float16, and float32 operands of a tensor core: TF32),
2^-8 (bfloat16): IEEE 754 and Higham, Accuracy and Stability of Numerical Algorithms, ch. 2;
2^-4 (float8_e4m3fn), 2^-3 (float8_e5m2): Micikevicius and others, arXiv:2209.05433.
A float32 sum of K terms adds about sqrt(K) 2^-24, so float32 allows 64 u.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import BadArgument, WrongAnswer

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11,
                 "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
# below it, rounding is absolute: half of the smallest number that the dtype can hold
_HALF_SUBNORMAL = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150,
                   "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
_TILES_SHOWN = (16, 48)
_CHUNK = 1 << 22  # elements compared at a time
_MISSING = object()


def tolerance(dtype: str) -> float:
    """The relative Frobenius error allowed for outputs of `dtype` (see the module's reasons)."""
    if dtype not in UNIT_ROUNDOFF:
        raise BadArgument(f"No tolerance is known for {dtype}; "
                          f"the dtypes are {', '.join(UNIT_ROUNDOFF)}.")
    return UNIT_ROUNDOFF[dtype] * (64 if dtype in ("float32", "float64") else 2)


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`: `ok`, the errors, and where they lie.

    error: relative Frobenius error; inf where a NaN or an infinity stands that the reference
    lacks. allowed: its limit. worst: index of the element that is furthest beyond its own limit,
    `got` and `wanted` its values, `off` their distance, of which `off_allowed` would pass.
    nans: NaNs that the reference does not have. bad_tiles: (row, column) of each tile with an
    element beyond the limit, out of `grid` = (rows, columns) of tiles.
    """

    name: str
    dtype: str
    error: float
    allowed: float
    worst: tuple[int, ...]
    off: float
    off_allowed: float
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
            bound = _bound(self.error, self.allowed)
            if bound is None:
                return (f"{self.name}: correct. Relative error within the {self.allowed:.0e} that "
                        f"{self.dtype} allows.")
            return (f"{self.name}: correct. Relative error {bound}; {self.dtype} allows "
                    f"{self.allowed:.0e}.")
        error = f"{self.error:.1e}" if math.isfinite(self.error) else "not finite"
        lines = [f"{self.name}: WRONG. Relative error {error}; {self.dtype} allows "
                 f"{self.allowed:.0e}.",
                 f"Worst element {list(self.worst)}: got {self.got:.6g}, expected "
                 f"{self.wanted:.6g}; {self.off_allowed:.2g} off would pass. "
                 f"{self.wrong:,} of {self.size:,} elements are off by more."]
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
            name: str = "output", tf32: bool = False, allowed: float | None = None) -> Comparison:
    """Compares `out` with `reference`, which must be float32 or float64 and of the same shape.

    tile: (block_M, block_N) of the last two axes, or block_N of a vector, in elements; the
    comparison says which tiles hold errors. None: an eighth of each axis.
    tf32: the products were made by tensor cores from float32 operands (a 10-bit mantissa).
    allowed: the relative error allowed, in place of the dtype's, for what has a reason of its own;
    a single element may be off by as many times more as usual.
    Equal infinities agree, and so do NaNs where the reference has NaN too.
    Raises BadArgument for what cannot be compared: another object than a dense tensor on the CPU
    or a GPU, a dtype that is not floating, unequal shapes, a tile below 1,
    an `allowed` that is not above 0.
    """
    import torch

    _check_tensor(name, out)
    _check_tensor(f"{name}: the reference", reference)
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
    shape = _matrix_shape(out.shape)
    tile_shape = _tile_shape(tile, shape)
    usual = tolerance(kind)  # refuses a dtype that is not floating
    if allowed is not None and not (isinstance(allowed, (int, float)) and 0 < allowed < math.inf):
        raise BadArgument(f"allowed is {allowed!r}; give a relative error above 0, such as 1e-4.")
    allowed = usual if allowed is None else allowed
    found = _Differences(out.detach(), reference.detach(), shape, tile_shape, kind, allowed)
    return Comparison(
        name=name, dtype="float32 with TF32 products" if kind == "tf32" else dtype,
        error=found.error, allowed=allowed, worst=found.worst, off=found.off,
        off_allowed=found.off_allowed, got=out[found.worst].item(),
        wanted=reference[found.worst].item(), nans=found.nans, wrong=found.wrong, size=out.numel(),
        grid=(math.ceil(shape[1] / tile_shape[0]), math.ceil(shape[2] / tile_shape[1])),
        tile=tile_shape, bad_tiles=found.bad_tiles)


class _Differences:
    """One pass over both tensors, a few million elements at a time, on the output's device: a
    large output is compared in little memory."""

    def __init__(self, out: Any, reference: Any, shape: tuple[int, int, int],
                 tile: tuple[int, int], kind: str, allowed: float) -> None:
        import torch

        self._shape = shape
        self._tile = (min(tile[0], shape[1]), min(tile[1], shape[2]))
        rows = shape[0] * shape[1]
        x, ref = out.reshape(rows, shape[2]), reference.reshape(rows, shape[2])
        step = max(1, _CHUNK // shape[2])

        def chunks() -> Iterator[tuple[int, Any, Any]]:
            for start in range(0, rows, step):
                part = ref[start:start + step].to(x.device).double()
                yield start, x[start:start + step].double(), part

        norm = math.sqrt(sum(torch.where(r.isfinite(), r, 0.0).square().sum().item()
                             for _, _, r in chunks()))
        rms = norm / math.sqrt(out.numel())
        tiny = _HALF_SUBNORMAL.get(kind, 0.0)
        squares, most, self.nans = 0.0, -1.0, 0
        beyond, small = [0, set()], [0, set()]  # elements, tiles
        for start, got, want in chunks():
            same = (got == want) | (got.isnan() & want.isnan())
            finite = got.isfinite() & want.isfinite()
            off = torch.where(same, 0.0, torch.where(finite, (got - want).abs(), math.inf))
            off = (off - tiny).clamp_min(0.0)
            size = torch.where(want.isfinite(), want.abs(), 0.0)
            scale = size.square().mean(-1, keepdim=True).sqrt().clamp_min(rms)
            limit = 2 * allowed * (size + scale)
            squares += off.square().sum().item()
            self.nans += int((got.isnan() & ~want.isnan()).sum())
            for kept, bad in ((beyond, off > limit), (small, off > allowed * size)):
                kept[0] += int(bad.sum())
                kept[1] |= self._tiles(bad, start)
            excess = torch.where(off > 0, off / limit, 0.0)  # an infinity stays one
            place = int(excess.argmax())
            if excess.flatten()[place] > most:
                most = excess.flatten()[place].item()
                self.off = off.flatten()[place].item()
                self.off_allowed = limit.flatten()[place].item()
                index = torch.tensor(start * shape[2] + place)
                self.worst = tuple(int(i) for i in torch.unravel_index(index, out.shape))
        self.error = math.sqrt(squares) / norm if norm else (math.inf if squares else 0.0)
        # many small errors: name every element that adds to them
        chosen = small if self.error > allowed and not beyond[0] else beyond
        self.wrong, self.bad_tiles = chosen[0], sorted(chosen[1])

    def _tiles(self, bad: Any, start: int) -> set[tuple[int, int]]:
        """(tile row, tile column) of the bad elements of a chunk that begins in row `start`."""
        import torch

        if not bad.any():
            return set()
        columns = torch.nn.functional.pad(bad, (0, -bad.shape[1] % self._tile[1]))
        columns = columns.reshape(bad.shape[0], -1, self._tile[1]).any(-1)
        row, column = columns.nonzero(as_tuple=True)
        row = (row + start) % self._shape[1] // self._tile[0]
        pairs = torch.stack([row, column], 1).unique(dim=0)
        return {(r, c) for r, c in pairs.tolist()}


def check(out: Any, reference: Any = _MISSING, *, tile: tuple[int, int] | int | None = None,
          name: str = "output", tf32: bool = False) -> Any:
    """`compare`, but a difference raises WrongAnswer with the whole verdict.

    With text as its first argument it means an exercise: `lab.check("02.1", answer)` judges the
    answer and returns a `Feedback`, right or wrong. `tile`, `name` and `tf32` have no part in that.
    """
    if isinstance(out, str):
        from labkit import exercises

        return exercises.check(out, *(() if reference is _MISSING else (reference,)))
    if reference is _MISSING:
        raise BadArgument("lab.check needs a reference to compare with; give one computed in "
                          "float32 or float64 from the same inputs.")
    result = compare(out, reference, tile=tile, name=name, tf32=tf32)
    if not result.ok:
        raise WrongAnswer(repr(result))
    return result


def _check_tensor(name: str, tensor: Any) -> None:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise BadArgument(f"{name} is of type {type(tensor).__name__}; pass a torch tensor, as "
                          "torch.as_tensor makes of an array or a list.")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise BadArgument(f"{name} is a sparse or nested tensor; pass a dense one, for example "
                          "with .to_dense().")
    if tensor.device.type not in ("cpu", "cuda"):
        raise BadArgument(f"{name} lies on device {tensor.device.type!r}; pass a tensor with its "
                          "elements on the CPU or a CUDA GPU.")


def _bound(error: float, allowed: float) -> str | None:
    """'0', or 'below' the next power of ten: the figure that does not change between runs. None
    where that power is above `allowed`, and so would say too little."""
    if error == 0:
        return "0"
    exponent = math.floor(math.log10(error)) + 1
    return f"below 1e{exponent:+03d}" if float(f"{allowed:.0e}") >= 10.0**exponent else None


def _matrix_shape(shape: Any) -> tuple[int, int, int]:
    """(everything else, rows, columns)."""
    rows, columns = (1, *shape)[-2:] if len(shape) else (1, 1)
    return math.prod(shape) // (rows * columns), rows, columns


def _tile_shape(tile: Any, shape: tuple[int, int, int]) -> tuple[int, int]:
    if tile is None:
        return math.ceil(shape[1] / 8), math.ceil(shape[2] / 8)
    try:
        pair = tile if isinstance(tile, (tuple, list)) else (1, tile)
        rows, columns = (operator.index(side) for side in pair)
    except (TypeError, ValueError):
        rows = columns = 0
    if min(rows, columns) < 1:
        raise BadArgument(f"tile is {tile!r}; give a whole number of elements of at least 1, or a "
                          "pair of them, as in (128, 128).")
    return rows, columns
