"""Runs a learner's answer, at several sizes, and says in one sentence what went wrong.

`KernelCheck` is for answers that build a program: it runs on the CPU at each size, so that an
answer can be checked on any machine, and is compared with a float32 or float64 reference.
`FunctionCheck` is for plain Python functions. Both know `mistakes`: for each usual mistake what
the result would be with it, so that a wrong answer that equals one is told which.
"""

from __future__ import annotations

import copy
import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.diagnose.matching import recognise
from labkit.errors import LabError, first_line
from labkit.exercises.error_map import error_map
from labkit.exercises.exercise import Outcome, left_open
from labkit.exercises.figures import Figure, Finding, dealt_out
from labkit.exercises.mistakes import Wrong, explain
from labkit.verify import compare

Sizes = dict[str, Any]


@dataclass(frozen=True)
class KernelCheck:
    """Judges a function that takes the sizes of `cases` by keyword and returns a program.

    cases: sizes, the ones that most mistakes fail at first; the check ends at the first failure.
    inputs: sizes, generator -> the tensors of a call. reference: sizes, tensors -> the output, or
    outputs, in float32 or float64. tile: sizes -> the tile of the map. mistakes: sentence -> what
    the outputs would be with that mistake. figures: what else is judged, once all sizes are right.
    """

    cases: Sequence[Sizes]
    inputs: Callable[..., list[Any]]
    reference: Callable[..., Any]
    tile: Callable[[Sizes], Any] = field(default=lambda sizes: None)
    out_idx: int | list[int] = -1
    pass_configs: dict[str, Any] | None = None
    mistakes: dict[str, Callable[..., Any]] = field(default_factory=dict)
    figures: Sequence[Figure] = ()

    def __call__(self, answer: Any) -> Outcome:
        if not callable(answer):
            return Outcome(False, (f"The answer is of type {type(answer).__name__}; pass the "
                                   "function that builds the program.",))
        wrong = first_wrong(self.cases, lambda sizes: self._at(answer, sizes))
        figures = (dealt_out(self.cases[0]), *self.figures)
        return wrong or with_figures(self.cases, [_judged(f, answer) for f in figures])

    def _at(self, answer: Any, sizes: Sizes) -> Outcome | None:
        """What is wrong at these sizes; None if nothing is."""
        import torch

        from labkit.compiler import compile

        inputs = self.inputs(sizes, torch.Generator().manual_seed(_seed(sizes)))
        try:
            program = _built(answer, sizes)
            kernel = compile(program, out_idx=self.out_idx, device="cpu",
                             pass_configs=self.pass_configs)
            outputs = _tuple(kernel(*(x.clone() for x in inputs)))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (failure(error, answer),))
        wanted = _tuple(self.reference(sizes, *inputs))
        for number, (out, reference) in enumerate(zip(outputs, wanted, strict=True)):
            if out.shape != reference.shape:
                return Outcome(False, (f"the output has shape {list(out.shape)}, where "
                                       f"{list(reference.shape)} belongs.",))
            name = "output" if len(wanted) == 1 else f"output {number}"
            verdict = compare(out, reference, tile=self.tile(sizes), name=name)
            if not verdict.ok:
                suspected = self._suspected(sizes, inputs, outputs)
                return _wrong(out, reference, verdict, suspected)
        return None

    def _suspected(self, sizes: Sizes, inputs: list[Any], outputs: tuple[Any, ...]) -> str:
        """The sentence of the mistake that gives these very outputs; empty if none does."""
        for sentence, mistaken in self.mistakes.items():
            results = _tuple(mistaken(sizes, *inputs))
            if all(out.shape == result.shape and compare(out, result.double()).ok
                   for out, result in zip(outputs, results, strict=True)):
                return sentence
        return ""


@dataclass(frozen=True)
class FunctionCheck:
    """Judges a plain Python function by its results.

    cases: argument lists. wanted: the right function. mistakes: sentence -> a function with that
    mistake; an answer that gives its result is told so. same: compares two results.
    """

    cases: Sequence[tuple[Any, ...]]
    wanted: Callable[..., Any]
    mistakes: dict[str, Callable[..., Any]] = field(default_factory=dict)
    same: Callable[[Any, Any], bool] = field(default=lambda a, b: _same(a, b))

    def __call__(self, answer: Any) -> Outcome:
        if not callable(answer):
            return Outcome(False, (f"The answer is of type {type(answer).__name__}; pass the "
                                   "function.",))
        for place, arguments in enumerate(self.cases):
            arguments = _own(arguments)
            call = f"{answer.__name__}({', '.join(_short(a) for a in arguments)})"
            try:
                got = answer(*arguments)
            except Exception as error:  # whatever a learner's code raises is told, not raised
                return Outcome(False, (f"{call}: {failure(error, answer)}",))
            wanted = self.wanted(*_own(self.cases[place]))
            if not self.same(got, wanted):
                before = f"Right for {_several(place, 'case')} before. " if place else ""
                told = self._suspected(answer)
                return Outcome(False, tuple(line for line in (
                    f"{before}{call} gives {_short(got)}, expected {_short(wanted)}.", told)
                    if line))
        return Outcome(True, (f"Right for {_several(len(self.cases), 'case')}.",))

    def _suspected(self, answer: Any) -> str:
        """The sentence of the mistake that gives the same results in all cases; or ""."""
        results = [_result(answer, arguments) for arguments in self.cases]
        return next((sentence for sentence, mistaken in self.mistakes.items() if all(
            self.same(result, _result(mistaken, arguments))
            for result, arguments in zip(results, self.cases, strict=True))), "")


