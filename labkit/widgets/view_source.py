"""The generated source as a scrollable box, its landmarks marked.

The names above the source jump to the first line that has the landmark. Links with an anchor would
change the notebook page's address, or nothing at all inside a frame. So each marked line holds a
radio button that is not seen, and a name is its label: a click puts the focus on it, and the
browser scrolls to what has the focus. The arrow keys then go from mark to mark.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Mapping
from html import escape

from labkit.errors import BadArgument
from labkit.pictures import _INK, BLUE, GREEN, GREY, ORANGE, PINK, SKY
from labkit.widgets.view_marks import NOTE, PALE, RED

MOST_LINES, _MOST_COLUMNS = 400, 240
_COLOURS = (GREEN, BLUE, ORANGE, PINK, RED, SKY, GREY)

# Keeps JupyterLab from taking the arrow keys to go from cell to cell. It asks the element that has
# the focus first, so the attribute has to be there and not around it.
_OWN_KEYS = 'data-lm-suppress-shortcuts="true"'

# Twice the class, so that a notebook's own rules for <pre> and <label> do not win.
_ME = ".labkit-code.labkit-code"
_STYLE = f"""<style>{_ME}{{background:#fff;color:{_INK};border:1px solid #c9ced6;border-radius:6px;
max-width:720px;font:12px/1.4 "DejaVu Sans",Verdana,sans-serif;color-scheme:light}}
{_ME} .lk-head{{padding:6px 12px 8px;border-bottom:1px solid #c9ced6}}
{_ME} .lk-head b{{display:block;font-size:13px;margin-bottom:4px}}
{_ME} label,{_ME} .lk-badge{{display:inline-block;border-radius:3px;padding:0 6px;margin:1px 6px
1px 0;color:{_INK};background:#fff;border:1px solid {GREY};border-left-width:5px;font:11px/1.45
"DejaVu Sans",Verdana,sans-serif;width:auto;height:auto;white-space:nowrap}}
{_ME} label{{cursor:pointer}}{_ME} label:hover{{background:{PALE}}}
{_ME} .lk-box{{position:relative;display:flex;max-height:340px;overflow:auto}}
{_ME} pre{{margin:0;padding:6px 0;background:none;border:0;overflow:visible;color:{_INK};
font:12px/17px "DejaVu Sans Mono",Menlo,Consolas,monospace;white-space:pre}}
{_ME} .lk-rows{{position:sticky;left:0;z-index:2;flex:none;padding:6px 8px;background:{PALE};
color:{NOTE};text-align:right;user-select:none}}
{_ME} .lk-code{{flex:1 0 auto;padding-left:8px}}
{_ME} .lk-line{{position:relative;display:inline-block;box-sizing:border-box;min-width:100%;
height:17px;margin-left:-8px;padding-left:4px;border-left:4px solid {GREY};background:#fff6df}}
{_ME} .lk-line:focus-within{{outline:2px solid {_INK};outline-offset:-2px}}
{_ME} .lk-line .lk-badge{{position:sticky;right:4px;margin:0 0 0 16px;line-height:15px;z-index:1}}
{_ME} input{{position:absolute;opacity:0;width:1px;height:17px;margin:0;pointer-events:none}}
</style>"""


def source(text: str, landmarks: Mapping[str, str], title: str = "Generated source",
           key: str = "") -> str:
    """HTML of a kernel's source with its landmarks.

    text: the source. landmarks: name -> regular expression, as `labkit.crosscompile.LANDMARKS`;
    one that does not occur is left out. key: any word, to tell two views of the same source on one
    page apart. At most 400 lines are shown; the counts are of all. Raises BadArgument.
    """
    if not isinstance(text, str) or not isinstance(landmarks, Mapping):
        raise BadArgument("source takes the text and a dictionary from a landmark's name to its "
                          f"regular expression, not {type(text).__name__} and "
                          f"{type(landmarks).__name__}.")
    lines = text.split("\n")
    found = _find(text, lines, landmarks)
    content = f"{key}\0{title}\0{text}".encode("utf8", "replace")
    uid = "lk" + hashlib.sha256(content).hexdigest()[:10]
    names = [name for name, at in found.items() if at]
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(names)}
    marks: dict[int, list[str]] = {}
    for name in names:
        for line in found[name]:
            if line < MOST_LINES and name not in marks.setdefault(line, []):
                marks[line].append(name)
    chips = []
    for name in names:
        words = f"{escape(str(name))} ×{len(found[name])}"
        first = min(found[name])
        style = f'style="border-left-color:{colours[name]}"'
        chips.append(f'<label for="{uid}-{first}" title="go to line {first + 1}" {style}>{words}'
                     "</label>" if first < MOST_LINES else
                     f'<span class="lk-badge" {style} title="line {first + 1}, not shown">{words}'
                     "</span>")
    shown = lines[:MOST_LINES]
    code = "\n".join(_line(number, line, marks.get(number), colours, uid)
                     for number, line in enumerate(shown))
    rows = "\n".join(map(str, range(1, len(shown) + 1)))
    noun = "line" if len(lines) == 1 else "lines"
    rest = f", the first {MOST_LINES} shown" if len(lines) > MOST_LINES else ""
    head = f"{escape(title)}: {len(lines):,} {noun}{rest}"
    return (f'{_STYLE}<div class="labkit-code" role="group" aria-label="{head}"><div '
            f'class="lk-head"><b>{head}</b>{"".join(chips) or "no landmarks"}</div><div '
            f'class="lk-box" tabindex="0" role="region" aria-label="source code" {_OWN_KEYS}><pre '
            f'class="lk-rows" aria-hidden="true">{rows}</pre><pre class="lk-code">{code}</pre>'
            "</div></div>")


def _find(text: str, lines: list[str], landmarks: Mapping[str, str]) -> dict[str, list[int]]:
    """The line of each occurrence of each landmark, counted from 0."""
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    try:
        return {name: [bisect_right(starts, match.start()) - 1
                       for match in re.finditer(pattern, text)]
                for name, pattern in landmarks.items()}
    except (re.error, TypeError) as error:
        raise BadArgument(f"A landmark is no regular expression ({error}); give texts such as "
                          r"r'tl::wgmma_\w+'.") from error


def _line(number: int, line: str, names: list[str] | None, colours: Mapping[str, str],
          uid: str) -> str:
    line = line.rstrip("\r")
    text = escape(line if len(line) <= _MOST_COLUMNS else line[:_MOST_COLUMNS] + " …")
    if not names:
        return text
    said = escape(", ".join(map(str, names)))
    colour = colours[names[0]]
    return (f'<span class="lk-line" style="border-left-color:{colour}"><input type="radio" '
            f'{_OWN_KEYS} name="{uid}" id="{uid}-{number}" aria-label="line {number + 1}: {said}">'
            f'{text}<span class="lk-badge" style="border-left-color:{colour}">{said}</span></span>')
