"""GEMMs with epilogues: every one of the catalogue against the same function in float64, any size,
every knob; and that there is one main loop."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from epilogue_cases import FIRST, SMALL, named, operands, run

import labkit as lab
from labkit.epilogue import (
    OPTIONS,
    catalogue,
    check,
    declare,
    epilogue,
    gemm,
    matmul,
    ops,
    pairs,
    plain,
    schedule,
)
from labkit.epilogue.schedules import shared_bytes
from labkit.epilogue.steps import LOWEST
from labkit.errors import BadArgument, WrongAnswer

ALL = [e.name for e in catalogue.ALL]
OPS = ["exp", "log", "tanh", "erf", "sin", "cos", "floor", "sqrt", "rsqrt", "abs", "sigmoid",
       "relu", "silu", "gelu", "gelu_slope", "silu_slope"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize(("off", "passes"), [(3e-5, True), (3e-4, False)])
def test_a_verdict_on_a_sum_says_what_the_check_says(monkeypatch, off, passes):
    """A sum is allowed more than float32's rounding, and its verdict knows."""
    def slightly_off(*args, **given):
        found = matmul(*args, **given)
        return found | {"sumsq": found["sumsq"] * (1 + off)}

    monkeypatch.setattr("labkit.epilogue.checking.matmul", slightly_off)
    if passes:
        verdicts = check(catalogue.residual_rms)
        assert all(verdict.ok for verdict in verdicts)
        assert "a reduction in float32" in repr(verdicts[-1])
    else:
        with pytest.raises(WrongAnswer, match=r"sumsq: WRONG.*a reduction in float32 allows 1e-04"):
            check(catalogue.residual_rms)


def _check(chosen, M, N, K, **more):
    for output, value, expected in run(chosen, M, N, K, **more):
        lab.check(value, expected, name=f"{chosen.name}.{output.name}")


@pytest.mark.parametrize("name", ALL)
def test_every_epilogue_against_float64(name):
    """Ragged in every direction: 5 x 2 tiles with edges in M, N and K."""
    _check(named(name), 130, 112, 50, **SMALL)


@pytest.mark.parametrize("name", [
    "drms_residual", *(pytest.param(n, marks=pytest.mark.slow) for n in
                       ("residual_rms", "rstd_swiglu", "rstd_cross_entropy", "dswiglu"))])
@pytest.mark.parametrize("more", [
    dict(dtype="bfloat16", transpose_B=True), dict(dtype="float32"), dict(blocks=3, group=2),
    dict(prefetch=2, piece=16), dict(rows=16, in_place=True, prefetch=1), dict(block_N=32),
    dict(piece=64, block_M=64), dict(per_sm=2),
], ids=str)
def test_knobs_change_nothing(name, more):
    _check(named(name), 70, 144, 40, **(SMALL | more))


@pytest.mark.parametrize(("M", "N", "K"), [(1, 16, 8), (32, 64, 32), (33, 16, 1), (31, 208, 65)])
@pytest.mark.parametrize("name", [
    "rstd_cross_entropy", *(pytest.param(n, marks=pytest.mark.slow) for n in
                            ("residual_layernorm", "rstd_rope", "drms"))])
def test_sizes(name, M, N, K):
    _check(named(name), M, N, K, **SMALL)


def test_columns_that_are_no_multiple_of_eight():
    _check(named("residual_rms"), 40, 83, 37, **SMALL)
    _check(named("rstd_cross_entropy"), 40, 83, 37, **SMALL)


# --- edges: what lies beyond the product must not reach a result


@epilogue(rowvec=["offset"], store=["y"], col_reduce={"top": "max", "lse": "lse", "total": "sum"},
          row_reduce={"below": "sum"})
def far_below(acc, offset):
    """Beyond the edge, where acc and offset are padded with zeros, it would give exp(0) = 1."""
    y = ops.exp(acc + offset) - 40.0
    return dict(y=y, top=y, lse=y, total=y, below=y)


def test_values_beyond_the_edge_do_not_count():
    for more in ({}, {"blocks": 2}):
        for output, value, expected in run(far_below, 37, 70, 20, **SMALL, **more):
            lab.check(value, expected, name=output.name)


