"""An epilogue: a plain function of one element of a product, what it reads and returns declared.

    @epilogue(tile=["residual"], rowvec=["gamma"], store=["x", "scaled"],
              col_reduce={"sumsq": "sum"})
    def residual_rms(acc, residual, gamma):
        x = acc + residual
        return dict(x=x, scaled=x * gamma, sumsq=x * x)

The function is the whole composition: its lines say in which order things happen. It gets one
element of the product in float32, `acc`, and the matching element of each operand, also in
float32. It may be called on torch tensors too; `reference` does, in the precision of its inputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.epilogue import pairs as pair_layout
from labkit.epilogue import probe
from labkit.errors import BadArgument

REDUCTIONS = {"col_reduce": ("sum", "max", "lse"), "row_reduce": ("sum",)}
# names of the generated program
_RESERVED = {"A", "B", "A_tile", "B_tile", "M", "N", "K", "T", "bx", "by", "b", "p", "q", "r", "i",
             "j", "k", "row", "rows", "column", "columns", "width", "acc", "out", "dtype", "policy",
             "threads", "panel", "group", "blocks", "piece", "per_sm", "copying", "computing",
             "prefetch", "registers", "num_stages", "block_M", "block_N", "block_K", "place",
             "swizzled"}


@dataclass(frozen=True)
class Operand:
    """What an epilogue reads beside the product. kind: "rowvec" (one value a column), "colvec" (one
    a row), "tile" (one an element) or "scalar". dtype: None is the program's. pair: two values."""

    name: str
    kind: str
    dtype: str | None
    pair: bool = False


@dataclass(frozen=True)
class Output:
    """What an epilogue returns. kind: "store", "col_reduce" (partials of each row, over columns),
    "row_reduce" (of each column, over rows) or "select". how: the reduction, or the operand that
    holds the selected column of each row. dtype: None is the program's. pair: two values."""

    name: str
    kind: str
    dtype: str | None
    how: str = ""
    pair: bool = False


