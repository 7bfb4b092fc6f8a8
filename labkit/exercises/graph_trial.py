"""Judges answers that build a cuDNN graph: what it computes, and how it is described.

The graph is evaluated on the CPU by its meaning, at several sizes, and compared with a float32
reference. Its description is judged before that: what is written to memory, pinned strides, dtypes
between the operations, numbers that are passed by value. Where there is a GPU, the graph is built
and run there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.errors import NotSupported, first_line
from labkit.exercises.error_map import error_map
from labkit.exercises.exercise import Outcome
from labkit.exercises.figures import Finding
from labkit.exercises.graph_description import fault
from labkit.exercises.mistakes import Wrong
from labkit.exercises.trial import (
    Sizes,
    _seed,
    _several,
    _text,
    failure,
    first_wrong,
    right_at,
)
from labkit.pictures import Picture
from labkit.verify import compare

Tensors = dict[str, Any]  # name of an argument -> torch tensor


class _Judged(Exception):
    """An answer's graph that is not as asked; its text is the sentence for the learner."""


@dataclass(frozen=True)
class GraphCheck:
    """Judges a function `answer(target, *tensors, **options) -> (graph, pack)`.

    cases: sizes; the check ends at the first failure. tensors: sizes, generator, dtype -> the
    arguments after `target` by name, what is written filled with NaN. outputs: those that the
    graph writes, and that alone. reference: sizes, tensors -> each output in float32 or float64.
    operations: as many will do. numbers: arguments that are passed by value. rounded: outputs
    compared in the tensors' dtype, since a plan may make them from rounded values. options:
    sizes -> keyword arguments. mistakes: sentence -> what `reference` would be with that mistake.
    made: for an answer that allocates its output and returns it third: sizes, reference, output ->
    what is wrong with its memory, or "". also: what else is wrong with a graph, or "". gpu: sizes
    of a run on a GPU of compute capability `min_sm` / 10 or later.
    """

    cases: Sequence[Sizes]
    tensors: Callable[[Sizes, Any, Any], Tensors]
    outputs: tuple[str, ...]
    reference: Callable[[Sizes, Tensors], Tensors]
    operations: int
    numbers: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    options: Callable[[Sizes], dict[str, Any]] = field(default=lambda sizes: {})
    mistakes: dict[str, Callable[[Sizes, Tensors], Tensors]] = field(default_factory=dict)
    made: Callable[[Sizes, Any, Any], str] | None = None
    also: Callable[[Any], str] = field(default=lambda graph: "")
    gpu: Sizes = field(default_factory=dict)
    min_sm: int = 0

    def __call__(self, answer: Any) -> Outcome:
        if not callable(answer):
            return Outcome(False, (f"The answer is of type {type(answer).__name__}; pass the "
                                   "function that builds the graph.",))
        wrong = first_wrong(self.cases, lambda sizes: self._at(answer, sizes))
        if wrong:
            return wrong
        lines = [right_at(self.cases),
                 f"To memory {'goes' if len(self.outputs) == 1 else 'go'} "
                 f"{' and '.join(self.outputs)}, nothing else; between the operations all is "
                 "float32."]
        here = self.on_gpu(answer)
        if here is not None and here.ok is False:
            return Outcome(False, (lines[0], f"But {here.text}"))
        return Outcome(True, (*lines, *([here.text] if here else [])))

    def _at(self, answer: Any, sizes: Sizes) -> Outcome | None:
        """What is wrong at these sizes; None if nothing is."""
        import torch

        try:
            tensors = self._tensors(sizes, torch.bfloat16)
            graph, pack = self._built(answer, _nowhere(), sizes, tensors)
            from labkit.cudnn_graph import evaluate, picture

            said = (fault(graph, pack, tensors, self.outputs, self.numbers) or self.also(graph)
                    or self._most(len(graph.nodes)))
            if said:
                return Outcome(False, (said,), picture(graph))
            evaluate(graph, pack)
            return self._compared(sizes, tensors, picture(graph))
        except _Judged as error:
            return Outcome(False, (str(error),))
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Outcome(False, (failure(error, answer),))

    def _most(self, count: int) -> str:
        if count <= self.operations:
            return ""
        return (f"the graph has {_several(count, 'operation')}, and {self.operations} will do: "
                "each one more makes a plan less likely.")

    def _compared(self, sizes: Sizes, tensors: Tensors, drawn: Picture) -> Outcome | None:
        """What is wrong with the outputs, with their map or, where every tile is wrong and a map
        says nothing, with the graph as it is drawn; None if nothing is."""
        import torch

        wanted = self.reference(sizes, tensors)
        for name in self.outputs:
            out = self._as_compared(name, tensors[name], torch.bfloat16)
            verdict = compare(out, wanted[name], name=name)
            if not verdict.ok:
                lines = (f"{name} is wrong.", self._suspected(sizes, tensors),
                         repr(verdict).splitlines()[1])
                partly = len(verdict.bad_tiles) < verdict.grid[0] * verdict.grid[1]
                shown = (error_map(Wrong(out, wanted[name], verdict), f"Where {name} is wrong")
                         if partly else drawn)
                return Outcome(False, tuple(line for line in lines if line), shown)
        return None

    def _as_compared(self, name: str, out: Any, dtype: Any) -> Any:
        return out.to(dtype) if name in self.rounded else out

    def _tensors(self, sizes: Sizes, dtype: Any) -> Tensors:
        import torch

        return self.tensors(sizes, torch.Generator().manual_seed(_seed(sizes)), dtype)

    def _built(self, answer: Any, target: Any, sizes: Sizes, tensors: Tensors) -> tuple[Any, Any]:
        """The answer's graph, with its shapes inferred, and its pack. Raises _Judged if it
        returns something else; adds an output that the answer made to `tensors`."""
        import torch

        from labkit.cudnn_graph import infer

        made = answer(target, *tensors.values(), **self.options(sizes))
        shape = "(graph, pack)" if self.made is None else "(graph, pack, y)"
        if not isinstance(made, tuple) or len(made) != shape.count(",") + 1:
            returned = "nothing" if made is None else type(made).__name__
            raise _Judged(f"{answer.__name__} returns {returned}, where {shape} belongs.")
        graph, pack = made[:2]
        if not isinstance(pack, dict):
            raise _Judged(f"the pack is of type {type(pack).__name__}; it is a dictionary, tensor "
                           "of the graph -> torch tensor.")
        if not list(getattr(graph, "nodes", ())):
            raise _Judged("the graph has no operations.")
        if self.made is not None:
            (name,) = self.outputs
            if not isinstance(made[2], torch.Tensor):
                raise _Judged(f"the third that it returns is of type {type(made[2]).__name__}; "
                               f"it is the tensor {name}.")
            wanted = self.reference(sizes, tensors)[name]
            if made[2].shape != wanted.shape:
                told = next((f" {sentence}" for sentence, mistaken in self.mistakes.items()
                             if mistaken(sizes, tensors)[name].shape == made[2].shape), "")
                raise _Judged(f"{name} has the dims {list(made[2].shape)}, where "
                               f"{list(wanted.shape)} belong.{told}")
            said = self.made(sizes, wanted, made[2])
            if said:
                raise _Judged(said)
            tensors[name] = made[2]
        infer(graph)
        return graph, pack

    def _suspected(self, sizes: Sizes, tensors: Tensors) -> str:
        """The sentence of the mistake that gives these very outputs; empty if none does."""
        import torch

        for sentence, mistaken in self.mistakes.items():
            results = mistaken(sizes, tensors)
            if all(tensors[name].shape == result.shape and compare(
                    self._as_compared(name, tensors[name], torch.bfloat16), result.double()).ok
                   for name, result in results.items()):
                return sentence
        return ""

    def on_gpu(self, answer: Any) -> Finding | None:
        """Builds the graph for the GPU of this machine and runs it there; None without one.
        ok is None where there is no plan for it."""
        import torch

        from labkit.cudnn_graph import build, target
        from labkit.machine import here

        machine = here()  # also where LABKIT_DEVICE keeps off the GPU
        if machine.device != "gpu" or not self.gpu:
            return None
        try:
            there = target(machine)
            if there.sm < self.min_sm:
                return Finding(None, f"It was not run on this GPU: a plan takes compute capability "
                               f"{self.min_sm / 10} or later.")
            dtype = torch.bfloat16 if there.sm >= 80 else torch.float16
            made = self._tensors(self.gpu, dtype)
            tensors = {name: t if name in self.numbers else t.cuda() for name, t in made.items()}
            graph, pack = self._built(answer, there, self.gpu, tensors)
            built = build(graph, there)
            built.execute(pack)
            torch.cuda.synchronize()
        except _Judged as error:
            return Finding(False, f"on this GPU, at {_text(self.gpu)}: {error}")
        except NotSupported as error:
            return Finding(None, f"It was not run on this GPU: {first_line(error)}")
        except Exception as error:  # whatever a learner's code raises is told, not raised
            return Finding(False, f"on this GPU, at {_text(self.gpu)}: {failure(error, answer)}")
        wanted = self.reference(self.gpu, {name: t.cpu() for name, t in tensors.items()})
        for name in self.outputs:
            out = self._as_compared(name, tensors[name].cpu(), dtype)
            verdict = compare(out, wanted[name], name=name)
            if not verdict.ok:
                return Finding(False, f"on this GPU, at {_text(self.gpu)}, its plan {built.plan} "
                               f"gives another {name}: {repr(verdict).splitlines()[1]}")
        return Finding(True, f"Run on this GPU at {_text(self.gpu)}, too: right, by the plan "
                       f"{built.plan}.")


def _nowhere() -> Any:
    """A target on which graphs are only built: the verdict is the same on every machine."""
    from labkit.cudnn_graph import Target
    from labkit.cudnn_loader import load_cudnn

    return Target("H100", 90, load_cudnn())
