"""The report of a run as one HTML file without scripts or outside resources."""

from __future__ import annotations

import os
from collections import Counter
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from labkit.report import Result, RunReport

STATUSES = ("passed", "failed", "timed_out", "crashed", "skipped")


def label(status: str) -> str:
    """`status` as it is shown."""
    return status.replace("_", " ")


def page(report: RunReport) -> str:
    """The report as one HTML file without scripts or outside resources."""
    count = Counter(result.status for result in report.lessons)
    tiles = "".join(f'<li class="{s}"><b>{count[s]}</b> {label(s)}</li>'
                    for s in STATUSES if count[s])
    longest = max([result.seconds for result in report.lessons] or [0]) or 1
    rows = "\n".join(_row(result, longest) for result in report.lessons)
    total = sum(result.seconds for result in report.lessons)
    state = _when(report.finished) if report.finished else "still running"
    if report.interrupted:
        state += ", interrupted"
    facts = {"started": _when(report.started), "finished": state, "time": _duration(total),
             "device": report.device, "compiled for": report.gpu or "the default GPU",
             "sizes": "quick" if report.quick else "full"}
    if report.resumed:
        facts["resumed"] = ", ".join(map(_when, report.resumed))
    if report.waiting:
        facts["still to run"] = str(len(report.waiting))
    versions = {"labkit": report.labkit, **report.versions}
    return _PAGE.format(css=_CSS, tiles=tiles, rows=rows, facts=_terms(facts),
                        versions=_terms(versions), summary=escape(report.summary))


def _row(result: Result, longest: float) -> str:
    name = f"<b>{escape(result.lesson)}</b>"
    if result.notebook:
        name = f'<a href="{escape(quote(os.fsencode(result.notebook)))}">{name}</a>'
    if result.title:
        name += f"<small>{escape(result.title)}</small>"
    ran = result.seconds > 0
    seconds = f"{result.seconds:.1f}" if ran else "–"
    share = 100 * result.seconds / longest
    bar = f'<span class="bar"><i style="width:{share:.1f}%"></i></span>' if ran else ""
    return (f'<tr class="{result.status}"><th scope="row">{name}</th>'
            f'<td><span class="pill">{label(result.status)}</span></td>'
            f'<td class="seconds">{seconds}{bar}</td>'
            f"<td>{escape(result.device)}</td><td>{_note(result)}</td></tr>")


def _note(result: Result) -> str:
    note = _problem(result.error) if result.error else escape(result.reason or "")
    if result.log and result.error:
        note += f'<a href="{escape(quote(os.fsencode(result.log)))}">the kernel\'s log</a>'
    if result.attempts:
        if not result.error:
            note += f"passed at attempt {len(result.attempts) + 1}"
        note += "".join(f"<details><summary>attempt {number}</summary>{_problem(error)}</details>"
                        for number, error in enumerate(result.attempts, 1))
    return note


def _problem(error: dict[str, Any]) -> str:
    cell = error["cell"]
    where = "" if cell is None else f'<span class="cell">cell {cell}</span> '
    return f"{where}<b>{escape(error['name'])}</b><pre>{escape(error['message'])}</pre>"


def _terms(facts: dict[str, str]) -> str:
    return "".join(f"<div><dt>{escape(str(term))}</dt><dd>{escape(str(fact)) or '–'}</dd></div>"
                   for term, fact in facts.items())


def _when(iso: str) -> str:
    return iso[:19].replace("T", " ")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>labkit run: {summary}</title>
<style>{css}</style>
</head>
<body>
<main>
<header><h1>Lessons run</h1><ul class="tiles">{tiles}</ul></header>
<dl class="facts">{facts}</dl>
<div class="scroll">
<table>
<thead><tr><th scope="col">Lesson</th><th scope="col">Status</th><th scope="col">Seconds</th>
<th scope="col">Device</th><th scope="col">Error or reason</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<details><summary>Versions</summary><dl class="facts">{versions}</dl></details>
</main>
</body>
</html>
"""

_CSS = """
:root { --page: #f6f7f9; --card: #fff; --ink: #1b1f27; --soft: #5b6472; --line: #e1e5ea;
  --link: #0b5cad; --passed: #1a7f4b; --failed: #c4314b; --timed: #a15c00; --crashed: #8a3ab9;
  --skipped: #5b6472; }
@media (prefers-color-scheme: dark) { :root { --page: #12151b; --card: #1a1e26; --ink: #e6e9ee;
  --soft: #9aa4b2; --line: #2c323d; --link: #79b8ff; --passed: #4fd08a; --failed: #ff8095;
  --timed: #f0b35a; --crashed: #cf9bff; --skipped: #9aa4b2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 56px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 12px 24px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
.tiles { display: flex; flex-wrap: wrap; gap: 8px; margin: 0; padding: 0; list-style: none; }
.passed { --tone: var(--passed); } .failed { --tone: var(--failed); }
.timed_out { --tone: var(--timed); } .crashed { --tone: var(--crashed); }
.skipped { --tone: var(--skipped); }
.tiles li, .pill { color: var(--tone); white-space: nowrap; border-radius: 99px;
  background: color-mix(in srgb, var(--tone) 13%, transparent); }
.tiles li { padding: 4px 14px; }
.pill { padding: 2px 11px; font-size: 13px; font-weight: 600; }
.facts { display: flex; flex-wrap: wrap; gap: 10px 32px; margin: 20px 0; }
dt { color: var(--soft); font-size: 12.5px; }
dd { margin: 0; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: 12px; }
table { width: 100%; border-collapse: collapse; }
th, td { text-align: left; vertical-align: top; padding: 11px 16px; font-weight: 400; }
thead th { color: var(--soft); font-size: 12.5px; padding: 9px 16px; }
tbody tr { border-top: 1px solid var(--line); }
tbody th { white-space: nowrap; box-shadow: inset 3px 0 var(--tone); }
tbody th b { font-weight: 600; }
th small { display: block; color: var(--soft); font-size: 13px; }
th:nth-child(3), .seconds { text-align: right; }
.seconds { min-width: 96px; font-variant-numeric: tabular-nums; }
.bar { display: block; height: 3px; margin-top: 5px; border-radius: 2px; background: var(--line); }
.bar i { display: block; height: 3px; min-width: 2px; margin-left: auto; border-radius: 2px;
  background: var(--tone); }
td:last-child { width: 46%; min-width: 260px; }
.skipped td:last-child { color: var(--soft); }
pre { margin: 4px 0 0; font: 13px/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.cell { color: var(--soft); margin-right: 6px; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus { text-decoration: underline; }
details { margin-top: 20px; }
td details { margin-top: 4px; } td a, td summary { font-size: 13px; }
summary { cursor: pointer; color: var(--soft); }
@media (max-width: 760px) { thead { display: none; }
  tbody tr { display: grid; grid-template-columns: 1fr auto auto; padding: 6px 0; }
  tbody th, td { padding: 6px 12px; } tbody th { box-shadow: none; white-space: normal; }
  tbody tr { box-shadow: inset 3px 0 var(--tone); } td:nth-child(4) { display: none; }
  td:last-child { grid-column: 1 / -1; width: auto; } td:empty { display: none; } }
"""
