"""A GEMM with an epilogue: from a declared epilogue to a program, and from tensors to results.

    program = gemm(residual_rms)(M, N, K, dtype="bfloat16", **schedule(90))   # a @T.prim_func
    print(gemm(residual_rms).source(M, N, K, dtype="bfloat16"))               # its text

`lab.compile`, `lab.cross_compile` and the other tools take the program as they take any other.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import linecache
import math
from typing import Any

from labkit import parsing
from labkit.epilogue import pairs
from labkit.epilogue.declare import Epilogue, epilogue
from labkit.epilogue.program import source as program_source
from labkit.epilogue.steps import GROUP, Plan
from labkit.errors import BadArgument

KNOBS = dict(block_M=128, block_N=128, block_K=32, num_stages=2, threads=128, panel=10,
             warps="FullRow", rows=0, piece=64, prefetch=0, in_flight=0, in_place=False, blocks=0,
             group=8, per_sm=0)
_MAY_BE_ZERO = {"panel", "rows", "prefetch", "in_flight", "in_place", "blocks", "per_sm",
                "num_stages"}


@epilogue(store=["C"])
def plain(acc):
    """The product itself."""
    return dict(C=acc)


class Gemm:
    """A builder of programs for one epilogue; made by `gemm`."""

    def __init__(self, chosen: Epilogue) -> None:
        self.epilogue = chosen

    def __repr__(self) -> str:
        return f"gemm({self.epilogue.name})"

    @property
    def out_idx(self) -> list[int]:
        """Where the outputs stand among the program's parameters, for `lab.compile`."""
        return list(range(-len(self.epilogue.outputs), 0))

    def source(self, M: int, N: int, K: int, dtype: str = "float16", transpose_B: bool = False,
               **schedule: Any) -> str:
        """The text of the program that the same call builds."""
        knobs = self._checked(M, N, K, dtype, schedule)
        numbers = {o.name: o.dtype or dtype for o in (*self.epilogue.operands,
                                                      *self.epilogue.outputs)}
        plan = Plan(
            transpose_B=transpose_B, persistent=knobs["blocks"] > 0, swizzle=knobs["panel"] > 0,
            registers=knobs["per_sm"] > 0, split=knobs["rows"] < knobs["block_M"],
            prefetch=knobs["prefetch"], in_flight=knobs["in_flight"], 
            in_place=knobs["in_place"] > 0,
            ragged_M=M % knobs["block_M"] > 0, ragged_N=N % knobs["block_N"] > 0, numbers=numbers)
        return program_source(self.epilogue, f"gemm_{self.epilogue.name}", plan)

    def __call__(self, M: int, N: int, K: int, dtype: str = "float16", transpose_B: bool = False,
                 **schedule: Any) -> Any:
        """The program: A [M, K] and B [K, N] (transpose_B: [N, K]) of `dtype`, then the epilogue's
        operands, then its outputs; products are summed in float32.

        With C columns of elements (N, or N / 2 where the product comes as pairs), and twice as
        many for an operand or output that is a pair: rowvec [C], colvec [M], tile and store
        [M, C], select [M], col_reduce [ceil(N / block_N), M], row_reduce [ceil(M / block_M), C]: a
        reduction's partial results, one row a tile (row_reduce: one a part of `rows` rows), for
        `labkit.epilogue.finalize`.

        schedule: block_M, block_N, block_K, num_stages, threads; panel: the order of the blocks
        (0: plain); warps: the warp policy's name. The epilogue works on pieces of `rows` rows (0:
        block_M) and `piece` columns of the product: give rows=64 for each 128 threads on 9.0, where
        a thread's values of more rows do not lie together. prefetch: so many pieces of the tile
        operands are on their way to registers, the first ones since before the main loop.
        in_flight: above 0, from 9.0 on, stores leave shared memory while later pieces are computed,
        from so many sets of tiles; in_place: a store takes over an operand's tile of its shape.
        blocks: above 0, so many blocks stay for all tiles, in an order of `group` columns of tiles;
        per_sm: above 0, from 9.0 on, registers are shared out between the threads that copy and
        those that compute, so that so many blocks fit a multiprocessor.
        Raises BadArgument for sizes or knobs that do not fit.
        """
        import tilelang.language as T
        from tilelang.layout import make_swizzled_layout

        knobs = self._checked(M, N, K, dtype, schedule)
        text = self.source(M, N, K, dtype, transpose_B, **schedule)
        names = dict(knobs, M=M, N=N, K=K, dtype=dtype, T=T, place=pairs.place,
                     swizzled=make_swizzled_layout, policy=T.GemmWarpPolicy[knobs["warps"]],
                     __name__="labkit.epilogue.generated")
        names["copying"], names["computing"] = _registers(knobs["per_sm"], knobs["threads"])
        # T.Persistent rounds the columns of tiles up to whole groups, and computes what is beyond
        columns = -(-N // knobs["block_N"])
        names["group"] = max(g for g in range(1, knobs["group"] + 1) if columns % g == 0)
        members = 2 if self.epilogue.takes_pairs else 1  # columns of the product to an element
        names |= {self.epilogue.name: self.epilogue.fn, "columns": N // members,
                  "width": knobs["piece"] // members}
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        # TileLang reads a program's text from its file, so the text gets one in Python's own cache
        path = f"<gemm_{self.epilogue.name} {digest}>"
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        with parsing.LOCK:
            exec(compile(text, path, "exec"), names)
        return names[f"gemm_{self.epilogue.name}"]

    def _checked(self, M: int, N: int, K: int, dtype: str, schedule: dict[str, Any]) -> dict:
        unknown = [knob for knob in schedule if knob not in KNOBS]
        if unknown:
            raise BadArgument(f"{unknown[0]} is no knob of {self!r}; the knobs are "
                              f"{', '.join(KNOBS)}.")
        knobs = KNOBS | schedule
        for name, value in knobs.items():
            least = 0 if name in _MAY_BE_ZERO else 1
            if name != "warps" and not (isinstance(value, int) and value >= least):
                raise BadArgument(f"{name} is {value!r}; give a whole number of at least {least}.")
        if knobs["warps"] not in ("FullRow", "FullCol", "Square"):
            raise BadArgument(f"warps is {knobs['warps']!r}; give FullRow, FullCol or Square.")
        for name, value in dict(M=M, N=N, K=K).items():
            if not isinstance(value, int) or value < 1:
                raise BadArgument(f"{name} is {value!r}; give a whole number of at least 1.")
        if dtype not in ("float16", "bfloat16", "float32"):
            raise BadArgument(f"dtype is {dtype!r}; a GEMM with an epilogue takes float16, "
                              "bfloat16 or float32.")
        knobs["piece"] = min(knobs["piece"], knobs["block_N"])
        named = "rows" if knobs["rows"] else "block_M"
        knobs["rows"] = knobs["rows"] or knobs["block_M"]
        grain = 2 * pairs.GROUP
        if knobs["block_N"] % knobs["piece"] or knobs["piece"] % grain:
            raise BadArgument(f"piece is {knobs['piece']}; give a multiple of {grain} that divides "
                              f"block_N = {knobs['block_N']}.")
        if knobs["block_M"] % knobs["rows"]:
            raise BadArgument(f"rows is {knobs['rows']}; give a number that divides block_M = "
                              f"{knobs['block_M']}, or 0 for all of it.")
        if knobs["rows"] % GROUP and any(o.kind == "row_reduce" for o in self.epilogue.outputs):
            raise BadArgument(f"{named} is {knobs['rows']}, but {self.epilogue.name} sums over "
                              f"rows; give a multiple of {GROUP}.")
        pieces = knobs["block_N"] // knobs["piece"]
        tiles = any(o.kind == "tile" for o in self.epilogue.operands)
        turns = math.lcm(max(1, knobs["in_flight"]), max(1, knobs["prefetch"] * tiles))
        if pieces % turns:
            raise BadArgument(f"A tile has {pieces} pieces, but prefetch = {knobs['prefetch']} and "
                              f"in_flight = {knobs['in_flight']} take turns of {turns}; give "
                              "numbers that divide the pieces.")
        if pieces == turns > 1 and knobs["rows"] == knobs["block_M"]:
            # TileLang 0.1.15 lays out a fragment that takes a constant part of a larger one as if
            # it had the larger one's size, and copies registers that nobody wrote
            raise BadArgument(f"A tile has {pieces} pieces, as many as the turns that prefetch = "
                              f"{knobs['prefetch']} and in_flight = {knobs['in_flight']} take; "
                              "give smaller numbers, or a smaller piece.")
        if self.epilogue.takes_pairs and N % grain:
            raise BadArgument(f"N is {N}, but {self.epilogue.name} takes pairs of columns; give a "
                              f"multiple of {grain}.")
        paired = [o.name for o in (*self.epilogue.operands, *self.epilogue.outputs) if o.pair]
        if paired and N % pairs.GROUP:
            raise BadArgument(f"N is {N}, but {paired[0]} holds pairs; give a multiple of "
                              f"{pairs.GROUP}.")
        return knobs


def _registers(per_sm: int, threads: int) -> tuple[int, int]:
    """Registers of a thread that copies and of one that computes, if per_sm blocks share a
    multiprocessor's 65,536: multiples of 8, and 240 at most."""
    copying = 24 if per_sm > 1 else 40
    return copying, min(240, (65_536 // max(1, per_sm) - 128 * copying) // threads // 8 * 8)


@functools.cache
def gemm(chosen: Epilogue = plain) -> Gemm:
    """The builder of GEMMs that end in `chosen`; without it, in a plain store.

    Raises BadArgument for anything but a function that `@epilogue` declared.
    """
    if not isinstance(chosen, Epilogue):
        hint = (", as in @epilogue(store=[\"y\"])" if inspect.isfunction(chosen) else "")
        raise BadArgument(f"gemm takes a declared epilogue, not {type(chosen).__name__}; put "
                          f"@epilogue above the function{hint}.")
    return Gemm(chosen)
