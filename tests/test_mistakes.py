"""What the pattern of the errors gives away: each usual mistake is planted and must be named, and
no other; correct outputs and rounding are not accused."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from labkit.errors import LabError
from labkit.exercises.error_map import error_map
from labkit.exercises.exercise import left_open, tree
from labkit.exercises.mistakes import _RULES, Wrong, explain
from labkit.exercises.trial import FunctionCheck, KernelCheck, failure
from labkit.lessons import execute
from labkit.verify import compare

pytestmark = pytest.mark.exercises
TILE = (32, 32)


@pytest.fixture
def ref():
    return torch.randn(96, 160, generator=torch.Generator().manual_seed(0)).double() + 0.3


def told(out, ref, tile=TILE):
    verdict = compare(out, ref, tile=tile)
    assert not verdict.ok
    return explain(out, ref, verdict)


def changed(ref, rows=slice(None), columns=slice(None), value=math.nan):
    out = ref.half()
    out[rows, columns] = value
    return out


def swapped_in_tiles(ref):
    """Each row of a tile from right to left."""
    return ref.reshape(96, 5, 32).flip(2).reshape(96, 160).half()


def continued(ref):
    """Each tile starts from the sum of those before it, in order."""
    tiles = ref.reshape(3, 32, 5, 32).transpose(1, 2).reshape(15, 32, 32)
    return tiles.cumsum(0).reshape(3, 5, 32, 32).transpose(1, 2).reshape(96, 160).half()


def in_float16(ref):
    noise = torch.randn(ref.shape, generator=torch.Generator().manual_seed(1)).double()
    return (ref + 12 * 2.0**-11 * noise * ref.square().mean().sqrt()).half()


def overflown(ref):
    out = ref.half()
    out[10:20] = math.inf
    return out


PATTERNS = [
    ("not cleared", lambda r: changed(r), "an accumulator that was not cleared"),
    ("last row of tiles", lambda r: changed(r, slice(64, None)), "last row of tiles was never"),
    ("last column of tiles", lambda r: changed(r, columns=slice(128, None)),
     "last column of tiles was never"),
    ("rows", lambda r: changed(r, slice(3, None, 7)), "14 of 96 rows are NaN from end to end"),
    ("every second element", lambda r: changed(r, columns=slice(0, None, 2)),
     "7,680 elements are NaN"),
    ("overflow", overflown, "float16 ends at 65,504"),
    ("transposed", lambda r: r.mT.reshape(96, 160).half(), "two indices are swapped"),
    ("zeros", lambda r: changed(r, slice(10, 50), slice(20, 70), 0), "Every wrong element is 0"),
    ("other places", swapped_in_tiles, "they stand in other places"),
    ("factor", lambda r: (1.25 * r).half(), "Every element is 1.25 times"),
    ("factor of a row", lambda r: (r * torch.linspace(0.5, 2, 96)[:, None]).half(),
     "Each row is off by a factor"),
    ("bias", lambda r: (r + torch.linspace(-1, 1, 160)).half(), "Each column is off by an amount"),
    ("mean", lambda r: (r + torch.linspace(-1, 1, 96)[:, None]).half(),
     "Each row is off by an amount"),
    ("not cleared for each tile", continued, "Only the first tile is right"),
    ("padding", lambda r: changed(r, slice(64, None), slice(None), 0.7),
     "Only the last row of tiles is wrong"),
    ("padding at the right", lambda r: changed(r, slice(None), slice(128, None), 0.7),
     "Only the last column of tiles is wrong"),
    ("rounding", in_float16, "something was rounded to 16 bits on the way"),
]


@pytest.mark.parametrize(("pattern", "sentence"), [p[1:] for p in PATTERNS],
                         ids=[p[0] for p in PATTERNS])
def test_pattern_is_named(pattern, sentence, ref):
    assert sentence in told(pattern(ref), ref)


def test_every_rule_has_its_pattern(ref):
    spoken = set()
    for _, pattern, _ in PATTERNS:
        out = pattern(ref)
        wrong = Wrong(out, ref, compare(out, ref, tile=TILE))
        spoken.add(next(rule for rule in _RULES if rule(wrong)))
    assert spoken == set(_RULES)


def test_square_transpose_is_named():
    square = torch.randn(64, 64, generator=torch.Generator().manual_seed(2)).double()
    assert "two indices are swapped" in told(square.mT.contiguous().half(), square)


def test_last_tile_of_a_vector_is_named():
    vector = torch.randn(1000, generator=torch.Generator().manual_seed(3)).double()
    out = vector.half()
    out[768:] = math.nan
    assert told(out, vector, 256).startswith("The last tile was never written")


@pytest.mark.parametrize("seed", range(4))
def test_no_pattern_no_guess(seed, ref):
    other = torch.randn(96, 160, generator=torch.Generator().manual_seed(10 + seed))
    assert told(other.half(), ref) == ""


def test_nan_and_infinities_of_the_reference_are_no_mistake(ref):
    ref[5] = math.nan
    ref[7, :3] = math.inf
    assert compare(ref.half(), ref, tile=TILE).ok
    out = ref.half()
    out[0, 0] = 9
    assert told(out, ref) == ""


# --- the picture


def test_the_map_shows_each_tile_and_names_the_worst(ref):
    out = changed(ref, slice(40, 50), slice(70, 80), 3.0)
    out[95, 159] = math.nan
    picture = error_map(Wrong(out, ref, compare(out, ref, tile=TILE)), "Where it is wrong")
    assert "2 of 15 tiles of 32 x 32" in picture.text and "tile (2, 4)" in picture.text
    assert picture.text.splitlines()[1:] == ["  .....", "  ..x..", "  ....x"]
    assert picture.svg.count("#1f2430") > 2 and "<title>" in picture.svg  # NaN is dark
    again = error_map(Wrong(out, ref, compare(out, ref, tile=TILE)), "Where it is wrong")
    assert picture.svg == again.svg


@pytest.mark.parametrize(("shape", "tile"), [((1000,), 256), ((1,), 1), ((3, 40, 50), (16, 16)),
                                             ((2000, 3000), (16, 16)), ((1, 5), (64, 64))])
def test_the_map_takes_any_shape(shape, tile):
    ref = torch.ones(shape, dtype=torch.float64)
    out = torch.full(shape, 2.0)
    out.view(-1)[0] = math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a learner would see it
        picture = error_map(Wrong(out, ref, compare(out, ref, tile=tile)), "wrong")
    assert len(picture.svg) < 400_000


# --- what does not run


HEAD = "import tilelang.language as T\n\n"
PROGRAM = HEAD + '''
def copy(N):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            tile = T.alloc_shared((32,), "float32")
            for i in T.Parallel(32):
                tile[i] = A[bx * 32 + i]
            for i in T.Parallel(32):
                C[bx * 32 + i] = tile[i]

    return main
'''
CHECK = KernelCheck(cases=(dict(N=100),), inputs=lambda s, g: [torch.ones(s["N"])],
                    reference=lambda s, A: A.double())
FAILURES = [
    ("no such name", "A[bx * 32 + i]", "B[bx * 32 + i]",
     "line 10 of your cell, `tile[i] = B[bx * 32 + i]`: NameError: name 'B' is not defined"),
    ("no such argument", "threads=32", "thread=32", "line 7 of your cell"),
    ("index beyond a tile", "(32,), \"float32\")\n            for",
     "(16,), \"float32\")\n            "
     "for", "used index 16 of tile, which has 16 elements"),
    ("Python error", "    @T.prim_func", "    N // 0\n    @T.prim_func",
     "line 5 of your cell, `N // 0`: ZeroDivisionError"),
    ("nothing returned", "    return main\n", "", "returns nothing"),
    ("a tensor returned", "return main", "return N", "returns int"),
    ("other sizes", "def copy(N)", "def copy(M, N)", "missing 1 required positional argument"),
    ("a parameter too many", 'C: T.Tensor((N,), "float32")',
     'B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")', "takes 2 arguments"),
    ("another shape", 'C: T.Tensor((N,)', 'C: T.Tensor((N + 1,)', "has shape [101], where [100]"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), [f[1:] for f in FAILURES],
                         ids=[f[0] for f in FAILURES])
def test_a_failure_is_one_sentence_with_the_learners_line(old, new, sentence):
    assert PROGRAM.count(old) == 1
    space = {}
    execute(PROGRAM.replace(old, new), f"<failing {new}>", space)
    outcome = CHECK(space["copy"])
    assert not outcome.ok and sentence in "\n".join(outcome.lines), outcome.lines
    assert len(outcome.lines) == 1


def test_the_right_program_passes():
    space = {}
    execute(PROGRAM, "<passing>", space)
    assert CHECK(space["copy"]).ok


def test_what_is_left_open_is_named():
    space = {}
    execute(PROGRAM.replace("                C[bx * 32 + i] = tile[i]", "                ..."),
            "<open>", space)
    assert left_open(space["copy"]) == (12, "...")
    assert tree(print) is None and left_open(print) is None
    assert "still `...`" in failure(LabError("stopped"), space["copy"])


def test_an_interruption_is_not_swallowed():
    def interrupted(**sizes):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CHECK(interrupted)


def test_functions_are_told_apart_by_all_cases():
    check = FunctionCheck(cases=((1.0, 2.0), (3.0, 1.0)), wanted=max, mistakes={
        "the first": lambda a, b: a, "the smaller": min})
    assert check(max).ok
    assert check(min).lines[-1] == "the smaller"
    assert check(lambda a, b: a).lines[-1] == "the first"
    assert len(check(lambda a, b: b).lines) == 1
    assert "ZeroDivisionError" in check(lambda a, b: a // 0).lines[0]
    assert not check(lambda a, b: None).ok and not check(lambda a, b: math.nan).ok


def test_a_function_may_change_its_arguments():
    check = FunctionCheck(cases=(([3, 1, 2],),), wanted=sorted)

    def in_place(numbers):
        numbers.sort()
        return numbers

    assert check(in_place).ok and check(in_place).ok
    assert not check(lambda numbers: numbers.clear()).ok
    assert check(sorted).ok
