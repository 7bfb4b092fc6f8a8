"""How a cuDNN graph is described: what it writes, pinned layouts, dtypes, numbers from the host.

None of this shows in the numbers that the graph computes on the CPU, and all of it decides what
happens on a GPU.
"""

from __future__ import annotations

from typing import Any


def fault(graph: Any, pack: dict[Any, Any], tensors: dict[str, Any], outputs: tuple[str, ...],
          numbers: tuple[str, ...] = ()) -> str:
    """What is wrong with a graph's description, in a sentence; "" if nothing is.

    tensors: name -> torch tensor, of which `outputs` are to be written and `numbers` passed by
    value. The graph's shapes have been inferred.
    """
    packed = {_uid(key): value for key, value in pack.items()}
    named = {id(value): name for name, value in tensors.items()}

    def argument(tensor: Any) -> str:
        found = packed.get(tensor.get_uid(), packed.get(tensor.get_name()))
        return named.get(id(found), "")

    results = [t for node in graph.nodes for t in node.outputs.values() if t is not None]
    inputs = [t for node in graph.nodes for t in node.inputs.values()
              if t is not None and t not in results]
    for name in outputs:
        if not any(argument(t) == name for t in results):
            return (f"no tensor that the graph computes stands for {name} in the pack, so "
                    f"nobody writes it: set_output(True) it, and put it in with {name} as its "
                    "memory.")
    for tensor in results:
        name = argument(tensor)
        label = repr(tensor.get_name())
        if name in outputs and tensor.get_is_virtual():
            return (f"{label} stands for {name} and is virtual, so it never reaches memory: "
                    "call set_output(True) on it.")
        if not tensor.get_is_virtual():
            if name not in outputs:
                return (f"{label} is an output too, so all of it goes to memory: only "
                        f"{' and '.join(outputs)} should, take set_output off the others.")
            said = _pinned(tensor, name, tensors[name])
            if said:
                return said
    for tensor in inputs:
        name = argument(tensor)
        if tensor.get_is_pass_by_value() and name not in numbers:
            return (f"{name or tensor.get_name()} is a number that is passed by value: "
                    "tensor_like makes one of every tensor on the CPU. Describe it with "
                    "graph.tensor(name=..., **cudnn_graph.describe(...)).")
        if name in numbers and not tensor.get_is_pass_by_value():
            return (f"{name} lies on the CPU, and the graph takes it for memory of the GPU: "
                    "tensor_like makes it a number that is passed by value.")
    return _in_float32(graph)


def _uid(key: Any) -> Any:
    return key.get_uid() if hasattr(key, "get_uid") else key


def _pinned(tensor: Any, name: str, memory: Any) -> str:
    """What is wrong with an output's dtype, dims and strides; "" if nothing is."""
    from labkit.cudnn_picture import dtype_name

    theirs = str(memory.dtype).removeprefix("torch.")
    if dtype_name(tensor) != theirs:
        return (f"{name} is {dtype_name(tensor) or 'of no dtype'} in the graph, and its memory is "
                f"{theirs}: set_data_type it.")
    if not (tensor.dim_assigned and tensor.stride_assigned):
        missing = "set_stride" if tensor.dim_assigned else "set_dim and set_stride"
        return (f"{name} is not pinned, so libcudnn chooses its layout: call {missing} with what "
                f"the tensor {name} has.")
    dim, stride = list(tensor.get_dim()), list(tensor.get_stride())
    if dim != list(memory.shape):
        return f"{name} is pinned to the dims {dim}, and its memory has {list(memory.shape)}."
    if any(a != b for a, b, size in zip(stride, memory.stride(), dim, strict=True) if size > 1):
        return (f"{name} is pinned to the strides {stride}, and its memory has "
                f"{list(memory.stride())}: take them from the tensor.")
    return ""


def _in_float32(graph: Any) -> str:
    """What is not computed or kept in float32 between the operations; "" if nothing is."""
    from labkit.cudnn_picture import dtype_name

    for node in graph.nodes:
        kind = getattr(node.compute_data_type, "name", "FLOAT")
        if kind != "FLOAT":
            return (f"{node.name!r} computes in {kind}: sums of many products need float32. "
                    "target.graph sets that; compute_data_type is not needed.")
        for tensor in node.outputs.values():
            if tensor is not None and tensor.get_is_virtual() and dtype_name(tensor) != "float32":
                return (f"{tensor.get_name()!r} is {dtype_name(tensor) or 'of no dtype'} on its "
                        "way from one operation to the next: leave what is virtual in float32.")
    return ""
