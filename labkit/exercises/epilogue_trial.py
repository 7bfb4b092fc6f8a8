"""Judges the function of an epilogue that a learner wrote: its mathematics first, then its kernel.

The function is declared as `declared` says and evaluated in float64 on random tensors; where it is
wrong, `mistakes` may say why. A function that is right is then compiled behind a GEMM and run on
the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.epilogue.declare import Epilogue, epilogue
from labkit.exercises.exercise import Outcome
from labkit.exercises.trial import failure, quiet
from labkit.verify import compare

Outputs = dict[str, Any]
_M, _N, _K = 70, 48, 40  # ragged: two tiles of rows, one of columns


@dataclass(frozen=True)
class EpilogueCheck:
    """Judges a function (acc, **operands) -> outputs.

    declared: the arguments of `epilogue`. right: the function as it should be. explained: output ->
    what it is, for the sentence on a wrong one. mistakes: sentence -> a function with that mistake.
    """

    declared: dict[str, Any]
    right: Callable[..., Outputs]
    explained: dict[str, str]
    mistakes: dict[str, Callable[..., Outputs]] = field(default_factory=dict)

    def __call__(self, answer: Any) -> Outcome:
        import torch

        if isinstance(answer, Epilogue):  # declared by the learner, too: the function counts
            answer = answer.fn
        if not callable(answer):
            return Outcome(False, (f"The answer is of type {type(answer).__name__}; pass the "
                                   "function of the epilogue.",))
        generator = torch.Generator().manual_seed(10)
        try:
            chosen = self._declared(answer)
            product, operands = self._inputs(chosen, generator)
            found = chosen.reference(product.double(), **operands)
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (failure(error, answer),))
        wanted = self._declared(self.right).reference(product.double(), **operands)
        wrong = [name for name in wanted if not _close(found[name], wanted[name])]
        if wrong:
            return Outcome(False, (f"{wrong[0]} is wrong: it should be {self.explained[wrong[0]]}.",
                                   *self._suspected(found, product, operands)))
        return self._run(chosen, answer, operands, generator)

    def _declared(self, fn: Callable[..., Outputs]) -> Epilogue:
        return replace(epilogue(**self.declared)(fn), name="answer")

    def _inputs(self, chosen: Epilogue, generator: Any) -> tuple[Any, Outputs]:
        """A product and the operands, in float16 where the kernel takes 16 bits."""
        import torch

        columns = _N // 2 if chosen.takes_pairs else _N
        made = {}
        for o in chosen.operands:
            width = columns * (2 if o.pair else 1)
            shape = {"rowvec": (width,), "colvec": (_M,), "tile": (_M, width)}[o.kind]
            value = torch.randn(shape, generator=generator)
            made[o.name] = value if o.dtype == "float32" else value.half()
        return torch.randn(_M, _N, generator=generator), made

    def _suspected(self, found: Outputs, product: Any, operands: Outputs) -> tuple[str, ...]:
        for sentence, mistaken in self.mistakes.items():
            other = self._declared(mistaken).reference(product.double(), **operands)
            if all(_close(found[name], other[name]) for name in other):
                return (sentence,)
        return ()

    def _run(self, chosen: Epilogue, answer: Any, operands: Outputs, generator: Any) -> Outcome:
        import torch

        from labkit.epilogue.compare import whole
        from labkit.epilogue.run import matmul

        A = torch.randn(_M, _K, generator=generator).half()
        B = (torch.randn(_K, _N, generator=generator) / _K**0.5).half()
        try:
            with quiet():
                found = whole(chosen, matmul(chosen, A, B, **operands))
        except Exception as error:  # as above
            return Outcome(False, ("The mathematics is right, but as a kernel "
                                   f"{failure(error, answer)}",))
        wanted = self._declared(self.right).reference(A.double() @ B.double(), **operands)
        for name, value in found.items():
            verdict = compare(value, wanted[name], name=name)
            if not verdict.ok:
                return Outcome(False, ("The mathematics is right in float64, but the kernel's "
                                       f"{repr(verdict).splitlines()[0]}",))
        return Outcome(True, (f"Right in float64, and as a kernel at M = {_M}, N = {_N}, "
                              f"K = {_K}.",))


def _close(found: Any, wanted: Any) -> bool:
    """Equal but for float64's rounding."""
    return (getattr(found, "shape", None) == wanted.shape
            and bool(((found - wanted).abs() <= 1e-9 * (1 + wanted.abs())).all()))
