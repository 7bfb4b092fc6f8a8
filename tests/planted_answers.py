"""Wrong answers to every exercise, each with a part of the sentence that its check must say.

An answer is the kit's solution with some text replaced: (what, ((old, new), ...), sentence). Each
old text stands exactly once in the solution.
"""

from __future__ import annotations

import lesson_cases
from planted_cudnn_answers import CUDNN

Planted = tuple[str, tuple[tuple[str, str], ...], str]

PLANTED: dict[str, list[Planted]] = dict(CUDNN)

PLANTED["02.1"] = [
    ("not cleared", (("T.clear(acc)", "pass"),), "an accumulator that was not cleared"),
    ("cleared in the loop", (("            T.clear(acc)  # T.gemm adds to it\n", ""),
                             ("                T.copy(A[", "                T.clear(acc)\n"
                              "                T.copy(A[")), "cleared inside the loop"),
    ("last step left out", (("T.ceildiv(K, block_K)", "K // block_K"),), "last step along K"),
    ("grid rounds down", (("T.ceildiv(N, block_N)", "N // block_N"),),
     "last column of tiles was never written"),
    ("rows left out", (("T.ceildiv(M, block_M)", "T.max(M // block_M, 1)"),),
     "last row of tiles was never written"),
    ("first tile of B again", (("B[bx * block_N, k * block_K]", "B[bx * block_N, 0]"),),
     "index along K is missing"),
    ("axes of B swapped", (("B[bx * block_N, k * block_K]", "B[k * block_K, bx * block_N]"),),
     "two indices are swapped"),
    ("B of K x N", (("((block_N, block_K)", "((block_K, block_N)"),
                    ("B[bx * block_N, k * block_K]", "B[k * block_K, bx * block_N]"),
                    (", transpose_B=True", "")), "as if it were K x N"),
    ("tile of K x N", (("((block_N, block_K)", "((block_K, block_N)"),
                       (", transpose_B=True", "")), "The tile of B is not turned"),
    ("tile not turned", ((", transpose_B=True", ""),), "shape check failed"),
    ("nothing returned", (("    return main\n", ""),), "returns nothing"),
    ("a name that is not there", (("B_tile, acc, tr", "tile_of_B, acc, tr"),),
     "name 'tile_of_B' is not defined"),
]
PLANTED["02.2"] = [
    ("A of the first", (("A[bz, by", "A[0, by"),), "Every product uses the first A"),
    ("B of the first", (("B[bz, k", "B[0, k"),), "Every product uses the first B"),
    ("grid rounds down", (("T.ceildiv(M, block_M)", "T.max(1, M // block_M)"),),
     "last row of tiles was never written"),
    ("stored in the first", (("C[bz, by", "C[0, by"),), "no block wrote them"),
]
PLANTED["02.3"] = [
    ("swapped", (("T.copy(c, C[", "T.copy(d, C["), ("T.copy(d, D[", "T.copy(c, D[")),
     "changed places"),
    ("G not used", (("T.copy(G[k", "T.copy(B[k"),), "G is not used"),
    ("second not cleared", (("            T.clear(d)\n", ""),), "output 1 is wrong"),
    ("one accumulator", (("G_tile, d)", "G_tile, c)"), ("T.copy(d, D", "T.copy(c, D")),
     "one accumulator"),
    ("A read twice", (("                T.gemm(A_tile, G_tile, d)",
                       "                T.copy(A[by * block_M, k * block_K], A_tile)\n"
                       "                T.gemm(A_tile, G_tile, d)"),),
     "reads A in 2 places, where 1 will do"),
    ("too large for a T4", (("128, 64, 32", "128, 128, 128"),),
     "of shared memory a block, and the T4 gives 64 KiB"),
    ("spills", (("128, 64, 32", "128, 128, 32"),), "are spilled to memory"),
]
PLANTED["00.1"] = [
    ("no parentheses", (("(F[bx * block + i] - 32) / 1.8", "F[bx * block + i] - 32 / 1.8"),),
     "needs parentheses"),
    ("multiplied", ((" / 1.8", " * 1.8"),), "It was multiplied by 1.8"),
    ("first block again", (("(F[bx * block + i]", "(F[i]"),), "Every block reads the first block"),
    ("the way back", (("(F[bx * block + i] - 32) / 1.8", "F[bx * block + i] * 1.8 + 32"),),
     "from Celsius to Fahrenheit"),
    ("stored in the first block", (("C[bx * block + i] =", "C[i] ="),), "no thread wrote them"),
    ("grid rounds down", (("T.ceildiv(N, block)", "N // block"),),
     "The last tile was never written"),
]
PLANTED["00.2"] = [
    ("powers of two", (("[1, 512, 1025]", "[256, 512, 1024]"),), "rounds the number of blocks"),
    ("too small", (("[1, 512, 1025]", "[1, 512, 259]"),), "ends at 1,024"),
    ("no multiple", (("[1, 512, 1025]", "[1, 1025, 1027]"),), "N % 256 elements"),
    ("no single one", (("[1, 512, 1025]", "[2, 512, 1025]"),), "single element"),
    ("too many", (("[1, 512, 1025]", "[1, 2, 512, 1025]"),), "one to 3 sizes"),
    ("multiples of four", (("[1, 512, 1025]", "[512, 1028, 1024]"),), "four elements at a time"),
]
PLANTED["00.3"] = [
    ("sum", (("max(memory, compute)", "(memory + compute)"),), "not the sum"),
    ("smaller", (("max(", "min("),), "the larger one"),
    ("seconds", ((" * 1e3", ""),), "in seconds"),
    ("bytes only", (("max(memory, compute)", "memory"),), "Only the bytes"),
    ("operations only", (("max(memory, compute)", "compute"),), "Only the operations"),
    ("nothing returned", (("return max", "max"),), "gives None"),
]
PLANTED["01.1"] = [
    ("range", (("T.Parallel(block)", "range(block)"),), "the loop over `i` is a serial one"),
    ("alpha times the sum", (("alpha * A[bx * block + i] + B[bx * block + i]",
                              "alpha * (A[bx * block + i] + B[bx * block + i])"),),
     "alpha multiplies the sum"),
    ("alpha times B", (("alpha * A[bx * block + i] +", "A[bx * block + i] + alpha *"),),
     "alpha multiplies B"),
    ("no alpha", (("= alpha * A", "= A"),), "alpha has no effect"),
    ("first block again", (("A[bx * block + i] + B[bx * block + i]", "A[i] + B[i]"),),
     "Every block reads the first block's"),
    ("first block of B", (("B[bx * block + i]", "B[i]"),), "the first block of B"),
    ("serial", (("T.Parallel(block)", "T.serial(block)"),), "Use T.Parallel, which deals"),
    ("grid rounds down", (("T.ceildiv(N, block)", "N // block"),),
     "The last tile was never written"),
    ("reversed", (("C[bx * block + i]", "C[bx * block + block - 1 - i]"),), "output is wrong"),
]
PLANTED["01.2"] = [
    ("rounds down", (("-(-N // each)", "N // each"),), "elements are lost"),
    ("always adds", (("-(-N // each)", "(N // each + 1)"),), "must stay as it is"),
    ("elements", (("16 // bytes_each", "16"),), "16 bytes are meant"),
    ("bytes", (("// each) * each", "// each) * 16"),), "length in bytes"),
]
PLANTED["01.3"] = [
    ("no minus", (("T.exp(-g)", "T.exp(g)"),), "exp lacks its minus sign"),
    ("gate alone", (("x / (1.0", "1.0 / (1.0"),), "multiply it by X"),
    ("swapped", (("x / (1.0 + T.exp(-g))", "g / (1.0 + T.exp(-x))"),), "changed places"),
    ("G alone", (("x / (1.0", "g / (1.0"),), "X is not used"),
    ("narrow", (("1024, 128", "128, 128"),), "give each thread neighbours"),
    ("serial", (("T.Parallel(block)", "T.serial(block)"),), "the loop over `i` is a serial one"),
]
PLANTED["03.1"] = [
    ("added", (("max(stages, c_tile)", "(stages + c_tile)"),), "share the space"),
    ("no tile of C", (("max(stages, c_tile)", "stages"),), "tile of C was left out"),
    ("one stage", (("num_stages * (", "("),), "counted once"),
    ("elements", (("block_K * 2", "block_K"), ("block_N * 2", "block_N")), "takes 2 bytes"),
    ("bytes", ((" / 1024", ""),), "a KiB has 1,024"),
]
PLANTED["03.2"] = [
    ("tile too small", (("block_M=64, block_N=128", "block_M=64, block_N=64"),),
     "The tile of C has 4,096 elements"),
    ("registers", (("block_M=64, block_N=128, block_K=32, num_stages=3, threads=128",
                    "block_M=128, block_N=128, block_K=32, num_stages=2, threads=128"),),
     "limited by registers"),
    ("shared memory", (("block_K=32, num_stages=3", "block_K=64, num_stages=3"),),
     "limited by shared memory"),
    ("too many stages", (("block_K=32, num_stages=3", "block_K=128, num_stages=4"),),
     "cannot be launched"),
    ("a knob missing", ((", threads=128)", ")"),), "has the knobs"),
    ("no tile of a tensor core", (("block_N=128", "block_N=130"),), "does not compile"),
]
PLANTED["03.3"] = [
    ("half as large", (("block_M=128, block_N=256", "block_M=128, block_N=128"),),
     "The tile of C has 16,384 elements"),
    ("too few threads", (("threads=256", "threads=128"),), "are spilled to memory"),
    ("too large", (("block_M=128", "block_M=256"),), "are spilled to memory"),
    ("too deep", (("block_K=32, num_stages=2", "block_K=64, num_stages=4"),),
     "cannot be launched"),
    ("not whole", (("num_stages=2", "num_stages=2.5"),), "each a whole number"),
]
ADD_BIAS = '                acc[i, j] += T.Cast("float32", bias[bx * block_N + j])\n'
PLANTED["04.1"] = [
    ("bias after", ((ADD_BIAS, ""),
                    ("T.exp(-acc[i, j]))", "T.exp(-acc[i, j])) + bias[bx * block_N + j]")),
     "added after the activation"),
    ("no bias", ((ADD_BIAS, ""),),
     "The bias is missing"),
    ("first tile's bias", (("bias[bx * block_N + j]", "bias[j]"),), "bias of the first tile"),
    ("bias by row", (("bias[bx * block_N + j]", "bias[by * block_M + i]"),), "added by row: it"),
    ("first bias by row", (("bias[bx * block_N + j]", "bias[i]"),), "first elements of the bias"),
    ("bias by row of the tile", (("bias[bx * block_N + j]", "bias[bx * block_N + i]"),),
     "its index needs j, not i"),
    ("serial", (("T.Parallel(block_M, block_N)", "T.grid(block_M, block_N)"),),
     "the loop over `i, j` walks through it in every thread"),
    ("sigmoid", (("= acc[i, j] / (1.0", "= 1.0 / (1.0"),), "That is sigmoid(x)"),
    ("not cleared", (("T.clear(acc)", "pass"),), "an accumulator that was not cleared"),
    ("in the loop", (("            for i, j in", "                for i, j in"),
                     ("                acc[i, j] +=", "                    acc[i, j] +="),
                     ("                acc[i, j] = acc", "                    acc[i, j] = acc")),
     "in every step along K"),
]
PLANTED["04.2"] = [
    ("no residual", ((' + T.Cast("float32", R_tile[i, j])', ""),), "The residual is missing"),
    ("no alpha", (("alpha * acc", "acc"),), "alpha is missing"),
    ("alpha of both", (('alpha * acc[i, j] + T.Cast("float32", R_tile[i, j])',
                        'alpha * (acc[i, j] + T.Cast("float32", R_tile[i, j]))'),),
     "multiplies the residual, too"),
    ("first tile of R", (("R[by * block_M, bx * block_N]", "R[0, 0]"),), "first tile of R"),
    ("axes of R swapped", (("R[by * block_M, bx * block_N]", "R[bx * block_N, by * block_M]"),),
     "output is wrong"),
    ("read twice", (("acc[i, j] + T.Cast(\"float32\", R_tile[i, j])",
                     "acc[i, j] + 0.5 * (R_tile[i, j] + T.Cast(\"float32\", "
                     "R[by * block_M + i, bx * block_N + j]))"),), "reads R in 2 places"),
]
PLANTED["04.3"] = [
    ("swapped", (("gate = X_tile[i, 2 * j]", "gate = X_tile[i, 2 * j + 1]"),
                 ("* X_tile[i, 2 * j + 1])", "* X_tile[i, 2 * j])")), "changed places"),
    ("halves of a tile", (("gate = X_tile[i, 2 * j]", "gate = X_tile[i, j]"),
                          ("X_tile[i, 2 * j + 1]", "X_tile[i, block_N + j]")),
     "its columns j and 32 + j"),
    ("halves of W", (("T.copy(W[k * block_K, bx * 2 * block_N], W_tile)",
                      "T.copy(W[k * block_K, bx * block_N], W_tile[0:block_K, 0:block_N])\n"
                      "                T.copy(W[k * block_K, N + bx * block_N],\n"
                      "                       W_tile[0:block_K, block_N:2 * block_N])"),
                     ("gate = X_tile[i, 2 * j]", "gate = X_tile[i, j]"),
                     ("X_tile[i, 2 * j + 1]", "X_tile[i, block_N + j]")), "The halves of W"),
    ("sigmoid", (("gate / (1.0", "1.0 / (1.0"),), "sigmoid alone"),
    ("no activation", (("gate / (1.0 + T.exp(-gate))", "gate"),), "The activation is missing"),
    ("every tile from the first", (("bx * 2 * block_N", "bx * 0"),), "output is wrong"),
    ("half a tile", (("T.Parallel(block_M, block_N)", "T.Parallel(block_M, block_N // 2)"),),
     "no thread wrote them"),
    ("serial", (("T.Parallel(block_M, block_N)", "T.grid(block_M, block_N)"),),
     "stores each element of C again"),
]
PLANTED["05.1"] = [
    ("serial", (("for i in T.Parallel(rows)", "for i in T.serial(rows)"),),
     "the result is wrong on a GPU"),
    ("zeros in the padding", (('-T.infinity("float32"))', "0.0)"),), "The padding takes part"),
    ("softmax", (("= x[i, j] - total[i]", "= T.exp(x[i, j] - total[i])"),), "That is the softmax"),
    ("no logarithm", (("top[i] + T.log(total[i])", "top[i]"),), "logarithm of the sum was not"),
    ("no maximum", (("top[i] + T.log(total[i])", "T.log(total[i])"),), "the maximum was not"),
    ("sum for its logarithm", (("T.log(total[i])", "total[i]"),), "where its logarithm belongs"),
    ("no maximum in exp", (("T.exp(x[i, j] - top[i])", "T.exp(x[i, j])"),), "output is wrong"),
]
PLANTED["05.2"] = [
    ("by the width", (("scale[i] / N", "scale[i] / width"),), "the padded width"),
    ("sum", (("scale[i] / N", "scale[i]"),), "not their mean"),
    ("no eps", ((" / N + eps", " / N"),), "eps is missing"),
    ("eps after the root", (("T.rsqrt(scale[i] / N + eps)", "1.0 / (T.sqrt(scale[i] / N) + eps)"),),
     "it belongs under it"),
    ("no weight", ((' * T.Cast("float32", W[j])', ""),), "The weight W is missing"),
]
PLANTED["05.3"] = [
    ("not corrected", (("total[t] *= T.exp(before[t] - top[t])", "total[t] *= 1.0"),),
     "The sums so far were not corrected"),
    ("no maximum", (("row_top[i] + T.log", "T.log"),), "log(sum) belongs on top of it"),
    ("no logarithm", (("T.log(row_total[i])", "row_total[i]"),), "its logarithm was asked for"),
    ("last piece", (("T.ceildiv(N, piece)", "N // piece"),), "The last piece is left out"),
    ("zeros", (('-T.infinity("float32"))', "0.0)"),), "Padding with zeros takes part"),
    ("starts at minus infinity", (("T.fill(top, LOWEST)",
                                   'T.fill(top, -T.infinity("float32"))'),), "1 elements are NaN"),
    ("two passes", (("                L[b] = row_top[i] + T.log(row_total[i])",
                     "                L[b] = row_top[i] + T.log(row_total[i])\n"
                     "                L[b] += 1e-9 * T.Cast(\"float32\", X[b, N - 1])"),),
     "reads X in 2 places"),
]
PLANTED["07.1"] = [
    ("all of them", (("large and ahead and schedule[\"panel\"] == 16", "True"),),
     "at most 16 are asked for"),
    ("none", (("large and ahead", "False and ahead"),), "It forbids all"),
    ("small tiles", ((">= 128 * 256", "< 128 * 256"),), "it was a bad bet"),
    ("nothing returned", (("return large", "large"),), "True or False belongs"),
    ("a knob that is not there", (('"num_stages"', '"stages"'),), "KeyError"),
]
PLANTED["07.2"] = [
    ("from the slowest", (("min(ran.values()) * (1 + within)",
                           "max(ran.values()) * (1 - within)"),),
     "measured from the slowest"),
    ("not sorted", (("sorted(near, key=ran.get)", "near"),), "They are not sorted"),
    ("slowest first", (("sorted(near, key=ran.get)", "sorted(near, key=ran.get, reverse=True)"),),
     "The slowest comes first"),
    ("no most", (("[:most]", ""),), "`most` has no effect"),
    ("no within", (("(1 + within)", "float('inf')"),), "`within` has no effect"),
    ("empty", (("    if not ran:\n        return []\n", ""),), "ValueError"),
    ("NaN kept", (("    if not ran:\n        return []\n", ""), (" if ms == ms", "")),
     "NaN was not left out"),
]
PLANTED["07.3"] = [
    ("the recorded winner", (("schedules[min(times, key=times.get)]\n",
                              "schedules[0] | dict(block_M=128, block_N=256, block_K=128, "
                              "num_stages=2, threads=256, panel=0)\n"),),
     "It measured a faster schedule"),
    ("never measured", (("times[number] = measure(**schedules[number])\n    while",
                         "times[number] = float(number)\n    while"),), "never measured"),
    ("the first twenty", (("schedules), 6)", "schedules))[:20]"),), "slower than the best"),
    ("too many", (("min(20, len(schedules))", "len(schedules)"),), "measurements are used up"),
    ("the slowest", (("    return schedules[min(", "    return schedules[max("),),
     "a faster schedule"),
    ("nothing returned", (("    return schedules[min(times, key=times.get)]", "    pass"),),
     "It returns no schedule"),
]
PLANTED["06.1"] = [
    ("first query", (("first + block_M + past", "first + 1 + past"),), "the last one sees more"),
    ("no past", ((" + past)", ")"),), "`past` has no effect"),
    ("not clipped", (("min(Sk, first + block_M + past)", "first + block_M + past"),),
     "more than Sk keys"),
    ("rounds down", (("-(-seen // block_N)", "seen // block_N"),), "That rounds down"),
    ("all", (("seen = min(Sk, first + block_M + past)", "seen = Sk"),), "That is all tiles"),
]
PLANTED["06.2"] = [
    ("not scaled", (("top[i] * D**-0.5 + T", "top[i] + T"),), "top was not scaled"),
    ("base 2", (("T.log(total[i])", "T.log2(total[i])"),), "of base 2"),
    ("scaled by log2(e)", (("top[i] * D**-0.5 +", "top[i] * (D**-0.5 * 1.4426950408889634) +"),),
     "scaled by log2(e), too"),
    ("no maximum", (("top[i] * D**-0.5 + T", "T"),), "The maximum is missing from L"),
    ("maximum alone", ((" + T.log(total[i])", ""),), "That is the maximum alone"),
    ("never stored", (("            T.copy(total, L[by, bx * block_M])", "            #"),),
     "Every element is NaN"),
]
PLANTED["06.3"] = [
    ("starts at minus infinity", (("T.fill(top, -1e30)", 'T.fill(top, -T.infinity("float32"))'),),
     "rows are NaN from end to end"),
    ("no window", ((" & (apart < window)", ""),
                   ("T.max(0, bx * block_M - window + 1) // block_N", "0")),
     "The window is missing"),
    ("too wide", (("(apart < window)", "(apart <= window)"),), "one key too wide"),
    ("too narrow", (("(apart < window)", "(apart < window - 1)"),), "one key too narrow"),
    ("not causal", (("(apart >= 0) & ", ""),), "the mask lacks its causal side"),
    ("all tiles", (("T.max(0, bx * block_M - window + 1) // block_N", "0"),),
     "start the loop at the first tile"),
    ("scale", (("scale=D**-0.5 * 1.44", "scale=1.44"),), "not divided by sqrt(D)"),
]
PLANTED["08.1"] = [
    ("grid", (("T.ceildiv(M, rows)", "M // rows"),), "The last row of tiles was never written"),
    ("first row's peak", (("peak[i]", "peak[0]"),), "the peak of its first row"),
    ("largest element", (("T.reduce_absmax", "T.reduce_max"),), "not of the largest magnitude"),
    ("width", (("max(threads, 1 << (N - 1).bit_length())", "N"),),
     "the width of the fragment has to suit the threads"),
    ("sum", (("T.reduce_absmax", "T.reduce_abssum"),), "its sum of magnitudes"),
]
PLANTED["08.2"] = [
    ("no spills", (("if compiled.resources.spill_stores:", "if False:"),),
     "Spills were not looked at"),
    ("no fit", (("if compiled.shared_bytes > compiled.gpu.shared_per_block:", "if False:"),),
     "The fit was not looked at"),
    ("no tensor core", (('if not {"mma", "wgmma"} & set(compiled.landmarks):', "if False:"),),
     "The tensor core was not looked at"),
    ("wgmma only", (('{"mma", "wgmma"}', '{"wgmma"}'),), "Hopper's name alone"),
    ("mma only", (('{"mma", "wgmma"}', '{"mma"}'),), "mma is not the only name"),
    ("48 KiB", (("compiled.gpu.shared_per_block", "48 * 1024"),), "The limit is the GPU's own"),
]
PLANTED["08.3"] = [
    ("one less at a time", (("step = sizes[name] // 2", "step = 1"),), "200 calls are used up"),
    ("takes every step", (("and fails(**smaller):\n                    sizes",
                           "and fails(**smaller) is not None:\n                    sizes"),),
     "where the kernel is right"),
    ("halving only", (("sizes[name] - step}", "sizes[name] // 2}"),), "no single step is left"),
    ("one size only", (("for name in sizes:\n", "for name in ['M']:\n"),),
     "no single step is left"),
    ("nothing returned", (("            return shrink(fails, smaller)\n    return sizes",
                           "            return shrink(fails, smaller)"),), "it returns None"),
]
PLANTED["09.1"] = [
    ("bias scaled by the row", (("acc * row_scale * column_scale + bias",
                                 "(acc * column_scale + bias) * row_scale"),),
     "The bias was scaled, too"),
    ("scale of a column as one of a row", (('colvec=["row_scale"], rowvec={"column_scale": '
                                            '"float32", "bias": None}',
                                            'colvec=["row_scale", "column_scale"], '
                                            'rowvec=["bias"]'),), "does not run"),
    ("no bias", (('"column_scale": "float32", "bias": None', '"column_scale": "float32"'),
                 ("column_scale, bias", "column_scale"), (" + bias", "")),
     "declares the operands column_scale, row_scale"),
    ("rows forgotten", (("acc * row_scale * column", "acc * column"),),
     "The scale of the rows is missing"),
    ("columns forgotten", (("row_scale * column_scale + bias", "row_scale + bias"),),
     "The scale of the columns is missing"),
    ("bias first", (("acc * row_scale * column_scale + bias",
                     "(acc + bias) * row_scale * column_scale"),), "multiplied by both scales"),
    ("divided", (("acc * row_scale * column_scale", "acc / row_scale / column_scale"),),
     "It was divided by the scales"),
    ("bias left out", ((" + bias)", " + 0.0 * bias)"),), "The bias is missing"),
]
PLANTED["09.2"] = [
    ("swapped", (("gate, up = acc", "up, gate = acc"),), "Gate and up changed places"),
    ("gate limited below", (("gate = ops.minimum(gate, limit)",
                             "gate = ops.maximum(ops.minimum(gate, limit), -limit)"),),
     "The gate was limited from below"),
    ("no lower limit", (("ops.maximum(ops.minimum(up, limit), -limit)",
                         "ops.minimum(up, limit)"),), "its lower limit is missing"),
    ("no one", (("(up + 1.0)", "up"),), "up + 1 belongs into the product"),
    ("no upper limit", (("ops.maximum(ops.minimum(up, limit), -limit)",
                         "ops.maximum(up, -limit)"),), "its upper limit is missing"),
    ("plain silu", (("1.702 * gate", "gate"),), "takes 1.702 times the gate"),
    ("no limits", (("ops.minimum(gate, limit)", "gate + 0.0 * limit"),
                   ("ops.maximum(ops.minimum(up, limit), -limit)", "up")), "Nothing was limited"),
]
PLANTED["09.3"] = [
    ("lse of the raw ones", (("lse=logits", "lse=acc * rstd"),), "lse is that of the raw logits"),
    ("raw pick", (("picked=logits", "picked=acc * rstd"),), "picked is the raw logit"),
    ("not capped", (("cap * ops.tanh(acc * rstd / cap)", "acc * rstd + 0.0 * cap"),),
     "The logits were not capped"),
    ("exponentiated", (("lse=logits", "lse=ops.exp(logits)"),), "the reduction exponentiates"),
    ("norm after the cap", (("cap * ops.tanh(acc * rstd / cap)",
                             "cap * ops.tanh(acc / cap) * rstd"),), "r comes first"),
    ("not scaled back", (("cap * ops.tanh", "ops.tanh"),), "multiplied by the cap again"),
    ("a sum of exponentials", (('"lse": "lse"', '"lse": "sum"'),), "lse is wrong"),
]
PLANTED["09.4"] = [
    ("room alone", ((" / slower", ""),), "That is the room alone"),
    ("multiplied", ((") / slower", ") * slower"),), "divide by it"),
    ("one forgotten", (("(1 + room)", "room"),), "The GEMM itself is missing"),
    ("one operation", (("2 * K", "K"),), "takes 2 K operations"),
    ("units", (("1e12", "1e9"),), "differ by a factor of 1,000"),
]
PLANTED["10.1"] = [
    ("no factor", (("2.0 * dy * ops.relu(z)", "dy * ops.relu(z)"),), "The factor 2"),
    ("not gated", (("2.0 * dy * ops.relu(z)", "2.0 * dy * z"),), "gate it by relu"),
    ("not squared", (("y=ops.relu(z) * ops.relu(z)", "y=ops.relu(z)"),), "needs its square"),
    ("behind the activation", (("zdz=z * dz", "zdz=ops.relu(z) * ops.relu(z) * dy"),),
     "behind the activation"),
    ("another y", (("y=ops.relu(z) * ops.relu(z)", "y=z * z"),),
     "y is wrong"),
]
PLANTED["10.2"] = [
    ("no mean", (("(x - mean) * rstd", "x * rstd"),), "RMSNorm's"),
    ("mean last", (("(x - mean) * rstd", "x * rstd - mean"),), "comes off before"),
    ("no rstd", (("(x - mean) * rstd", "(x - mean)"),), "lacks rstd"),
    ("swapped", (("dgamma=D * unit, dbeta=D", "dgamma=D, dbeta=D * unit"),), "changed places"),
    ("no D", (("dgamma=D * unit", "dgamma=unit + 0.0 * D"),), "dgamma lacks D"),
    ("stored", (('row_reduce={"dgamma": "sum", "dbeta": "sum"}', 'store=["dgamma", "dbeta"]'),),
     "has shape [70, 136]"),
    ("along rows", (('row_reduce={"dgamma": "sum", "dbeta": "sum"}',
                     'col_reduce={"dgamma": "sum", "dbeta": "sum"}'),), "has shape [70]"),
]
PLANTED["10.3"] = [
    ("ReLU squared once", (('"squared ReLU": 2, "gate', '"squared ReLU": 1, "gate'),),
     "squared ReLU: 1 is not right. On two random rows Σ z dz over Σ y dy is 2.0000 and 2.0000"),
    ("product once", (('"gate times up": 2, "RoPE"', '"gate times up": 1, "RoPE"'),),
     "gate times up: 1"),
    ("RoPE never", (('"RoPE": 1', '"RoPE": "none"'),), "RoPE: 'none' is not right"),
    ("SiLU as ReLU", (('"SiLU": "none"', '"SiLU": 1'),), "SiLU: 1 is not right"),
    ("a name lost", ((', "SiLU": "none"', ""),), "keep its five names"),
]
PLANTED["11.1"] = [
    ("bias after the scale", (("scale * (acc + bias)", "scale * acc + bias"),),
     "The bias was added after the scale"),
    ("residual scaled", (("residual + scale * (acc + bias)", "scale * (acc + bias + residual)"),),
     "The residual was scaled, too"),
    ("squares of scaled", (("sumsq=x * x", "sumsq=x * gamma * x * gamma"),),
     "The squares were taken of x times gamma"),
    ("no scale", (("scale * (acc + bias)", "(acc + bias)"),), "The scale is missing"),
    ("no bias", (("(acc + bias)", "acc"),), "The bias is missing"),
    ("no residual", (("residual + scale", "scale"),), "The residual is missing"),
    ("a column vector", (('rowvec=["bias", "scale", "gamma"]',
                          'rowvec=["bias", "gamma"], colvec=["scale"]'),),
     "argument scale has dtype float16"),
]
PLANTED["11.2"] = [
    ("wrong width", (("x.shape[1], eps", "h.shape[1], eps"),), "columns of the stream"),
    ("gamma twice", (('catalogue.rstd_swiglu_forward, found["scaled"]',
                      'catalogue.rstd_swiglu_forward, found["scaled"] * gamma'),),
     "gamma was applied twice"),
    ("x for scaled", (('forward, found["scaled"]', 'forward, found["x"]'),),
     "The second GEMM read x"),
    ("no row factor", (("rstd=rstd)", "rstd=torch.ones_like(rstd))"),), "row factor is missing"),
    ("no mean", (("x.shape[1], eps", "1, eps"),), "was not divided by the width"),
    ("one result", (('return found["x"], y["y"]', 'return y["y"]'),), "return two tensors"),
    ("partial sums", (('finalize.rstd(found["sumsq"], x.shape[1], eps)', 'found["sumsq"]'),),
     "rstd: float32[20] is expected"),
]
PLANTED["11.3"] = [
    ("half the operations", (("2 * M * N * K", "M * N * K"),), "two operations"),
    ("no one", (("1 + after", "after"),), "it starts at 1"),
    ("main loop divides", (("room * main_loop", "room / main_loop"),), "main_loop multiplies"),
    ("exposed divides", (("* exposed", "/ exposed"),), "exposed multiplies"),
    ("room alone", (("room * main_loop * exposed", "room"),), "That is the room alone"),
]
for _cases in lesson_cases.modules().values():
    PLANTED.update(_cases.PLANTED)
