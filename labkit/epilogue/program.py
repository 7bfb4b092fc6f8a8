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
from labkit.epilogue.steps import Plan, Steps

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
REGISTERS = """\
T.annotate_min_blocks_per_sm(per_sm)
T.annotate_producer_reg_dealloc(copying)
T.annotate_consumer_reg_alloc(computing)
"""

MAIN_LOOP = """\
T.clear(acc)
for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
    T.copy(A[by * block_M, k * block_K], A_tile)
    T.copy(B[{B_at}], B_tile)
    T.gemm(A_tile, B_tile, acc, transpose_B={transposed}, policy=policy)
"""


def source(epilogue: Epilogue, name: str, plan: Plan) -> str:
    """The program's text. M, N, K, dtype and the schedule's numbers are names in it."""
    steps = Steps(epilogue, plan)
    grid, block = (("blocks", "b") if plan.persistent else
                   ("T.ceildiv(N, block_N), T.ceildiv(M, block_M)", "(bx, by)"))
    transposed = plan.transpose_B
    text = HEAD.format(
        name=name, grid=grid, block=block, A="(M, K)", B="(N, K)" if transposed else "(K, N)",
        B_tile="(block_N, block_K)" if transposed else "(block_K, block_N)",
        parameters=_indent(steps.parameters(), 1))
    loop = MAIN_LOOP.format(transposed=transposed, B_at="bx * block_N, k * block_K"
                            if transposed else "k * block_K, bx * block_N")
    part = steps.before() + _piece_loop(steps) + steps.after()
    if plan.split:
        part = ("for r in T.unroll(block_M // rows):\n"
                + _indent("row = by * block_M + r * rows\n" + part, 1))
    tile = steps.ahead() + loop + steps.across() + part
    text += _indent(REGISTERS * plan.registers + steps.allocations(), 2)
    if plan.persistent:
        tile = ("for by, bx in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], "
                "blocks, b, group_size=group):\n" + _indent(tile, 1))
    elif plan.swizzle:
        tile = "T.use_swizzle(panel)\n" + tile
    return text + _indent(tile + "T.tma_store_wait(0)\n" * (plan.in_flight > 0), 2)


def _piece_loop(steps: Steps) -> str:
    """One text for each set of buffers: the pieces take the sets in turn."""
    first = "bx * block_N + p * piece"
    column = f"column = ({first}) // 2\n" if steps.half else f"column = {first}\n"
    turns = steps.turns
    bodies = [column + steps.load(n) + steps.compute() + steps.reduce() + steps.store(n)
              for n in range(turns)]
    if turns == 1:
        return "for p in T.unroll(block_N // piece):\n" + _indent(bodies[0], 1)
    text = f"for q in T.unroll(block_N // piece // {turns}):\n"
    for n, body in enumerate(bodies):
        text += _indent(f"p = {turns} * q + {n}\n" + body, 1)
    return text


def _indent(text: str, levels: int) -> str:
    return "".join("    " * levels + line + "\n" for line in text.splitlines())
