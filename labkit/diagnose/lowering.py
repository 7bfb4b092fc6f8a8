"""Errors while TileLang's passes turn the program into CUDA or C."""

from __future__ import annotations

from labkit.diagnose.kind import Kind


def _kind(name: str, pattern: str, raw: str, what: str, change: str, **more: object) -> Kind:
    return Kind(name, "lowering", pattern, raw, what, change, **more)


FRAGMENTS = (
    _kind("no-layout", r"no available layout found",
          "Check failed: (has_best) is false: no available layout found",
          "The compiler found no way to share a fragment out among the threads.",
          "Make the fragment's elements a multiple of the threads (the next power of two that is "
          "at least their number), and fill the rest with zeros, or with -T.infinity for a "
          "maximum.",
          cause="Likely its width is no multiple of the number of threads.",
          threads=("tile-ai/tilelang#2398", "tile-ai/TileOPs#1821", "tile-ai/tilelang#1890")),
    _kind("reduce-layout", r"Inconsistent layouts between src and dst in ReduceOp",
          "Check failed: (!analyzer->CanProve(dst_layout->ReplicateExtent() > "
          "red_layout->ReplicateExtent())) is false: Inconsistent layouts between src and dst in "
          "ReduceOp",
          "T.reduce could not share its tile out evenly among the threads.",
          "Make the reduced width a power of two that is at least the number of threads, and fill "
          "the rest with what does not change the result.",
          cause="Likely the reduced width does not divide by the threads.",
          threads=("tile-ai/tilelang#2399",)),
    _kind("reduce-threads", r"XOR-butterfly AllReduce requires \w+.*?power of two, got "
          r"(?P<got>\d+)",
          "Check failed: (tirx::is_const_power_of_two_integer(Integer(logical_width), &shift)) is "
          "false: tl.reduce: XOR-butterfly AllReduce requires logical_width (threads / scale) to "
          "be a positive power of two, got 96 (threads=96, scale=1)",
          "{got} threads share a row of T.reduce, and their number has to be a power of two.",
          "Use 32, 64, 128 or 256 threads, and a tile whose axes are powers of two.",
          threads=("tile-ai/tilelang#2542", "tile-ai/tilelang#2611", "tile-ai/tilelang#3266"),
          about="reduce"),
    _kind("two-indices", r"StructuralEqual\(\)\(it->second\.indices, indices\)\) is false: "
          r"(?P<name>\w+): (?P<a>\(.*?\)) and (?P<b>\(.*?\))(?:\n|$)",
          "Check failed: (StructuralEqual()(it->second.indices, indices)) is false: x: ((i + 1) % "
          "128,) and (i,)",
          "One T.Parallel loop reads the fragment `{name}` at two places, {a} and {b}. A thread "
          "holds its own elements only.",
          "Copy the fragment to a tile from T.alloc_shared, and read the neighbour there.",
          threads=("tile-ai/tilelang#3005", "tile-ai/tilelang#2311")),
    _kind("shifted-fragment", r"has a non-round-tripping inverse",
          "Layout Layout((128, 1) -> (1, 128), transform: (_i, _j) -> (0, (_i + 1) % 128)) has a "
          "non-round-tripping inverse: logical coordinate [0, 0] maps to physical coordinate [0, "
          "1], but the inferred inverse maps it to [1, 0].",
          "A fragment is read at a shifted index, and the element lies in another thread.",
          "Copy the fragment to a tile from T.alloc_shared, and read it there.",
          threads=("tile-ai/tilelang#2948",)),
    _kind("strided-fragment", r"analyzer_->CanProveEqual\(abs\(source->scale\), 1\)",
          "Check failed: (analyzer_->CanProveEqual(abs(source->scale), 1)) is false:",
          "The compiler could not match a fragment's elements with the loop that uses them.",
          "Copy the fragment to a tile from T.alloc_shared, and read it there.",
          cause="Likely a fragment is read with a step (x[2 * i]), along one axis only, or "
          "through T.view with another width.",
          threads=("tile-ai/tilelang#1868", "tile-ai/tilelang#3040")),
    _kind("serial-fragment", r"Cannot lower access to thread-distributed fragment `(?P<name>\w+)`"
          r".*?loop variable `(?P<var>\w+)`",
          "Cannot lower access to thread-distributed fragment `acc`: its elements are spread "
          "across CUDA threads, so the non-parallel loop variable `j` cannot be used to address "
          "them safely",
          "A serial loop over `{var}` walks through the fragment `{name}`, whose elements lie in "
          "different threads.",
          "Use T.reduce_sum or T.reduce_max for a sum or maximum, else T.Parallel.",
          threads=("tile-ai/tilelang#2393",)),
    _kind("fragment-element", r"Fragment buffer access with non-zero index \[(?P<index>.*?)\]",
          "Fragment buffer access with non-zero index [3] is not supported. Only fragment[0] "
          "access is allowed.",
          "Element {index} of a fragment is used outside a T.Parallel loop; only one thread has "
          "it.",
          "Put it into a T.Parallel loop with an if on the index, or use T.alloc_shared."),
    _kind("layout-conflict", r"Layout infer conflict between (?P<a>\w+) and (?P<b>\w+)",
          "Layout infer conflict between scores and weights in T.Parallel loop:",
          "`{a}` and `{b}` lie differently in the threads, and one loop uses both.",
          "Give both T.gemm policy=T.GemmWarpPolicy.FullRow and at least 16 rows a warp: block_M "
          "at least threads / 2. Or pass one of them through a tile from T.alloc_shared.",
          cause="Likely two T.gemm share out their rows among the warps differently.",
          threads=("tile-ai/tilelang#1165", "tile-ai/tilelang#918")),
    _kind("no-layout-for", r"The layout for fragment (?P<name>\w+) can not be inferred",
          "Check failed: layout_map.count(buffer) != 0 (0 vs. 0) : The layout for fragment x can "
          "not be inferred correctly.",
          "Nothing in the program says how the threads share `{name}`.",
          "Use it in a T.gemm, T.copy, T.reduce or T.Parallel loop; for the target \"c\" take "
          "lab.compile(..., device=\"cpu\")."),
    _kind("local-in-parallel", r"Local buffer `(?P<name>\w+)` is indexed by T\.Parallel loop "
          r"variable `(?P<var>\w+)`",
          "[Tilelang Semantic Check] Local buffer `c` is indexed by T.Parallel loop variable `i`. "
          "Local buffers are thread-private and do not participate in parallel layout inference.",
          "Each thread has a whole `{name}` of its own (T.alloc_local), and T.Parallel shares "
          "`{var}` out among the threads.",
          "Use T.alloc_fragment for a tile that the threads share.",
          threads=("tile-ai/tilelang#3041",)),
    _kind("tile-op-in-parallel", r"Only elementwise operations are allowed inside a parallel "
          r"loop.*?tl\.tileop\.(?P<name>\w+)",
          "[Tilelang Semantic Check] Only elementwise operations are allowed inside a parallel "
          'loop. Got a tile-op "ir.Op(span=None, struct_info_=None, name="tl.tileop.copy"',
          "T.{name} works with all threads of a block, and it stands inside a T.Parallel loop, "
          "where each thread has its own step.",
          "Make the outer loop T.serial, or write the loop out by elements.",
          threads=("tile-ai/tilelang#1338",), about="copy"),
    _kind("symbolic-fragment", r"Can not use non-constant range to iterate over a fragment/local "
          r"buffer\. Non-constant shape expr is: (?P<size>.+?)\. ",
          "Check failed: (pci != nullptr) is false: Can not use non-constant range to iterate "
          "over a fragment/local buffer. Non-constant shape expr is: (N - 1) // 32 + 1. This is "
          "possibly because",
          "A fragment's size depends on {size}, which is known only at run time; registers have "
          "fixed sizes.",
          "Give the tile a fixed size and loop over the tiles.",
          threads=("tile-ai/tilelang#1335", "tile-ai/tilelang#1338")),
    _kind("symbolic-shared", r"int\(\) argument must be .*?, not '(?:Mul|Var|Add|FloorDiv)'",
          "int() argument must be a string, a bytes-like object or a real number, not 'Mul'",
          "A number that has to be known when compiling is only known at run time.",
          "Give every tile a fixed size; only tensors may have sizes from T.dynamic.",
          cause="Likely a tile of T.alloc_shared has a size from T.dynamic.",
          types=("TypeError",)),
)