@dataclass(frozen=True)
class Epilogue:
    """A declared epilogue; called, it is the function itself.

    name, fn; takes_pairs: the product comes as pairs, so the function sees two columns at a time.
    operands, outputs: in the order in which a generated program takes them.
    """

    name: str
    fn: Callable[..., dict[str, Any]]
    takes_pairs: bool
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]

    def __repr__(self) -> str:
        taken = ["acc: pair" if self.takes_pairs else "acc", *(
            f"{o.name}: {o.kind}{' of pairs' * o.pair}" for o in self.operands)]
        made = [f"{o.name}: {o.kind}{' of pairs' * o.pair}{f' {o.how}' * bool(o.how)}"
                for o in self.outputs]
        return f"{self.name}({', '.join(taken)}) -> {', '.join(made)}"

    def __call__(self, acc: Any, *operands: Any, **named: Any) -> dict[str, Any]:
        return self.fn(acc, *operands, **named)

    @property
    def __wrapped__(self) -> Callable[..., dict[str, Any]]:
        """The function, for `inspect.getsource` and the like."""
        return self.fn

    @property
    def indices(self) -> tuple[str, ...]:
        """Names of the int32 vectors that say which column of a row is selected."""
        return tuple(dict.fromkeys(o.how for o in self.outputs if o.kind == "select"))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of all operands, in the order of a generated program."""
        return (*(o.name for o in self.operands), *self.indices)

    def reference(self, product: Any, **operands: Any) -> dict[str, Any]:
        """The outputs by torch, in the precision of `product` [M, N], reductions carried out whole.

        operands: tensors by name, rowvec [columns], colvec [M], tile [M, columns], scalar a number.
        Returns stores [M, columns], col_reduce and select [M], row_reduce [columns].
        Raises BadArgument for a missing or an unknown operand.
        """
        import torch

        check_names(self, operands)
        shaped = []
        for operand in self.operands:
            value = operands[operand.name]
            if operand.kind != "scalar":
                value = value.to(product.dtype)
                axis = {"rowvec": 0, "colvec": 1, "tile": None}[operand.kind]
                value = value if axis is None else value.unsqueeze(axis)
                value = pair_layout.split(value) if operand.pair else value
            shaped.append(value)
        found = self.fn(pair_layout.split(product) if self.takes_pairs else product, *shaped)
        results = {}
        for output in self.outputs:
            value = found[output.name]
            if output.kind == "store":
                results[output.name] = pair_layout.join(*value) if output.pair else value
            elif output.kind == "select":
                index = operands[output.how].long()
                inside = (index >= 0) & (index < value.shape[1])
                picked = value.gather(1, torch.where(inside, index, 0)[:, None])[:, 0]
                results[output.name] = torch.where(inside, picked, torch.nan)
            else:
                dim = 1 if output.kind == "col_reduce" else 0
                results[output.name] = {"sum": value.sum, "max": value.amax,
                                        "lse": value.logsumexp}[output.how](dim)
        return results


def check_names(chosen: Epilogue, given: Mapping[str, Any]) -> None:
    """Raises BadArgument unless `given` names exactly the operands of the epilogue."""
    missing = [name for name in chosen.inputs if name not in given]
    unknown = [name for name in given if name not in chosen.inputs]
    if missing or unknown:
        wrong = (f"lacks {', '.join(missing)}" if missing
                 else f"does not know {', '.join(unknown)}")
        raise BadArgument(f"The call of {chosen.name} {wrong}; it takes "
                          f"{', '.join(chosen.inputs) or 'no operands'}.")


Names = Sequence[str] | Mapping[str, str]


def epilogue(*, rowvec: Names = (), colvec: Names = (), tile: Names = (),
             scalar: Sequence[str] = (), pairs: Sequence[str] = (), store: Names = (),
             col_reduce: Mapping[str, str] | None = None,
             row_reduce: Mapping[str, str] | None = None,
             select: Mapping[str, str] | None = None) -> Callable[[Callable], Epilogue]:
    """Declares an epilogue. The decorated function takes one element of the product, then its
    operands, and returns a dictionary with a value for every declared output.

    rowvec: operands with one value a column, such as a bias; colvec: one a row, such as 1 / rms;
    tile: one an element, such as a residual; scalar: one number. pairs: those of them, and the
    first parameter, that come two at a time (see `labkit.epilogue.pairs`).
    store: outputs with one value an element; a tuple of two where the function returns one.
    col_reduce: outputs reduced over the columns, by "sum", "max" or "lse" (log of the sum of exp);
    row_reduce: over the rows, by "sum". A program writes one partial result a tile, float32.
    select: output -> name of an int32 vector with one column a row; the value there is kept.
    rowvec, tile and store take the program's dtype, or {name: dtype}; colvec is float32.

    Raises BadArgument for names that do not fit the function's parameters or its result.
    """

    def declare(fn: Callable) -> Epilogue:
        kinds = {"rowvec": rowvec, "colvec": colvec, "tile": tile, "scalar": scalar}
        found: dict[str, tuple[str, str | None]] = {}
        for kind, names in kinds.items():
            standard = "float32" if kind in ("colvec", "scalar") else None
            for name in _listed(fn, kind, names):
                if name in found:
                    raise BadArgument(f"{fn.__name__}: {name} is declared as {found[name][0]} and "
                                      f"as {kind}; keep one of the two.")
                found[name] = (kind, names[name] if isinstance(names, Mapping) else standard)
        product, *parameters = list(inspect.signature(fn).parameters) or [""]
        if not product or set(parameters) != set(found):
            raise BadArgument(f"{fn.__name__} takes ({', '.join([product, *parameters])}), but "
                              f"{', '.join(found) or 'no operand'} is declared; the first "
                              "parameter is the product, and each other one needs a declaration.")
        wrong = [name for name in pairs
                 if name != product and found.get(name, [""])[0] not in ("rowvec", "tile")]
        if wrong:
            raise BadArgument(f"{fn.__name__}: {wrong[0]} cannot come as a pair; a pair is the "
                              f"product ({product}), a rowvec or a tile.")
        operands = tuple(Operand(name, *found[name], name in pairs) for name in parameters)
        outputs = _outputs(fn, {"store": store, "col_reduce": col_reduce or {},
                                "row_reduce": row_reduce or {}, "select": select or {}})
        made = _with_pairs(Epilogue(fn.__name__, fn, product in pairs, operands, outputs))
        _check_clashes(made)
        return made

    return declare


def _listed(fn: Callable, kind: str, names: Any) -> list[str]:
    if isinstance(names, str) or not all(isinstance(n, str) and n.isidentifier() for n in names):
        raise BadArgument(f"{fn.__name__}: {kind} is {names!r}; give a list of names, as in "
                          f'{kind}=["gamma"].')
    return list(names)


def _outputs(fn: Callable, kinds: dict[str, Any]) -> tuple[Output, ...]:
    made = []
    for kind, names in kinds.items():
        for name in _listed(fn, kind, names):
            if kind == "store":
                dtype = names[name] if isinstance(names, Mapping) else None
                made.append(Output(name, kind, dtype))
                continue
            how = names[name]
            if kind in REDUCTIONS and how not in REDUCTIONS[kind]:
                raise BadArgument(f"{fn.__name__}: {name} is reduced by {how!r}; {kind} knows "
                                  f"{', '.join(REDUCTIONS[kind])}.")
            made.append(Output(name, kind, "float32", how))
    if not made:
        raise BadArgument(f"{fn.__name__} declares no output; name at least one, as in "
                          'store=["x"].')
    return tuple(made)


def _with_pairs(made: Epilogue) -> Epilogue:
    """The epilogue with its outputs marked as the function returns them, pair or not."""
    found = probe.call(made.name, made.fn, [made.takes_pairs, *(o.pair for o in made.operands)])
    declared = [o.name for o in made.outputs]
    if not isinstance(found, dict) or set(found) != set(declared):
        returned = ", ".join(found) if isinstance(found, dict) else type(found).__name__
        raise BadArgument(f"{made.name} declares the outputs {', '.join(declared)}, but returns "
                          f"{returned}; return a dictionary with exactly the declared names.")
    outputs = []
    for output in made.outputs:
        value = found[output.name]
        pair = isinstance(value, (tuple, list))
        if pair and (output.kind != "store" or len(value) != 2):
            raise BadArgument(f"{made.name}: {output.name} is a {output.kind} and returns "
                              f"{len(value)} values; only a store takes a pair.")
        if not all(isinstance(member, probe.Value) for member in (value if pair else [value])):
            raise BadArgument(f"{made.name}: {output.name} is {_kind(value)}; return a value that "
                              "is computed from the product or an operand.")
        outputs.append(Output(output.name, output.kind, output.dtype, output.how, pair))
    return Epilogue(made.name, made.fn, made.takes_pairs, made.operands, tuple(outputs))


def _kind(value: Any) -> str:
    if isinstance(value, probe.Condition):
        return "a comparison (ops.where(..., 1.0, 0.0) makes numbers of it)"
    return f"{value!r}" if isinstance(value, (int, float)) else f"a {type(value).__name__}"


# the generated program makes its own names from these
_ENDINGS = ("tile", "part", "first", "second", "ahead", "row", "column", "total", "top", "before",
            "added")


def _check_clashes(made: Epilogue) -> None:
    names = [made.name, *made.inputs, *(o.name for o in made.outputs)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise BadArgument(f"{made.name}: {twice[0]} names two things; give each its own name.")
    taken = [name for name in names if name in _RESERVED]
    own = "|".join(re.escape(name) for name in ("acc", *names))
    made_of = re.compile(rf"({own})_({'|'.join(_ENDINGS)})\d*")  # tiles in turn are numbered
    taken += [name for name in names if made_of.fullmatch(name)]
    if taken:
        raise BadArgument(f"{made.name}: {taken[0]} is a name of the generated program; "
                          "choose another.")
