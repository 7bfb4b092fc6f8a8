"""What a block did, step by step: the result of `lab.step_through`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import BadArgument
from labkit.listing import Section
from labkit.pictures import Picture
from labkit.table import Table


@dataclass(frozen=True)
class Buffer:
    """A buffer of the block, or the part of a tensor that the block changed.

    scope: "shared", "fragment", "local" (an array that each GPU thread has for itself),
    "variable", or "global". shape: of the values kept. part: for a tensor, the slices of it, as in
    "[32:64, 0:64]"; else "".
    """

    name: str
    scope: str
    shape: tuple[int, ...]
    dtype: str
    part: str = ""

    def __str__(self) -> str:
        size = " x ".join(map(str, self.shape)) or "1"
        return f"{self.name}{self.part}: {self.scope}, {size} {self.dtype}"


@dataclass(frozen=True)
class Step:
    """The block after one tile operation.

    number: from 0. file, line, last: where the statement stands; last is its last line. text: the
    statement on one line. loops: name -> value of the loop indices around it, the outermost
    first. changed: the names of the buffers that it wrote.
    values: name -> numpy array, the contents of each buffer after the step, read only. bfloat16
    comes as float32, which holds each of its values exactly.
    unset: name -> boolean array, where the element is NaN, or was never written (of a tensor: by
    this block).
    """

    number: int
    file: str | None
    line: int | None
    last: int | None
    text: str
    loops: Mapping[str, int]
    changed: tuple[str, ...]
    values: Mapping[str, Any] = field(repr=False)
    unset: Mapping[str, Any] = field(repr=False)

    @property
    def place(self) -> str:
        """As in "line 21, k = 3"."""
        said = [f"line {self.line}"] if self.line else []
        return ", ".join([*said, *(f"{name} = {value}" for name, value in self.loops.items())])

    def range(self, name: str) -> str:
        """The smallest and largest number in a buffer, and how many elements are unset, as in
        "-1.5 to 3, 12 NaN"."""
        return ", ".join(filter(None, self.said(name)))

    def said(self, name: str) -> tuple[str, str]:
        """The two parts of `range`."""
        values, unset = self.values[name], self.unset[name]
        missing, blank = int(unset.sum()), values[unset]
        word = "NaN" if values.dtype.kind == "f" and (blank != blank).all() else "never written"
        if missing == values.size:
            return f"all {word}", ""
        known = values[~unset]
        low, high = known.min(), known.max()
        span = number(low) if low == high else f"{number(low)} to {number(high)}"
        return span, f"{missing:,} {word}" if missing else ""


def number(value: Any) -> str:
    """A number in at most three digits."""
    text = f"{float(value):.3g}"
    return {"inf": "∞", "-inf": "-∞", "nan": "NaN", "-0": "0"}.get(text, text)


class Steps(Sequence):
    """The steps of one block, in order: `len(steps)`, `steps[3]`, `steps[-1]`.

    name: of the program. block, grid: the block's index and the grid's size, x first. buffers:
    name -> Buffer. total: how many steps the block took; at most the first `most` are kept.
    outputs: the tensors that the program wrote, by name, with this block's part in them; what no
    other step or block wrote is NaN in those that the call made. sections: the source.
    """

    def __init__(self, name: str, block: tuple[int, ...], grid: tuple[int, ...],
                 buffers: dict[str, Buffer], steps: list[Step], total: int,
                 outputs: dict[str, Any], sections: list[Section]) -> None:
        self.name, self.block, self.grid, self.buffers = name, block, grid, buffers
        self.total, self.outputs, self.sections = total, outputs, sections
        self._steps = steps

    def __len__(self) -> int:
        return len(self._steps)

    def __getitem__(self, index: Any) -> Any:
        try:
            return self._steps[index]
        except IndexError:
            raise IndexError(f"There is no step {index}; the steps are 0 to {len(self) - 1}."
                             ) from None

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def title(self) -> str:
        """As in "main, block (0, 1) of 2 x 3: 25 steps"."""
        at = str(self.block) if len(self.block) > 1 else str(self.block[0])
        kept = (f"the first {len(self):,} of {self.total:,} steps" if len(self) < self.total
                else f"{self.total:,} step{'' if self.total == 1 else 's'}")
        return f"{self.name}, block {at} of {' x '.join(map(str, self.grid))}: {kept}"

    def find(self, text: str = "", **loops: int) -> Step:
        """The first step whose statement contains `text` and whose loop indices are these, as in
        find("T.gemm", k=2). Raises BadArgument if there is none."""
        for step in self:
            if text in step.text and loops.items() <= dict(step.loops).items():
                return step
        wanted = ", ".join([repr(text), *(f"{name} = {value}" for name, value in loops.items())])
        seen = ", ".join(dict.fromkeys(name for step in self for name in step.loops))
        raise BadArgument(f"No step of {self.name} fits {wanted}; its loop indices are "
                          f"{seen or 'none'}, and .table() lists its statements.")

    def table(self, first: int = 0, count: int = 50) -> Table:
        """A line for each step: its number, place, statement, and the buffers that it wrote."""
        rows = []
        for step in self[first:first + count]:
            wrote = "; ".join(f"{name}: {step.range(name)}" for name in step.changed)
            loops = ", ".join(f"{name} = {value}" for name, value in step.loops.items())
            text = step.text if len(step.text) <= 80 else step.text[:79] + "…"
            rows.append([step.number, step.line or "", loops, text, wrote])
        left = len(self) - first - len(rows)
        more = f"{left:,} more: table(first={first + len(rows)})." if left > 0 else ""
        return Table(self.title, [">step", ">line", "loop", "statement", "wrote"], rows, more)

    def picture(self, step: int | Step = 0) -> Picture:
        """One step as a picture: its statement in the source, and the buffers as heat maps."""
        from labkit.step_pictures import picture

        return picture(self, self.at(step))

    def show(self, step: int | Step = 0) -> Any:
        """The steps with a slider, and this one first; where no widget runs, its picture."""
        from labkit.widgets.stepper import Stepper

        return Stepper(self, self.at(step).number)

    def at(self, step: int | Step) -> Step:
        """The step of this number, or a step of these itself. Raises BadArgument."""
        if isinstance(step, Step) and step in self._steps[step.number:step.number + 1]:
            return step
        if not isinstance(step, int) or isinstance(step, bool) or \
                not -len(self) <= step < len(self):
            raise BadArgument(f"step is {step if isinstance(step, int) else type(step).__name__}; "
                              f"give a number from 0 to {len(self) - 1}, or one of these steps.")
        return self._steps[step]

    def __repr__(self) -> str:
        return self.title

    def _repr_mimebundle_(self, **more: Any) -> dict[str, Any]:
        return self.show()._repr_mimebundle_(**more)
