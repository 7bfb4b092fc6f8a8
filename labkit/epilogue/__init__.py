"""Epilogues: what a GEMM does to its accumulator before it is stored.

    from labkit.epilogue import epilogue, gemm, ops

    @epilogue(rowvec=["bias"], store=["y"])
    def bias_silu(acc, bias):
        return dict(y=ops.silu(acc + bias))

    program = gemm(bias_silu)(M, N, K)   # for lab.compile, lab.cross_compile, ...

`catalogue` holds the epilogues of a Transformer block, `finalize` ends reductions, `matmul` runs a
GEMM on tensors, `check` compares one with float64, `functions` and `block` are for PyTorch models.
"""

from labkit.epilogue import ops, pairs
from labkit.epilogue.checking import check
from labkit.epilogue.declare import Epilogue, epilogue
from labkit.epilogue.gemm import gemm, plain
from labkit.epilogue.run import matmul
from labkit.epilogue.schedules import OPTIONS, SCHEDULES, schedule

__all__ = ["OPTIONS", "SCHEDULES", "Epilogue", "check", "epilogue", "gemm", "matmul", "ops",
           "pairs", "plain", "schedule"]
