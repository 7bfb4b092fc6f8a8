"""Errors of cuDNN and its Python frontend."""

from __future__ import annotations

from labkit.diagnose.kind import Kind


def _kind(name: str, pattern: str, raw: str, what: str, change: str, **more: object) -> Kind:
    return Kind(name, "cuDNN", pattern, raw, what, change, **more)


KINDS = (
    _kind("cudnn-not-loaded", r"Unable to find symbol (?P<name>cudnn\w+)",
          "Unable to find symbol cudnnGetVersion",
          "The frontend is here, but no cuDNN library was loaded: it has no {name}.",
          "Import torch (built for CUDA) before cudnn, or install nvidia-cudnn-cu13.",
          threads=("NVIDIA/cudnn-frontend#261", "paninski-lab/lightning-pose#460")),
    _kind("cudnn-no-driver", r'"cuda" is an NVIDIA driver library and can only be found via system',
          '"cuda" is an NVIDIA driver library and can only be found via system search. Ensure the '
          "NVIDIA display driver is installed.",
          "cuDNN asked the NVIDIA driver for the GPU, and there is no driver.",
          "Run it on a machine with a GPU, or give the graph a device description "
          "(pygraph(device_property=..., sm_version=...)) to plan without one."),
    _kind("cudnn-inner", r"Inner dimensions must match for matmul: (?P<a>\S+\[.*?\]) @ "
          r"(?P<b>\S+\[.*?\])",
          "Node 'matmul.0': Inner dimensions must match for matmul: A[1, 64, 32] @ B[1, 48, 64]",
          "The matrices {a} and {b} do not fit: the last axis of A has to equal the middle one of "
          "B.", "Change the dims; a transposed operand is the same dims with other strides."),
    _kind("cudnn-batch", r"batch dims not broadcastable: (?P<a>\S+\[.*?\]) vs (?P<b>\S+\[.*?\])",
          "Node 'matmul.0': batch dims not broadcastable: A[3, 64, 32] vs B[2, 32, 64]",
          "The batches of {a} and {b} differ.", "Make them equal, or one of them 1."),
    _kind("cudnn-broadcast", r"pointwise inputs not broadcastable",
          "Node 'bias.0': pointwise inputs not broadcastable",
          "The operands of an elementwise operation have shapes that do not fit.",
          "Each axis has to be equal or 1: a bias for [B, M, N] is [B, 1, N]."),
    _kind("cudnn-strides", r"Tensor '(?P<name>\w+)' dim/stride length mismatch: (?P<a>\d+) vs "
          r"(?P<b>\d+)",
          "Tensor 'tensor_0' dim/stride length mismatch: 3 vs 2",
          "{name} has {a} dims and {b} strides.",
          "Give one stride for each dim; cuDNN takes 3 dims for a matmul, 4 for a convolution."),
    _kind("cudnn-positional", r"(?P<call>\w+)\(\) takes at most \d+ positional arguments \('q', "
          r"'k', 'v'\)",
          "sdpa() takes at most 3 positional arguments ('q', 'k', 'v')",
          "{call} takes only q, k and v by position.", "Name the others: attn_scale=0.125."),
    _kind("cudnn-method", r"'pygraph' object has no attribute '(?P<name>\w+)'",
          "'pygraph' object has no attribute 'pointwise' (graph not lowered yet — call "
          "build_operation_graph() first)",
          "A graph has no method {name}.",
          "In Python each operation is a method of its own: bias, relu, gelu, add, mul."),
    _kind("cudnn-no-engine", r"No valid engine configs|No execution plans support the graph|"
          r"no engine — python or backend — proposed a plan|No execution plans built successfully",
          "[cudnn_frontend] Error: No execution plans support the graph.",
          "cuDNN has no kernel for this graph on this GPU with these shapes and dtypes.",
          "Read the lines with Reason: in the message. Attention and kernel caches need an A100 "
          "or later; on a T4 use float16, multiples of 8, and a bias of [B, 1, N].",
          cause="Likely the GPU is too old for it, a size is no multiple of 8, or libnvrtc was "
          "not found.", needs="cuDNN",
          threads=("NVIDIA/cudnn-frontend#116", "NVIDIA/cudnn-frontend#120",
                   "NVIDIA/cudnn-frontend#133", "pytorch/pytorch#140930")),
    _kind("cudnn-version-mix", r"SUBLIBRARY_VERSION_MISMATCH",
          "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
          "Parts of two cuDNN versions were loaded into one process.",
          "Take the system's cuDNN off LD_LIBRARY_PATH, install one complete wheel, and restart "
          "the kernel.", needs="cuDNN",
          threads=("pytorch/pytorch#188892", "pytorch/pytorch#187824")),
    _kind("cudnn-sublibrary", r"SUBLIBRARY_LOADING_FAILED|Unable to load any of \{libcudnn",
          "Unable to load any of {libcudnn_engines_precompiled.so.9, libcudnn_engines_precompiled"
          ".so}",
          "A part of cuDNN was not found beside the rest.",
          "Reinstall the cuDNN wheel, and load all its libcudnn*.so.9 from one folder.",
          needs="cuDNN", threads=("pytorch/pytorch#165812",)),
    _kind("cudnn-nvrtc", r"RUNTIME_PREREQUISITE_MISSING|Could not load library libnvrtc|"
          r"INTERNAL_ERROR_COMPILATION",
          "Could not load library libnvrtc.so.12. Error: libnvrtc.so.12: cannot open shared "
          "object file",
          "cuDNN compiles this kernel when it runs, and did not find CUDA's compiler for that.",
          "Import torch before cudnn, or install nvidia-cuda-nvrtc.", needs="cuDNN",
          threads=("pytorch/pytorch#140930", "pytorch/pytorch#167602")),
    _kind("cudnn-cudart", r"Multiple libcudart libraries found|Unable to load any libcudart",
          "Multiple libcudart libraries found: libcudart.so.12 and libcudart.so.13",
          "The frontend found no CUDA runtime, or two of them.",
          "Use nvidia-cudnn-frontend 1.32, or set CUDNN_FRONTEND_CUDART_LIB_NAME to the one that "
          "torch uses.", needs="cuDNN",
          threads=("NVIDIA/cudnn-frontend#211", "NVIDIA/cudnn-frontend#207")),
    _kind("cudnn-arch", r"NOT_SUPPORTED_ARCH_MISMATCH",
          "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH",
          "A stored plan was made for another kind of GPU.",
          "Build the plan on this GPU and store it again.", needs="cuDNN"),
    _kind("cudnn-handle", r"cudnnHandle Create failed",
          "cudnnHandle Create failed cudaGetDeviceCount",
          "cuDNN could not open a GPU.", "Check nvidia-smi, and torch.cuda.is_available().",
          needs="cuDNN"),
    _kind("cudnn-blob", r"Unable to cast Python instance of type <class 'bytes'>",
          "Unable to cast Python instance of type <class 'bytes'> to C++ type",
          "deserialize of this frontend version takes a list of integers, not bytes.",
          "Write deserialize(handle, list(blob)).", needs="cuDNN"),
    _kind("cudnn-package", r"No module named 'cudnn'",
          "No module named 'cudnn'",
          "cuDNN's Python frontend is not installed.",
          "The package is called nvidia-cudnn-frontend: `pip install nvidia-cudnn-frontend`.",
          types=("ModuleNotFoundError", "ImportError"), needs="no cudnn package",
          threads=("Dao-AILab/flash-attention#1367",)),
)
