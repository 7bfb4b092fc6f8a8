"""Stepping through a block: its values are those of the CPU run, and each step knows its place."""

import itertools
import linecache
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import programs
import pytest
import tilelang
import tilelang.language as T
import torch

import labkit as lab
from labkit import lessons
from labkit.errors import BadArgument, LabError, NotOnCPU
from labkit.heatmaps import cells


def small(lesson, name, *arguments, **schedule):
    return lambda: lab.kernel(lesson, name)(*arguments, **schedule)


TILES = dict(block_M=32, block_N=64, block_K=16, threads=128)

# kernel of a lesson: (its program at a small and ragged size, shapes of the inputs, their dtype)
KERNELS = {
    "00 double": (small("00", "double", 100, block=64), [(100,)], "float32"),
    "01 vector_add": (small("01", "vector_add", 100, block=64), [(100,)] * 2, "float32"),
    "02 gemm": (small("02", "gemm", 70, 90, 50, **TILES), [(70, 50), (50, 90)], "float16"),
    "03 gemm_persistent": (small("03", "gemm_persistent", 70, 90, 50, blocks=4, piece=32, **TILES),
                           [(70, 50), (50, 90)], "float16"),
    "03 gemm_in_flight": (small("03", "gemm_in_flight", 70, 90, 50, blocks=4, piece=16, **TILES),
                          [(70, 50), (50, 90)], "float16"),
    "04 gemm_bias_gelu": (small("04", "gemm_bias_gelu", 70, 90, 50, blocks=4, piece=32, **TILES),
                          [(70, 50), (50, 90), (90,)], "float16"),
    "04 gelu_in_flight": (small("04", "gelu_in_flight", 70, 90, 50, blocks=4, piece=16, **TILES),
                          [(70, 50), (50, 90), (90,)], "float16"),
    "05 softmax": (small("05", "softmax", 5, 100, rows=2), [(5, 100)], "float16"),
    "05 softmax_online": (small("05", "softmax_online", 2, 100, threads=32, each=2), [(2, 100)],
                          "float16"),
    "05 softmax_kept": (small("05", "softmax_kept", 2, 104, threads=32, each=8), [(2, 104)],
                        "float16"),
    "06 flash_attention": (small("06", "flash_attention", 2, 2, 1, 40, 50, 16, causal=True, past=10,
                                 block_M=32, block_N=16), [(2, 2, 40, 16), *[(2, 1, 50, 16)] * 2],
                           "float16"),
    "06 attention": (small("06", "attention", 80, 1, 2, 2, 70, 70, 16),
                     [(1, 2, 70, 16)] * 3, "float16"),
    "06 flash_attention_ahead": (
        small("06", "flash_attention_ahead", 2, 2, 1, 40, 50, 16, causal=True, past=10, block_M=32,
              block_N=16, threads=128, blocks=3), [(2, 2, 40, 16), *[(2, 1, 50, 16)] * 2],
        "float16"),
    "08 centre": (small("08", "centre", 3, 100, width=128), [(3, 100)], "float32"),
    "08 two_products": (small("08", "two_products", 40, 50, depth=16, block_M=32, block_N=32),
                        [(40, 16), (50, 16), (50, 16)], "float16"),
}
# Parts of attention and of softmax_kept; gemm_fp8 takes 8-bit numbers, which a CPU run does not
# have.
NOT_PROGRAMS = {"online_step", "named", "named_step", "begin", "start_scores", "wait_for_scores",
                "add_values", "rules", "gemm_fp8", "online_pair", "block_pair",
                "load_pieces", "exchange"}


def inputs(shapes, dtype="float16"):
    torch.manual_seed(7)
    return [torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes]


