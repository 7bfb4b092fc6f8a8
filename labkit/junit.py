"""The report of a run as JUnit XML, which CI systems show: one test case a lesson."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as xml

if TYPE_CHECKING:
    from labkit.report import Result, RunReport

# what XML 1.0 cannot hold, not even escaped (Char, section 2.2 of the recommendation)
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(report: RunReport) -> str:
    """`report` as a JUnit document: failed lessons are failures; what timed out, crashed or was
    left out is an error."""
    results = report.lessons
    counts = {"tests": len(results),
              "failures": sum(result.status == "failed" for result in results),
              "errors": sum(_is_error(result) for result in results),
              "skipped": sum(_is_skip(result) for result in results),
              "time": f"{sum(result.seconds for result in results):.2f}"}
    attributes = {key: str(value) for key, value in counts.items()}
    root = xml.Element("testsuites", {"name": "labkit", **attributes})
    suite = xml.SubElement(root, "testsuite", {"name": "lessons", "timestamp": report.started[:19],
                                               **attributes})
    facts = {"device": report.device, "compiled for": report.gpu, "quick": report.quick,
             "labkit": report.labkit, **report.versions}
    properties = xml.SubElement(suite, "properties")
    for name, value in facts.items():
        xml.SubElement(properties, "property", {"name": _text(name), "value": _text(value)})
    for result in results:
        _case(suite, result)
    xml.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + xml.tostring(root, "unicode") + "\n"


def _case(suite: xml.Element, result: Result) -> None:
    case = xml.SubElement(suite, "testcase", {
        "classname": "lessons", "name": _text(result.lesson), "time": f"{result.seconds:.2f}"})
    if result.error:
        kind = "failure" if result.status == "failed" else "error"
        what = xml.SubElement(case, kind, {"type": _text(result.error["name"]),
                                           "message": _text(result.note)})
        what.text = _text(result.error["message"])
    elif result.status == "skipped":
        kind = "error" if result.left_out else "skipped"
        xml.SubElement(case, kind, {"message": _text(result.reason)})
    files = [name for name in (result.notebook, result.log) if name]
    if files:
        xml.SubElement(case, "system-out").text = _text("\n".join(files))


def _is_error(result: Result) -> bool:
    return result.status in ("timed_out", "crashed") or result.left_out


def _is_skip(result: Result) -> bool:
    return result.status == "skipped" and not result.left_out


def _text(value: Any) -> str:
    return _FORBIDDEN.sub("\ufffd", str(value))
