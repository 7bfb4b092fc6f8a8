"""The lines of a generated program that depend on its epilogue: load, compute, reduce, store.

`program` puts them around the main loop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from labkit.epilogue.declare import Epilogue, Operand, Output

# finite, so that a row with nothing but -inf gives exp(-inf) = 0 and not exp(nan)
LOWEST = -3.0e38
# the named barrier at which TileLang 0.1.15 lets the consumer warps wait for one another
COMPUTING = 3
# rows that lie in one warp on every architecture: their sum down a column needs no shared memory
GROUP = 16


@dataclass(frozen=True)
class Plan:
    """What of a schedule changes a program's lines, not only its numbers.

    transpose_B: B is [N, K]. persistent: blocks stay for several tiles. swizzle: the order of the
    blocks is changed. registers: they are shared out between the threads that copy and those that
    compute. split: a tile is taken in parts of `rows` rows. prefetch: so many pieces of the tile
    operands are on their way to registers, the first ones since before the main loop. in_flight: 0
    if a piece waits until its stores have left shared memory, else the number of sets of tiles, so
    that they may leave while later pieces are computed; from 9.0 on. in_place: a store takes over
    the shared tile of an operand of its shape and dtype. ragged_M, ragged_N: the tiles do not
    divide M, N, so reductions need a mask. numbers: operand or output -> its dtype in the program.
    """

    transpose_B: bool
    persistent: bool
    swizzle: bool
    registers: bool
    split: bool
    prefetch: int
    in_flight: int
    in_place: bool
    ragged_M: bool
    ragged_N: bool
    numbers: dict[str, str]


class Steps:
    """Each method returns lines of the program. An element is what the epilogue's function sees at
    a time: one column of the product, or a pair of columns; a piece has `rows` rows with `width`
    elements, the product `columns`; `row` and `column` are the first ones of the piece.

    Buffers that a piece's successor needs while this piece still uses them come in sets: `number`
    says which set, and the pieces take turns."""

    def __init__(self, epilogue: Epilogue, plan: Plan) -> None:
        self.epilogue, self.plan, self.numbers = epilogue, plan, plan.numbers
        self.half = " // 2" if epilogue.takes_pairs else ""
        self.sets = max(1, plan.in_flight)
        ahead = max(1, plan.prefetch) if self.operands("tile") else 1
        self.turns = math.lcm(self.sets, ahead)
        self.home: dict[str, str] = {}
        free = self.operands("tile") if plan.in_place else []
        for o in self.of("store"):
            for operand in free:
                if (operand.pair, self.numbers[operand.name]) == (o.pair, self.numbers[o.name]):
                    self.home[o.name] = operand.name
                    free.remove(operand)
                    break

    def of(self, kind: str) -> list[Output]:
        return [output for output in self.epilogue.outputs if output.kind == kind]

    def operands(self, kind: str) -> list[Operand]:
        return [operand for operand in self.epilogue.operands if operand.kind == kind]

    def parameters(self) -> str:
        """The program's parameters after A and B."""
        twice = {False: "columns", True: "2 * columns"}
        lines = []
        for o in self.epilogue.operands:
            kind = self.numbers[o.name]
            shape = {"rowvec": f"({twice[o.pair]},)", "colvec": "(M,)",
                     "tile": f"(M, {twice[o.pair]})", "scalar": ""}[o.kind]
            lines.append(f'{o.name}: T.Tensor({shape}, "{kind}"),' if shape
                         else f"{o.name}: T.{kind},")
        lines += [f'{name}: T.Tensor((M,), "int32"),' for name in self.epilogue.indices]
        for o in self.epilogue.outputs:
            shape = {"store": f"(M, {twice[o.pair]})", "select": "(M,)",
                     "col_reduce": "(T.ceildiv(N, block_N), M)",
                     "row_reduce": "(T.ceildiv(M, rows), columns)"}[o.kind]
            lines.append(f'{o.name}: T.Tensor({shape}, "{self.numbers[o.name]}"),')
        return "\n".join(lines)

    def allocations(self) -> str:
        """Shared tiles and fragments of the epilogue."""
        lines, swizzled = [], []

        def shared(name: str, shape: str, dtype: str) -> None:
            lines.append(f'{name} = T.alloc_shared({shape}, "{dtype}")')

        def fragment(name: str, shape: str, dtype: str = "float32") -> None:
            lines.append(f'{name} = T.alloc_fragment({shape}, "{dtype}")')

        piece, row = "(rows, width)", "(rows,)"
        groups, grouped = f"(rows // {GROUP}, width)", f"(rows // {GROUP}, {GROUP}, width)"
        members = {False: ("part",), True: ("first", "second")}
        if self.epilogue.takes_pairs:
            fragment("acc_first", piece)
            fragment("acc_second", piece)
        for o in self.epilogue.operands:
            kind = self.numbers[o.name]
            if o.kind == "tile":
                shape = f"(rows, {'2 * ' * o.pair}width)"
                for n in range(self.sets if o.name in self.home.values() else 1):
                    shared(self._tile(o, n), shape, kind)
                    swizzled.append(f"{self._tile(o, n)}: swizzled({self._tile(o, n)})")
                for n in range(self.plan.prefetch):
                    fragment(f"{o.name}_ahead{n or ''}", shape, kind)
                for member in members[o.pair]:
                    fragment(f"{o.name}_{member}", piece, kind)
            elif o.kind == "rowvec":
                shared(f"{o.name}_tile", f"({'2 * ' * o.pair}block_N{self.half},)", kind)
                fragment(f"{o.name}_ahead", f"({'2 * ' * o.pair}block_N{self.half},)", kind)
            elif o.kind == "colvec":
                fragment(f"{o.name}_part", row, kind)
        for name in self.epilogue.indices:
            fragment(f"{name}_part", row, "int32")
        for o in self.epilogue.outputs:
            kind = self.numbers[o.name]
            for member in members[o.pair]:
                fragment(f"{o.name}_{member}", grouped if o.kind == "row_reduce" else piece, kind)
            if o.kind == "store" and o.name not in self.home:
                for n in range(self.sets):
                    shared(self._tile(o, n), f"(rows, {'2 * ' * o.pair}width)", kind)
            elif o.kind == "col_reduce":
                fragment(f"{o.name}_row", row)
                if o.how == "lse":
                    for name in ("top", "before", "added"):
                        fragment(f"{o.name}_{name}", row)
            elif o.kind == "row_reduce":
                fragment(f"{o.name}_column", groups)
                shared(f"{o.name}_tile", groups, "float32")
                fragment(f"{o.name}_total", "(width,)")
        if swizzled:
            lines.append(f"T.annotate_layout({{{', '.join(swizzled)}}})")
        return "\n".join(lines)

    def _tile(self, o: Operand | Output, number: int) -> str:
        """The shared tile of a tile operand or a store in set `number`."""
        name = self.home.get(o.name, o.name)
        several = name in self.home.values() or isinstance(o, Output)
        return f"{name}_tile{number % self.sets or '' if several else ''}"

    def ahead(self) -> str:
        """What is on its way to registers while the main loop runs: the first pieces of each tile
        operand, the vectors over columns, and those over rows where the tile is one part."""
        lines = [f"T.copy({o.name}[by * block_M, {self._start(o, n)}], {o.name}_ahead{n or ''})"
                 for n in range(self.plan.prefetch) for o in self.operands("tile")]
        lines += [f"T.copy({o.name}[{self._start(o)}], {o.name}_ahead)"
                  for o in self.operands("rowvec")]
        if not self.plan.split:
            lines += ["row = by * block_M", *self._of_rows()]
        return "".join(line + "\n" for line in lines)

    def _of_rows(self) -> list[str]:
        """Each thread takes the values of its own rows."""
        return [f"T.copy({name}[row], {name}_part)"
                for name in [o.name for o in self.operands("colvec")] + list(self.epilogue.indices)]

    def across(self) -> str:
        """The vectors over columns to shared memory, once a tile."""
        return "".join(f"T.copy({o.name}_ahead, {o.name}_tile)\n"
                       for o in self.operands("rowvec"))

    def _start(self, o: Operand, pieces: int = 0) -> str:
        """Where a block's columns of an operand begin, `pieces` pieces further on."""
        start = "bx * block_N"
        if o.pair != bool(self.half):
            start = "2 * bx * block_N" if o.pair else "bx * block_N // 2"
        return start + (f" + {pieces} * {'2 * ' * o.pair}width" if pieces else "")

    def before(self) -> str:
        """What a part of a tile needs once: its rows' vectors, row results at their start."""
        lines = self._of_rows() if self.plan.split else []
        for o in self.of("col_reduce"):
            start = LOWEST if o.how == "max" else 0.0
            lines.append(f"T.fill({o.name}_row, {start})")
            if o.how == "lse":
                lines.append(f"T.fill({o.name}_top, {LOWEST})")
        return "".join(line + "\n" for line in lines)

    def load(self, number: int) -> str:
        """The piece's tile operands and pairs to registers; waits for the set's stores first."""
        lines, tiles, depth = [], self.operands("tile"), self.plan.prefetch
        if self.home:
            lines += self._room()
        ahead = number % depth or "" if depth else ""
        for o in tiles:
            start = "2 * column" if o.pair else "column"
            source = f"{o.name}_ahead{ahead}" if depth else f"{o.name}[row, {start}]"
            lines.append(f"T.copy({source}, {self._tile(o, number)})")
        if depth and tiles:
            further = "width" if depth == 1 else f"{depth} * width"
            lines.append(f"if p + {depth} < block_N // piece:")
            for o in tiles:
                start = f"2 * (column + {further})" if o.pair else f"column + {further}"
                lines.append(f"    T.copy({o.name}[row, {start}], {o.name}_ahead{ahead})")
            if self.plan.split:
                lines.append("elif r + 1 < block_M // rows:")
                for o in tiles:
                    start = self._start(o, number % depth)
                    lines.append(f"    T.copy({o.name}[row + rows, {start}], "
                                 f"{o.name}_ahead{ahead})")
        for o in tiles:
            tile = self._tile(o, number)
            if o.pair:
                lines += self._each(f"{o.name}_first[i, j] = {tile}[i, place(j, 0)]",
                                    f"{o.name}_second[i, j] = {tile}[i, place(j, 1)]")
            else:
                lines.append(f"T.copy({tile}, {o.name}_part)")
        if self.epilogue.takes_pairs:
            # one loop a member: a loop has one layout, and here it follows from the reading
            for n, member in enumerate(("first", "second")):
                lines += self._each(f"acc_{member}[i, j] = {self._acc(f'place(j, {n})')}")
        return "".join(line + "\n" for line in lines)

    def _acc(self, j: str) -> str:
        return f"acc[{'r * rows + ' * self.plan.split}i, p * piece + {j}]"

    def compute(self) -> str:
        """The call of the epilogue's function for each element, and its results in registers."""
        given = ["(acc_first[i, j], acc_second[i, j])" if self.epilogue.takes_pairs
                 else self._acc("j")]
        given += [self._element(o) for o in self.epilogue.operands]
        lines = [f"out = {self.epilogue.name}(", *(f"    {value}," for value in given), ")"]
        for o in self.epilogue.outputs:
            value = f'out["{o.name}"]'
            if o.pair:
                lines += [f"{o.name}_first[i, j] = {value}[0]",
                          f"{o.name}_second[i, j] = {value}[1]"]
            else:
                at = f"i // {GROUP}, i % {GROUP}, j" if o.kind == "row_reduce" else "i, j"
                lines.append(f"{o.name}_part[{at}] = {self._masked(o, value)}")
        return "".join(line + "\n" for line in self._each(*lines))

    def _element(self, o: Operand) -> str:
        at = "p * width + j"
        if o.kind == "scalar":
            return o.name
        if o.kind == "tile":
            found = ([f"{o.name}_first[i, j]", f"{o.name}_second[i, j]"] if o.pair
                     else [f"{o.name}_part[i, j]"])
        elif o.kind == "colvec":
            found = [f"{o.name}_part[i]"]
        else:
            found = ([f"{o.name}_tile[place({at}, 0)]", f"{o.name}_tile[place({at}, 1)]"]
                     if o.pair else [f"{o.name}_tile[{at}]"])
        if self.numbers[o.name] != "float32":
            found = [f'T.Cast("float32", {value})' for value in found]
        return f"({', '.join(found)})" if o.pair else found[0]

    def _masked(self, o: Output, value: str) -> str:
        """Beyond the product's edge a sum gets zeros, and a maximum gets -inf."""
        if o.kind == "col_reduce" and self.plan.ragged_N:
            neutral = "0.0" if o.how == "sum" else '-T.infinity("float32")'
            return f"T.if_then_else(column + j < columns, {value}, {neutral})"
        if o.kind == "row_reduce" and self.plan.ragged_M:
            return f"T.if_then_else(row + i < M, {value}, 0.0)"
        return value

    def reduce(self) -> str:
        lines = []
        for o in self.of("select"):
            lines += self._each(f"if {o.how}_part[i] == column + j:",
                                "    if (row + i < M) & (column + j < columns):",
                                f"        {o.name}[row + i] = {o.name}_part[i, j]")
        for o in self.of("col_reduce"):
            if o.how == "lse":
                lines += self._online_lse(o.name)
            else:
                lines.append(f"T.reduce_{o.how}({o.name}_part, {o.name}_row, dim=1, clear=False)")
        for o in self.of("row_reduce"):
            # a group's rows lie in one warp, whose threads add them up by shuffles
            lines += [f"T.reduce_sum({o.name}_part, {o.name}_column, dim=1)",
                      f"T.copy({o.name}_column, {o.name}_tile)"]
        return "".join(line + "\n" for line in lines)

    def _online_lse(self, name: str) -> list[str]:
        """A running maximum, and the sum of exp beneath it, rescaled when the maximum grows."""
        return [f"T.copy({name}_top, {name}_before)",
                f"T.reduce_max({name}_part, {name}_top, dim=1, clear=False)",
                *self._each(f"{name}_part[i, j] = T.exp({name}_part[i, j] - {name}_top[i])"),
                f"T.reduce_sum({name}_part, {name}_added, dim=1)",
                "for i in T.Parallel(rows):",
                f"    {name}_row[i] = {name}_row[i] * T.exp({name}_before[i] - {name}_top[i]) + "
                f"{name}_added[i]"]

    def _room(self) -> list[str]:
        """Waits until the stores from this set of tiles have read them. One thread started them,
        so one thread waits for them, and the others for it."""
        if not self.plan.in_flight:
            return []
        pending = (self.sets - 1) * len(self.of("store"))
        return [f"T.tma_store_wait({pending})", f"T.sync_threads({COMPUTING}, threads)"]

    def store(self, number: int) -> str:
        lines = [] if self.home else self._room()
        for o in self.of("store"):
            tile = self._tile(o, number)
            if o.pair:
                lines += self._each(f"{tile}[i, place(j, 0)] = {o.name}_first[i, j]",
                                    f"{tile}[i, place(j, 1)] = {o.name}_second[i, j]")
            else:
                lines.append(f"T.copy({o.name}_part, {tile})")
        copy = "T.tma_copy" if self.plan.in_flight else "T.copy"  # the first does not wait
        for o in self.of("store"):
            start = "2 * column" if o.pair else "column"
            lines.append(f"{copy}({self._tile(o, number)}, {o.name}[row, {start}])")
        part = "by * (block_M // rows) + r" if self.plan.split else "by"
        for o in self.of("row_reduce"):
            # here, as the threads have waited for one another's stores already
            lines += ["for j in T.Parallel(width):",
                      f"    {o.name}_total[j] = {o.name}_tile[0, j]",
                      f"    for i in T.unroll(rows // {GROUP} - 1):",
                      f"        {o.name}_total[j] += {o.name}_tile[i + 1, j]",
                      "    if column + j < columns:",
                      f"        {o.name}[{part}, column + j] = {o.name}_total[j]"]
        return "".join(line + "\n" for line in lines)

    def after(self) -> str:
        """The row results of a tile: one row of partials, so that neighbours lie together."""
        lines = []
        for o in self.of("col_reduce"):
            value = f"{o.name}_row[i]"
            if o.how == "lse":
                value = f"{o.name}_top[i] + T.log({o.name}_row[i])"
            lines += ["for i in T.Parallel(rows):", "    if row + i < M:",
                      f"        {o.name}[bx, row + i] = {value}"]
        return "".join(line + "\n" for line in lines)

    def _each(self, *body: str) -> list[str]:
        return ["for i, j in T.Parallel(rows, width):", *("    " + b for b in body)]
