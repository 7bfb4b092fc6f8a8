"""Schedules for GEMMs with an epilogue that compile without a spill for every epilogue of the
catalogue, by compute capability: 75 is the T4, 80 the A100, 86 and 89 the A10G, L4 and RTX 4090,
90 the H100, 100 the B200, 120 the RTX 5090.

"FullRow" gives each warp whole rows of the tile, so that a sum along a row stays inside a warp and
the accumulator can be taken in pieces of columns.
"""

from __future__ import annotations

# The compiler's options: exp, tanh and division by the fast units. They err by a few float32
# roundings, far below one rounding of a 16-bit output.
OPTIONS = {"tl.enable_fast_math": True}

SCHEDULES = {
    75: dict(block_M=128, block_N=64, block_K=32, num_stages=2, threads=128, piece=32),
    80: dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=64),
    86: dict(block_M=128, block_N=64, block_K=32, num_stages=3, threads=128, piece=32),
    90: dict(block_M=128, block_N=256, block_K=64, num_stages=3, threads=256, panel=16, piece=64),
    100: dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=64),
    120: dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=32),
}
# On a CPU: small, so that small products have ragged edges and several tiles.
CPU = dict(block_M=64, block_N=64, block_K=32, num_stages=1, threads=128, piece=32)


def schedule(sm: int) -> dict[str, int]:
    """The schedule for a compute capability times 10: that of the nearest one listed below it."""
    return dict(SCHEDULES[max(listed for listed in SCHEDULES if listed <= sm)])
