"""Wrong answers to every exercise, each with a part of the sentence that its check must say.

An answer is the kit's solution with some text replaced: (what, ((old, new), ...), sentence). Each
old text stands exactly once in the solution.
"""

from __future__ import annotations

Planted = tuple[str, tuple[tuple[str, str], ...], str]

PLANTED: dict[str, list[Planted]] = {}

PLANTED["02.1"] = [
    ("not cleared", (("T.clear(acc)", "pass"),), "an accumulator that was not cleared"),
    ("cleared in the loop", (("            T.clear(acc)  # T.gemm adds to it\n", ""),
                             ("                T.copy(A[", "                T.clear(acc)\n"
                              "                T.copy(A[")), "cleared inside the loop"),
    ("last step left out", (("T.ceildiv(K, block_K)", "K // block_K"),), "last step along K"),
    ("grid rounds down", (("T.ceildiv(N, block_N)", "N // block_N"),),
     "last column of tiles was never written"),
    ("rows left out", (("T.ceildiv(M, block_M)", "T.max(M // block_M, 1)"),),
     "last row of tiles was never written"),
    ("first tile of B again", (("B[bx * block_N, k * block_K]", "B[bx * block_N, 0]"),),
     "index along K is missing"),
    ("axes of B swapped", (("B[bx * block_N, k * block_K]", "B[k * block_K, bx * block_N]"),),
     "output is wrong"),
    ("tile not turned", ((", transpose_B=True", ""),), "shape check failed"),
    ("nothing returned", (("    return main\n", ""),), "returns nothing"),
    ("a name that is not there", (("B_tile, acc, tr", "tile_of_B, acc, tr"),),
     "name 'tile_of_B' is not defined"),
]
PLANTED["02.2"] = [
    ("A of the first", (("A[bz, by", "A[0, by"),), "Every product uses the first A"),
    ("B of the first", (("B[bz, k", "B[0, k"),), "Every product uses the first B"),
    ("not cleared", (("T.clear(acc)", "pass"),), "an accumulator that was not cleared"),
    ("last step left out", (("T.ceildiv(K, block_K)", "K // block_K"),), "last step along K"),
    ("grid rounds down", (("T.ceildiv(M, block_M)", "T.max(1, M // block_M)"),),
     "last row of tiles was never written"),
    ("stored in the first", (("C[bz, by", "C[0, by"),), "rows that no block wrote"),
]
PLANTED["02.3"] = [
    ("swapped", (("T.copy(c, C[", "T.copy(d, C["), ("T.copy(d, D[", "T.copy(c, D[")),
     "changed places"),
    ("G not used", (("T.copy(G[k", "T.copy(B[k"),), "G is not used"),
    ("second not cleared", (("            T.clear(d)\n", ""),), "output 1 is wrong"),
    ("one accumulator", (("G_tile, d)", "G_tile, c)"), ("T.copy(d, D", "T.copy(c, D")),
     "one accumulator"),
    ("A read twice", (("                T.gemm(A_tile, G_tile, d)",
                       "                T.copy(A[by * block_M, k * block_K], A_tile)\n"
                       "                T.gemm(A_tile, G_tile, d)"),),
     "reads A in 2 places, where 1 will do"),
    ("too large for a T4", (("128, 64, 32", "128, 128, 128"),),
     "of shared memory a block, and the T4 gives 64 KiB"),
    ("spills", (("128, 64, 32", "128, 128, 32"),), "are spilled to memory"),
]
