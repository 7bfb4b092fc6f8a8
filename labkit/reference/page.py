"""A page: lines of code with what they gave when the page was made."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.errors import WrongAnswer, first_line
from labkit.table import Table


@dataclass(frozen=True)
class Line:
    """One entry. what: in a few words. code: the line, a few where one cannot hold
    it; it is run. gives: an expression
    of PyTorch that must equal the line's result. shows: instead, an expression whose value is
    shown, and which must be neither empty nor false."""

    what: str
    code: str
    gives: str = ""
    shows: str = ""


@dataclass(frozen=True)
class Ran:
    """A line and what became of it. failure: why it does not do what the page says; "" if it
    does. gave: what is shown."""

    line: Line
    gave: str
    failure: str = ""


@dataclass(frozen=True)
class Page:
    """All lines of one page, as they ran. groups: heading -> its lines."""

    title: str
    groups: dict[str, list[Ran]]
    note: str = ""

    @property
    def lines(self) -> list[Ran]:
        return [ran for group in self.groups.values() for ran in group]

    @property
    def failed(self) -> list[Ran]:
        return [ran for ran in self.lines if ran.failure]

    def check(self) -> str:
        """How many lines ran. Raises WrongAnswer, naming them, if some failed."""
        if self.failed:
            told = "\n".join(f"{ran.line.what}: `{ran.line.code}`: {ran.failure}"
                             for ran in self.failed)
            raise WrongAnswer(f"{len(self.failed)} of {len(self.lines)} lines of the page "
                              f"{self.title!r} do not do what it says:\n{told}")
        return f"{len(self.lines)} lines ran, and each did what the page says."

    def table(self) -> Table:
        rows = []
        for heading, group in self.groups.items():
            rows.append([heading.upper(), "", ""])
            for ran in group:
                first, *more = ran.line.code.split("\n")
                rows.append([ran.line.what, first,
                             f"FAILS: {ran.failure}" if ran.failure else ran.gave])
                rows += [["", text, ""] for text in more]
        return Table(self.title, ["what", "line", "gives"], rows, self.note)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        rows = []
        for heading, group in self.groups.items():
            rows.append(f'<tr><th colspan="3" style="text-align:left;padding:.8em .8em .2em">'
                        f"{escape(heading)}</th></tr>")
            rows += [_row(ran) for ran in group]
        head = "".join(f'<th style="text-align:left;padding:.2em .8em">{name}</th>'
                       for name in ("what", "line", "gives"))
        return (f'<div style="font-weight:600">{escape(self.title)}</div>'
                f'<div style="opacity:.75;max-width:60em">{escape(self.note)}</div>'
                f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(rows)}</table>')


def _row(ran: Ran) -> str:
    code = "font-family:monospace;white-space:pre-wrap;text-align:left"
    gave = (f'<td style="padding:.2em .8em;color:#b00020">FAILS: {escape(ran.failure)}</td>'
            if ran.failure else f'<td style="padding:.2em .8em;{code}">{escape(ran.gave)}</td>')
    return (f'<tr><td style="padding:.2em .8em;text-align:left;min-width:12em">'
            f'{escape(ran.line.what)}</td><td style="padding:.2em .8em;{code}">'
            f"{escape(ran.line.code)}</td>{gave}</tr>")


def failed(line: Line, error: BaseException) -> Ran:
    """The entry of a line that raised."""
    text = first_line(error)
    return Ran(line, "", f"{type(error).__name__}: {text}"[:300])


def compared(line: Line, result: Any, names: dict[str, Any]) -> Ran:
    """The entry of a line whose result is a tensor: right if it equals `line.gives`. A smaller
    expected tensor is compared with that corner of the result."""
    import torch

    from labkit.verify import compare

    try:
        wanted = eval(line.gives, {"torch": torch, "F": torch.nn.functional, **names})
        if not isinstance(wanted, torch.Tensor):
            wanted = torch.tensor(float(wanted))
        result = result.cpu()
        while result.dim() > wanted.dim():
            result = result[0]
        corner = result[tuple(slice(0, size) for size in wanted.shape)]
        verdict = compare(corner, wanted.double(), name="the result")
        if not verdict.ok:
            return Ran(line, "", f"does not give {line.gives}")
        return Ran(line, line.gives)
    except Exception as error:  # whatever a wrong line or expression raises belongs on the page
        return failed(line, error)


def executed(line: Line, names: dict[str, Any]) -> Ran:
    """The entry of a line of plain Python, run in a copy of `names`."""
    import torch

    space = {"torch": torch, **names}
    try:
        exec(line.code, space)
        if line.gives:
            return compared(line, space["Y"], space)
        value = eval(line.shows, space)
        shown = " ".join(str(value).split())
        empty = value is None or value is False or not shown
        return Ran(line, shown, f"{line.shows} is {value!r}" if empty else "")
    except Exception as error:
        return failed(line, error)