def same(a, b):
    """Bit for bit."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    return torch.equal(a.view(whole), b.view(whole))


@pytest.fixture(scope="module")
def gemm():
    program, tensors = KERNELS["02 gemm"][0](), inputs(KERNELS["02 gemm"][1])
    return lab.step_through(program, tensors, block=(0, 2)), tensors


# --- the values


def test_every_kernel_of_every_lesson_is_here():
    for lesson in lessons.all_lessons():
        for cell in lesson.kernel_cells():
            defined = [name for name in _functions(cell.source) if "@T." in cell.source
                       or "flash_attention(" in cell.source]
            for name in defined:
                if not name.endswith("_schedule"):
                    assert f"{lesson.number} {name}" in KERNELS or name in NOT_PROGRAMS, name


def _functions(source):
    return [line[4:line.index("(")] for line in source.splitlines() if line.startswith("def ")]


@pytest.mark.parametrize("name", KERNELS)
def test_each_block_ends_with_what_the_cpu_run_computes(name):
    """The blocks together make the whole output, no element twice, bit for bit."""
    build, shapes, dtype = KERNELS[name]
    program, tensors = build(), inputs(shapes, dtype)
    whole = lab.compile(program, out_idx=-1, device="cpu")(*tensors)
    text = program.script()
    first = lab.step_through(program, tensors)
    found, times = torch.full_like(whole, float("nan")), torch.zeros(whole.shape, dtype=int)
    for block in itertools.product(*map(range, first.grid)):
        steps = lab.step_through(program, tensors, block=block)
        assert steps.total == len(steps) > 0
        (tensor, output), = steps.outputs.items()
        if tensor not in steps.buffers:  # a persistent block without a tile
            assert output.isnan().all()
            continue
        mine = ~output.isnan()
        found[mine], times = output[mine], times + mine
        last = steps[-1]
        assert tensor in last.changed
        part = steps.buffers[tensor].part
        box = eval(f"output{part}")  # as it is printed
        assert np.array_equal(last.values[tensor], box.numpy(), equal_nan=True)
        assert np.array_equal(last.unset[tensor], box.isnan().numpy())
    assert same(found, whole) and (times == 1).all()
    assert program.script() == text, "the program itself is left as it is"


@pytest.mark.parametrize(("name", "dtype"), [*((name, "float16") for name in programs.CASES),
                                             ("row_softmax", "bfloat16"),
                                             ("attention", "bfloat16")])
def test_other_constructs(name, dtype):
    build, shapes, _, out_idx = programs.CASES[name]
    program, tensors = build(dtype), inputs(shapes, dtype)
    whole = lab.compile(program, out_idx=out_idx, device="cpu")(*tensors)
    steps = lab.step_through(program, tensors, out_idx=out_idx)
    (output,) = steps.outputs.values()
    mine = ~output.isnan()
    assert mine.any() and same(output[mine], whole[mine])
    tensor = next(iter(steps.outputs))
    numbers = steps[-1].values[tensor][~steps[-1].unset[tensor]]
    assert set(numbers.tolist()) == set(output[mine].float().tolist())


def test_the_accumulator_holds_the_sum_so_far(gemm):
    steps, (A, B) = gemm
    rows = slice(64, 70)
    for k in range(4):
        acc = steps.find("T.gemm", k=k).values["acc"]
        part = A[rows, :16 * (k + 1)].float() @ B[:16 * (k + 1), :64].float()
        assert np.allclose(acc[:6], part.numpy(), rtol=1e-5, atol=1e-5)
        assert (acc[6:] == 0).all(), "rows beyond the edge of A"


def test_what_was_not_written_is_nan(gemm):
    steps, _ = gemm
    first = steps[0]
    assert first.changed == ("acc",) and (first.values["acc"] == 0).all()
    assert first.unset["C_tile"].all() and np.isnan(first.values["C_tile"]).all()
    assert not first.unset["acc"].any()
    before_store, last = steps[-2], steps[-1]
    assert before_store.unset["C"].all() and not last.unset["C"].any()
    assert last.changed == ("C",) and steps.buffers["C"].part == "[64:70, 0:64]"
    missing = lab.step_through(_without_clear(), inputs([(32, 16), (16, 32)]))
    assert missing.find("T.gemm").unset["acc"].all(), "a sum that starts from NaN"


def _without_clear():
    @T.prim_func
    def main(A: T.Tensor((32, 16), "float16"), B: T.Tensor((16, 32), "float16"),
             C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=32):
            A_tile = T.alloc_shared((32, 16), "float16")
            B_tile = T.alloc_shared((16, 32), "float16")
            acc = T.alloc_fragment((32, 32), "float32")
            T.copy(A, A_tile)
            T.copy(B, B_tile)
            T.gemm(A_tile, B_tile, acc)
            T.copy(acc, C)

    return main


def test_the_running_maximum_of_attention():
    build, shapes, _ = KERNELS["06 flash_attention"]
    q, k, v = inputs(shapes)
    steps = lab.step_through(build(), [q, k, v], block=(1, 0, 1))
    scores = q[1, 0, 32:40].float() @ k[1, 0].float().T
    seen = torch.arange(50) < torch.arange(32, 40)[:, None] + 11
    scores[~seen] = -torch.inf
    for number in range(4):
        top = steps.find("T.reduce_max", k=number).values["top"][:8]
        wanted = scores[:, :16 * (number + 1)].max(1).values
        assert np.allclose(top, wanted.numpy(), rtol=1e-5, atol=1e-6)


def integers(N=20, block=8):
    @T.prim_func
    def main(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32")):
        with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
            tile = T.alloc_shared((block,), "int32")
            big = T.alloc_shared((block,), "bool")
            for i in T.Parallel(block // 2):
                tile[i] = X[bx * block + i]
            for i in T.Parallel(block // 2):
                big[i] = tile[i] > 2
            for i in T.Parallel(block // 2):
                Y[bx * block + i] = T.if_then_else(big[i], tile[i], 0)

    return main


def test_whole_numbers_and_truth_values():
    X = torch.arange(20, dtype=torch.int32)
    steps = lab.step_through(integers(), [X])
    assert steps[0].values["tile"][:4].tolist() == [0, 1, 2, 3]
    assert steps[-1].unset["tile"].tolist() == [False] * 4 + [True] * 4
    assert steps[-1].values["big"][:4].tolist() == [False, False, False, True]
    assert steps[-1].values["Y"].tolist() == [0, 0, 0, 3]
    assert steps[0].range("tile") == "0 to 3, 4 never written"


def test_the_inputs_stay_as_they_are_and_the_watch_ends():
    build, shapes, dtype = KERNELS["05 softmax"]
    program, (X,) = build(), inputs(shapes, dtype)
    Y, X_before = torch.zeros_like(X), X.clone()
    steps = lab.step_through(program, [X, Y], block=1)
    assert same(X, X_before) and (Y == 0).all()
    assert (steps.outputs["Y"][:2] == 0).all() and (steps.outputs["Y"][2:4] != 0).any()
    whole = lab.compile(program, out_idx=-1, device="cpu")(X)
    assert not whole.isnan().any(), "the next run has all blocks"


# --- where it is


def test_each_step_knows_its_line_and_its_loops(gemm):
    steps, _ = gemm
    seen = [(step.text.split("(")[0], step.loops) for step in steps]
    loop = [(name, {"k": k}) for k in range(4) for name in ("T.copy", "T.copy", "T.gemm")]
    assert seen == [("T.clear", {}), *loop, ("T.copy", {}), ("T.copy", {})]
    source = next(cell.source for cell in lessons.find("02").kernel_cells()).splitlines()
    for step in steps:
        assert step.text.split(", ")[0] in source[step.line - 1]
    (section,) = steps.sections
    assert section.lines[0] == "@T.prim_func" and "T.copy(C_tile" in section.lines[-1]


def test_a_reduction_has_the_line_that_calls_it():
    """TileLang makes it in a function of its own, and says that one's line."""
    build, shapes, _ = KERNELS["06 flash_attention"]
    steps = lab.step_through(build(), inputs(shapes))
    cell = lessons.find("06").kernel_cells()[0].source.splitlines()
    for word in ("reduce_max", "reduce_sum"):
        step = steps.find(f"T.{word}")
        assert word in cell[step.line - 1] and "kernel cell 0" in step.file
    build, shapes, _ = KERNELS["05 softmax_online"]
    steps = lab.step_through(build(), inputs(shapes))
    lines = [(step.line, step.text) for step in steps if "reduce_" in step.text]
    cell = lessons.find("05").kernel_cells()[1].source.splitlines()
    for line, text in lines:
        assert cell[line - 1].strip().startswith(text[:text.index(")")])
    assert len({line for line, _ in lines}) == 4
    assert not any("tilelang" in section.file for section in steps.sections)


