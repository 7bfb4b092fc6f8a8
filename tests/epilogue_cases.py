"""Inputs, runs and finished results for the tests of GEMMs with epilogues."""

import torch

import labkit as lab
from labkit.epilogue import catalogue, gemm
from labkit.epilogue.checking import finished

# The other epilogues are made of the same parts. They are compiled for GPUs in `make test-all`.
FIRST = ("plain", "residual_rms", "rstd_rope", "rstd_swiglu", "rstd_cross_entropy", "dswiglu",
         "drms_residual")
SMALL = dict(block_M=32, block_N=64, block_K=32, num_stages=1, piece=32)


def named(name):
    return next(e for e in catalogue.ALL if e.name == name)


def operands(chosen, M, N, dtype="float16"):
    """Random operands of a product of M x N, by name."""
    columns = N // 2 if chosen.takes_pairs else N
    made = {}
    for o in chosen.operands:
        width = columns * (2 if o.pair else 1)
        shape = {"rowvec": (width,), "colvec": (M,), "tile": (M, width), "scalar": ()}[o.kind]
        made[o.name] = (0.75 if o.kind == "scalar"
                        else torch.randn(shape).to(getattr(torch, o.dtype or dtype)))
    for name in chosen.indices:
        made[name] = torch.randint(0, N, (M,), dtype=torch.int32)
    return made


def run(chosen, M, N, K, dtype="float16", transpose_B=False, **schedule):
    """(output, value, float64 reference) of each output of the program on the CPU."""
    A = torch.randn(M, K).to(getattr(torch, dtype))
    B = (torch.randn(*((N, K) if transpose_B else (K, N))) / K**0.5).to(A.dtype)
    given = operands(chosen, M, N, dtype)
    builder = gemm(chosen)
    kernel = lab.compile(builder(M, N, K, dtype=dtype, transpose_B=transpose_B, **schedule),
                         out_idx=builder.out_idx, device="cpu")
    values = kernel(A, B, *(given[name] for name in chosen.inputs))
    values = values if isinstance(values, tuple) else (values,)
    product = A.double() @ (B.double().T if transpose_B else B.double())
    expected = chosen.reference(product, **given)
    return [(o, finished(o, v), expected[o.name])
            for o, v in zip(chosen.outputs, values, strict=True)]