GEMM = (
    _kind("warps", r"No valid warp partition for T\.gemm: M=(?P<M>\d+), N=(?P<N>\d+) cannot be "
          r"evenly covered by (?P<warps>\d+) warps",
          "No valid warp partition for T.gemm: M=16, N=16 cannot be evenly covered by 8 warps "
          "(policy=Square). Each warp must own a multiple of 16 rows and 8 columns; adjust "
          "`threads` or the block tile shape.",
          "{warps} warps cannot share a tile of {M} x {N}: each takes a multiple of 16 rows and 8 "
          "columns.",
          "Use fewer threads (32 a warp, best 128 or 256) or a larger tile.",
          threads=("tile-ai/tilelang#1165",), about="gemm"),
    _kind("gemm-rows", r"M must be divisible by (?P<by>\d+), but got (?P<M>\d+)",
          "Check failed: (M % kMPerWarp == 0) is false: M must be divisible by 16, but got 24",
          "The tile of T.gemm has {M} rows; tensor cores take {by} at a time.",
          "Make block_M a multiple of {by}; rows beyond the matrix are zeros and cost nothing but "
          "time."),
    _kind("gemm-depth-stride", r"stride == 4 \|\| stride % 8 == 0\) is false: stride=(?P<K>\d+)",
          "Check failed: (stride == 4 || stride % 8 == 0) is false: stride=20",
          "A shared tile of T.gemm has rows of {K} elements, which the tensor cores cannot load.",
          "Make block_K a multiple of 16 (32 for 8-bit types), although the message says 8.",
          threads=("tile-ai/tilelang#2907", "tile-ai/tilelang#2715"), about="gemm"),
    _kind("gemm-depth", r"block_K \((?P<K>\d+)\) must be a multiple of micro_size_k "
          r"\((?P<by>\d+)\)",
          "block_K (24) must be a multiple of micro_size_k (16)",
          "The depth of T.gemm's tiles is {K}; one tensor-core instruction takes {by}.",
          "Make block_K a multiple of {by}.", threads=("tile-ai/tilelang#2381",)),
    _kind("gemm-dtypes", r"Mixed-dtype GEMM only supports .*? got A=(?P<a>\w+), B=(?P<b>\w+)",
          "Mixed-dtype GEMM only supports f8f6f4 family operands currently, got A=float16, "
          "B=bfloat16",
          "T.gemm's operands are {a} and {b}; tensor cores take two of the same dtype.",
          "Copy one of them into a tile of the other's dtype: T.copy converts.", about="gemm"),
    _kind("gemm-scope", r"Unsupported gemm combination, A: (?P<a>\S+), B: (?P<b>\S+)",
          "Unsupported gemm combination, A: global, B: global",
          "T.gemm's operands lie in {a} and {b} memory.",
          "Copy them into tiles from T.alloc_shared first (A may be a fragment).", about="gemm"),
    _kind("gemm-accumulator", r"local_buf (?P<name>\w+) must be a fragment, but got "
          r"(?P<scope>[\w.]+)",
          "local_buf c must be a fragment, but got shared.dyn",
          "The accumulator `{name}` of T.gemm lies in {scope}.",
          "Make it with T.alloc_fragment.", types=("AssertionError", "CompileFailed")),
    _kind("gemm-arguments", r"bad_optional_access while parsing tile op call: T\.(?P<call>\w+)\(",
          "bad_optional_access while parsing tile op call: T.gemm(T.region(a[0, 0], 1, 64, 32)",
          "An argument of T.{call} has the wrong kind.",
          "Give sizes as integers and the policy as T.GemmWarpPolicy.FullRow, not as a text.",
          threads=("tile-ai/tilelang#3010",), about="gemm"),
)