def first_wrong(cases: Sequence[Sizes], at: Callable[[Sizes], Outcome | None]) -> Outcome | None:
    """What `at` finds wrong at the first of `cases` where it finds anything; None if all is right.
    """
    for place, sizes in enumerate(cases):
        found = at(sizes)
        if found is not None:
            before = f"Right at {_several(place, 'size')} before. " if place else ""
            return Outcome(False, (f"{before}At {_text(sizes)}: {found.lines[0]}",
                                   *found.lines[1:]), found.picture)
    return None


def right_at(cases: Sequence[Sizes]) -> str:
    """The sentence that names the sizes at which all was right."""
    return (f"Right at {_several(len(cases), 'size')}: "
            f"{'; '.join(_text(sizes) for sizes in cases)}.")


def with_figures(cases: Sequence[Sizes], findings: Sequence[Finding]) -> Outcome:
    """The verdict on an answer that is right at all `cases`, by what else was judged."""
    failed = [f for f in findings if f.ok is False]
    if failed:
        return Outcome(False, (right_at(cases), f"But {failed[0].text}"))
    return Outcome(True, (right_at(cases), *(f.text for f in findings if f.text)))


def failure(error: BaseException, answer: Any) -> str:
    """An exception of a learner's code in one sentence, with the learner's own line."""
    what = first_line(error)
    if not isinstance(error, LabError):
        kind = type(error).__name__
        what = kind if what == kind else f"{kind}: {what}"
    known = recognise(error)
    if known is not None:  # a compiler's words, then what they mean
        what = f"{what.rstrip('.')}. {known.what} {known.change}"
    code = getattr(answer, "__code__", None)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if code is not None and frame.filename == code.co_filename]
    if frames:
        return f"line {frames[-1].lineno} of your cell, `{frames[-1].line}`: {what}"
    open_line = left_open(answer)
    if open_line:
        what += f" (Line {open_line[0]} is still `...`.)"
    return f"it does not run: {what}"


def _built(answer: Any, sizes: Sizes) -> Any:
    """The program. Raises LabError if the function returns something else."""
    from tilelang.language.eager import PrimFunc

    with quiet():
        program = answer(**sizes)
    if not isinstance(program, PrimFunc):
        returned = "nothing" if program is None else type(program).__name__
        raise LabError(f"{answer.__name__} returns {returned}, where a @T.prim_func belongs; end "
                       "it with `return` and the program's name.")
    return program


def _judged(figure: Figure, answer: Any) -> Finding:
    try:
        with quiet():
            return figure(answer)
    except Exception as error:  # a size that only this figure asks for
        return Finding(False, f"at the size that is judged: {failure(error, answer)}")


def _wrong(out: Any, reference: Any, verdict: Any, suspected: str) -> Outcome:
    wrong = Wrong(out, reference, verdict)
    sentence = suspected or explain(out, reference, verdict)
    error = repr(verdict).splitlines()[1]
    lines = [f"{verdict.name} is wrong.", *([sentence] if sentence else []), error]
    return Outcome(False, tuple(lines), error_map(wrong, f"Where the {verdict.name} is wrong"))


class quiet:
    """TileLang logs a page for each program that does not trace; here it is told in a sentence.
    Only this thread's records are dropped."""

    _here = threading.local()
    _installed = False

    def __enter__(self) -> None:
        if not quiet._installed:
            log = logging.getLogger("tilelang.language.eager.builder")
            log.addFilter(lambda record: not getattr(quiet._here, "on", False))
            quiet._installed = True
        quiet._here.on = True

    def __exit__(self, *_: object) -> None:
        quiet._here.on = False


def _result(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a call gives, or the name of the error that it raises."""
    try:
        return function(*_own(arguments))
    except Exception as error:  # told elsewhere: here it only tells mistakes apart
        return f"raises {type(error).__name__}"


def _own(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with lists and dictionaries copied, so that a call may change them."""
    return tuple(copy.copy(a) if isinstance(a, (list, dict)) else a for a in arguments)


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _seed(sizes: Sizes) -> int:
    """The same inputs on every run, others at other sizes."""
    return sum(ord(letter) * (place + 1) for place, letter in enumerate(_text(sizes)))


def _text(sizes: Sizes) -> str:
    return ", ".join(f"{name} = {value}" for name, value in sizes.items())


def _several(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _same(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or isinstance(got, bool):
        return isinstance(got, bool) and got == wanted
    try:
        return bool(abs(got - wanted) <= 1e-9 * abs(wanted))
    except TypeError:
        return type(got) is type(wanted) and bool(got == wanted)
