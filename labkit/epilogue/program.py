"""Writes the TileLang program of a GEMM with an epilogue.

The main loop below is the only one there is. What an epilogue does not use is not in the program:
no operand, no tile, no loop. Each epilogue works through the accumulator in pieces of some columns:

    load     operands of the piece: global -> shared memory -> registers
    compute  the epilogue's function, on registers only
    reduce   partial results of each row, or of each column
    store    registers -> shared memory (rounded) -> global memory

Loads, arithmetic and stores stand in loops of their own: a loop that reads and writes shared memory
gets a barrier in every iteration, and one that touches registers only is vectorised.
"""

from __future__ import annotations

from labkit.epilogue.declare import Epilogue
from labkit.epilogue.steps import Steps

HEAD = """\
@T.prim_func
def {name}(
    A: T.Tensor({A}, dtype),
    B: T.Tensor({B}, dtype),
{parameters}):
    with T.Kernel({grid}, threads=threads) as {block}:
        A_tile = T.alloc_shared((block_M, block_K), dtype)
        B_tile = T.alloc_shared({B_tile}, dtype)
        acc = T.alloc_fragment((block_M, block_N), "float32")
"""

# from 9.0 on the compiler adds a group of threads that copy; registers are shared out between them
SEVERAL_PER_SM = """\
T.annotate_min_blocks_per_sm(per_sm)
T.annotate_producer_reg_dealloc(copying)
T.annotate_consumer_reg_alloc(registers)
"""

MAIN_LOOP = """\
T.clear(acc)
for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
    T.copy(A[by * block_M, k * block_K], A_tile)
    T.copy(B[{B_at}], B_tile)
    T.gemm(A_tile, B_tile, acc, transpose_B={transposed}, policy=policy)
"""


def source(epilogue: Epilogue, *, name: str, transpose_B: bool, persistent: bool, swizzle: bool,
           several: bool, prefetch: int, in_flight: int, stagger: int, loads: int, pieces: int, split: bool, ragged_M: bool, ragged_N: bool,
           numbers: dict[str, str]) -> str:
    """The program's text. M, N, K, dtype and the schedule's numbers are names in it.

    transpose_B: B is [N, K]. persistent: blocks stay for several tiles. swizzle: the order of the
    blocks is changed. several: more than one block is to fit a multiprocessor. prefetch: 1 to
    fetch the next piece of the tile operands to registers while this one is computed, 2 to fetch
    the first one before the main loop, too. ragged_M, ragged_N: the tiles do not divide M, N, so
    reductions need a mask.
    numbers: operand or output -> its dtype in the program.
    """
    steps = Steps(epilogue, ragged_M, ragged_N, prefetch, in_flight, numbers)
    steps.loads, steps.pieces, steps.split = loads, pieces, split
    steps.part = 'by * (block_M // rows) + r' if split else 'by'
    grid, block = (("blocks", "b") if persistent else
                   ("T.ceildiv(N, block_N), T.ceildiv(M, block_M)", "(bx, by)"))
    text = HEAD.format(
        name=name, grid=grid, block=block, A="(M, K)", B="(N, K)" if transpose_B else "(K, N)",
        B_tile="(block_N, block_K)" if transpose_B else "(block_K, block_N)",
        parameters=_indent(steps.parameters(), 1))
    loop = MAIN_LOOP.format(transposed=transpose_B, B_at="bx * block_N, k * block_K"
                            if transpose_B else "k * block_K, bx * block_N")
    if prefetch == 4:
        loop = loop.replace("T.clear(acc)\n", "")
    first = loop + steps.ahead() if prefetch < 2 and not loads else steps.ahead() + loop
    rest = "row = by * block_M + r * rows\n" + steps.before() + _piece_loop(steps) + steps.after()
    if split:
        rest = "for r in T.unroll(block_M // rows):\n" + _indent(rest, 1)
    else:
        rest = rest.replace("row = by * block_M + r * rows", "row = by * block_M").replace("acc[r * rows + i", "acc[i").replace("_all[r * rows + i", "_all[i")
    tile = first + rest
    text += _indent(SEVERAL_PER_SM * several + steps.allocations(), 2)
    drain = "T.tma_store_wait(0)\n" * (in_flight > 0)
    if stagger:
        text += _indent(f'if b >= blocks // 2:\n    T.call_extern("handle", "__nanosleep", {stagger})\n', 2)
    if persistent:
        order = ("for by, bx in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], "
                 "blocks, b, group_size=group):\n")
        return text + _indent(order, 2) + _indent(tile, 3) + _indent(drain, 2)
    return text + _indent("T.use_swizzle(panel)\n" * swizzle + tile + drain, 2)


def _piece_loop(steps: Steps) -> str:
    first = "bx * block_N + p * piece"
    column = f"column = ({first}) // 2\n" if steps.half else f"column = {first}\n"
    several = steps.pieces if steps.loads else max(1, steps.in_flight)
    bodies = [column + steps.load(number) + steps.compute() + steps.reduce() + steps.room()
              + steps.store(number % max(1, steps.in_flight)) for number in range(several)]
    if steps.loads:
        return "".join(f"p = {number}\n" + body for number, body in enumerate(bodies))
    if several == 1:
        return "for p in T.unroll(block_N // piece):\n" + _indent(bodies[0], 1)
    text = f"for q in T.unroll(block_N // piece // {several}):\n"
    for number, body in enumerate(bodies):
        text += _indent(f"p = {several} * q + {number}\n" + body, 1)
    return text


def _indent(text: str, levels: int) -> str:
    return "".join("    " * levels + line + "\n" for line in text.splitlines())