OTHERS = (
    _kind("symbolic-wait", r"Downcast from tirx\.\w+ to ir\.IntImm failed",
          "Downcast from tirx.Sub to ir.IntImm failed.",
          "A number that has to be known when compiling is only known at run time.",
          "Use num_stages=1 there, or loop over the full range and mask.",
          cause="Likely a T.Pipelined loop with num_stages of 2 or more whose length depends on "
          "the block, as in causal attention, compiled for an A100, A10G, L4 or RTX 4090.",
          types=("TypeError",), threads=("tile-ai/TileOPs#1852",)),
    _kind("copy-range", r"Selected loop range is smaller than original (?:src|dst) range.*?for "
          r"src=(?P<a>\w+), dst=(?P<b>\w+)",
          "Selected loop range is smaller than original src range at matched non-1 dimension: "
          "base(extent=8, scope=shared.dyn, min=0, base_dim=0) < src(extent=16, min=0, "
          "src_dim=0, scope=global) for src=X, dst=x",
          "T.copy from `{a}` to `{b}`: the two parts have different extents.",
          "Slice both to the same shape, or give only the corner: "
          "T.copy(X[by * M, bx * N], tile)."),
    _kind("region-extent", r"extent_imm->value <= shape_imm->value \((?P<got>\d+) vs\. "
          r"(?P<size>\d+)\)",
          "Check failed: extent_imm->value <= shape_imm->value (10 vs. 8) : region[0] = 10 > 8",
          "A slice takes {got} elements of an axis that has {size}.",
          "Change the slice.", threads=("tile-ai/tilelang#2979",), about="fill"),
    _kind("no-kernel", r"Did you forget to bind\?",
          "Memory verification failed with the following errors:\n    Variable `Y` is directly "
          "accessed by host memory (it is not contained in a thread environment or in the "
          "function arguments.\n  Did you forget to bind?",
          "A tensor is used outside of any block of threads.",
          "Put the whole body into `with T.Kernel(blocks, threads=128) as bx:`."),
    _kind("nested-kernels", r'Unresolved call .*?name="tl\.launch_thread_idx"',
          'Unresolved call ir.Op(span=None, struct_info_=None, name="tl.launch_thread_idx", '
          'op_type=None, description="", arguments=(), attrs_type_key="", num_inputs=1',
          "A T.Kernel stands inside another one.",
          "Use one T.Kernel with a grid of several axes: T.Kernel(gx, gy) as (bx, by)."),
    _kind("odd-dtype", r"Need to load/store by multiple of bytes",
          "Check failed: data_bits % 8 == 0U (7 vs. 0) : Need to load/store by multiple of bytes",
          "A tensor's dtype is not a whole number of bytes wide.",
          'Check the spelling of the dtypes: "float32", not "float31".'),
    _kind("unknown-option", r"Invalid config option '(?P<name>[\w.]+)'",
          "Invalid config option 'tl.enable_fast_maths' candidates are: ...",
          "There is no compiler option called {name}.",
          "Take one of tilelang.PassConfigKey, such as TL_ENABLE_FAST_MATH."),
)
KINDS = FRAGMENTS + GEMM + OTHERS
