"""What a cuDNN graph means: its operations one after another in PyTorch, in float32.

So a graph can be run, slowly, where there is no GPU, and a wrong padding, stride, axis or mode
shows as a wrong number there too. It reads and writes the tensors as the graph describes them, by
dims and strides, as cuDNN does. It is a reference, not a fast path, and it fuses nothing.
"""

from __future__ import annotations

from typing import Any

from labkit.cudnn_operations import OPERATIONS, unknown
from labkit.cudnn_words import dtype_name, operation
from labkit.errors import BadArgument, LabError, NotOnCPU, first_line

_EXACT = 2**24  # integers up to here are float32 numbers


def evaluate(graph: Any, pack: dict[Any, Any]) -> None:
    """Computes every output of `graph` in `pack`, tensor of the graph -> torch tensor.

    Virtual tensors are kept in float32, and so is arithmetic; what lies in memory is rounded to
    its dtype. Raises BadArgument for a tensor that is missing, does not have the dtype that the
    graph gives it or is too small for its dims and strides, for an output without strides, and
    for shapes or options that do not fit an operation; NotOnCPU for an operation that is not
    written here, and for integers that float32 does not hold or an integer output would change.
    """
    if not hasattr(graph, "nodes") or not isinstance(pack, dict):
        raise BadArgument("evaluate takes a cudnn.pygraph and its pack, a dict of the graph's "
                          f"tensors -> torch tensors, and got {type(graph).__name__} and "
                          f"{type(pack).__name__}.")
    named = {_key(key): value for key, value in pack.items()}
    values: dict[int, Any] = {}

    def read(tensor: Any) -> Any:
        if tensor.get_uid() not in values:
            # a number from the host goes with tensors on any device
            values[tensor.get_uid()] = _floats(tensor, _inside(tensor, _memory(tensor, named)))
        return values[tensor.get_uid()]

    for node in graph.nodes:
        if node.node_type.name not in OPERATIONS:
            raise unknown(operation(node))
        for port, value in _computed(node, read).items():
            tensor = node.outputs.get(port)
            if tensor is not None:
                values[tensor.get_uid()] = value.float() if tensor.get_is_virtual() else \
                    _stored(node, tensor, value, named)


def _computed(node: Any, read: Any) -> dict[str, Any]:
    try:
        return OPERATIONS[node.node_type.name](node, read)
    except LabError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
            ValueError) as error:
        inputs = ", ".join(f"{port} {list(tensor.get_dim())}" for port, tensor in
                           node.inputs.items() if hasattr(tensor, "get_dim"))
        options = {key: value for key, value in node.params.items() if value is not None}
        raise BadArgument(f"{operation(node)} cannot take {inputs}{_with(options)}: "
                          f"{first_line(error).rstrip('.: ')}.") from error


def _with(options: dict[str, Any]) -> str:
    shown = ", ".join(f"{key} = {value}" for key, value in options.items() if key != "mode")
    return f" with {shown}" if shown else ""


def _stored(node: Any, tensor: Any, value: Any, named: dict[Any, Any]) -> Any:
    """Writes an output to its memory; returns it as the next operation would read it."""
    import torch

    name = tensor.get_name()
    if not tensor.stride_assigned:
        raise BadArgument(f"Output {name!r} has no strides, so only libcudnn would know its "
                          "layout; set_dim and set_stride it.")
    found = _memory(tensor, named)
    if list(value.shape) != list(tensor.get_dim()):
        raise BadArgument(f"{operation(node)} makes {list(value.shape)}, and {name!r} was given "
                          f"the dims {list(tensor.get_dim())}; make the two agree.")
    place = _inside(tensor, found)
    if not (found.is_floating_point() or torch.equal(value.to(found.dtype).to(value), value)):
        raise NotOnCPU(f"{name!r} is {dtype_name(tensor)}, and {operation(node)} makes numbers "
                       "that it cannot hold; how cuDNN rounds and clips them is not written here. "
                       "Give the output a float dtype, or run this graph on a GPU.")
    if any(size > 1 and step == 0 for size, step in zip(place.shape, place.stride(), strict=True)):
        raise BadArgument(f"Output {name!r} has the stride 0, so elements would be written over "
                          "each other; give it the strides of its memory.")
    with torch.no_grad():
        place.copy_(value)
    return _floats(tensor, place)


def _floats(tensor: Any, found: Any) -> Any:
    whole = not found.is_floating_point() and found.numel()
    if whole and max(-int(found.min()), int(found.max())) > _EXACT:
        raise NotOnCPU(f"{tensor.get_name()!r} holds integers beyond {_EXACT:,}, and arithmetic "
                       "here is float32, which rounds those; give smaller ones.")
    return found.float()


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
    theirs, ours = str(found.dtype).removeprefix("torch."), dtype_name(tensor)
    if not ours:
        raise BadArgument(f"The graph gives {name!r} no dtype; pass data_type= to graph.tensor, "
                          "or io_data_type= to cudnn.pygraph.")
    if theirs != ours:
        raise BadArgument(f"{name!r} is {theirs}, and the graph says {ours}; cuDNN would read its "
                          "bytes as that. Make the two agree.")
    return found


def _inside(tensor: Any, memory: Any) -> Any:
    """The graph's tensor in the torch tensor `memory`: a view by the graph's dims and strides."""
    name = tensor.get_name()
    if tensor.get_is_pass_by_value():
        if memory.numel() != 1:
            raise BadArgument(f"{name!r} is a number from the host, and got {memory.numel()} "
                              "elements; give a tensor of one.")
        return memory.reshape(())
    dim, stride = list(tensor.get_dim()), list(tensor.get_stride())
    if len(dim) != len(stride) or min([*dim, *stride], default=0) < 0:
        raise BadArgument(f"{name!r} has the dims {dim} and the strides {stride}; give one stride "
                          "for each dim, none negative.")
    last = sum((size - 1) * step for size, step in zip(dim, stride, strict=True))
    room = memory.untyped_storage().nbytes() // memory.element_size() - memory.storage_offset()
    if last >= room:
        raise BadArgument(f"{name!r} reaches element {last} by its dims and strides, and the "
                          f"tensor holds {room}; cuDNN would go past its end.")
    return memory.as_strided(dim, stride)
