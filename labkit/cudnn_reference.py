"""What a cuDNN graph means: its operations one after another in PyTorch, in float32.

So a graph can be run, slowly, where there is no GPU, and a wrong padding, stride, axis or mode
shows as a wrong number there too. It reads and writes the tensors as the graph describes them, by
dims and strides, as cuDNN does. It is a reference, not a fast path, and it fuses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit.cudnn_picture import dtype_name, operation
from labkit.errors import BadArgument, NotOnCPU


def evaluate(graph: Any, pack: dict[Any, Any]) -> None:
    """Computes every output of `graph` in `pack`, tensor of the graph -> torch tensor.

    Virtual tensors are kept in float32, and so is arithmetic; what lies in memory is rounded to
    its dtype. Raises BadArgument for a tensor that is missing, does not have the dtype that the
    graph gives it or is too small for its dims and strides, and for an output without strides;
    NotOnCPU for an operation that is not written here.
    """
    import torch

    named = {_key(key): value for key, value in pack.items()}
    values: dict[int, Any] = {}

    def read(tensor: Any) -> Any:
        if tensor.get_uid() not in values:
            found = _memory(tensor, named)  # a number from the host goes with tensors on any device
            values[tensor.get_uid()] = (found.reshape(()) if tensor.get_is_pass_by_value() else
                                        _view(tensor, found)).float()
        return values[tensor.get_uid()]

    for node in graph.nodes:
        if node.node_type.name not in _OPERATIONS:
            raise _unknown(operation(node))
        made = _OPERATIONS[node.node_type.name](node, read)
        for port, tensor in node.outputs.items():
            if tensor is None:
                continue
            value = made[port]
            if not tensor.get_is_virtual():
                if not tensor.stride_assigned:
                    raise BadArgument(f"Output {tensor.get_name()!r} has no strides, so only "
                                      "libcudnn would know its layout; set_dim and set_stride it.")
                found = _memory(tensor, named)
                if list(value.shape) != list(tensor.get_dim()):
                    raise BadArgument(f"{operation(node)} makes {list(value.shape)}, and "
                                      f"{tensor.get_name()!r} was given the dims "
                                      f"{list(tensor.get_dim())}; make the two agree.")
                with torch.no_grad():
                    _view(tensor, found).copy_(value)
                value = _view(tensor, found).float()  # as the next operation would read it
            values[tensor.get_uid()] = value.to(torch.float32)


def _key(key: Any) -> Any:
    return key.get_uid() if hasattr(key, "get_uid") else key


def _memory(tensor: Any, named: dict[Any, Any]) -> Any:
    name, uid = tensor.get_name(), tensor.get_uid()
    found = named.get(uid, named.get(name))
    if found is None:
        raise BadArgument(f"The pack has no tensor for {name!r}; give every input and output of "
                          "the graph.")
    if not hasattr(found, "untyped_storage") or found.is_sparse or found.is_meta:
        raise BadArgument(f"{name!r} got {type(found).__name__}; give a dense torch tensor "
                          "that has memory.")
    theirs = str(found.dtype).removeprefix("torch.")
    if theirs != dtype_name(tensor):
        raise BadArgument(f"{name!r} is {theirs}, and the graph says {dtype_name(tensor)}; cuDNN "
                          "would read its bytes as that. Make the two agree.")
    return found


def _view(tensor: Any, memory: Any) -> Any:
    dim, stride = tensor.get_dim(), tensor.get_stride()
    last = sum((size - 1) * step for size, step in zip(dim, stride, strict=True))
    room = memory.untyped_storage().nbytes() // memory.element_size() - memory.storage_offset()
    if last >= room:
        raise BadArgument(f"{tensor.get_name()!r} reaches element {last} by its dims and strides, "
                          f"and the tensor holds {room}; cuDNN would go past its end.")
    return memory.as_strided(dim, stride)


def _unknown(name: str) -> NotOnCPU:
    have = sorted({*_POINTWISE, "conv_fprop", "matmul", "reduction", "sdpa"})
    return NotOnCPU(f"The CPU's reference of cuDNN has no {name!r}; it has {', '.join(have)}. "
                    "Run this graph on a GPU.")


# --- the operations: (node, read) -> port -> value


def _conv(node: Any, read: Callable) -> dict[str, Any]:
    import torch.nn.functional as F

    x, w, params = read(node.inputs["image"]), read(node.inputs["weight"]), node.params
    both = params.get("padding") or [0] * (x.dim() - 2)
    before, after = params.get("pre_padding") or both, params.get("post_padding") or both
    sides = [side for pair in reversed(list(zip(before, after, strict=True))) for side in pair]
    call = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[x.dim()]
    ones = [1] * (x.dim() - 2)
    return {"Y": call(F.pad(x, sides), w, stride=params.get("stride") or ones,
                      dilation=params.get("dilation") or ones,
                      groups=x.shape[1] // w.shape[1])}


def _matmul(node: Any, read: Callable) -> dict[str, Any]:
    return {"C": read(node.inputs["A"]) @ read(node.inputs["B"])}


def _reduction(node: Any, read: Callable) -> dict[str, Any]:
    (source,) = node.inputs.values()
    ((port, target),) = node.outputs.items()
    x, mode = read(source), getattr(node.params["mode"], "name", "")
    if mode not in _REDUCTIONS:
        raise _unknown(f"reduction {mode}")
    axes = [axis for axis, (size, kept) in enumerate(zip(x.shape, target.get_dim(), strict=True))
            if size != kept]
    return {port: _REDUCTIONS[mode](x, axes) if axes else x}


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
        raise _unknown(mode)
    inputs = [read(tensor) for tensor in node.inputs.values() if tensor is not None]
    return {"OUT_0": _POINTWISE[mode](node.params, *inputs)}


def _relu(params: dict[str, Any], x: Any) -> Any:
    import torch

    low = params.get("lower_clip") or 0.0
    y = torch.where(x > low, x, low + (params.get("negative_slope") or 0.0) * (x - low))
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
    "swish": lambda p, x: x * ((p.get("swish_beta") or 1.0) * x).sigmoid(),
    "relu": _relu, "leaky_relu": _relu, "gelu": _gelu("none"), "gelu_approx_tanh": _gelu("tanh"),
    "cmp_gt": lambda p, a, b: (a > b).float(), "cmp_ge": lambda p, a, b: (a >= b).float(),
    "cmp_lt": lambda p, a, b: (a < b).float(), "cmp_le": lambda p, a, b: (a <= b).float(),
    "binary_select": lambda p, a, b, mask: mask.bool() * a + ~mask.bool() * b,
}

_SDPA = {"attn_scale", "generate_stats", "is_inference", "use_causal_mask", "diagonal_alignment",
         "diagonal_band_left_bound", "diagonal_band_right_bound", "compute_data_type", "name",
         "implementation"}


def _sdpa(node: Any, read: Callable) -> dict[str, Any]:
    import torch

    params = {key: value for key, value in node.params.items()
              if value is not None and value is not False}
    unknown = sorted({*params, *node.inputs} - _SDPA - {"q", "k", "v", "bias"})
    if unknown:
        raise _unknown(f"sdpa with {', '.join(unknown)}")
    q, k, v = (read(node.inputs[name]) for name in "qkv")
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


_OPERATIONS = {"CONV_FPROP": _conv, "MATMUL": _matmul, "REDUCTION": _reduction,
               "POINTWISE": _pointwise, "SDPA": _sdpa}
