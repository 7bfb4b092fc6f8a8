"""What cuDNN has to know of a GPU to plan a graph for it where the GPU is not.

`cudnn.create_device_properties` takes this as JSON; on a machine with the GPU,
`cudnn.create_device_properties(0).serialize()` returns it. That of an H200 (cuDNN 9.19, driver
580.159) has the same keys as this one, and tests/test_cudnn_graph.py compares the values. Limits
and clocks come from the data sheets in `labkit.gpus`, each with its source there.
"""

from __future__ import annotations

from typing import Any

from labkit.errors import BadArgument
from labkit.gpus import ALL, Gpu, sheet_of

# GPU: (memory clock in MHz, width of the memory bus in bits). The driver's own figures on the
# H200; the other clocks as nvidia-smi's "Max Clocks" prints them in logs. Twice the product is
# the bandwidth of the data sheet, which a test checks.
_MEMORY = {"T4": (5001, 256), "A10G": (6251, 384), "A100": (1593, 5120), "L4": (6251, 192),
           "RTX 4090": (10501, 384), "H100": (2619, 5120), "H200": (3201, 6144),
           "B200": (3996, 7680), "RTX 5090": (14001, 512)}
_CUDA = 13000  # the driver's CUDA version that the plans may expect


def device_properties(gpu: str | Gpu) -> dict[str, Any]:
    """The description of `gpu` for `cudnn.create_device_properties(json.dumps(...))`.

    Bytes for sizes, kHz for clocks. Raises BadArgument for a GPU without a data sheet of its own:
    a compute capability alone does not say how many multiprocessors there are.
    """
    sheet = sheet_of(gpu)
    if sheet.name not in _MEMORY:
        raise BadArgument(f"cuDNN plans for a whole GPU, and {sheet.name} is only a compute "
                          f"capability; name one of {', '.join(g.name for g in ALL)}.")
    clock, width = _MEMORY[sheet.name]
    return {
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": sheet.registers_per_sm,
        "multiProcessorCount": sheet.sms,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": sheet.shared_per_block,
        "reservedSharedMemoryPerBlock": sheet.shared_reserved,
        "maxRegistersPerSM": sheet.registers_per_sm,
        "maxCtasPerSM": sheet.blocks_per_sm,
        "maxThreadsPerBlock": sheet.threads_per_block,
        "maxThreadsPerSM": sheet.threads_per_sm,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": sheet.memory_bytes,
        "smClockRateKHz": sheet.boost_mhz * 1000,
        "memClockRateKHz": clock * 1000,
        "l2CacheSize": sheet.l2_bytes,
        "cudaDeviceId": 0,
        "deviceVer": sheet.sm * 10,
        "driverVer": _CUDA,
        "deviceName": f"NVIDIA {sheet.name}",
        # from cuDNN 9.28 on; earlier ones ignore them
        "oversizedSharedMemoryPerBlock": sheet.shared_per_block,
        "memoryBusWidth": width,
    }


def memory_clock(gpu: str | Gpu) -> tuple[int, int]:
    """The memory clock in MHz and the width of the memory bus in bits of a listed GPU."""
    return _MEMORY[sheet_of(gpu).name]