def test_persistent_blocks_name_the_tile():
    build, shapes, dtype = KERNELS["03 gemm_persistent"]
    steps = lab.step_through(build(), inputs(shapes, dtype), block=1)
    places = list(dict.fromkeys((step.loops["by"], step.loops["bx"]) for step in steps))
    assert len(places) == 2 and list(steps[-1].loops) == ["by", "bx", "p"]


def test_without_its_source_a_step_shows_tilelangs_text(monkeypatch):
    program, tensors = KERNELS["08 centre"][0](), inputs([(3, 100)], "float32")
    monkeypatch.setattr(linecache, "getlines", lambda *_: [])
    steps = lab.step_through(program, tensors)
    assert "T.reduce" in steps[1].text and steps.sections == []
    assert "T.reduce" in steps.picture(1).svg and "T.reduce" in steps.show(1).parts["source"].value


# --- how many


def test_a_long_block_is_cut_and_says_so():
    build, shapes, _ = KERNELS["02 gemm"]
    steps = lab.step_through(build(), inputs(shapes), most=4)
    assert len(steps) == 4 and steps.total == 15
    assert "the first 4 of 15 steps" in repr(steps) and "the first 4 of 15" in steps.picture().text
    assert not steps.outputs["C"][:32, :64].isnan().any(), "the block ran to its end"
    assert "11 more" not in str(steps.table()) and "3 more: table(first=1)" in str(
        steps.table(count=1))


