"""Exercises that check themselves: `lab.check("02.1", answer)`, `lab.hint("02.1")`,
`lab.solution("02.1")` and `lab.progress()`.

A check never raises for what a learner wrote: a wrong answer, or one that does not run, is shown,
and the rest of the lesson goes on. Code asks `lab.check(...).ok`.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.errors import BadArgument
from labkit.exercises import progress_file
from labkit.exercises.exercise import Exercise, Outcome, all_exercises, find
from labkit.exercises.time_limit import TookTooLong, limited
from labkit.pictures import Picture
from labkit.table import Table

__all__ = ["Exercise", "Feedback", "Outcome", "all_exercises", "check", "find", "hint", "progress",
           "solution"]

_MISSING = object()
_hints_shown: dict[str, int] = {}


@dataclass(frozen=True)
class Feedback:
    """What `check` found. ok: whether the answer is right. attempted: whether there is one.

    In a notebook it shows its text and, where the result is wrong, the picture of its tiles.
    """

    ok: bool
    attempted: bool
    text: str
    picture: Picture | None = None

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.text if self.picture is None else f"{self.text}\n{self.picture.text}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": repr(self)}
        if self.picture is not None:
            bundle["text/html"] = (f'<div style="white-space:pre-wrap;font-family:monospace">'
                                   f"{escape(self.text)}</div>{self.picture.svg}")
        return bundle


def check(key: str, answer: Any = _MISSING) -> Feedback:
    """Judges `answer`, the function or value that the exercise `key` asks for, and keeps what was
    solved for `lab.progress()`.

    It runs on the CPU, on every machine, so that the verdict is the same everywhere, and it ends:
    what computes for longer than half a minute is stopped. A cuDNN graph that is right there runs
    on the GPU too, where there is one and it has a plan. Raises BadArgument for an unknown key or a
    missing answer, and nothing for what the answer does.
    """
    exercise = find(key)
    if answer is _MISSING:
        raise BadArgument(f"The check of exercise {exercise.key} needs your answer; call "
                          f'lab.check("{exercise.key}", {exercise.answer}).')
    if not exercise.attempted(answer):
        return Feedback(False, False, f"{exercise.heading}: not attempted yet.\nWrite your answer "
                        f"in this cell and run it. Stuck? lab.hint(\"{exercise.key}\") helps.")
    try:
        outcome = limited(lambda: exercise.judge(answer), answer)
    except TookTooLong as error:
        outcome = Outcome(False, (str(error),))
    shown = outcome.ok and exercise.is_solution(answer)
    note = "" if shown else progress_file.record(exercise.key, attempt=True, solved=outcome.ok)
    lines = [f"{exercise.heading}: {'correct.' if outcome.ok else 'not right yet.'}",
             *outcome.lines, *([note] if note else [])]
    return Feedback(outcome.ok, True, "\n".join(lines), outcome.picture)


class _Text:
    """Text that shows itself as it is, and code as code."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def hint(key: str, number: int | None = None) -> _Text:
    """The next hint of an exercise, of three, each more concrete than the one before; or hint
    `number`, 1 to 3. Raises BadArgument."""
    exercise = find(key)
    count = len(exercise.hints)
    if number is None:
        number = min(_hints_shown.get(exercise.key, 0) + 1, count)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= count:
        raise BadArgument(f"There is no hint {number!r} of exercise {exercise.key}; give 1 to "
                          f"{count}, or leave it away for the next one.")
    _hints_shown[exercise.key] = max(number, _hints_shown.get(exercise.key, 0))
    progress_file.record(exercise.key, hints=number)
    more = ("Call it again for the next one." if number < count else
            f'That was the last one; lab.solution("{exercise.key}") shows a solution.')
    return _Text(f"{exercise.heading}, hint {number} of {count}\n{exercise.hints[number - 1]}\n"
                 f"{more}")


def solution(key: str) -> _Text:
    """A solution of the exercise, with comments that say why. Raises BadArgument."""
    exercise = find(key)
    progress_file.record(exercise.key, solution=True)
    return _Text(f"# {exercise.heading}\n{exercise.solution.strip()}")


def progress() -> Table:
    """Which exercises are solved, with how many attempts and hints."""
    return progress_file.table()
