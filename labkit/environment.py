"""What this machine can do for the lessons: each part found, judged, and the command that mends it.

    lab.doctor()              # a table; in a terminal: labkit doctor, labkit doctor --json
    environment.versions()    # the versions alone, without a check

A part is judged by using it: compilers compile and their output runs, packages are imported in
another process, and a five-line TileLang kernel runs on the GPU, or on the CPU if there is none.
`labkit.probes` and `labkit.toolchain` look, `labkit.verdicts` judges.
"""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from labkit import probes, requirements, toolchain
from labkit.verdicts import Item, Seen, judge

__all__ = ["Item", "Report", "doctor", "versions"]


@dataclass(frozen=True)
class Report:
    """What `doctor` found: `items`, in the order in which to mend them. Prints as a table."""

    items: list[Item]

    @property
    def ok(self) -> bool:
        """Whether everything that the lessons need on this machine works."""
        return all(item.good or not item.required for item in self.items)

    @property
    def verdict(self) -> str:
        """One sentence: whether the lessons can run, and on what, or what to mend first."""
        if self.ok:
            gpu = any(item.name == "GPU" and item.status == "ok" for item in self.items)
            return f"Ready: the lessons run on the {'GPU' if gpu else 'CPU'}."
        bad = [item for item in self.items if item.required and not item.good]
        return f"Not ready: {', '.join(item.name for item in bad)}. First: {bad[0].remedy}"

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON types: ok, verdict, items."""
        return {"ok": self.ok, "verdict": self.verdict, "items": [asdict(i) for i in self.items]}

    def __repr__(self) -> str:
        width = max(len(item.name) for item in self.items)
        lines = []
        for item in self.items:
            lines.append(f"{item.name:<{width}}  {item.status:<7}  {item.found}")
            indent = " " * (width + 11)
            if not item.good:
                lines.append(f"{indent}needed: {item.needed}")
            if item.remedy:
                lines.append(f"{indent}mend:   {item.remedy}")
        return "\n".join([*lines, "", self.verdict])

    def _repr_html_(self) -> str:
        # Colours are the notebook's own, so that it reads on light and on dark.
        plain = "border:0;color:inherit;background:none"
        cell = f"{plain};text-align:left;vertical-align:top;padding:.3em 1.5em .3em 0"
        rows = []
        for item in self.items:
            weight = "opacity:.65" if item.good else "font-weight:bold"
            found = escape(item.found)
            if item.remedy:
                found += f"<br><code style='{plain}'>{escape(item.remedy)}</code>"
            rows.append(f"<tr style='{plain};border-top:1px solid rgba(128,128,128,.35)'>"
                        f"<td style='{cell};white-space:nowrap'>{escape(item.name)}</td>"
                        f"<td style='{cell};{weight};white-space:nowrap'>{item.status}</td>"
                        f"<td style='{cell}'>{found}</td>"
                        f"<td style='{cell};opacity:.65'>{escape(item.needed)}</td></tr>")
        return (f"<table style='{plain};border-collapse:collapse'><tbody>{''.join(rows)}</tbody>"
                f"</table><p style='color:inherit'><b>{escape(self.verdict)}</b></p>")


def doctor() -> Report:
    """Checks every part of the environment; takes a few seconds and prints nothing.

    Returns a `Report`; a part that fails is an item of it, never an exception. Raises LabError
    if labkit itself is installed without its list of requirements.
    """
    requirements.packages()
    with ThreadPoolExecutor(max_workers=6) as pool:
        smi = pool.submit(probes.nvidia_smi)
        kit = pool.submit(probes.kit)
        frontend, cudnn = pool.submit(probes.frontend), pool.submit(probes.libcudnn)
        cxx = pool.submit(toolchain.cxx)
        gpus = smi.result().gpus
        nvcc = pool.submit(toolchain.nvcc, gpus[0].capability if gpus else "")
        seen = Seen(smi.result(), kit.result(), cxx.result(), nvcc.result(), frontend.result(),
                    cudnn.result())
    return Report(judge(seen))


def versions() -> dict[str, str]:
    """The versions of what the lessons run on, for reports; imports none of it.

    Keys: python, torch, tilelang, apache-tvm-ffi, cudnn frontend, libcudnn (the pip package),
    cuda toolkit, driver, gpu. A value is "" where there is none.
    """
    smi = probes.nvidia_smi()
    return {
        "python": platform.python_version(),
        "torch": probes.installed("torch"),
        "tilelang": probes.installed("tilelang"),
        "apache-tvm-ffi": probes.installed("apache-tvm-ffi"),
        "cudnn frontend": probes.installed("nvidia-cudnn-frontend"),
        "libcudnn": (probes.installed("nvidia-cudnn-cu13")
                     or probes.installed("nvidia-cudnn-cu12")),
        "cuda toolkit": toolchain.nvcc_version().version,
        "driver": smi.driver,
        "gpu": "; ".join(gpu.name for gpu in smi.gpus),
    }
