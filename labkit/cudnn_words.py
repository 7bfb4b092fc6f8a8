"""A graph's operations, dtypes and layouts in the words of the lessons."""

from __future__ import annotations

from typing import Any

_SHORT = {"BFLOAT16": "bfloat16", "HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64",
          "FP8_E4M3": "float8_e4m3fn", "FP8_E5M2": "float8_e5m2", "BOOLEAN": "bool"}


def layout(dim: list[int], stride: list[int]) -> str:
    """What the strides mean: "row-major", "channels last", "column-major" or "strided".

    Only axes longer than 1 count: the stride of the others is never used.
    """
    def packed(order: list[int]) -> bool:
        step = 1
        for axis in reversed(order):
            if dim[axis] != 1 and stride[axis] != step:
                return False
            step *= dim[axis]
        return True

    axes = list(range(len(dim)))
    if packed(axes):
        return "row-major"
    if len(axes) > 3 and packed([0, *axes[2:], 1]):
        return "channels last"
    if len(axes) > 1 and packed([*axes[:-2], axes[-1], axes[-2]]):
        return "column-major"
    return "strided"


def operation(node: Any) -> str:
    """An operation's name as the method that adds it: "conv_fprop", "bias", "matmul"."""
    mode = node.params.get("mode")
    kind = node.node_type.name.lower()
    return str(mode) if kind == "pointwise" and mode else kind


def dtype_name(tensor: Any) -> str:
    """The dtype of a graph's tensor as torch calls it, "" if none was given or inferred."""
    kind = getattr(tensor.get_data_type(), "name", "NOT_SET")
    return "" if kind == "NOT_SET" else _SHORT.get(kind, kind.lower())
