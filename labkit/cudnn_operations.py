"""The operations of cuDNN graphs in PyTorch, in float32: what `labkit.cudnn_reference` evaluates.

Each takes a node and `read`, which returns a tensor of the graph as float32, and returns its
outputs by port. An operation, a mode or an option that is not written here raises NotOnCPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.cudnn_words import operation
from labkit.errors import BadArgument, NotOnCPU


def unknown(name: str) -> NotOnCPU:
    """The error of an operation that is not written here."""
    have = sorted({*_POINTWISE, "conv_fprop", "matmul", "reduction", "sdpa"})
    return NotOnCPU(f"The CPU's reference of cuDNN has no {name!r}; it has {', '.join(have)}. "
                    "Run this graph on a GPU.")


def _known(node: Any, *options: str) -> None:
    """Refuses options that would change the result and are not written here."""
    more = sorted(key for key, value in node.params.items()
                  if value is not None and key not in {*options, "name", "compute_data_type"})
    if more:
        raise unknown(f"{operation(node)} with {', '.join(more)}")


def _or(value: Any, default: float) -> float:
    return default if value is None else value


def _conv(node: Any, read: Callable) -> dict[str, Any]:
    import torch.nn.functional as F

    _known(node, "padding", "pre_padding", "post_padding", "stride", "dilation")
    x, w, params = read(node.inputs["image"]), read(node.inputs["weight"]), node.params
    if x.dim() not in (3, 4, 5) or w.dim() != x.dim():
        raise BadArgument("conv_fprop takes an image [N, C, ...] and filters [K, C, ...] with one "
                          f"to three axes after the channels, and got {list(x.shape)} and "
                          f"{list(w.shape)}.")
    if w.shape[1] == 0 or x.shape[1] % w.shape[1]:
        raise BadArgument(f"conv_fprop got an image of {x.shape[1]} channels and filters of "
                          f"{w.shape[1]}; make them equal, or the first a multiple of the second "
                          "(a grouped convolution).")
    both = params.get("padding") or [0] * (x.dim() - 2)
    before, after = params.get("pre_padding") or both, params.get("post_padding") or both
    sides = [side for pair in reversed(list(zip(before, after, strict=True))) for side in pair]
    call = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    ones = [1] * (x.dim() - 2)
    return {"Y": call(F.pad(x, sides), w, stride=params.get("stride") or ones,
                      dilation=params.get("dilation") or ones,
                      groups=x.shape[1] // w.shape[1])}


def _matmul(node: Any, read: Callable) -> dict[str, Any]:
    _known(node, "padding")  # a value for rows that only ragged batches have
    ragged = sorted(set(node.inputs) - {"A", "B"})
    if ragged:
        raise unknown(f"matmul with {', '.join(ragged)}")
    return {"C": read(node.inputs["A"]) @ read(node.inputs["B"])}


def _reduction(node: Any, read: Callable) -> dict[str, Any]:
    (source,) = node.inputs.values()
    ((port, target),) = node.outputs.items()
    x, mode = read(source), getattr(node.params["mode"], "name", "")
    if mode not in _REDUCTIONS:
        raise unknown(f"reduction {mode}")
    dims = list(target.get_dim())
    if len(dims) != x.dim():
        raise BadArgument(f"reduction reads {list(x.shape)}, and its output has the dims {dims}; "
                          "set_dim it, with a 1 for each axis that is reduced.")
    axes = [axis for axis, (size, kept) in enumerate(zip(x.shape, dims, strict=True))
            if size != kept]
    # one more axis of size 1: where none is reduced, the mode's own arithmetic is still done
    return {port: _REDUCTIONS[mode](x.unsqueeze(-1), [*axes, -1]).squeeze(-1)}


_REDUCTIONS: dict[str, Callable] = {
    "ADD": lambda x, axes: x.sum(axes, keepdim=True),
    "AVG": lambda x, axes: x.mean(axes, keepdim=True),
    "MAX": lambda x, axes: x.amax(axes, keepdim=True),
    "MIN": lambda x, axes: x.amin(axes, keepdim=True),
    "AMAX": lambda x, axes: x.abs().amax(axes, keepdim=True),
    "NORM1": lambda x, axes: x.abs().sum(axes, keepdim=True),
    "NORM2": lambda x, axes: x.square().sum(axes, keepdim=True).sqrt(),
}


def _pointwise(node: Any, read: Callable) -> dict[str, Any]:
    mode = operation(node)
    if mode not in _POINTWISE:
        raise unknown(mode)
    _known(node, "mode", *_OPTIONS.get(mode, ()))
    inputs = [read(tensor) for tensor in node.inputs.values() if tensor is not None]
    return {"OUT_0": _POINTWISE[mode](node.params, *inputs)}


def _relu(params: dict[str, Any], x: Any) -> Any:
    import torch

    low = _or(params.get("lower_clip"), 0.0)
    y = torch.where(x > low, x, low + _or(params.get("negative_slope"), 0.0) * (x - low))
    high = params.get("upper_clip")
    return y if high is None else y.clamp(max=high)


def _gelu(approximate: str) -> Callable:
    def apply(params: dict[str, Any], x: Any) -> Any:
        import torch.nn.functional as F

        return F.gelu(x, approximate=approximate)

    return apply


_POINTWISE: dict[str, Callable] = {
    "add": lambda p, a, b: a + b, "bias": lambda p, a, b: a + b, "sub": lambda p, a, b: a - b,
    "mul": lambda p, a, b: a * b, "scale": lambda p, a, b: a * b, "div": lambda p, a, b: a / b,
    "max": lambda p, a, b: a.maximum(b), "min": lambda p, a, b: a.minimum(b),
    "identity": lambda p, x: x, "abs": lambda p, x: x.abs(), "neg": lambda p, x: -x,
    "exp": lambda p, x: x.exp(), "log": lambda p, x: x.log(), "sqrt": lambda p, x: x.sqrt(),
    "rsqrt": lambda p, x: x.rsqrt(), "reciprocal": lambda p, x: 1 / x,
    "tanh": lambda p, x: x.tanh(), "sigmoid": lambda p, x: x.sigmoid(),
    "swish": lambda p, x: x * (_or(p.get("swish_beta"), 1.0) * x).sigmoid(),
    "relu": _relu, "leaky_relu": _relu, "gelu": _gelu("none"), "gelu_approx_tanh": _gelu("tanh"),
    "cmp_gt": lambda p, a, b: (a > b).float(), "cmp_ge": lambda p, a, b: (a >= b).float(),
    "cmp_lt": lambda p, a, b: (a < b).float(), "cmp_le": lambda p, a, b: (a <= b).float(),
    "binary_select": lambda p, a, b, mask: mask.bool() * a + ~mask.bool() * b,
}

_OPTIONS = {"relu": ("negative_slope", "lower_clip", "upper_clip"),
            "leaky_relu": ("negative_slope", "lower_clip", "upper_clip"), "swish": ("swish_beta",)}

_SDPA = {"attn_scale", "generate_stats", "is_inference", "use_causal_mask", "diagonal_alignment",
         "diagonal_band_left_bound", "diagonal_band_right_bound", "compute_data_type", "name",
         "implementation"}


def _sdpa(node: Any, read: Callable) -> dict[str, Any]:
    import torch

    params = {key: value for key, value in node.params.items()
              if value is not None and value is not False}
    more = sorted({*params, *node.inputs} - _SDPA - {"q", "k", "v", "bias"})
    if more:
        raise unknown(f"sdpa with {', '.join(more)}")
    q, k, v = (read(node.inputs[name]) for name in "qkv")
    if {t.dim() for t in (q, k, v)} != {4} or any(q.shape[1] % max(t.shape[1], 1) for t in (k, v)):
        raise BadArgument("sdpa takes [batch, heads, sequence, size] with as many heads in Q as in "
                          "K and V, or a multiple of them, and got "
                          f"{', '.join(str(list(t.shape)) for t in (q, k, v))}.")
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scale = params.get("attn_scale", 1.0)
    scores = q @ k.transpose(-1, -2) * (float(read(scale)) if hasattr(scale, "get_uid") else scale)
    if node.inputs.get("bias") is not None:
        scores = scores + read(node.inputs["bias"])
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    columns = torch.arange(k.shape[2], device=q.device)[None, :]
    if getattr(params.get("diagonal_alignment"), "name", "") == "BOTTOM_RIGHT":
        rows = rows + k.shape[2] - q.shape[2]
    right = 0 if params.get("use_causal_mask") else params.get("diagonal_band_right_bound")
    hidden = torch.zeros(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if right is not None:
        hidden |= columns > rows + right
    left = params.get("diagonal_band_left_bound")
    if left is not None:
        hidden |= columns <= rows - left
    scores = scores.masked_fill(hidden, -math.inf)
    stats = scores.logsumexp(-1, keepdim=True)
    return {"O": (scores - stats).exp().nan_to_num() @ v, "Stats": stats}


OPERATIONS = {"CONV_FPROP": _conv, "MATMUL": _matmul, "REDUCTION": _reduction,
               "POINTWISE": _pointwise, "SDPA": _sdpa}
