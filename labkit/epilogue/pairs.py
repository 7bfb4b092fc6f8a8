"""Where the two members of a pair lie.

A pair map takes two columns of the product: gate and up of SwiGLU, the two coordinates that RoPE
turns. A tensor core leaves a thread with columns 2t and 2t + 1 of every eight. So with the members
eight columns apart, one thread holds both of them, two pairs side by side, and no data has to move:

    columns   0 .. 7    first members of pairs 0 .. 7
    columns   8 .. 15   second members of pairs 0 .. 7
    columns  16 .. 23   first members of pairs 8 .. 15, and so on.

The columns of the product come from the rows of the weight, so the weight is arranged once, with
`join`, and the kernels find the pairs where they need them.
"""

from __future__ import annotations

from typing import Any

from labkit.errors import BadArgument

GROUP = 8  # columns from one member of a pair to the other


def place(pair: Any, member: int) -> Any:
    """The column of a pair's member 0 or 1, for a number or a TileLang index."""
    return pair // GROUP * (2 * GROUP) + pair % GROUP + member * GROUP


def join(first: Any, second: Any, dim: int = -1) -> Any:
    """The members of pairs, arranged as above along `dim`: of two tensors [..., n, ...] one
    [..., 2 n, ...]. Raises BadArgument if their shapes differ, or n is no multiple of 8."""
    import torch

    if first.shape != second.shape or first.shape[dim] % GROUP:
        raise BadArgument(f"The members of pairs have shapes {list(first.shape)} and "
                          f"{list(second.shape)}; give two of one shape, with a multiple of "
                          f"{GROUP} along dim {dim}.")
    dim %= first.dim()
    groups = [t.unflatten(dim, (-1, GROUP)) for t in (first, second)]
    return torch.stack(groups, dim + 1).flatten(dim, dim + 2)


def split(joined: Any, dim: int = -1) -> tuple[Any, Any]:
    """The first and the second members of the pairs along `dim`: undoes `join`. Raises BadArgument
    if the length along `dim` is no multiple of 16."""
    if joined.shape[dim] % (2 * GROUP):
        raise BadArgument(f"A tensor of shape {list(joined.shape)} does not hold whole groups of "
                          f"pairs along dim {dim}; give a multiple of {2 * GROUP} there.")
    dim %= joined.dim()
    groups = joined.unflatten(dim, (-1, 2, GROUP))
    return tuple(groups.select(dim + 1, member).flatten(dim, dim + 1) for member in (0, 1))
