"""The bytes of an op with its epilogue and without, counted from the epilogue's declaration.

Without: the GEMM writes its product, and one kernel reads that and every operand, and writes every
output. A stored output that is the product itself, but for a factor of its row, is in memory
already, so nobody writes it twice. With: the operands are read and the outputs written, and the
product never exists. A statistic leaves the epilogue as one float32 a tile, and a small kernel
reads these and writes the sum; without an epilogue it is written once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from labkit.epilogue.declare import Epilogue, Output
from labkit.table import Table

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4}


@dataclass(frozen=True)
class Account:
    """lines: (tensor, bytes without the epilogue, bytes with it), each access counted once."""

    name: str
    shape: dict[str, int]
    dtype: str
    lines: tuple[tuple[str, int, int], ...]

    @property
    def unfused(self) -> int:
        return sum(before for _, before, _ in self.lines)

    @property
    def fused(self) -> int:
        return sum(after for _, _, after in self.lines)

    @property
    def saved(self) -> int:
        return self.unfused - self.fused

    def table(self) -> Table:
        def mb(size: int) -> str:
            return "" if not size else f"{size / 1e6:,.1f}" if size >= 1e5 else f"{size / 1e6:.2f}"

        rows = [[what, mb(before), mb(after)] for what, before, after in self.lines]
        rows.append(["all", mb(self.unfused), mb(self.fused)])
        at = ", ".join(f"{axis} = {size:,}" for axis, size in self.shape.items())
        return Table(f"{self.name}: MB moved at {at}, {self.dtype}",
                     ["tensor", ">GEMM, then a kernel", ">GEMM + epilogue"], rows,
                     f"Saved: {self.saved / 1e6:,.1f} MB, {self.saved / self.unfused:.0%}.")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def account(chosen: Epilogue, M: int, N: int, K: int, dtype: str = "bfloat16",
            block_M: int = 128, block_N: int = 128,
            kept: frozenset[str] = frozenset()) -> Account:
    """The account of `chosen` behind a product [M, K] x [K, N]; block_M, block_N: the tile, on
    which the partial results depend; kept: outputs that nothing has to write again without the
    epilogue, because the forward pass kept them."""
    each = _BYTES[dtype]
    columns = N // 2 if chosen.takes_pairs else N
    lines = [("A, read", M * K * each, M * K * each), ("B, read", K * N * each, K * N * each),
             ("product, written", M * N * each, 0), ("product, read", M * N * each, 0)]
    for o in chosen.operands:
        count = {"rowvec": columns, "colvec": M, "tile": M * columns, "scalar": 0}[o.kind]
        size = count * (2 if o.pair else 1) * _BYTES[o.dtype or dtype]
        if size:
            lines.append((f"{o.name}, read", size, size))
    lines += [(f"{name}, read", 4 * M, 4 * M) for name in chosen.indices]
    same = products(chosen)
    for o in chosen.outputs:
        what, before, after = _output_line(o, o.name in same, M, columns, dtype,
                                           (math.ceil(M / block_M), math.ceil(N / block_N)))
        lines.append((what, 0 if o.name in kept else before, after))
    return Account(chosen.name, dict(M=M, N=N, K=K), dtype, tuple(lines))


def _output_line(o: Output, is_product: bool, M: int, columns: int, dtype: str,
                 tiles: tuple[int, int]) -> tuple[str, int, int]:
    if o.kind == "store":
        size = M * columns * (2 if o.pair else 1) * _BYTES[o.dtype or dtype]
        return (f"{o.name}, the product, written", 0, size) if is_product else (
            f"{o.name}, written", size, size)
    rows, along = (columns, tiles[0]) if o.kind == "row_reduce" else (M, tiles[1])
    if o.kind == "select":
        return f"{o.name}, written", 4 * rows, 4 * rows
    return (f"{o.name}, written; its partials written and read", 4 * rows,
            4 * rows * (1 + 2 * along))


def products(chosen: Epilogue) -> set[str]:
    """The stored outputs that are the product itself, up to a factor per row: those that equal it
    for three products, every row factor being 1 and everything else arbitrary numbers."""
    same = {o.name for o in chosen.outputs if o.kind == "store"}
    for acc in ((0.37, -1.21), (-0.83, 0.59), (1.7, 0.21)):
        given: list[Any] = [1.0 if o.kind == "colvec" else (0.9 + 0.3 * i, 0.4 - 0.7 * i)
                            if o.pair else 0.9 + 0.3 * i for i, o in enumerate(chosen.operands)]
        found = chosen(acc if chosen.takes_pairs else acc[0], *given)
        wanted = acc if chosen.takes_pairs else acc[0]
        same = {name for name in same if found[name] == wanted}
    return same