def scalar_loop(N=600):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_local((N,), "float32")
            for i in T.serial(N):
                held[i] = X[i]
            for i in T.serial(N):
                Y[i] = held[N - 1 - i]

    return main


def test_a_loop_over_elements_is_one_step():
    steps = lab.step_through(scalar_loop(), inputs([(600,)], "float32"))
    assert [step.changed for step in steps] == [("held",), ("Y",)]
    assert steps.buffers["held"].scope == "local"


# --- pictures and the widget


def test_cells_stand_for_what_they_say():
    values = np.arange(130 * 8, dtype=np.float32).reshape(130, 8)
    values[0, 0], values[5, 0] = -9000, np.nan
    found = cells(values, np.isnan(values))
    assert found.values.shape == (44, 8) and found.rule == "a cell is 3 x 1"
    assert found.values[0, 0] == -9000 and found.unset[1, 0] and found.unset.sum() == 1
    assert found.values[43, 7] == 129 * 8 + 7
    row = np.arange(1000.0).reshape(1, 1000)
    folded = cells(row, row < 0)
    assert folded.values.shape == (20, 50) and folded.rule == "50 a line"
    assert np.array_equal(folded.values.reshape(-1), row[0]) and not folded.unset.any()
    prime = cells(np.arange(131.0), np.zeros(131, bool))
    assert prime.unset.sum() == 3 * 64 - 131
    infinite = np.array([[1.0, -np.inf] * 64] * 2)
    assert np.isneginf(cells(infinite, np.isnan(infinite)).values).all()


