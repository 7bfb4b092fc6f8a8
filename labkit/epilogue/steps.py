"""The lines of a generated program that depend on its epilogue: load, compute, reduce, store.

`program` puts them around the main loop.
"""

from __future__ import annotations

from labkit.epilogue.declare import Epilogue, Operand, Output

# finite, so that a row with nothing but -inf gives exp(-inf) = 0 and not exp(nan)
LOWEST = -3.0e38


class Steps:
    """Each method returns lines of the program. An element is what the epilogue's function sees at
    a time: one column of the product, or a pair of columns; a piece has `width` elements in a row,
    the product `columns`, and `column` is the first one of the piece."""

    def __init__(self, epilogue: Epilogue, ragged_M: bool, ragged_N: bool, prefetch: int,
                 in_flight: int, numbers: dict[str, str]) -> None:
        self.epilogue, self.prefetch, self.numbers = epilogue, prefetch, numbers
        self.ragged_M, self.ragged_N, self.in_flight = ragged_M, ragged_N, in_flight
        self.half = " // 2" if epilogue.takes_pairs else ""

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
        members = {False: ("part",), True: ("first", "second")}
        if self.epilogue.takes_pairs:
            fragment("acc_first", piece)
            fragment("acc_second", piece)
        for o in self.epilogue.operands:
            kind = self.numbers[o.name]
            if o.kind == "tile" and self.prefetch == 4 and o is self.operands("tile")[-1]:
                pass
            elif o.kind == "tile" and self.prefetch == 3:
                fragment(f"{o.name}_all", "(block_M, block_N)", kind)
            elif o.kind == "tile" and self.loads:
                for number in range(self.loads):
                    shared(f"{o.name}_tile{number}", f"(rows, {'2 * ' * o.pair}width)", kind)
                    swizzled.append(f"{o.name}_tile{number}: swizzled({o.name}_tile{number})")
                for member in members[o.pair]:
                    fragment(f"{o.name}_{member}", piece, kind)
            elif o.kind == "tile":
                shared(f"{o.name}_tile", f"(rows, {'2 * ' * o.pair}width)", kind)
                swizzled.append(f"{o.name}_tile: swizzled({o.name}_tile)")
                if 0 < self.prefetch < 3:
                    fragment(f"{o.name}_ahead", f"(rows, {'2 * ' * o.pair}width)", kind)
                for member in members[o.pair]:
                    fragment(f"{o.name}_{member}", piece, kind)
            elif o.kind == "rowvec":
                shared(f"{o.name}_tile", f"({'2 * ' * o.pair}block_N{self.half},)", kind)
            elif o.kind == "colvec":
                shared(f"{o.name}_tile", row, kind)
        for name in self.epilogue.indices:
            shared(f"{name}_tile", row, "int32")
        for o in self.epilogue.outputs:
            kind = self.numbers[o.name]
            for member in members[o.pair]:
                fragment(f"{o.name}_{member}", piece, kind)
            if o.kind == "store":
                for number in range(max(1, self.in_flight)):
                    shared(f"{o.name}_tile{number or ''}", f"(rows, {'2 * ' * o.pair}width)",
                           kind)
            elif o.kind == "col_reduce":
                fragment(f"{o.name}_row", row)
                if o.how == "lse":
                    for name in ("top", "before", "added"):
                        fragment(f"{o.name}_{name}", row)
            elif o.kind == "row_reduce":
                shared(f"{o.name}_tile", piece, "float32")
                fragment(f"{o.name}_turned", piece)
                fragment(f"{o.name}_column", "(width,)")
        if swizzled:
            lines.append(f"T.annotate_layout({{{', '.join(swizzled)}}})")
        return "\n".join(lines)

    def ahead(self) -> str:
        """The first piece of each tile operand, on its way to registers."""
        if self.loads:
            return "".join(self._fetch(p) for p in range(self.loads))
        if self.prefetch == 4:
            o = self.operands("tile")[-1]
            return ("for i, j in T.Parallel(block_M, block_N):\n"
                    f"    acc[i, j] = T.Cast(\"float32\", {o.name}[by * block_M + i, bx * block_N + j])\n")
        if self.prefetch == 3:
            lines = []
            for o in self.operands("tile"):
                lines += ["for i, j in T.Parallel(block_M, block_N):",
                          "    acc[i, j] = 0.0",
                          f"    {o.name}_all[i, j] = {o.name}[by * block_M + i, bx * block_N + j]"]
            return "".join(line + "\n" for line in lines)
        return "".join(f"T.copy({o.name}[by * block_M, {self._start(o)}], {o.name}_ahead)\n"
                       for o in self.operands("tile") if self.prefetch)

    def _start(self, o: Operand) -> str:
        """Where a block's columns of an operand begin."""
        if o.pair == bool(self.half):
            return "bx * block_N"
        return "2 * bx * block_N" if o.pair else "bx * block_N // 2"

    def before(self) -> str:
        """What a tile needs once: vectors in shared memory, row results at their start."""
        lines = []
        for o in self.operands("rowvec"):
            lines.append(f"T.copy({o.name}[{self._start(o)}], {o.name}_tile)")
        for name in [o.name for o in self.operands("colvec")] + list(self.epilogue.indices):
            lines.append(f"T.copy({name}[row], {name}_tile)")
        for o in self.of("col_reduce"):
            start = LOWEST if o.how == "max" else 0.0
            lines.append(f"T.fill({o.name}_row, {start})")
            if o.how == "lse":
                lines.append(f"T.fill({o.name}_top, {LOWEST})")
        return "".join(line + "\n" for line in lines)

    def room(self) -> str:
        """Waits until the stores of the piece that used these buffers have been read."""
        if not self.in_flight:
            return ""
        return f"T.tma_store_wait({(self.in_flight - 1) * len(self.of('store'))})\n"

    def _loaded(self):
        tiles = self.operands("tile")
        return [] if self.prefetch == 3 else tiles[:-1] if self.prefetch == 4 else tiles

    def _fetch(self, p: int) -> str:
        return "".join(f"T.async_copy({o.name}[row, {self._start(o)} + {p} * {'2 * ' * o.pair}width], "
                       f"{o.name}_tile{p % self.loads})\n" for o in self.operands("tile"))

    def load(self, number: int = 0) -> str:
        lines = []
        if self.loads:
            tiles = self.operands("tile")
            outstanding = len(tiles) * min(self.loads - 1, self.pieces - 1 - number)
            lines += [f"T.ptx_wait_group({outstanding})", "T.sync_threads()"]
            for o in tiles:
                tile = f"{o.name}_tile{number % self.loads}"
                if o.pair:
                    lines += self._each(f"{o.name}_first[i, j] = {tile}[i, place(j, 0)]",
                                        f"{o.name}_second[i, j] = {tile}[i, place(j, 1)]")
                else:
                    lines.append(f"T.copy({tile}, {o.name}_part)")
            if number + self.loads < self.pieces:
                lines += ["T.sync_threads()", *self._fetch(number + self.loads).splitlines()]
            if self.epilogue.takes_pairs:
                for n, member in enumerate(("first", "second")):
                    lines += self._each(f"acc_{member}[i, j] = acc[r * rows + i, p * piece + place(j, {n})]")
            return "".join(line + "\n" for line in lines)
        for o in self._loaded():
            start = "2 * column" if o.pair else "column"
            source = f"{o.name}_ahead" if 0 < self.prefetch < 3 else f"{o.name}[row, {start}]"
            lines.append(f"T.copy({source}, {o.name}_tile)")
        if 0 < self.prefetch < 3 and self.operands("tile"):
            lines.append("if p + 1 < block_N // piece:")
            for o in self.operands("tile"):
                start = "2 * (column + width)" if o.pair else "column + width"
                lines.append(f"    T.copy({o.name}[row, {start}], {o.name}_ahead)")
            if self.split:
                lines.append("elif r + 1 < block_M // rows:")
                for o in self.operands("tile"):
                    lines.append(f"    T.copy({o.name}[row + rows, {self._start(o)}], {o.name}_ahead)")
        for o in self._loaded():
            if o.pair:
                lines += self._each(
                    f"{o.name}_first[i, j] = {o.name}_tile[i, place(j, 0)]",
                    f"{o.name}_second[i, j] = {o.name}_tile[i, place(j, 1)]")
            else:
                lines.append(f"T.copy({o.name}_tile, {o.name}_part)")
        if self.epilogue.takes_pairs:
            # one loop a member: a loop has one layout, and here it follows from the reading
            for number, member in enumerate(("first", "second")):
                lines += self._each(f"acc_{member}[i, j] = acc[r * rows + i, p * piece + place(j, {number})]")
        return "".join(line + "\n" for line in lines)

    def compute(self) -> str:
        """The call of the epilogue's function for each element, and its results in registers."""
        given = ["(acc_first[i, j], acc_second[i, j])" if self.epilogue.takes_pairs
                 else "acc[r * rows + i, p * piece + j]"]
        given += [self._element(o) for o in self.epilogue.operands]
        lines = [f"out = {self.epilogue.name}(", *(f"    {value}," for value in given), ")"]
        for o in self.epilogue.outputs:
            value = f'out["{o.name}"]'
            if o.pair:
                lines += [f"{o.name}_first[i, j] = {value}[0]",
                          f"{o.name}_second[i, j] = {value}[1]"]
            else:
                lines.append(f"{o.name}_part[i, j] = {self._masked(o, value)}")
        return "".join(line + "\n" for line in self._each(*lines))

    def _element(self, o: Operand) -> str:
        at = "p * width + j"
        if o.kind == "scalar":
            return o.name
        if o.kind == "tile":
            found = ([f"{o.name}_first[i, j]", f"{o.name}_second[i, j]"] if o.pair
                     else [f"{o.name}_part[i, j]"])
            if self.prefetch == 3:
                found = [f"{o.name}_all[r * rows + i, p * piece + j]"]
            if self.prefetch == 4 and o is self.operands("tile")[-1]:
                return "0.0"
        elif o.kind == "colvec":
            found = [f"{o.name}_tile[i]"]
        else:
            found = ([f"{o.name}_tile[place({at}, 0)]", f"{o.name}_tile[place({at}, 1)]"]
                     if o.pair else [f"{o.name}_tile[{at}]"])
        if self.numbers[o.name] != "float32":
            found = [f'T.Cast("float32", {value})' for value in found]
        return f"({', '.join(found)})" if o.pair else found[0]

    def _masked(self, o: Output, value: str) -> str:
        """Beyond the product's edge a sum gets zeros, and a maximum gets -inf."""
        if o.kind == "col_reduce" and self.ragged_N:
            neutral = "0.0" if o.how == "sum" else '-T.infinity("float32")'
            return f"T.if_then_else(column + j < columns, {value}, {neutral})"
        if o.kind == "row_reduce" and self.ragged_M:
            return f"T.if_then_else(row + i < M, {value}, 0.0)"
        return value

    def reduce(self) -> str:
        lines = []
        for o in self.of("select"):
            lines += self._each(f"if {o.how}_tile[i] == column + j:",
                                "    if (row + i < M) & (column + j < columns):",
                                f"        {o.name}[row + i] = {o.name}_part[i, j]")
        for o in self.of("col_reduce"):
            if o.how == "lse":
                lines += self._online_lse(o.name)
            else:
                lines.append(f"T.reduce_{o.how}({o.name}_part, {o.name}_row, dim=1, clear=False)")
        for o in self.of("row_reduce"):
            # through shared memory, so that a thread gets whole columns
            lines += [f"T.copy({o.name}_part, {o.name}_tile)",
                      f"T.copy({o.name}_tile, {o.name}_turned)",
                      f"T.reduce_sum({o.name}_turned, {o.name}_column, dim=0)",
                      "for j in T.Parallel(width):",
                      "    if column + j < columns:",
                      f"        {o.name}[{self.part}, column + j] = {o.name}_column[j]"]
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

    def store(self, number: int = 0) -> str:
        lines = []
        number, copy = number or "", "T.tma_copy" if self.in_flight else "T.copy"
        for o in self.of("store"):
            tile = f"{o.name}_tile{number}"
            if o.pair:
                lines += self._each(f"{tile}[i, place(j, 0)] = {o.name}_first[i, j]",
                                    f"{tile}[i, place(j, 1)] = {o.name}_second[i, j]")
            else:
                lines.append(f"T.copy({o.name}_part, {tile})")
        for o in self.of("store"):
            start = "2 * column" if o.pair else "column"
            lines.append(f"{copy}({o.name}_tile{number}, {o.name}[row, {start}])")
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
