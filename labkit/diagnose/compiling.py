"""Errors of the compilers that take over from TileLang: nvcc, ptxas and the C++ compiler."""

from __future__ import annotations

from labkit.diagnose.kind import Kind


def _kind(name: str, pattern: str, raw: str, what: str, change: str, **more: object) -> Kind:
    return Kind(name, "compiling", pattern, raw, what, change, **more)


# words that C++ and CUDA keep for themselves, and that Python does not
RESERVED = ("new|delete|this|class|template|typename|namespace|operator|public|private|protected|"
            "virtual|friend|inline|register|static|volatile|const|extern|auto|signed|unsigned|"
            "short|long|int|char|float|double|void|bool|struct|union|enum|switch|case|default|do|"
            "goto|typedef|sizeof|throw|catch|using|mutable|explicit|export|half|warpSize")

KINDS = (
    _kind("reserved-name",
          rf"\n\s*(?:[\w:*&<> ]+\s)?(?P<name>{RESERVED})(?:\[\d+\]|\s*=)[^\n]*\n\s*[~^]*\^|"
          rf"before ‘(?P<name2>{RESERVED})’",
          "kernel.cu(19): error: expected an identifier\n    float new[1];\n          ^",
          "A tile or variable of the kernel is called `{name}`, a word that C++ keeps for itself.",
          "Rename it in the kernel."),
    _kind("static-shared", r"Entry function '(?P<name>\w+)' uses too much shared data \("
          r"(?P<got>0x[0-9a-f]+) bytes, (?P<most>0x[0-9a-f]+) max\)",
          "ptxas error   : Entry function 'print_tile_kernel' uses too much shared data (0x10000 "
          "bytes, 0xc000 max)",
          "The kernel takes {got} bytes of static shared memory (hexadecimal); a block has "
          "0xc000, that is 48 KiB, of it on every GPU.",
          "Print a smaller part of the tile, and leave scope=\"shared\" away in T.alloc_shared: "
          "tiles then lie in dynamic shared memory, of which there is more.",
          cause="Likely T.print of a large tile, which is copied there."),
    _kind("mma-dtypes", r"tl::mma_sync: unsupported configuration",
          'mma.h(282): error: static assertion failed with "tl::mma_sync: unsupported '
          'configuration"',
          "Tensor cores have no instruction for these dtypes of T.gemm.",
          "Take a float32 accumulator for float16 and bfloat16 operands, int32 for int8.",
          cause="Likely the accumulator's dtype does not go with that of the operands.",
          threads=("tile-ai/tilelang#3004",), about="gemm"),
    _kind("loop-exit", r"a break statement may only be used within a loop",
          "kernel.cu(21): error: a break statement may only be used within a loop or switch",
          "A break stands in a loop that became threads.",
          "Use T.serial for a loop that ends early, or an if instead of the break."),
    _kind("atomic-dtype", r'no instance of overloaded function "(?P<name>atomic\w+|AtomicAdd\w*)" '
          r"matches the argument list",
          'atomic.h(512): error: no instance of overloaded function "atomicAdd" matches the '
          "argument list",
          "{name} does not exist for this dtype.",
          "Add up in float32 or int32, and convert afterwards.",
          threads=("tile-ai/tilelang#2572", "tile-ai/tilelang#1885")),
    _kind("random-header", r"curand_kernel\.h: No such file|curand\(&\)|expected an expression.*?"
          r"curand",
          "kernel.cu:8:10: fatal error: curand_kernel.h: No such file or directory",
          "The kernel uses random numbers (T.rng_rand), and nvcc does not find cuRAND's header.",
          "Call T.rng_init first, and install the whole CUDA toolkit, or make the numbers with "
          "torch and pass them in.", threads=("tile-ai/tilelang#3034",)),
    _kind("host-assert", r"TVMFFIErrorSetRaisedFromCStr",
          'error: identifier "TVMFFIErrorSetRaisedFromCStrParts" is undefined',
          "A Python assert in the kernel became a check that only the CPU has.",
          "Use T.device_assert(condition, message).", needs="TileLang before 0.1.15",
          threads=("tile-ai/tilelang#3019",)),
    _kind("serial-fragment-write", r'identifier "(?P<name>[ijk]\w*)" is undefined',
          'kernel.cu(24): error: identifier "i" is undefined',
          "The CUDA that TileLang wrote uses `{name}` outside of its loop.",
          "Write and read fragments in T.Parallel loops.",
          cause="Likely a fragment is written in a serial loop.", needs="TileLang before 0.1.15",
          threads=("tile-ai/tilelang#2395",)),
    _kind("half-math", r'identifier "h(?P<name>\w+)" is undefined|no suitable conversion function '
          r'from "(?:half_t|bfloat16_t|cutlass::\w+)"',
          'error: identifier "herf" is undefined',
          "A function of T has no version for 16-bit numbers.",
          'Convert first: T.erf(T.Cast("float32", x)).', needs="TileLang before 0.1.15",
          threads=("tile-ai/tilelang#2565",)),
    _kind("old-turing", r"SM80_16x8x16.*?without|CUTE_ARCH_MMA_SM80",
          "error: Attempting to use SM80_16x8x16_F32F16F16F32_TN without "
          "CUTE_ARCH_MMA_SM80_ENABLED",
          "This version of TileLang wrote tensor-core code of an A100 for an older GPU.",
          "Install tilelang 0.1.15; it compiles for a T4.", needs="TileLang before 0.1.10",
          threads=("tile-ai/tilelang#1529", "tile-ai/tilelang#964")),
    _kind("no-host-compiler", r"cannot execute 'cc1plus'|Failed to preprocess host compiler|"
          r"Cannot find compiler 'cl\.exe'|nvcc fatal\s*: Host compiler",
          "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory",
          "nvcc needs a C++ compiler beside it and finds none.",
          "Install one: `sudo apt-get install g++` or `conda install gxx`.",
          needs="no C++ compiler", threads=("tile-ai/tilelang#353",)),
    _kind("no-arch", r"(?:arch=compute_50|-arch=sm_50|sm_50|compute_50)\b",
          "nvcc fatal   : Unsupported gpu architecture 'compute_50'",
          "TileLang found no GPU and compiled for sm_50, a GPU of 2014.",
          "Compile for a GPU by name with lab.cross_compile(program, \"T4\"), or run on the CPU "
          'with lab.compile(program, device="cpu").',
          threads=("tile-ai/tilelang#1049", "tile-ai/tilelang#2860")),
    _kind("old-nvcc", r"nvcc fatal\s*: (?:Unsupported gpu architecture '(?P<arch>\S+)'|Value "
          r"'(?P<value>\S+)' is not defined for option)",
          "nvcc fatal   : Unsupported gpu architecture 'compute_120a'",
          "This nvcc does not know the GPU that it shall compile for.",
          'Install a newer one: `pip install "tilelang[nvcc]==0.1.15"`.'),
)