def test_a_row_of_minus_infinities():
    @epilogue(rowvec=["mask"], col_reduce={"lse": "lse"})
    def masked(acc, mask):
        return dict(lse=acc + mask)

    A, B = torch.ones(3, 8).half(), torch.ones(8, 80).half()
    mask = torch.full((80,), -torch.inf).half()
    assert matmul(masked, A, B, mask=mask)["lse"].logsumexp(0).tolist() == [-torch.inf] * 3
    mask[70] = 1.5
    lse = matmul(masked, A, B, mask=mask)["lse"].logsumexp(0)
    assert torch.allclose(lse, torch.full((3,), 9.5)) and LOWEST > -3.4e38


def test_large_logits_do_not_overflow():
    A, B = torch.full((5, 64), 60.0).half(), torch.full((64, 48), 12.0).half()
    found = matmul(catalogue.rstd_cross_entropy, A, B, rstd=torch.ones(5),
                   target=torch.zeros(5, dtype=torch.int32))
    assert torch.allclose(found["lse"].logsumexp(0), torch.full((5,), 46080.0 + 3.871))


def test_a_target_outside_the_vocabulary_is_not_picked():
    A, B = torch.randn(4, 8).half(), torch.randn(8, 33).half()
    builder = gemm(catalogue.rstd_cross_entropy)
    kernel = lab.compile(builder(4, 33, 8, **SMALL), out_idx=builder.out_idx, device="cpu")
    *_, picked = kernel(A, B, torch.ones(4), torch.tensor([0, -100, 33, 32], dtype=torch.int32))
    assert picked.isnan().tolist() == [False, True, True, False]


# --- one main loop


def _main_loop(program_or_text):
    text = program_or_text
    start = text.index("T.clear(acc)")
    return text[start:text.index("policy=policy)", start)]


def test_the_program_has_one_main_loop_whatever_the_epilogue():
    for more in ({}, {"transpose_B": True}, {"blocks": 7}):
        texts = {e.name: gemm(e).source(256, 256, 256, **more) for e in (*catalogue.ALL, plain)}
        assert len({_main_loop(text) for text in texts.values()}) == 1
        assert all(text.count("T.gemm(") == 1 for text in texts.values())


@pytest.mark.parametrize("gpu", [pytest.param("A100", marks=pytest.mark.slow), "H100"])
def test_the_compiled_main_loop_is_the_same_too(gpu):
    """The CUDA of the loop over K, up to where the tiles lie in shared memory."""
    schedule = dict(block_M=128, block_N=128, block_K=32, num_stages=3, threads=256, piece=32)

    def loop(chosen):
        program = gemm(chosen)(1024, 1024, 1024, dtype="bfloat16", **schedule)
        lines = lab.cross_compile(program, gpu).body.splitlines()
        multiply, loop_k = "wgmma_ss|mma_sync", r"for \(int k(_\d+)? = 0;"
        first = next(n for n, line in enumerate(lines) if re.search(multiply, line))
        start = max(n for n, line in enumerate(lines[:first]) if re.search(loop_k, line))
        depth, end = 0, start
        for end in range(start, len(lines)):
            depth += lines[end].count("{") - lines[end].count("}")
            if depth == 0:
                break
        return re.sub(r"\b(i|ki|k)(_\d+)?\b", "n", "\n".join(lines[start:end + 1]))

    without = loop(plain)
    assert len(without.splitlines()) > 8 and re.search("wgmma_ss|mma_sync", without)
    for name in ("add_bias", "residual_rms", "rstd_swiglu", "dswiglu", "drms_residual",
                 "rstd_cross_entropy"):
        assert loop(named(name)) == without, name


def test_registers_shared_out_let_two_blocks_onto_a_multiprocessor():
    schedule = dict(block_M=128, block_N=128, block_K=64, num_stages=2, threads=128, piece=32)
    for per_sm in (1, 2):
        program = gemm(named("residual_rms"))(1024, 1024, 1024, dtype="bfloat16", **schedule,
                                              per_sm=per_sm)
        compiled = lab.cross_compile(program, "H100", {"tl.enable_fast_math": True})
        assert compiled.occupancy.blocks == per_sm
        assert not compiled.resources.spill_stores + compiled.resources.stack_bytes


