"""Errors when a kernel is set up, called, and runs: arguments, CUDA's runtime, torch."""

from __future__ import annotations

from labkit.diagnose.kind import Kind


def _kind(name: str, stage: str, pattern: str, raw: str, what: str, change: str,
          **more: object) -> Kind:
    return Kind(name, stage, pattern, raw, what, change, **more)


ARGUMENTS = (
    _kind("stride", "launching", r"Static stride mismatch for parameter (?P<name>\w+): expected "
          r"(?P<want>\S+) at index (?P<axis>\d+), got (?P<got>\d+)",
          "Static stride mismatch for parameter X: expected 1 at index 0, got 2",
          "{name}: the step between elements along axis {axis} is {got}, and the kernel was "
          "compiled for {want}. It is a view, not a contiguous tensor.",
          "Pass {name}.contiguous(), or declare it with T.StridedTensor.",
          threads=("tile-ai/tilelang#1404",)),
    _kind("rank", "launching", r"Static shape mismatch for parameter (?P<name>\w+): expected "
          r"(?P<want>\d+) dimensions, got (?P<got>\d+)",
          "Static shape mismatch for parameter X: expected 1 dimensions, got 2",
          "{name} has {got} axes, and the kernel declares {want}.",
          "Use .view(...) or .squeeze() on the tensor.", threads=("tile-ai/tilelang#1011",)),
    _kind("shape", "launching", r"Static shape mismatch for parameter (?P<name>\w+): expected "
          r"(?P<want>\d+) at index (?P<axis>\d+), got (?P<got>\d+)",
          "Static shape mismatch for parameter X: expected 32 at index 0, got 31",
          "{name} has {got} elements along axis {axis}, and the kernel was built for {want}.",
          "Build the kernel for this size, or declare the axis with T.dynamic.",
          threads=("tile-ai/tilelang#1011",)),
    _kind("dtype", "launching", r"Buffer dtype mismatch for parameter (?P<name>\w+): expected "
          r"(?P<want>\S+), got (?P<got>\S+)",
          "Buffer dtype mismatch for parameter X: expected torch.float32, got torch.float16",
          "{name} is {got}, and the kernel declares {want}.",
          "Convert it with .to({want}), or build the kernel for {got}."),
    _kind("device", "launching", r"Buffer device mismatch for parameter (?P<name>\w+): expected "
          r"(?P<want>\S+), got (?P<got>\S+)",
          "Buffer device mismatch for parameter X: expected cpu, got meta",
          "{name} lies on {got}, and the kernel runs on {want}.",
          "Move it with .to(\"{want}\")."),
    _kind("not-a-tensor", "launching", r"Unsupported tensor type: <class '(?P<name>[\w.]+)'>",
          "Unsupported tensor type: <class 'numpy.ndarray'>",
          "A {name} was passed where the kernel takes a torch tensor.",
          "Use torch.from_numpy(x) or torch.tensor(x)."),
    _kind("argument-count", "launching", r"Expected (?P<want>\d+) inputs, got (?P<got>\d+) with",
          "Expected 2 inputs, got 3 with 2 inputs and 1 outputs",
          "The kernel was called with another number of tensors than it takes.",
          "With out_idx the call makes the outputs itself: pass the inputs only. Without it, pass "
          "all of them.", threads=("tile-ai/tilelang#1107",)),
    _kind("out-idx", "launching", r"result_idx should be an integer between (?P<low>-?\d+) and "
          r"(?P<high>\d+)",
          "result_idx should be an integer between -3 and 1",
          "out_idx names a parameter that the kernel does not have.",
          "Use -1 for the last parameter, or a number up to {high}."),
    _kind("thread-count", "lowering", r"threads must be positive, got (?P<got>-?\d+)",
          "threads must be positive, got 0",
          "T.Kernel was given {got} threads.", "Use a multiple of 32, up to 1024."),
)

SETUP = (
    _kind("no-gpu-target", "set-up", r"No registered target detector found an available target",
          "No registered target detector found an available target.",
          "TileLang looked for a GPU to compile for and found none.",
          'Use lab.compile(program, device="cpu"), or lab.cross_compile(program, "T4").',
          threads=("tile-ai/tilelang#1049",)),
    _kind("target-text", "set-up", r"Target (?P<name>cuda .+?) is not supported\. Pass target "
          r"options as a dict",
          "Target cuda -arch=sm_80 is not supported. Pass target options as a dict when the target "
          "needs attributes.",
          "A target with options was given as one text.",
          'Write target={"kind": "cuda", "arch": "sm_80"}.'),
    _kind("target-arch", "set-up", r"Compute version parsing error",
          "Compute version parsing error",
          "The architecture in the target is no number that CUDA knows.",
          'Write it as "sm_80" or "sm_90a".'),
    _kind("torch-without-cuda", "set-up", r"Torch not compiled with CUDA enabled",
          "Torch not compiled with CUDA enabled",
          "This torch was installed without CUDA.",
          'Use device="cpu" here, or install torch for CUDA on a machine with a GPU.',
          threads=("karpathy/nanoGPT#281",)),
    _kind("no-driver", "set-up", r"Found no NVIDIA driver on your system|no CUDA-capable device "
          r"is detected|CUDA_ERROR_NO_DEVICE",
          "Found no NVIDIA driver on your system.",
          "There is no NVIDIA driver, so no GPU can be used.",
          "Choose a GPU runtime (Colab: Runtime, Change runtime type), or run on the CPU.",
          needs="CUDA torch without a GPU"),
    _kind("old-driver", "set-up", r"CUDA driver version is insufficient|CUDA_ERROR_INVALID_IMAGE|"
          r"NVIDIA driver on your system is too old|device kernel image is invalid",
          "CUDA error: CUDA driver version is insufficient for CUDA runtime version",
          "The GPU's driver is older than the CUDA that compiled the code.",
          "Update the driver, or install torch and nvcc for the CUDA version that nvidia-smi "
          "shows.", needs="GPU", threads=("tile-ai/tilelang#2338",)),
    _kind("no-image", "set-up", r"no kernel image is available for execution on the device",
          "CUDA error: no kernel image is available for execution on the device",
          "The code was compiled for other GPUs than this one.",
          "Install a torch that lists this GPU in torch.cuda.get_arch_list(), and compile kernels "
          "on this machine.", needs="GPU", threads=("pytorch/pytorch#31285",)),
)

