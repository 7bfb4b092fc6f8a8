"""Where cuDNN graphs are planned: on the GPU of this run, for one that is not there, or nowhere.

And a torch tensor in the words of a graph. `labkit.cudnn_graph` builds and runs what is made here.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.cudnn_devices import device_properties
from labkit.cudnn_loader import Cudnn, load_cudnn
from labkit.errors import BadArgument, NotSupported
from labkit.gpus import lookup

_DATA_TYPES = {"float16": "HALF", "bfloat16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE",
               "float8_e4m3fn": "FP8_E4M3", "float8_e5m2": "FP8_E5M2", "int8": "INT8",
               "uint8": "UINT8", "int32": "INT32", "int64": "INT64", "bool": "BOOLEAN"}
NO_LIBCUDNN = ("Plans come from libcudnn, and there is none here; pip install "
               '"labkit[deviceless]" brings one that needs no GPU.')
_ON_CPU = ("What they compute is checked on the CPU, operation by operation in PyTorch; timings "
           "are recorded ones.")


def data_type(dtype: Any) -> Any:
    """cuDNN's name for a dtype of torch or its name, as "bfloat16". Raises BadArgument."""
    load_cudnn()
    import cudnn

    name = str(dtype).removeprefix("torch.")
    if name not in _DATA_TYPES:
        raise BadArgument(f"cuDNN has no tensors of dtype {name!r}; the dtypes are "
                          f"{', '.join(_DATA_TYPES)}.")
    return getattr(cudnn.data_type, _DATA_TYPES[name])


def describe(x: Any) -> dict[str, Any]:
    """What a graph has to know of the torch tensor `x`: dim, stride (in elements) and data_type,
    as arguments of `graph.tensor`. A tensor on the device "meta" will do: no value is read.
    Raises BadArgument for what is no torch tensor, and for a dtype that cuDNN has not."""
    if not hasattr(x, "untyped_storage"):
        raise BadArgument(f"describe takes a torch tensor, and got {type(x).__name__}.")
    return {"dim": list(x.shape), "stride": list(x.stride()), "data_type": data_type(x.dtype)}


@dataclass(frozen=True)
class Target:
    """Where graphs are planned. gpu: the GPU's name; sm: its compute capability x 10; libcudnn:
    what `load_cudnn` found; handle: of the GPU of this run, None where graphs are not run;
    properties: of a GPU that is not there, None where its plans cannot be listed; options: further
    arguments of every graph (see `with_options`)."""

    gpu: str
    sm: int
    libcudnn: Cudnn
    handle: Any = None
    properties: Any = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """Whether graphs can be executed."""
        return self.handle is not None

    @property
    def plans(self) -> bool:
        """Whether plans can be made: on a GPU, or without one where there is a libcudnn."""
        return self.runs or self.properties is not None

    @property
    def where(self) -> dict[str, Any]:
        """The arguments of `cudnn.pygraph` that say for which GPU: the handle, or a GPU's
        description and compute capability; none where graphs are only built."""
        if self.runs:
            return {"handle": self.handle}
        return {"device_property": self.properties, "sm_version": self.sm} if self.plans else {}

    def graph(self, name: str, dtype: Any, **options: Any) -> Any:
        """An empty `cudnn.pygraph` for this target: tensors of `dtype`, everything between them
        and the arithmetic in float32. options: further arguments of `cudnn.pygraph`."""
        import cudnn

        return cudnn.pygraph(name=name, io_data_type=data_type(dtype),
                             intermediate_data_type=cudnn.data_type.FLOAT,
                             compute_data_type=cudnn.data_type.FLOAT,
                             **{**self.where, **self.options, **options})

    def with_options(self, **options: Any) -> Target:
        """The same target, whose graphs get these arguments of `cudnn.pygraph` too, such as
        `kernel_cache`: so a lesson's graph can be built with them as it stands."""
        return replace(self, options={**self.options, **options})

    def __repr__(self) -> str:
        if self.runs:
            return f"cuDNN {self.libcudnn.version} on {self.gpu}: graphs are planned and run."
        if self.plans:
            return (f"cuDNN {self.libcudnn.version}, no GPU in use: graphs are planned for "
                    f"{self.gpu} (sm_{self.sm}).\n{_ON_CPU}")
        if self.libcudnn.found:
            return (f"Graphs are built, validated and drawn, not planned: beside a GPU, plans for "
                    f"another ({self.gpu}) are not made.\n{_ON_CPU}")
        return ("No libcudnn here: graphs are built, validated and drawn, not planned.\n"
                f'{_ON_CPU}\nTo list plans without a GPU: pip install "labkit[deviceless]".')


@functools.cache
def _handle(device: int) -> Any:
    import cudnn

    return cudnn.create_handle()


def target(here: Any, gpu: str = "") -> Target:
    """Where this run plans its graphs; `here` is the result of `lab.here`.

    On a GPU: that GPU, with one handle a process. Without one: the description of `gpu`, or of
    `here`'s, if there is a libcudnn. Where torch sees a GPU, another one is not planned for: with
    the driver of a real GPU loaded, cuDNN 9.19 crashed over the description of another. Raises
    BadArgument for a GPU without a data sheet, and what `load_cudnn` raises.
    """
    import torch

    libcudnn = load_cudnn()
    if here.device == "gpu" and not gpu:
        if not libcudnn.found:
            raise NotSupported("There is a GPU but no libcudnn; run `labkit doctor` to see which "
                               "package brings it.")
        return Target(torch.cuda.get_device_name(), here.sm, libcudnn,
                      handle=_handle(torch.cuda.current_device()))
    sheet = lookup(gpu) if gpu else here.gpu
    properties = device_properties(sheet)
    if not libcudnn.found or torch.cuda.is_available():
        return Target(sheet.name, sheet.sm, libcudnn)
    import cudnn

    return Target(sheet.name, sheet.sm, libcudnn,
                  properties=cudnn.create_device_properties(json.dumps(properties)))
