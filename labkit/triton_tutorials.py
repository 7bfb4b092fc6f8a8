"""Triton's own tutorial kernels as baselines, where Triton is installed and takes the tensors.

    lab.bench(…, baselines={…, **lab.triton_baselines("gemm", A, B)})

The kernels are in `labkit.benching.triton_kernels`, written anew from their description.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from labkit.errors import BadArgument, WrongAnswer, first_line

NAME = "Triton tutorial"
_LONGEST_ROW = 32768  # elements of a row that the softmax holds in registers; longer ones spill
_KEYS = 128  # the attention's sizes are multiples of it
_KERNELS = ("gemm", "softmax", "attention")


def triton_baselines(what: str, *tensors: Any, causal: bool = False) -> dict[str, Callable]:
    """{"Triton tutorial": a call}, or {} where Triton is not there, the tensors are not on a GPU of
    compute capability 8.0 or later, or the tutorial's kernel does not take their sizes. Where it
    does not compile or run, that is printed, and it is left out.

    what: "gemm" (A [M, K], B [K, N]), "softmax" (X [M, N], along the rows) or "attention" (Q, K, V
    [batch, heads, S, D]; causal counts for it alone). The call returns its output, always the same
    tensor. It is tuned and compared with PyTorch's when it is made.
    Raises BadArgument for another `what`, WrongAnswer if it is wrong.
    """
    if what not in _KERNELS:
        raise BadArgument(f"what is {what!r}; the tutorial kernels are {', '.join(_KERNELS)}.")
    if not tensors[0].is_cuda or find_spec("triton") is None or not _takes(what, tensors):
        return {}
    import torch
    import torch.nn.functional as F

    from labkit.benching import triton_kernels

    if what == "gemm":
        A, B = tensors
        out = torch.empty(A.shape[0], B.shape[1], dtype=A.dtype, device=A.device)
        wanted = torch.mm(A, B)
    else:
        out = torch.empty_like(tensors[0])
        wanted = (torch.softmax(tensors[0], -1) if what == "softmax" else
                  F.scaled_dot_product_attention(*tensors, is_causal=causal))
    options = {"causal": causal} if what == "attention" else {}
    try:
        call = getattr(triton_kernels, what)(*tensors, out, **options)
        torch.cuda.synchronize()
    except Exception as error:  # of many kinds: Triton's compiler, its assembler, the launch
        print(f"left out: {NAME}: {first_line(error)}")
        return {}
    distance = (call().float() - wanted.float()).norm() / wanted.float().norm()
    if not distance <= 4 * torch.finfo(out.dtype).eps:  # both rounded, in other orders
        raise WrongAnswer(f"Triton's {what} lies {distance:.1e} from PyTorch's; report this with "
                          "the versions of both.")
    return {NAME: call}


def _takes(what: str, tensors: tuple[Any, ...]) -> bool:
    """Whether the tutorial's kernel is made for these sizes and this GPU."""
    import torch

    first = tensors[0]
    if torch.cuda.get_device_capability(first.device) < (8, 0):
        return False
    if what == "softmax":
        return first.shape[-1] <= _LONGEST_ROW
    if what == "gemm":
        return True
    # its tiles come through tensor descriptors, and need as many heads of keys as of queries
    return (torch.cuda.get_device_capability(first.device) >= (9, 0)
            and all(t.shape == first.shape for t in tensors)
            and first.shape[2] % _KEYS == 0 and first.shape[3] in (64, 128))
