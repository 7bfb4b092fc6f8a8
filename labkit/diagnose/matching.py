"""An exception -> its kind, the learner's line, and what to say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.diagnose import compiling, cudnn, launching, lowering, place, tracing
from labkit.diagnose.kind import STAGES, Kind, fill
from labkit.errors import BadArgument, CompileFailed, first_line
from labkit.table import Table

KINDS: tuple[Kind, ...] = (tracing.KINDS + lowering.KINDS + compiling.KINDS + launching.KINDS
                           + cudnn.KINDS)
_CONDITIONS = {
    "": lambda error: True,
    "tracing": place.in_tracing,
    "postponed": lambda error: any(frame.f_code.co_name == "get_type_hints"
                                   for frame, _ in place.frames(error)),
}
_LONGEST = 20_000  # of a message that is searched; what follows are generated sources


@dataclass(frozen=True)
class Explanation:
    """What an error means.

    kind: what it was recognised as, None for an unknown one. what, cause, change: the sentences.
    place: the learner's line, None if it is not known. raw: the message's first line.
    """

    kind: Kind | None
    what: str
    change: str
    cause: str = ""
    place: place.Place | None = None
    raw: str = ""

    def __str__(self) -> str:
        if self.kind is None:
            where = f"\nIt was {self.place}" if self.place else ""
            return f"labkit does not know this error, and leaves it as it is: {self.raw}{where}"
        lines = [f"What happened: {self.what}"]
        if self.place is not None:
            shown = str(self.place)
            lines.append(f"Where: {shown}")
        if self.cause:
            lines.append(f"Why: {self.cause}")
        lines.append(f"Change: {self.change}")
        if self.kind.threads:
            lines.append(f"Others met it: {', '.join(self.kind.threads)}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(error: BaseException | None = None) -> Explanation:
    """What `error` means, where in your program it comes from, and what to change.

    error: an exception; None: the last one that this notebook or session showed. One that labkit
    does not know is given back in its own words. Raises BadArgument if there is no error.
    """
    if error is None:
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is None:
            raise BadArgument("There was no error yet in this session, so nothing to explain; "
                              "give one, as in `except Exception as e: print(lab.explain(e))`.")
    if not isinstance(error, BaseException):
        raise BadArgument(f"lab.explain takes an exception, not {type(error).__name__}; leave "
                          "it away for the last error shown.")
    return recognise(error) or Explanation(None, "", "", place=place.call_line(error),
                                           raw=first_line(error))


def recognise(error: BaseException) -> Explanation | None:
    """The explanation of an error that labkit knows, else None."""
    for one in _chain(error):
        message = _message(one)
        for kind in KINDS:
            match = kind.match(message, type(one).__name__)
            if match and _CONDITIONS[kind.only_if](one):
                return Explanation(kind, fill(kind.what, _named(match)),
                                   fill(kind.change, _named(match)),
                                   fill(kind.cause, _named(match)),
                                   _place(kind, match, one, error), first_line(one))
    return None


def reason(error: BaseException) -> str:
    """The sentence in a compiler's error that says why, without its stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("File ", "Traceback", "at "))]
    first = (telling or lines or [type(error).__name__])[0]
    return first.removeprefix("InternalError: ").rstrip(":. ") + "."


def failed(sentence: str, cause: BaseException) -> CompileFailed:
    """A CompileFailed for a compiler's error: `sentence`, the compiler's own reason, and what is
    known about it as a note."""
    return noted(CompileFailed(f"{sentence}: {reason(cause)}"), cause)


def noted(error: CompileFailed, cause: BaseException | None = None) -> CompileFailed:
    """`error` with a note, which plain Python shows below it: what is known about it, or about
    the error that caused it."""
    found = recognise(cause or error)
    if found is not None:
        error.add_note(str(found))
    return error


def table(stage: str | None = None) -> Table:
    """All kinds: the first line of the raw error, and what labkit says. stage: one of `STAGES`
    for those of one stage."""
    if stage is not None and stage not in STAGES:
        raise BadArgument(f"stage is {stage!r}; give one of {', '.join(STAGES)}.")
    rows = [[kind.stage, kind.raw.splitlines()[0], kind.sentence,
             f"recorded: needs {kind.needs}" if kind.needs else "provoked in the tests",
             " ".join(kind.threads)]
            for kind in KINDS if stage in (None, kind.stage)]
    return Table(f"{len(rows)} kinds of errors that labkit explains",
                 ["stage", "raw error", "what labkit says", "known from", "others met it"], rows)


class _named(dict):
    """A match whose name2, name3 ... stand for its name where that took no part."""

    def __init__(self, match: re.Match) -> None:
        super().__init__()
        for key, value in match.groupdict().items():
            if value is not None:
                self.setdefault(key.rstrip("0123456789"), value)

    def groupdict(self) -> dict[str, str]:
        return dict(self)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error's causes, the first one first, then itself."""
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return reversed(found)


def _message(error: BaseException) -> str:
    """What is searched: the text, and the whole log of a compiler behind it."""
    text = str(error)
    log = getattr(error, "log", "")
    if len(text) > _LONGEST:
        text = text[:_LONGEST // 2] + text[-_LONGEST // 2:]
    return f"{text}\n{log[:_LONGEST]}" if log else text


def _place(kind: Kind, match: re.Match, one: BaseException,
           error: BaseException) -> place.Place | None:
    named = _named(match)
    if kind.stage == "tracing":
        found = place.traced_line(one)
    else:
        program = place.program_of(one) or place.program_of(error)
        found = place.span(str(one)) or place.made(program, named.get("name"), named.get("a"),
                                                   named.get("b")) or getattr(error, "place", None)
        if found is None and kind.name in ("no-layout", "reduce-layout"):
            found = place.uneven(program)
        elif found is None and kind.about:
            found = place.operation(program, kind.about)
    return found or place.call_line(one) or place.call_line(error)
