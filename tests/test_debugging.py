"""What lesson 08 uses: the passes, the layouts and their picture, what a kernel prints."""

from __future__ import annotations

import ctypes
import os
import xml.etree.ElementTree as ElementTree

import pytest
import tilelang.language as T
import torch

import labkit as lab
from labkit import pictures
from labkit.errors import BadArgument
from labkit.lowering import owners


@pytest.fixture(scope="module")
def gemm():
    return lab.kernel("02", "gemm")(256, 256, 256)


@pytest.fixture(scope="module")
def lowered(gemm):
    return lab.lower(gemm, "A100")


@pytest.fixture(scope="module")
def centre():
    return lab.kernel("08", "centre")


# --- passes


def test_passes_stand_in_order_and_lead_from_the_program_to_its_kernel(lowered):
    names = [step.name for step in lowered.passes]
    assert names.index("LayoutInference") < names.index("LowerTileOp") < names.index("ThreadSync")
    assert "T.gemm" in lowered.find("LayoutInference").before
    assert "T.gemm" not in lowered.find("LowerTileOp").after
    assert lowered.error == "" and lowered.gpu.name == "A100"


def test_counts_and_diff_agree(lowered):
    step = lowered.find("InjectSoftwarePipeline")
    lines = step.diff().splitlines()
    assert step.counts == (sum(line[0] == "+" for line in lines),
                           sum(line[0] == "-" for line in lines))
    assert all(len(line) <= 110 for line in lines)
    (before, after) = step.diff(" A_tile = T.sblock_alloc_buffer").splitlines()
    assert before.startswith("-") and "(128, 32)" in before
    assert after.startswith("+") and "(2, 128, 32)" in after
    assert len(step.diff(context=2).splitlines()) > len(lines)


def test_find_prefers_the_pass_that_changed_something(lowered):
    assert lowered.find("Simplify").changed
    assert not lowered.find("VerifyMemory").changed
    with pytest.raises(BadArgument, match="LayoutInference"):
        lowered.find("NoSuchPass")


def test_the_table_names_what_changed(lowered):
    text = repr(lowered.table(at_least=20))
    assert "InjectSoftwarePipeline" in text and "VerifyMemory" not in text
    assert "<table" in lowered._repr_html_()


def test_a_rejected_program_is_followed_to_the_pass_that_rejects_it(centre):
    rejected = lab.lower(centre(3, 1000, width=1000), "T4")
    assert rejected.passes[-1].name == "LayoutInference"
    assert "no available layout found" in rejected.error
    assert "rejected it" in repr(rejected)


def test_an_accepted_program_is_the_one_that_cross_compile_sees(gemm):
    source = lab.cross_compile(gemm, "H100").source
    last = lab.lower(gemm, "H100").passes[-1].after
    assert "tma_load" in source and "tma_load" in last


@pytest.mark.parametrize(("program", "gpu", "words"), [
    (lambda: 3, "A100", "prim_func"), (lambda: None, "A100", "prim_func"),
    (lambda: lab.kernel("02", "gemm"), "A100", "builder"),
    (lambda: lab.kernel("02", "gemm")(64, 64, 64), "no such GPU", "no such GPU")])
def test_bad_input(program, gpu, words):
    with pytest.raises(BadArgument, match=words):
        lab.lower(program(), gpu)


# --- layouts


def test_the_accumulator_lies_as_the_instruction_set_prescribes(lowered):
    """PTX ISA, mma.m16n8k16, the fragment of C: thread t holds rows t/4 and t/4 + 8, columns
    2 (t mod 4) and one more, of every 8 columns."""
    for row in range(16):
        for column in range(16):
            ((thread, _),) = owners(lowered.layouts["acc"], row, column)
            assert thread == row % 8 * 4 + column % 8 // 2


def test_each_element_has_a_place_of_its_own(lowered):
    layout = lowered.layouts["acc"]
    places = [owners(layout, row, column) for row in range(0, 128, 3) for column in range(128)]
    flat = {place for (place,) in places}
    assert len(flat) == len(places)
    assert all(0 <= thread < 128 and 0 <= register < 128 for thread, register in flat)


def test_a_total_is_held_by_every_thread(centre):
    total = lab.lower(centre(3, 1000), "A100").layouts["total"]
    assert [thread for thread, _ in owners(total, 0)] == list(range(128))


def test_only_fragments_have_owners(lowered):
    for what in (lowered.layouts["A_tile"], 3, None):
        with pytest.raises(BadArgument, match="fragment"):
            owners(what, 0, 0)
    for index in ((128, 0), (0, -1), (0,), (0, 0, 0)):
        with pytest.raises(BadArgument, match="outside"):
            owners(lowered.layouts["acc"], *index)


# --- the picture


def test_picture_is_well_formed_and_true(lowered):
    picture = pictures.fragment(lowered.layouts["acc"], "acc <&>", thread=5)
    assert picture.svg == pictures.fragment(lowered.layouts["acc"], "acc <&>", thread=5).svg
    ElementTree.fromstring(picture.svg)
    assert len(picture.svg) < 60_000
    assert "Thread 5 holds 8 of them: [1, 2], [1, 3], [1, 10]" in picture.text
    assert picture.svg.count(f'fill="{pictures.ORANGE}" fill-opacity') == 8


def test_picture_of_a_row_and_of_a_copy_in_each_thread(centre):
    layouts = lab.lower(centre(3, 1000), "A100").layouts
    assert "1 x 1024: the first 1 x 8 elements" in pictures.fragment(
        layouts["x"], "x", columns=8).text
    assert "Each is held by 128 threads. Thread 3 holds 1 of them: [0]." in pictures.fragment(
        layouts["total"], "total", thread=3).text


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"columns": "3"}, {"thread": -1},
                                   {"thread": 0.5}, {"rows": 128, "columns": 128}])
def test_picture_refuses(lowered, wrong):
    with pytest.raises(BadArgument):
        pictures.fragment(lowered.layouts["acc"], **wrong)


@pytest.mark.parametrize("what", [3, None, "acc"])
def test_picture_of_something_else(what):
    with pytest.raises(BadArgument, match="fragment"):
        pictures.fragment(what)


# --- printing


def test_printed_holds_what_python_c_and_a_kernel_print(capfd):
    @T.prim_func
    def main(X: T.Tensor((3,), "float32")):
        with T.Kernel(3, threads=32) as bx:
            T.print(X[bx], msg="x")

    kernel = lab.compile(main, device="cpu")

    def all_three():
        os.write(1, b"from Python\n")
        ctypes.CDLL(None).printf(b"from C\n")
        kernel(torch.arange(3.0))

    ctypes.CDLL(None).printf(b"before\n")  # still in C's buffer
    lines = lab.printed(all_three)
    assert lines[:2] == ["from Python", "from C"]
    assert lines[2:] == [f"msg='x' value={i}.000000" for i in range(3)]
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "before\nafter\n"


def test_printed_gives_the_output_back_when_the_call_fails(capfd):
    with pytest.raises(ZeroDivisionError):
        lab.printed(lambda: 1 // 0)
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "after\n"
    assert lab.printed(lambda: None) == []