def test_what_an_epilogue_does_not_use_is_not_there():
    with_residual = gemm(catalogue.drms_residual).source(64, 64, 64)
    without = gemm(catalogue.drms).source(64, 64, 64)
    assert "dresidual" in with_residual and "dresidual" not in without
    bare = gemm().source(64, 64, 64)
    for word in ("reduce", "residual", "annotate_layout", "if_then_else", "place"):
        assert word not in bare
    # masks only where a tile overhangs
    assert "if_then_else" in gemm(catalogue.residual_rms).source(64, 65, 64)
    assert "if_then_else" not in gemm(catalogue.residual_rms).source(64, 128, 64)


def test_the_program_is_an_ordinary_one():
    program = gemm(catalogue.dswiglu)(256, 256, 256)
    assert lab.lower(program, "A100").error == ""
    assert "gemm_dswiglu" in str(lab.cross_compile(program, "A100"))


def test_an_epilogue_says_what_it_takes_and_makes():
    assert repr(catalogue.dswiglu) == (
        "dswiglu(acc, z: tile of pairs) -> dz: store of pairs, y: store, zdz: col_reduce sum")
    assert repr(gemm(catalogue.swiglu)) == "gemm(swiglu)"
    assert repr(catalogue.rstd_cross_entropy).endswith("picked: select target")


# --- pairs


def test_pairs_lie_eight_apart():
    first, second = torch.arange(24), torch.arange(24) + 100
    joined = pairs.join(first, second)
    assert joined[:16].tolist() == [*range(8), *range(100, 108)]
    for pair in range(24):
        for member, values in enumerate((first, second)):
            assert joined[pairs.place(pair, member)] == values[pair]
    assert all(torch.equal(a, b) for a, b in zip(pairs.split(joined), (first, second), strict=True))
    grid = torch.randn(3, 16, 5)
    assert torch.equal(torch.cat(pairs.split(pairs.join(grid, grid + 1, 1), 1), 1),
                       torch.cat([grid, grid + 1], 1))


def test_pairs_that_do_not_fit():
    with pytest.raises(BadArgument, match="multiple of 8"):
        pairs.join(torch.zeros(12), torch.zeros(12))
    with pytest.raises(BadArgument, match="multiple of 16"):
        pairs.split(torch.zeros(3, 24))
    with pytest.raises(BadArgument, match="multiple of 16"):
        gemm(catalogue.swiglu)(64, 72, 64)


# --- declarations and calls that do not fit


@pytest.mark.parametrize(("declared", "words"), [
    (dict(store=["y"]), "each other one needs a declaration"),
    (dict(store=["y"], rowvec=["v"], tile=["v"]), "keep one of the two"),
    (dict(store="y", rowvec=["v"]), "give a list of names"),
    (dict(store=["z"], rowvec=["v"]), "exactly the declared names"),
    (dict(rowvec=["v"]), "declares no output"),
    (dict(store=["y"], rowvec=["v"], col_reduce={"s": "mean"}), "knows sum, max, lse"),
    (dict(store=["y"], colvec=["v"], pairs=["v"]), "cannot come as a pair"),
], ids=str)
def test_declarations_that_do_not_fit(declared, words):
    with pytest.raises(BadArgument, match=words):
        @epilogue(**declared)
        def wrong(acc, v):
            return dict(y=acc + v)


def test_names_that_clash():
    with pytest.raises(BadArgument, match="name of the generated program"):
        @epilogue(store=["A"])
        def wrong(acc):
            return dict(A=acc)

    with pytest.raises(BadArgument, match="only a store takes a pair"):
        @epilogue(pairs=["acc"], col_reduce={"s": "sum"})
        def twice(acc):
            return dict(s=acc)


