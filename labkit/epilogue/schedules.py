"""Schedules for GEMMs with an epilogue that compile without a spill for every epilogue of the
catalogue, by compute capability: 75 is the T4, 80 the A100, 86 and 89 the A10G, L4 and RTX 4090,
90 the H100, 100 the B200, 120 the RTX 5090.

"FullRow" gives each warp whole rows of the tile, so that a sum along a row stays inside a warp and
the accumulator can be taken in pieces of columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.epilogue.steps import GROUP

if TYPE_CHECKING:
    from labkit.epilogue.declare import Epilogue, Operand, Output

# The compiler's options: exp, tanh and division by the fast units. They err by a few float32
# roundings, far below one rounding of a 16-bit output.
OPTIONS = {"tl.enable_fast_math": True}

SCHEDULES = {
    75: dict(block_M=128, block_N=64, block_K=32, num_stages=2, threads=128, piece=32),
    80: dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=64),
    86: dict(block_M=128, block_N=64, block_K=32, num_stages=3, threads=128, piece=32),
    90: dict(block_M=128, block_N=256, block_K=64, num_stages=3, threads=256, panel=16,
             piece=64),
    100: dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=64),
    120: dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=32),
}
# On a CPU: small, so that small products have ragged edges and several tiles.
CPU = dict(block_M=64, block_N=64, block_K=32, num_stages=1, threads=128, piece=32)


# 9.0: blocks that stay, so that the threads that copy load the next tile's operands during this
# tile's epilogue. Four stages take 192 of 227 KiB, and the epilogue's tiles what is left. One block
# of 128 x 256 a multiprocessor has the fastest main loop; of two blocks of 128 x 128 one multiplies
# while the other is in its epilogue, which pays where the epilogue is long.
ONE = dict(block_M=128, block_N=256, block_K=64, num_stages=4, threads=256, blocks=132, per_sm=1)
TWO = dict(block_M=128, block_N=128, block_K=64, num_stages=2, threads=128, blocks=264, per_sm=2,
           rows=64)
# Bytes of a multiprocessor's shared memory (CUDA C++ Programming Guide, technical specifications
# per compute capability); a block loses 1 KiB to the system, and 1 to the compiler's barriers.
SHARED, LOST = 228 * 1024, 2 * 1024


def schedule(sm: int, chosen: Epilogue | None = None, dtype: str = "bfloat16") -> dict[str, Any]:
    """The schedule of an epilogue for a compute capability times 10: that of the nearest one listed
    below it, and on 9.0 one that suits what the epilogue loads and stores.

    chosen: None for a plain store. dtype: of A and B.
    """
    if _listed(sm) == 90 and dtype != "float32":
        for knobs in _hopper(chosen):
            if shared_bytes(chosen, knobs) <= SHARED // knobs["per_sm"] - LOST:
                return knobs
    return plain_schedule(sm, dtype)


def plain_schedule(sm: int, dtype: str = "bfloat16") -> dict[str, Any]:
    """The same without blocks that stay: also for matrices that Hopper's copies do not take."""
    knobs = dict(SCHEDULES[_listed(sm)])
    if (_listed(sm), dtype) == (90, "float32"):
        knobs["block_K"] = 32
    return knobs


def _listed(sm: int) -> int:
    return max(number for number in SCHEDULES if number <= sm)


def _hopper(chosen: Epilogue | None) -> list[dict[str, Any]]:
    """Schedules for 9.0, the most promising first, as measured on an H200 (bfloat16, M = 8192)."""
    operands, outputs = (chosen.operands, chosen.outputs) if chosen else ((), ())
    tiles = [o for o in operands if o.kind == "tile"]
    stores = [ONE | dict(piece=64, in_flight=2), ONE | dict(piece=32, in_flight=2)]
    if any(o.pair for o in tiles):
        return [TWO | dict(piece=64, prefetch=1, in_flight=1),
                TWO | dict(piece=64, prefetch=1, in_flight=1, in_place=True),
                TWO | dict(piece=32, prefetch=1, in_flight=1, in_place=True)]
    if tiles and any(o.kind == "row_reduce" for o in outputs):
        # fewer, wider pieces: each ends a sum among the warps with barriers. Two stages would be
        # too few for the main loop, and four leave no room for the pieces.
        return [ONE | dict(num_stages=3, piece=64, prefetch=1, in_flight=2, in_place=True),
                ONE | dict(piece=32, prefetch=2, in_flight=2, in_place=True)]
    if tiles:
        return [ONE | dict(piece=32, prefetch=2, in_flight=2, in_place=True),
                TWO | dict(piece=32, prefetch=1, in_flight=1, in_place=True)]
    return [*stores, TWO | dict(piece=32, in_flight=1)]


def shared_bytes(chosen: Epilogue | None, knobs: dict[str, Any]) -> int:
    """Shared memory in bytes of a block, for A, B, operands and stores of 16 bits where the
    epilogue does not declare float32."""
    total = 2 * knobs["num_stages"] * (knobs["block_M"] + knobs["block_N"]) * knobs["block_K"]
    rows, sets = knobs.get("rows") or knobs["block_M"], max(1, knobs["in_flight"])
    if chosen is None:
        return total + 2 * rows * knobs["piece"] * sets
    half = 2 if chosen.takes_pairs else 1

    def of_piece(o: Operand | Output) -> int:
        return rows * knobs["piece"] // half * (1 + o.pair) * (4 if o.dtype == "float32" else 2)

    free = [(o.pair, o.dtype) for o in chosen.operands
            if o.kind == "tile" and knobs.get("in_place")]
    for o in chosen.outputs:
        if o.kind == "store":
            total += of_piece(o) * sets
            if (o.pair, o.dtype) in free:
                free.remove((o.pair, o.dtype))
                total -= of_piece(o)
        elif o.kind == "row_reduce":
            total += 4 * rows // GROUP * knobs["piece"] // half
    for o in chosen.operands:
        if o.kind == "tile":
            total += of_piece(o)
        elif o.kind == "rowvec":
            total += (4 if o.dtype == "float32" else 2) * (1 + o.pair) * knobs["block_N"] // half
    return total
