"""Checks an epilogue: its kernel on random inputs against float64, at a size that no tile divides.

    check(my_epilogue)                                  # the kernel against the function itself
    check(my_epilogue, expected=whole_matrix_function)  # and the mathematics against another text
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.epilogue import finalize
from labkit.epilogue.declare import Epilogue, Output
from labkit.epilogue.run import matmul
from labkit.errors import BadArgument, WrongAnswer
from labkit.verify import Comparison, compare

FINISH = {"sum": finalize.total, "max": finalize.maximum, "lse": finalize.logsumexp}
# Relative error allowed to a reduction. On a CPU it is below 1e-6. Hopper's tensor cores keep less
# than float32 of a long product, and where a sum's terms cancel this shows: 3.3e-5 for dgamma at
# M = 8192, K = 28672. Terms rounded to 16 bits before the sum would show 1e-3.
ALLOWED = 1e-4


def finished(output: Output, value: Any) -> Any:
    """A reduction's partial results [tiles, n] ended to [n]; anything else as it is."""
    return FINISH[output.how](value) if output.kind in ("col_reduce", "row_reduce") else value


def compare_reduction(value: Any, wanted: Any, name: str) -> Comparison:
    """`compare` for what is reduced or selected from the accumulator: ALLOWED is its limit."""
    result = compare(value, wanted, name=name, allowed=ALLOWED)
    return replace(result, dtype=f"a reduction in {result.dtype}")


def random_operands(chosen: Epilogue, M: int, N: int, dtype: str = "float16", device: str = "cpu",
                    seed: int = 0) -> dict[str, Any]:
    """Operands for a product of M x N, by name: normal values, and for a colvec values between 0.5
    and 1.5, as 1 / rms has; a scalar is 0.75; selected columns lie inside the product."""
    import torch

    source = torch.Generator().manual_seed(seed)
    columns = N // 2 if chosen.takes_pairs else N
    made: dict[str, Any] = {}
    for o in chosen.operands:
        width = columns * (2 if o.pair else 1)
        if o.kind == "scalar":
            made[o.name] = 0.75
        elif o.kind == "colvec":
            made[o.name] = (torch.rand(M, generator=source) + 0.5).to(device)
        else:
            shape = (M, width) if o.kind == "tile" else (width,)
            made[o.name] = torch.randn(shape, generator=source).to(
                device, getattr(torch, o.dtype or dtype))
    for name in chosen.indices:
        made[name] = torch.randint(0, columns, (M,), generator=source, dtype=torch.int32).to(device)
    return made


def check(chosen: Epilogue, expected: Callable[..., dict[str, Any]] | None = None, *,
          M: int = 130, N: int = 112, K: int = 50, dtype: str = "float16", device: str = "auto",
          seed: int = 0, knobs: dict[str, Any] | None = None, **operands: Any) -> list[Comparison]:
    """Runs A [M, K] B [K, N] with the epilogue and compares every output, reductions finished.

    expected: a function of the product [M, N] and the operands by name, all float64 tensors (a
    scalar a number, selected columns int32), that returns the outputs by name: stores
    [M, columns], col_reduce and select [M], row_reduce [columns]. None: the epilogue's own function
    on whole tensors, which checks the kernel but not the mathematics.
    device: "auto", "gpu" or "cpu"; operands: tensors to use in place of random ones (see
    `random_operands`).
    Returns a comparison for each output, all of them ok. Raises WrongAnswer where one differs,
    BadArgument for an operand or an expected output that does not fit.
    """
    import torch

    from labkit.machine import resolve_device

    place = "cuda" if resolve_device(device) == "gpu" else "cpu"
    source = torch.Generator().manual_seed(seed)
    A, B = (torch.randn(shape, generator=source) for shape in ((M, K), (K, N)))
    A, B = (t.to(place, getattr(torch, dtype)) for t in (A, B / K**0.5))
    given = random_operands(chosen, M, N, dtype, place, seed + 1) | operands
    found = matmul(chosen, A, B, knobs=knobs, **given)
    product = A.double() @ B.double()
    wanted = _expected(chosen, expected, product, given)
    results = []
    for output in chosen.outputs:
        judge = compare if output.kind == "store" else compare_reduction
        result = judge(finished(output, found[output.name]), wanted[output.name],
                       name=f"{chosen.name}.{output.name}")
        if not result.ok:
            raise WrongAnswer(repr(result))
        results.append(result)
    return results


def _expected(chosen: Epilogue, expected: Callable[..., dict[str, Any]] | None, product: Any,
              given: dict[str, Any]) -> dict[str, Any]:
    import torch

    if expected is None:
        return chosen.reference(product, **given)
    wide = {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value for name, value in given.items()}
    wanted = expected(product, **wide)
    missing = [o.name for o in chosen.outputs if o.name not in wanted]
    if missing:
        raise BadArgument(f"{chosen.name}: the expected outputs lack {', '.join(missing)}; return "
                          "a dictionary with every output, reductions finished.")
    return wanted