def test_calls_that_do_not_fit():
    with pytest.raises(BadArgument, match="put @epilogue above"):
        gemm(lambda acc: acc)
    with pytest.raises(BadArgument, match="no knob"):
        gemm(plain)(64, 64, 64, stages=3)
    with pytest.raises(BadArgument, match="multiple of 16 that divides"):
        gemm(plain)(64, 64, 64, piece=24)
    with pytest.raises(BadArgument, match="whole number"):
        gemm(plain)(64, 0, 64)
    with pytest.raises(BadArgument, match="float16"):
        gemm(plain)(64, 64, 64, dtype="float64")
    A = torch.randn(8, 8).half()
    with pytest.raises(BadArgument, match="lacks bias"):
        matmul(catalogue.add_bias, A, A)
    with pytest.raises(BadArgument, match="does not know gamma"):
        matmul(catalogue.add_bias, A, A, bias=A[0], gamma=A[0])
    with pytest.raises(BadArgument, match="bias: float16"):
        matmul(catalogue.add_bias, A, A, bias=torch.zeros(7).half())
    with pytest.raises(BadArgument, match="pass a torch tensor"):
        matmul(catalogue.add_bias, A, A, bias=[0.0] * 8)
    with pytest.raises(BadArgument, match="on meta"):
        matmul(catalogue.add_bias, A, A, bias=A[0].to("meta"))
    with pytest.raises(BadArgument, match="strided"):
        matmul(catalogue.add_bias, A, A.t(), bias=torch.zeros(8).half())


# --- the functions themselves


@pytest.mark.parametrize("name", OPS)
def test_ops_agree_on_numbers_tensors_and_in_a_kernel(name):
    op = getattr(ops, name)
    chosen = epilogue(store={"y": "float32"})(lambda acc: dict(y=op(ops.maximum(acc, 0.125))))
    object.__setattr__(chosen, "name", "applied")
    A = torch.linspace(-1, 3, 32).half()[:, None]
    found = matmul(chosen, A, torch.ones(1, 16).half())["y"]
    clipped = A.double().clamp_min(0.125)
    lab.check(found, op(clipped).expand(32, 16), name=name)
    for x, y in zip(clipped[:, 0].tolist(), op(clipped)[:, 0].tolist(), strict=True):
        assert op(x) == pytest.approx(y, abs=1e-12)


def test_slopes_are_derivatives():
    x = torch.linspace(-4, 4, 41, dtype=torch.float64, requires_grad=True)
    for op, slope in ((ops.gelu, ops.gelu_slope), (ops.silu, ops.silu_slope)):
        (expected,) = torch.autograd.grad(op(x).sum(), x)
        assert torch.allclose(slope(x), expected, atol=1e-12)
    assert torch.allclose(ops.gelu(x), torch.nn.functional.gelu(x, approximate="tanh"))
    assert ops.minimum(2.0, 3.0) == 2.0


def test_reference_reduces_whole():
    chosen = named("residual_rms")
    product, given = torch.randn(5, 16, dtype=torch.float64), operands(named("residual_rms"), 5, 16)
    found = chosen.reference(product, **given)
    x = product + given["residual"].double()
    assert torch.equal(found["sumsq"], x.square().sum(1))
    assert torch.equal(found["scaled"], x * given["gamma"].double())


# --- declarations are tried on stand-ins, and checks are real


@pytest.mark.parametrize(("line", "words"), [
    ("abs(acc)", "write ops.abs"), ("acc ** 2", r"write x \* x"), ("max(acc, 0.0)", "ops.maximum"),
    ("acc if acc > 0 else 0.0", "use ops.where"), ("math.exp(acc)", "not math"),
    ("torch.relu(acc)", "labkit.epilogue.ops"), ("acc[0]", "only what `pairs` names"),
    ("acc * (acc > 0)", "meets a Condition"), ("acc > 0", "is a comparison"), ("1.0", "is 1.0"),
    ("ops.where((acc > 0) & acc, acc, 0.0)", "put each one in brackets"),
    ("acc + undefined", "'undefined' is not defined"),
], ids=str)
def test_what_a_kernel_cannot_do_is_refused_at_the_declaration(line, words):
    scope = dict(epilogue=epilogue, ops=ops, math=math, torch=torch)
    with pytest.raises(BadArgument, match=words):
        exec(f'@epilogue(store=["y"])\ndef wrong(acc):\n    return dict(y={line})', scope)


