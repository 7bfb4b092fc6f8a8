"""lab.compare and lab.check: what passes, what fails, and what the verdict says."""

from __future__ import annotations

import math

import pytest
import torch

import labkit as lab
from labkit import verify
from labkit.errors import BadArgument, WrongAnswer


@pytest.fixture
def product():
    torch.manual_seed(0)
    a, b = torch.randn(100, 70, dtype=torch.float64), torch.randn(70, 90, dtype=torch.float64)
    return a @ b


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rounding_alone_passes(product, dtype):
    result = lab.check(product.to(dtype), product)
    assert result.ok and result.error < result.allowed / 2 and not result.wrong


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("damage", [
    lambda x: x[-1].zero_(), lambda x: x[:, -1].zero_(), lambda x: x[37, 11].add_(1.5),
    lambda x: x[37, 11].fill_(math.inf), lambda x: x[0, 0].fill_(math.nan), lambda x: x.mul_(1.05),
    lambda x: x.copy_(x.roll(1, 0)), lambda x: x.zero_(),
])
def test_damage_fails(product, dtype, damage):
    out = product.to(dtype)
    damage(out)
    assert not lab.compare(out, product)
    with pytest.raises(WrongAnswer):
        lab.check(out, product)


def test_float16_rounding_fails_where_float32_is_claimed(product):
    assert not lab.compare(product.half().float(), product)
    assert lab.compare(product.half().float(), product, tf32=True)


def test_says_which_tiles(product):
    out = product.half()
    out[96:, :] = 0
    result = lab.compare(out, product, tile=(32, 32))
    assert result.grid == (4, 3) and result.bad_tiles == [(3, 0), (3, 1), (3, 2)]
    assert "in the last row of tiles" in repr(result)
    assert "  ...\n  ...\n  ...\n  xxx" in repr(result)
    out = product.half()
    out[40, 70] = math.nan
    result = lab.compare(out, product, tile=(32, 32))
    assert result.bad_tiles == [(1, 2)] and result.nans == 1 and result.worst == (40, 70)
    assert "1 elements are NaN" in repr(result)


def test_vectors_batches_scalars_and_large_maps():
    x = torch.randn(1000).double()
    out = x.float()
    out[-1] = 5
    assert lab.compare(out, x, tile=128).bad_tiles == [(0, 7)]
    batch = torch.randn(3, 40, 50).double()
    out = batch.half()
    out[2, 39] = 0
    assert {r for r, _ in lab.compare(out, batch, tile=(10, 10)).bad_tiles} == {3}
    assert lab.compare(torch.tensor(2.0), torch.tensor(2.0).double()).ok
    wide = torch.randn(64, 4096).double()
    result = lab.compare(wide.float() * 2, wide, tile=(1, 16))
    assert "the first 16 x 48 of 64 x 256" in repr(result)


def test_infinities_and_nans_that_belong_there_agree():
    reference = torch.tensor([1.0, -math.inf, math.nan, math.inf])
    assert lab.compare(reference.clone(), reference).ok
    assert not lab.compare(torch.tensor([1.0, math.inf, math.nan, math.inf]), reference)
    assert not lab.compare(torch.tensor([1.0, -math.inf, 0.0, math.inf]), reference)


def test_zero_reference():
    zero = torch.zeros(5)
    assert lab.compare(zero.clone(), zero).ok
    assert not lab.compare(zero + 1e-30, zero)


def test_small_errors_everywhere_name_their_tiles(product):
    result = lab.compare((product * 1.003).half(), product)
    assert not result.ok and result.bad_tiles


def test_the_verdict_does_not_change_with_the_last_digits(product):
    assert repr(lab.compare(product.half(), product, name="gemm")) == (
        "gemm: correct. Relative error below 1e-03; float16 allows 1e-03.")


@pytest.mark.parametrize(("out", "reference", "sentence"), [
    (torch.ones(3), torch.ones(4), r"shape \[3\], but the reference has \[4\]"),
    (torch.ones(3), torch.ones(3).half(), "compute it in float32 or float64"),
    (torch.ones(0), torch.ones(0), "empty"),
    (torch.ones(3).int(), torch.ones(3), "No tolerance is known for int32"),
])
def test_what_cannot_be_compared(out, reference, sentence):
    with pytest.raises(BadArgument, match=sentence):
        lab.compare(out, reference)


def test_tolerances_follow_the_unit_roundoff():
    assert verify.tolerance("float16") == 2 * 2**-11
    assert verify.tolerance("bfloat16") == 2 * 2**-8
    for dtype in (torch.float16, torch.bfloat16):
        assert verify.UNIT_ROUNDOFF[str(dtype)[6:]] == torch.finfo(dtype).eps / 2


def test_chunks_make_no_difference(monkeypatch):
    torch.manual_seed(0)
    reference = torch.randn(3, 50, 37).double()
    out = reference.half()
    out[1, 20, 5] = 9
    out[2, 49] = math.nan
    whole = lab.compare(out, reference, tile=(8, 8))
    for chunk in (1, 37, 100, 1000):
        monkeypatch.setattr(verify, "_CHUNK", chunk)
        part = lab.compare(out, reference, tile=(8, 8))
        assert (part.wrong, part.nans, part.bad_tiles, part.worst, part.grid) == (
            whole.wrong, whole.nans, whole.bad_tiles, whole.worst, whole.grid)
    assert whole.worst == (2, 49, 0) and (2, 0) in whole.bad_tiles and (6, 4) in whole.bad_tiles


def test_float16_numbers_too_small_to_round_well():
    reference = torch.randn(4, 1 << 18).double().softmax(1)
    assert lab.compare(reference.half(), reference).ok
    assert not lab.compare((reference * 1.05).half(), reference)


def test_a_row_of_large_numbers_has_its_own_scale():
    """What cancels in a row of large terms is off by their size, not by the matrix's."""
    torch.manual_seed(0)
    ref = torch.randn(100, 64).double()
    ref[7] *= 1000
    ref[7, 3] = 0.0  # its terms cancel
    out = ref.to(torch.bfloat16)
    out[7, 3] = 10.0  # 2^-8 of the row's scale is 4
    assert lab.compare(out, ref).ok
    out[7, 3] = 40.0
    assert not lab.compare(out, ref).ok
    out[7, 3], out[8, 3] = 0.0, 10.0  # in an ordinary row that is wrong
    verdict = lab.compare(out, ref)
    assert verdict.wrong == 1 and verdict.worst == (8, 3)


def test_the_worst_element_is_the_one_furthest_beyond_its_limit():
    ref = torch.ones(4, 1000).double()
    ref[0] *= 1e6
    out = ref.float()
    out[0, 0] += 30  # large, and within its row's limit
    out[3, 5] += 20
    assert lab.compare(out, ref).worst == (3, 5)