@pytest.mark.parametrize("name", KERNELS)
def test_pictures_are_well_formed_small_and_the_same_twice(name):
    build, shapes, dtype = KERNELS[name]
    steps = lab.step_through(build(), inputs(shapes, dtype))
    for step in (0, len(steps) // 2, -1):
        picture = steps.picture(step)
        assert picture.svg == steps.picture(step).svg and len(picture.svg) < 100_000
        ElementTree.fromstring(picture.svg)
        assert steps.title in picture.text and f"After step {steps[step].number}" in picture.text
        for buffer in steps.buffers:
            assert buffer in picture.text
    nothing = steps.picture(0)
    assert "nan" not in nothing.svg.replace("NaN", "")


def test_the_widget_goes_through_the_steps(gemm):
    steps, _ = gemm
    view = steps.show()
    seen = []
    for number in range(len(steps)):
        view.slider.value = number
        assert view.number == number and view.step is steps[number]
        title, source = view.parts["title"].value, view.parts["source"].value
        assert f'data-step="{number}"' in title and source.count('aria-current="step"') == 1
        assert f"<i>{steps[number].line}</i>" in source.split('aria-current="step"')[1]
        ElementTree.fromstring(view.parts["maps"].value)
        seen.append(view.parts["maps"].value)
    assert all(a != b for a, b in itertools.pairwise(seen))
    view.next.click()
    assert view.number == len(steps) - 1
    view.back.click()
    assert view.number == len(steps) - 2
    bundle = steps.show(steps.find("T.gemm", k=2))._repr_mimebundle_()
    assert bundle["image/svg+xml"] == steps.picture(9).svg
    assert "After step 9, line" in bundle["text/plain"] and "k = 2" in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in steps._repr_mimebundle_()
    assert view.slider.max == 14


def test_nothing_moves_from_step_to_step():
    """Where a buffer stands depends on the buffers and not on what they hold."""
    build, shapes, _ = KERNELS["06 attention"]
    steps = lab.step_through(build(), inputs(shapes))
    view, places = steps.show(), set()
    for number in range(len(steps)):
        view.slider.value = number
        places.add(tuple(re.findall(r"translate\([^)]*\) scale\([^)]*\)",
                                    view.parts["maps"].value)))
    assert len(places) == 1


# --- what does not fit


def gemm_inputs():
    return inputs(KERNELS["02 gemm"][1])


@pytest.mark.parametrize(("call", "says"), [
    (lambda p: lab.step_through(p, gemm_inputs(), block=(2, 0)),
     "2 x 3 blocks; give bx from 0 to 1, by from 0 to 2"),
    (lambda p: lab.step_through(p, gemm_inputs(), block=(0, -1)), "outside the grid"),
    (lambda p: lab.step_through(p, gemm_inputs(), block=0), "has 2 axes; give"),
    (lambda p: lab.step_through(p, gemm_inputs(), block=(0, 0, 0)), "has 2 axes; give"),
    (lambda p: lab.step_through(p, gemm_inputs(), block=(0.0, 0)), "as whole numbers"),
    (lambda p: lab.step_through(p, gemm_inputs(), block="ab"), "as whole numbers"),
    (lambda p: lab.step_through(p, gemm_inputs()[:1]), "C may be left away, but got 1 inputs"),
    (lambda p: lab.step_through(p, gemm_inputs()[0]), "give a list of the program's tensors"),
    (lambda p: lab.step_through(p, [t.float() for t in gemm_inputs()]), "has dtype float32"),
    (lambda p: lab.step_through(p, gemm_inputs()[::-1]), "has shape"),
    (lambda p: lab.step_through(p, gemm_inputs(), out_idx=7), "out_idx 7 is outside"),
    (lambda p: lab.step_through(p, gemm_inputs(), most=0), "most is 0"),
    (lambda p: lab.step_through(lab.kernel("02", "gemm"), gemm_inputs()),
     "call it with its sizes first"),
    (lambda p: lab.step_through(tilelang.jit(lab.kernel("02", "gemm")), gemm_inputs()),
     "give its program, as get_tir(...)"),
    (lambda p: lab.step_through(3, gemm_inputs()), "takes a @T.prim_func, not int"),
    (lambda p: lab.step_through(p, gemm_inputs()).picture(99), "give a number from 0 to 14"),
    (lambda p: lab.step_through(p, gemm_inputs()).show("x"), "step is str"),
    (lambda p: lab.step_through(p, gemm_inputs()).find("T.gemm", k=9), "No step of main fits"),
])
def test_what_does_not_fit_is_said(call, says):
    with pytest.raises(BadArgument) as error:
        call(KERNELS["02 gemm"][0]())
    assert says in str(error.value) and "\n" not in str(error.value)


def beyond(N=40):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), "float32")
            for k in T.serial(5):
                T.copy(X[k * 8], tile)
                for i in T.serial(8):
                    Y[k * 8 + i] = tile[i + 2 * k]

    return main


def test_a_program_that_stops_says_where():
    with pytest.raises(LabError, match=r"After step 2 \(line \d+, k = 1\), main stopped: it used "
                                       r"index 8 of tile"):
        lab.step_through(beyond(), inputs([(40,)], "float32"))


def per_thread():
    @T.prim_func
    def main(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            Y[tx] = X[tx]

    return main


def test_what_the_cpu_run_cannot_do_is_said():
    with pytest.raises(NotOnCPU, match="thread index"):
        lab.step_through(per_thread(), inputs([(32,)], "float32"))


def without_block():
    @T.prim_func
    def main(X: T.Tensor((4,), "float32")):
        X[0] = 1.0

    return main


def test_a_program_without_a_block():
    with pytest.raises(BadArgument, match="no block to step through"):
        lab.step_through(without_block(), inputs([(4,)], "float32"))
