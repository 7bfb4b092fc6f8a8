"""In which order the tiles of C are computed: closed forms, whatever their number."""

from __future__ import annotations

from labkit.widgets.view_marks import counts

Boxes = list[tuple[int, int, int, int]]


def wave_counts(blocks: int, slots: int) -> tuple[int, int, float]:
    """(waves, blocks in the last one, share of the slots' time that is idle), if every block
    takes as long as every other. Without slots, (0, 0, 0)."""
    if not slots or not blocks:
        return 0, 0, 0.0
    number = -(-blocks // slots)
    return number, blocks - (number - 1) * slots, (number * slots - blocks) / (number * slots)


def first_blocks(rows: int, columns: int, number: int, panel: int | None = 0,
                 group: int = 0) -> Boxes:
    """The tiles of C that the first `number` blocks in launch order compute, as at most three
    boxes (row, column, rows, columns).

    panel: of `T.use_swizzle`; TileLang's `rasterization2DRow<panel>` takes `panel` tile rows
    together, column by column, and walks every second panel backwards
    (tl_templates/cuda/threadblock_swizzle.h). None or 0: the plain order, row by row.
    group: of `T.Persistent`, which takes `group` tile columns together, row by row, and hands out
    also the columns that the last group lacks (`PersistentFor` in TileLang's ir.cc); 0: none.
    """
    counts(1, rows=rows, columns=columns)
    counts(0, number=number, panel=panel or 0, group=group)
    if group:
        return _grouped(rows, columns, number, min(group, columns))
    number, backwards = min(number, rows * columns), bool(panel)
    height = min(panel or 1, rows)
    index, rest = divmod(number, height * columns)
    start = index * height
    boxes: Boxes = [(0, 0, min(start, rows), columns)] if start else []
    height = min(height, rows - start)
    if not rest or not height:
        return boxes
    turned = backwards and index % 2
    full, part = divmod(rest, height)
    if full:
        boxes.append((start, columns - full if turned else 0, height, full))
    if part:
        boxes.append((start, columns - 1 - full if turned else full, part, 1))
    return boxes


def _grouped(rows: int, columns: int, number: int, wide: int) -> Boxes:
    index, rest = divmod(number, rows * wide)
    start = index * wide
    boxes: Boxes = [(0, 0, rows, min(start, columns))] if start else []
    wide_here = min(wide, columns - start)
    full, part = divmod(rest, wide)
    if full and wide_here > 0:
        boxes.append((0, start, full, wide_here))
    if part and wide_here > 0:
        boxes.append((full, start, 1, min(part, wide_here)))
    return boxes


def strips(rows: int, columns: int, number: int, panel: int | None = 0,
           group: int = 0) -> tuple[int, int]:
    """How many tile rows of A and tile columns of B the first `number` blocks read together."""
    boxes = first_blocks(rows, columns, number, panel, group)
    a_rows = max((r + h for r, _, h, _ in boxes), default=0)
    if group:  # columns are taken from the left on
        return a_rows, max((c + w for _, c, _, w in boxes), default=0)
    taken = [(c, c + w) for _, c, _, w in boxes]
    if any(w == columns for *_, w in boxes):
        return a_rows, columns
    return a_rows, sum(stop - start for start, stop in set(taken)) if taken else 0
