"""The epilogues of a Transformer block, forward and backward.

Notation: A and B are the operands of the GEMM in front and `acc` is an element of A B; d is the
model's width; r = 1 / rms of a row. Each line can be checked against float64 by calling the same
function on tensors (`Epilogue.reference`). What a GEMM's epilogue cannot hold stays outside:

* attention: a row of the scores needs all keys (a kernel of its own, here torch's);
* the embedding, and the first norm: no GEMM stands in front of them;
* the backward pass of cross-entropy: it follows from stored logits and the finished log-sum-exp;
* the backward pass of RoPE: attention, not a GEMM, makes its input;
* weight gradients: plain GEMMs, whose operands the epilogues below write.
"""

from __future__ import annotations

from labkit.epilogue.declare import epilogue
from labkit.epilogue.ops import gelu, gelu_slope, relu, rotate, sigmoid, silu

# --- one value an element ---------------------------------------------------------------------


@epilogue(rowvec=["bias"], store=["y"])
def add_bias(acc, bias):
    return dict(y=acc + bias)


@epilogue(rowvec=["bias"], store=["y"])
def bias_relu(acc, bias):
    return dict(y=relu(acc + bias))


@epilogue(rowvec=["bias"], store=["y"])
def bias_gelu(acc, bias):
    return dict(y=gelu(acc + bias))


@epilogue(scalar=["alpha", "beta"], tile=["addend"], store=["y"])
def scaled_sum(acc, addend, alpha, beta):
    return dict(y=alpha * acc + beta * addend)


# --- norms: the statistics leave one GEMM as partial sums and come back in the next as a vector -


@epilogue(tile=["residual"], rowvec=["gamma"], store=["x", "scaled"], col_reduce={"sumsq": "sum"})
def residual_rms(acc, residual, gamma):
    x = acc + residual
    return dict(x=x, scaled=x * gamma, sumsq=x * x)


@epilogue(colvec=["rstd"], store=["z"])
def rstd_scale(acc, rstd):
    return dict(z=acc * rstd)  # r is the same along a row, so (r a) B = r (a B)


@epilogue(tile=["residual"], rowvec=["gamma"], store=["x", "scaled"],
          col_reduce={"total": "sum", "sumsq": "sum"})
def residual_layernorm(acc, residual, gamma):
    x = acc + residual
    return dict(x=x, scaled=x * gamma, total=x, sumsq=x * x)


@epilogue(colvec=["rstd", "shift"], rowvec={"gamma_B": "float32", "beta_B": "float32"}, store=["z"])
def layernorm(acc, rstd, shift, gamma_B, beta_B):
    return dict(z=rstd * acc - shift * gamma_B + beta_B)  # shift = mean rstd; gamma_B = gamma B


# --- pairs of columns ---------------------------------------------------------------------------


@epilogue(pairs=["acc"], store=["y"])
def swiglu(acc):
    gate, up = acc
    return dict(y=silu(gate) * up)


@epilogue(pairs=["acc"], store=["y"])
def geglu(acc):
    gate, up = acc
    return dict(y=gelu(gate) * up)


@epilogue(pairs=["acc"], colvec=["rstd"], store=["z", "y"])
def rstd_swiglu(acc, rstd):
    gate, up = acc[0] * rstd, acc[1] * rstd
    return dict(z=(gate, up), y=silu(gate) * up)  # z is for the backward pass


@epilogue(pairs=["acc"], colvec=["rstd"], store=["y"])
def rstd_swiglu_forward(acc, rstd):
    gate, up = acc[0] * rstd, acc[1] * rstd
    return dict(y=silu(gate) * up)


@epilogue(pairs=["acc"], colvec=["rstd"], store=["z", "y"])
def rstd_geglu(acc, rstd):
    gate, up = acc[0] * rstd, acc[1] * rstd
    return dict(z=(gate, up), y=gelu(gate) * up)


@epilogue(pairs=["acc"], colvec=["rstd", "position"], rowvec={"frequency": "float32"}, store=["z"])
def rstd_rope(acc, rstd, position, frequency):
    z = acc[0] * rstd, acc[1] * rstd
    return dict(z=rotate(z, position * frequency))  # a frequency of 0 leaves values as they are


# --- loss ---------------------------------------------------------------------------------------


@epilogue(colvec=["rstd"], store=["logits"], col_reduce={"lse": "lse"}, select={"picked": "target"})
def rstd_cross_entropy(acc, rstd):
    logits = acc * rstd
    return dict(logits=logits, lse=logits, picked=logits)


# --- backward pass: the product is the gradient that comes back through the next weight ----------


@epilogue(pairs=["z"], tile=["z"], store=["dz", "y"], col_reduce={"zdz": "sum"})
def dswiglu(dy, z):
    gate, up = z
    s = sigmoid(gate)
    dgate, dup = dy * up * (s + gate * s * (1.0 - s)), dy * gate * s
    return dict(dz=(dgate, dup), y=gate * s * up, zdz=gate * dgate + up * dup)


@epilogue(pairs=["z"], tile=["z"], store=["dz", "y"], col_reduce={"zdz": "sum"})
def dgeglu(dy, z):
    gate, up = z
    dgate, dup = dy * up * gelu_slope(gate), dy * gelu(gate)
    return dict(dz=(dgate, dup), y=gelu(gate) * up, zdz=gate * dgate + up * dup)


@epilogue(tile=["x"], colvec=["rstd", "s"], rowvec=["gamma"], store=["dx", "normed"],
          row_reduce={"dgamma": "sum"})
def drms(da, x, rstd, s, gamma):
    unit = x * rstd  # s = sum of z dz over the next product's columns, over d
    return dict(dx=rstd * (da * gamma - unit * s), normed=unit * gamma, dgamma=da * unit)


@epilogue(tile=["x", "dresidual"], colvec=["rstd", "s"], rowvec=["gamma"], store=["dx", "normed"],
          row_reduce={"dgamma": "sum"})
def drms_residual(da, x, dresidual, rstd, s, gamma):
    back = drms(da, x, rstd, s, gamma)
    return back | dict(dx=back["dx"] + dresidual)


ALL = (add_bias, bias_relu, bias_gelu, scaled_sum, residual_rms, rstd_scale, residual_layernorm,
       layernorm, swiglu, geglu, rstd_swiglu, rstd_swiglu_forward, rstd_geglu, rstd_rope,
       rstd_cross_entropy, dswiglu, dgeglu, drms, drms_residual)