def test_the_page_on_epilogues_holds():
    """Its examples run as they stand, and its list of taken names is the program's."""
    page = (Path(__file__).parents[1] / "docs" / "epilogue.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    scope = {}
    for block in (*blocks[:2], blocks[3]):
        exec(block, scope)
    check(scope["rstd_swiglu"])
    taken = re.search(r"program's: `([^`]+)`", page)[1].split()
    assert set(taken) == declare._RESERVED
    listed = re.search(r"`ops`: `([^`]+)` of one value", page)[1].split()
    assert listed == OPS


def test_check_finds_wrong_mathematics_and_wrong_operands():
    def expected(product, z):
        gate, up = pairs.split(z)
        y = torch.nn.functional.silu(gate) * up
        return dict(dz=z, y=y, zdz=y.sum(1))

    with pytest.raises(WrongAnswer, match=r"dswiglu\.dz: WRONG"):
        check(catalogue.dswiglu, expected)
    with pytest.raises(BadArgument, match="the expected outputs lack dz, y, zdz"):
        check(catalogue.dswiglu, lambda product, z: {})
    with pytest.raises(BadArgument, match="does not know rstd"):
        check(catalogue.add_bias, rstd=torch.ones(130))


@pytest.mark.parametrize(("knobs", "said"), [
    (dict(prefetch=3), "take turns of 3"), (dict(prefetch=2, piece=32), "as many as the turns"),
    (dict(rows=24), "divides block_M")])
def test_turns_and_parts_that_do_not_fit(knobs, said):
    with pytest.raises(BadArgument, match=said):
        gemm(catalogue.residual_rms)(64, 64, 64, **(SMALL | knobs))


def test_groups_divide_the_columns_of_tiles():
    """T.Persistent computes whole groups of columns: three of two would be one column too many,
    and the partial results of the last would be written behind the end."""
    _check(catalogue.rstd_cross_entropy, 40, 5 * 64, 24, **(SMALL | dict(blocks=2, group=2)))


@pytest.mark.parametrize("name", [
    "plain", *(pytest.param(e.name, marks=() if e.name in FIRST else pytest.mark.slow)
               for e in catalogue.ALL)])
def test_schedules_for_hopper_fit_shared_memory(name):
    """The account by which a schedule is chosen is the compiler's own."""
    chosen = plain if name == "plain" else named(name)
    knobs = schedule(90, chosen)
    assert knobs["blocks"], "none of the schedules with blocks that stay fitted"
    program = gemm(chosen)(8192, 4096, 4096, dtype="bfloat16", transpose_B=True, **knobs)
    found = lab.cross_compile(program, "H100", pass_configs=OPTIONS)
    spare = found.shared_bytes - shared_bytes(chosen, knobs)
    assert 0 <= spare <= 1024  # each tile starts on a boundary
    # sums are added up inside a warp: across warps each step would cost two barriers
    assert all(int(n) <= 32 for n in re.findall(r"AllReduce<[\w:]+, (\d+)", found.source))


@pytest.mark.parametrize("K", [64, 128])
def test_the_schedule_that_is_recorded_is_the_one_that_runs(monkeypatch, K):
    """At 64 a Hopper schedule has one step along K, and loses what needs several."""
    from labkit.epilogue import run as module

    ran = []
    monkeypatch.setattr(module, "_sm", lambda: 90)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties",
                        lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(module, "gemm", lambda chosen: Builder())
    monkeypatch.setattr(lab, "compile", lambda program, **_: program)

    class Builder:
        out_idx = (-1,)

        def __call__(self, M, N, K, dtype, transpose_B, **knobs):
            ran.append(knobs)

    chosen = catalogue.residual_rms
    recorded = module.own_schedule(chosen, 256, K, "bfloat16", "cuda")
    for knobs in (None, tuple(recorded.items())):
        module._compiled.__wrapped__(chosen, 256, 256, K, "bfloat16", True, "cuda", knobs)
    assert ran == [recorded, recorded]
    assert bool(recorded["per_sm"]) == bool(recorded["in_flight"]) == (K > 64)
