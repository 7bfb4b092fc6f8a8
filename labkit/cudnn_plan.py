"""One plan of a graph, and all plans of a graph on one GPU: as a table, ranked, as a picture."""

from __future__ import annotations

from dataclasses import dataclass, field

from labkit.errors import LabError
from labkit.pictures import Picture
from labkit.table import Table


@dataclass(frozen=True)
class Plan:
    """One plan. index: its place in cuDNN's own ranking, 0 the default; knobs: name -> value;
    notes: what cuDNN says of its behaviour; workspace: bytes, None if it did not build; kernel_ms,
    spread_ms: median and the range from the 10th to the 90th percentile, None if not timed; error:
    relative Frobenius error of its output; failure: why it did not build or run."""

    index: int
    name: str
    engine: int
    knobs: dict[str, int]
    notes: tuple[str, ...] = ()
    workspace: int | None = None
    kernel_ms: float | None = None
    spread_ms: float | None = None
    error: float | None = None
    failure: str = ""

    @property
    def short(self) -> str:
        """The knobs in short, as in "TILE_SIZE 0, TILEK 1"."""
        return ", ".join(f"{name} {value}" for name, value in sorted(self.knobs.items()))


@dataclass(frozen=True)
class Plans:
    """The plans of one graph on one GPU, in cuDNN's order. others: what they are compared with,
    name -> milliseconds of the same run; built_s: seconds that building all of them took."""

    name: str
    gpu: str
    date: str
    origin: str
    shape: dict[str, int]
    dtype: str
    flops: float
    plans: list[Plan]
    others: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    built_s: float | None = None

    @property
    def ranked(self) -> list[Plan]:
        """The timed plans, the fastest first."""
        return sorted((p for p in self.plans if p.kernel_ms is not None),
                      key=lambda p: p.kernel_ms)

    @property
    def default(self) -> Plan:
        """The plan that HEURISTICS_CHOICE takes: the first one that builds."""
        return next(p for p in self.plans if not p.failure)

    @property
    def best(self) -> Plan:
        """The fastest plan. Raises LabError if none was timed."""
        if not self.ranked:
            raise LabError(f"The plans of {self.name} were listed, not timed.")
        return self.ranked[0]

    @property
    def engines(self) -> dict[int, int]:
        """engine -> how many plans it has, the largest first."""
        count: dict[int, int] = {}
        for plan in self.plans:
            count[plan.engine] = count.get(plan.engine, 0) + 1
        return dict(sorted(count.items(), key=lambda item: -item[1]))

    def table(self, most: int = 40) -> Table:
        """The plans, the fastest first; untimed ones in cuDNN's order. At most `most` rows."""
        timed = self.ranked
        rest = [p for p in self.plans if p.kernel_ms is None]
        noted = any(p.notes for p in self.plans)
        rows = [[p.index, p.engine, p.short, _size(p.workspace), *[_notes(p)] * noted]
                + ([f"{p.kernel_ms * 1e3:,.1f}", _rate(self.flops / p.kernel_ms / 1e9)]
                   if p.kernel_ms is not None else [p.failure, ""] if timed else [])
                for p in [*timed, *rest][:most]]
        columns = [">place", ">engine", "knobs", ">workspace", *["notes"] * noted]
        left = len(timed) + len(rest) - len(rows)
        return Table(self._title(), columns + ([">us", ">TFLOP/s"] if timed else []), rows,
                     "Place: in cuDNN's own ranking; 0 is the default."
                     + (f" {left} more plans are not shown." if left > 0 else ""))

    def _title(self) -> str:
        shape = ", ".join(f"{axis} = {size:,}" for axis, size in self.shape.items())
        return (f"{self.name}: {shape}, {self.dtype}, on {self.gpu}, {self.date} ({self.origin})")

    def picture(self) -> Picture:
        """Every timed plan as a dot: place in cuDNN's ranking across, time on a logarithmic axis
        up, colour by engine; `others` as lines. Raises LabError if none was timed."""
        from labkit.cudnn_spread import spread

        return spread(self)

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _size(workspace: int | None) -> str:
    if workspace is None:
        return ""
    return f"{workspace:,} B" if workspace < 10_000 else f"{workspace / 1e6:,.1f} MB"


def _rate(tflops: float) -> str:
    """Two digits at least, so that the slowest plan does not read as none at all."""
    return f"{tflops:,.0f}" if tflops >= 10 else f"{tflops:.2g}"


def _notes(plan: Plan) -> str:
    short = {"RUNTIME_COMPILATION": "compiled here", "CUBLASLT_DEPENDENCY": "cuBLASLt",
             "SUPPORTS_CUDA_GRAPH_NATIVE_API": "CUDA graph"}
    return ", ".join(short.get(note, note) for note in plan.notes)
