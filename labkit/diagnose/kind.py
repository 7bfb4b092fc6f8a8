"""One kind of error: how to recognise it, and what to say about it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

STAGES = ("set-up", "tracing", "lowering", "compiling", "launching", "running", "cuDNN")


@dataclass(frozen=True)
class Kind:
    """A kind of error.

    name: of the kind, for tests and tables. stage: one of `STAGES`.
    pattern: regular expression that is searched in the message; its named groups can be used in
        the sentences. raw: the first line of a real message of this kind.
    what: what happened. change: what to change. cause: what is likely behind it, where the
        message does not say; empty where `what` is certain.
    types: names of the exception classes that it comes as; empty for any.
    threads: where others met it, as "owner/repository#number".
    needs: what has to be there to provoke it ("GPU", "cuDNN", ...); empty where the tests
        provoke it. The raw line of one that needs something was recorded.
    only_if: name of the condition in `conditions.py` that has to hold besides, for a message
        that plain Python has too; empty for none.
    about: name of the tile operator (T.gemm: "gemm") that the error is about, to find its line.
    """

    name: str
    stage: str
    pattern: str
    raw: str
    what: str
    change: str
    cause: str = ""
    types: tuple[str, ...] = ()
    threads: tuple[str, ...] = ()
    needs: str = ""
    only_if: str = ""
    about: str = ""

    @functools.cached_property
    def _compiled(self) -> re.Pattern:
        return re.compile(self.pattern, re.S)

    def match(self, message: str, type_: str = "") -> re.Match | None:
        """The match of this kind in an exception's text, None if it is another kind."""
        if self.types and type_ and type_ not in self.types:
            return None
        return self._compiled.search(message)

    @property
    def sentence(self) -> str:
        """What is said about the raw line, in one line."""
        match = self.match(self.raw)
        return " ".join(fill(text, match) for text in (self.what, self.cause, self.change) if text)


def fill(text: str, match: re.Match | None) -> str:
    """`text` with the groups of `match` in place of {name}; a group that is not there leaves
    "it"."""
    groups = {} if match is None else match.groupdict()
    return re.sub(r"\{(\w+)\}", lambda m: (groups.get(m[1]) or "it").strip(), text)