RUNNING = (
    _kind("dynamic-shared", "launching", r"Failed to set the allowed dynamic shared memory size "
          r"to (?P<got>\d+)",
          "Failed to set the allowed dynamic shared memory size to 294912",
          "The kernel asks for {got} bytes of shared memory a block, more than this GPU gives.",
          "Use fewer stages or smaller tiles; lab.cross_compile(program, gpu).obstacle tells the "
          "limit beforehand.", needs="GPU", threads=("tile-ai/tilelang#1252",)),
    _kind("configuration", "launching", r"invalid configuration argument|"
          r"CUDA_ERROR_INVALID_CONFIGURATION",
          "CUDA error: invalid configuration argument",
          "CUDA refused the grid or the number of threads.",
          "Use at most 1024 threads a block and a grid without a zero; put the longest axis of "
          "the grid first.",
          cause="Likely more than 1024 threads, an empty tensor, or a grid whose second or third "
          "axis is over 65,535.", needs="GPU", threads=("ggml-org/llama.cpp#3740",)),
    _kind("resources", "launching", r"too many resources requested for launch|"
          r"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
          "CUDA error: too many resources requested for launch",
          "One block needs more registers than a multiprocessor has.",
          "Use smaller tiles or fewer threads; .obstacle of lab.cross_compile tells.",
          needs="GPU", threads=("puzzlepaint/surfelmeshing#3",)),
    _kind("illegal-address", "running", r"illegal memory access was encountered|"
          r"CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress",
          "CUDA error: an illegal memory access was encountered",
          "A kernel used memory that is not its own. It may have been an earlier one than the "
          "line shown. This process cannot use the GPU any more.",
          'Restart the notebook\'s kernel; run the program with device="cpu", which names the '
          "index that is out of range.", needs="GPU",
          threads=("tile-ai/tilelang#1275", "tile-ai/tilelang#330", "tile-ai/tilelang#1744")),
    _kind("misaligned", "running", r"misaligned address|CUDA_ERROR_MISALIGNED_ADDRESS",
          "CUDA error: misaligned address",
          "A kernel loaded several elements at once from an address that does not divide by their "
          "size. This process cannot use the GPU any more.",
          "Restart the notebook's kernel; pass contiguous tensors whose rows are a multiple of 16 "
          "bytes, or a copy instead of a slice.", needs="GPU"),
    _kind("device-assert", "running", r"device-side assert triggered|CUDA_ERROR_ASSERT",
          "CUDA error: device-side assert triggered",
          "A T.device_assert, or a check of torch's, did not hold. This process cannot use the "
          "GPU any more.",
          'Restart the notebook\'s kernel; run with device="cpu" or on smaller input to see which '
          "element it is.", needs="GPU"),
    _kind("launch-failure", "running", r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|"
          r"an illegal instruction was encountered|CUDA_ERROR_ILLEGAL_INSTRUCTION",
          "CUDA error: unspecified launch failure",
          "A kernel was stopped by the GPU. This process cannot use the GPU any more.",
          "Restart the notebook's kernel; check the indices of shared tiles with device=\"cpu\", "
          "and that nvcc and torch have the same CUDA version.", needs="GPU",
          threads=("tile-ai/tilelang#199",)),
    _kind("memory", "running", r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|out of memory",
          "CUDA out of memory. Tried to allocate 2.00 GiB.",
          "The GPU's memory is full.",
          "Delete tensors that are not needed (also those that a traceback keeps alive: restart "
          "the kernel), or use smaller sizes.", types=("OutOfMemoryError", "RuntimeError",
                                                       "InternalError", "AcceleratorError"),
          needs="GPU"),
    _kind("two-devices", "launching", r"Expected all tensors to be on the same device",
          "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
          "and cpu!",
          "A tensor of the GPU and one of the CPU meet in one operation.",
          "Move one with .to(...): often the reference was computed on the CPU.", needs="GPU"),
    _kind("no-best-config", "running", r"No configuration successfully compiled",
          "Auto-tuning failed: No configuration successfully compiled and passed benchmarking/"
          "validation.",
          "Every schedule that the tuner tried failed; the reasons are in autotuner.log only.",
          "Use lab.tune, which lists each failure, or compile one schedule by hand and read its "
          "error.", needs="GPU", threads=("tile-ai/tilelang#942", "tile-ai/tilelang#778")),
)
KINDS = ARGUMENTS + SETUP + RUNNING
