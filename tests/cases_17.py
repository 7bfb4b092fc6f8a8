"""What the tests know of lesson 17. See CONTRIBUTING.md."""

MUTATIONS = [
    ("bias lost", "gelu_approx_tanh(input=biased", "gelu_approx_tanh(input=product"),
    ("ReLU for GELU", "graph.gelu_approx_tanh(", "graph.relu("),
]

KERNELS = {}  # its own kernel is a cuDNN graph

PLANTED = {
    "17.1": [
        ("no bias", (("K * N + N + M * N", "K * N + M * N"),), "The bias is read, too"),
        ("elements", (("return 2 * (once", "return (once"),), "each has 2 bytes"),
        ("one pass", (("(kernels - 1) * 2 * M", "(kernels - 1) * M"),), "two passes, not one"),
        ("one kernel too many", (("(kernels - 1)", "kernels"),), "count only those after it"),
        ("fused only", (("(once + again)", "once"),), "Only what is fused was counted"),
        ("everything again", (("(kernels - 1) * 2 * M * N", "(kernels - 1) * once"),),
         "does not read A and B again"),
    ],
    "17.2": [
        ("no absolute value", (("reduce_absmax", "reduce_max"),), "not the largest absolute value"),
        ("not divided", (("448.0 / top[i]", "top[i]"),), "the scale is 448 over it"),
        ("the other way round", (("448.0 / top[i]", "top[i] / 448.0"),), "the other way round"),
        ("a sum", (("reduce_absmax", "reduce_abssum"),), "added up"),
        ("first rows again", (("X[b * rows, 0]", "X[0, 0]"),), "Every block reads the first rows"),
        ("rows of the first block", (("S[b * rows + i]", "S[i]"),), "output is wrong"),
    ],
}
