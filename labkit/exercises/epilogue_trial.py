"""Judges a learner's epilogue: its declaration, then its results behind a product at several sizes.

The answer is what `@epilogue` made of the learner's function. The program that `gemm` generates of
it runs on the CPU, and every output, reductions ended, is compared with the same mathematics in
float64. `mistakes` tell usual wrong answers apart, as for `KernelCheck`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.exercises.error_map import error_map
from labkit.exercises.exercise import Outcome
from labkit.exercises.figures import Figure
from labkit.exercises.mistakes import Wrong
from labkit.exercises.trial import (
    Sizes,
    _judged,
    _seed,
    failure,
    first_wrong,
    quiet,
    with_figures,
)
from labkit.verify import compare

Outputs = dict[str, Any]
_KNOBS = dict(block_M=32, block_N=64, block_K=32, num_stages=1, piece=32)


@dataclass(frozen=True)
class EpilogueCheck:
    """Judges an epilogue behind A [M, K] times B [K, N] at the sizes M, N, K of `cases`.

    operands: sizes, generator -> operands by name, as `matmul` takes them, 16-bit ones float16.
    wanted: product [M, N] in float64, and the operands by name -> the outputs by name, reductions
    whole. mistakes: sentence -> the same with that mistake. figures: judged once all is right; a
    figure's builder takes M, N, K and the knobs of a schedule by keyword.
    """

    cases: Sequence[Sizes]
    operands: Callable[..., dict[str, Any]]
    wanted: Callable[..., Outputs]
    mistakes: dict[str, Callable[..., Outputs]] = field(default_factory=dict)
    figures: Sequence[Figure] = ()

    def __call__(self, answer: Any) -> Outcome:
        from labkit.epilogue import Epilogue

        if not isinstance(answer, Epilogue):
            return Outcome(False, (f"The answer is of type {type(answer).__name__}; pass the "
                                   "function that stands below @epilogue(...).",))
        wrong = first_wrong(self.cases, lambda sizes: self._at(answer, sizes))
        return wrong or with_figures(self.cases, [_judged(f, _builder(answer))
                                                  for f in self.figures])

    def _at(self, answer: Any, sizes: Sizes) -> Outcome | None:
        """What is wrong at these sizes; None if nothing is."""
        import torch

        from labkit.epilogue.accuracy import whole

        generator = torch.Generator().manual_seed(_seed(sizes))
        M, N, K = (sizes[axis] for axis in "MNK")
        A = torch.randn(M, K, generator=generator).half()
        B = (torch.randn(K, N, generator=generator) / K**0.5).half()
        operands = self.operands(sizes, generator)
        product = A.double() @ B.double()
        wanted = self.wanted(product, **operands)
        undeclared = _names(answer, operands, wanted)
        if undeclared:
            return Outcome(False, (undeclared,))
        try:
            outputs = whole(answer, _run(answer, sizes, [A, B, *(
                operands[name] for name in answer.inputs)]))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (failure(error, answer.fn),))
        for name, reference in wanted.items():
            out = outputs[name]
            if out.shape != reference.shape:
                return Outcome(False, (f"{name} has shape {list(out.shape)}, where "
                                       f"{list(reference.shape)} belongs.",))
            verdict = compare(out, reference, name=name, tile=_TILE[out.dim()])
            if not verdict.ok:
                sentence = self._suspected(product, operands, outputs)
                lines = [f"{name} is wrong.", *([sentence] if sentence else []),
                         repr(verdict).splitlines()[1]]
                return Outcome(False, tuple(lines), error_map(
                    Wrong(out, reference, verdict), f"Where {name} is wrong"))
        return None

    def _suspected(self, product: Any, operands: dict[str, Any], outputs: Outputs) -> str:
        """The sentence of the mistake that gives these very outputs; empty if none does."""
        for sentence, mistaken in self.mistakes.items():
            results = mistaken(product, **operands)
            if all(outputs[name].shape == result.shape
                   and compare(outputs[name], result.double()).ok
                   for name, result in results.items()):
                return sentence
        return ""


_TILE = {1: None, 2: (32, 64)}


def _names(answer: Any, operands: dict[str, Any], wanted: Outputs) -> str:
    """What the declaration lacks or has too much; empty if it fits."""
    for what, have, want in (("operands", set(answer.inputs), set(operands)),
                             ("outputs", {o.name for o in answer.outputs}, set(wanted))):
        if have != want:
            return (f"{answer.name} declares the {what} {', '.join(sorted(have)) or 'none'}; this "
                    f"exercise has {', '.join(sorted(want))}.")
    return ""


def _builder(answer: Any) -> Callable[..., Any]:
    from labkit.epilogue import gemm

    return gemm(answer)


def _run(answer: Any, sizes: Sizes, given: list[Any]) -> Outputs:
    from labkit.compiler import compile
    from labkit.epilogue import gemm

    with quiet():
        program = gemm(answer)(**sizes, **_KNOBS)
    values = compile(program, out_idx=gemm(answer).out_idx, device="cpu")(*given)
    values = values if isinstance(values, tuple) else (values,)
    return dict(zip((o.name for o in answer.outputs), values, strict=True))
