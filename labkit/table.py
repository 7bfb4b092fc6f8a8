"""A table that reads well as text and, in a notebook, as HTML in the reader's own theme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Table:
    """Rows under columns, with a title above and a note below.

    columns: names; one that starts with ">" is set flush right. rows: cells as text.
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]],
                 note: str = "") -> None:
        self.title, self.note = title, note
        self.right = [column.startswith(">") for column in columns]
        self.columns = [column.removeprefix(">") for column in columns]
        self.rows = [["" if cell is None else str(cell) for cell in row] for row in rows]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]

        def line(cells: Sequence[str]) -> str:
            set_flush = [cell.rjust(width) if right else cell.ljust(width)
                         for cell, width, right in zip(cells, widths, self.right, strict=True)]
            return "  ".join(set_flush).rstrip()

        body = [line(self.columns), "  ".join("-" * width for width in widths),
                *(line(row) for row in self.rows)]
        return "\n".join([*([self.title] if self.title else []), *body,
                          *([self.note] if self.note else [])])

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(
                f'<{tag} style="text-align:{"right" if right else "left"};padding:.2em .8em">'
                f"{escape(cell)}</{tag}>" for cell, right in zip(cells, self.right, strict=True)
            ) + "</tr>"

        title = f'<div style="font-weight:600">{escape(self.title)}</div>' if self.title else ""
        note = (f'<div style="opacity:.75;max-width:60em;white-space:pre-line">'
                f"{escape(self.note)}</div>" if self.note else "")
        return (f'{title}<table style="border-collapse:collapse"><thead>{row(self.columns, "th")}'
                f'</thead><tbody>{"".join(row(r, "td") for r in self.rows)}</tbody></table>{note}')
