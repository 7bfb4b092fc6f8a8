"""Every lesson: its form, its run from start to end, and that it can fail."""

from __future__ import annotations

import ast
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import lesson_cases
import nbformat
import pytest
from notebook_format import KERNELSPEC, ROOT, canonical

from labkit import lessons, runner

LESSONS = lessons.all_lessons(ROOT / "notebooks")
each_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.stem)


def tagged(lesson, tag):
    return [cell for cell in lesson.notebook.cells if tag in cell.metadata.get("tags", [])]


def depends_on(lesson):
    """The numbers of the lessons whose kernels this one loads."""
    source = "\n".join(c.source for c in lesson.notebook.cells if c.cell_type == "code")
    return sorted(set(re.findall(r'lab\.kernel\("(\d\d)"', source)))


# --- form


def test_lessons_are_numbered_in_order():
    numbers = [int(lesson.number) for lesson in LESSONS]
    twice = sorted({n for n in numbers if numbers.count(n) > 1})
    assert not twice, f"two files in notebooks/ have the number {twice}: rename one"
    assert numbers[0] == 0, f"the first lesson is {numbers[0]:02}, and 00 belongs there"
    parts = [n for n in numbers if n < 9], [n for n in numbers if n >= 12]
    for part in parts:  # within a part none is missing
        missing = sorted(set(range(part[0], part[-1] + 1)) - set(part))
        assert not missing, f"no lesson has the number {missing}: a new one takes the next free one"


@each_lesson
def test_file_is_canonical(lesson):
    notebook = json.loads(lesson.path.read_text())
    name = lesson.path.name
    if lesson.path.read_text() != canonical(notebook):  # no diff of some thousand lines
        pytest.fail(f"{name} is not stored in the form of all lessons (ids, counts, metadata, "
                    f"outputs); run: python tests/notebook_format.py notebooks/{name}")
    assert notebook["metadata"]["kernelspec"] == KERNELSPEC
    size = lesson.path.stat().st_size
    assert size < 400_000, f"{name} has {size:,} bytes, and 400,000 are the most: show less output"
    nbformat.validate(lesson.notebook)


@each_lesson
def test_ids_are_readable_and_unique(lesson):
    ids = [cell.id for cell in lesson.notebook.cells]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    assert not twice, f"cells share an id; give each its own: {twice}"
    odd = [name for name in ids if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)]
    assert not odd, (f"an id has two words or more, in lower case and joined by -, as in "
                     f"my-kernel-check; change these in the file: {odd}")


@each_lesson
def test_front_matter(lesson):
    matter = lesson.front_matter
    unknown = sorted(set(matter) - {*lessons.FRONT_MATTER, *lessons.FOR_THE_INDEX})
    assert not unknown, f"the metadata labkit has keys that nothing reads; remove them: {unknown}"
    assert matter["gpu"] in ("optional", "required"), 'gpu is "optional" or "required"'
    assert 5 <= matter["minutes"] <= 90, "minutes: 5 to 90; split a longer lesson"
    assert matter["min_sm"] in (0, 75, 80, 86, 89, 90), (
        "min_sm is the lowest compute capability times 10: 0, 75, 80, 86, 89 or 90")
    others = sorted(set(matter["sm80_cells"]) - {cell.id for cell in lesson.kernel_cells()})
    assert not others, f"sm80_cells holds ids of cells with the tag kernel; these are not: {others}"
    title = lesson.notebook.cells[0].source.splitlines()[0]
    assert title == f"# {lesson.number} · {matter['title']}", (
        "the lesson's first line is `# NN · title`, with the number of its file and the title of "
        "its metadata labkit")


@each_lesson
def test_parameters_are_literals(lesson):
    cells = tagged(lesson, "parameters")
    assert len(cells) == 1, f"{len(cells)} cells have the tag parameters; exactly one must"
    values = {}
    for statement in ast.parse(cells[0].source).body:
        line = f"parameters cell, `{ast.unparse(statement)}`"
        assert isinstance(statement, ast.Assign), f"{line} is no assignment; move it to a later one"
        try:
            values[statement.targets[0].id] = ast.literal_eval(statement.value)
        except ValueError:
            pytest.fail(f"{line} computes; only a number, a text or a list of them may stand there")
    usual = {"device": "auto", "gpu": "", "quick": False}
    assert {name: values.get(name) for name in usual} == usual, (
        "the parameters cell sets these three, to these values")


@each_lesson
def test_tagged_places(lesson):
    assert len(tagged(lesson, "setup")) == 1, "one cell, the first with code, has the tag setup"
    assert tagged(lesson, "exercises"), "the heading of the exercises has the tag exercises"
    assert lesson.kernel_cells() or depends_on(lesson), (
        "a lesson has a kernel: give its cell the tag kernel, or load one with lab.kernel")
    same = len(tagged(lesson, "nbval-check-output"))
    assert same >= 3, (f"{same} cells have the tag nbval-check-output, which says that the output "
                       "is the same on every run; three or more must")


@each_lesson
def test_cells_are_short_and_run_through(lesson):
    for cell in lesson.notebook.cells:
        if cell.cell_type == "code":
            lines = len(cell.source.splitlines())
            assert lines <= 45, f"{cell.id}: {lines} lines, and 45 are the most: split the cell"
            assert not re.search(r"^\s*[%!]", cell.source, re.M), (
                f"{cell.id}: a line starts with % or !, which is not Python; write it in Python")
            assert all(o.output_type != "error" for o in cell.outputs), (
                f"{cell.id}: its stored output is an error; mend it and run `python "
                f"tests/notebook_format.py --execute notebooks/{lesson.path.name}`")
        else:
            words = len(cell.source.split())
            assert words <= 200, f"{cell.id}: {words} words, and 200 are the most: split the cell"


@each_lesson
def test_outputs_carry_no_state_and_no_paths(lesson):
    text = lesson.path.read_text()
    again = f"python tests/notebook_format.py notebooks/{lesson.path.name}"
    assert "widgets" not in lesson.notebook.metadata, f"widgets' state is stored; run: {again}"
    for forbidden in ("application/vnd.jupyter.widget", "/tmp/", "/root/", "/home/"):
        line = next((n for n, line in enumerate(text.splitlines(), 1) if forbidden in line), 0)
        assert not line, (f"line {line} of {lesson.path.name} holds {forbidden}, which differs "
                          f"between machines: do not print it, and run: {again}")
    for cell in lesson.notebook.cells:
        for output in cell.get("outputs", []):
            for value in output.get("data", {}).values():
                assert len(value) < 100_000, (
                    f"{cell.id}: {len(value):,} characters of output, and 100,000 are the most")


@each_lesson
def test_links_lead_somewhere(lesson):
    for cell in lesson.notebook.cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https://)([^)#]+\.ipynb)\)", cell.source):
                assert (lesson.path.parent / target).exists(), (
                    f"{cell.id} links to {target}, and notebooks/ has no such file")


# --- running


@pytest.fixture(scope="module")
def report(request, tmp_path_factory):
    wanted = lesson_cases.selected(request, "test_lesson_runs_on_the_cpu", "lesson")
    return runner.run([lesson.stem for (lesson,) in wanted], device="cpu",
                      out=tmp_path_factory.mktemp("runs"), folder=ROOT / "notebooks")


@each_lesson
def test_lesson_runs_on_the_cpu(lesson, report):
    (result,) = [r for r in report.lessons if r.lesson == lesson.stem]
    assert result.status == "passed", result.error
    assert result.device == "cpu"


@pytest.mark.gpu
def test_lessons_run_on_the_gpu(cuda, tmp_path):
    report = runner.run(device="gpu", out=tmp_path, folder=ROOT / "notebooks", quick=True)
    assert {r.lesson: r.status for r in report.lessons} == {x.stem: "passed" for x in LESSONS}


# --- failing: (lesson, what is broken, text in a kernel cell, what stands there instead)

# the kernels of lesson 03 have these lines
_LOOP = """                for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                    T.copy(A[by * block_M, k * block_K], A_tile)
                    T.copy(B["""
_GEMM = "                    T.gemm(A_tile, B_tile, acc, policy=policy)\n"
_STORE = "                for p in T.unroll(block_N // piece)"
_TILES = "    tiles = [T.ceildiv(M, block_M), T.ceildiv(N, block_N)]\n\n"
_WALK = """columns of tiles
            for by, bx in T.Persistent(tiles, blocks, b, group_size=group):
"""
_HEAD = "    def main(A: T.Tensor((M, K), dtype), "

MUTATIONS = [
    ("00_environment", "last tile skipped", "T.ceildiv(N, block)", "N // block"),
    ("00_environment", "index swapped", "X[bx * block + i]", "X[bx * block + (block - 1 - i)]"),
    ("01_vector_add", "last tile skipped", "T.ceildiv(N, block)", "N // block"),
    ("01_vector_add", "index swapped", "B[bx * block + i]", "B[bx * block + (block - 1 - i)]"),
    ("01_vector_add", "wrong operator", "i] + B[", "i] - B["),
    ("02_gemm", "clear removed", "            T.clear(acc)", "            # T.clear(acc)"),
    ("02_gemm", "index swapped", "A[by * block_M, k * block_K]", "A[k * block_K, by * block_M]"),
    ("02_gemm", "last tile skipped", "T.ceildiv(M, block_M)", "M // block_M"),
    ("02_gemm", "last step skipped", "T.ceildiv(K, block_K)", "K // block_K"),
    ("03_schedules", "clear removed", f"{_WALK}                T.clear(acc)\n", _WALK),
    ("03_schedules", "in flight: even pieces twice", "(odd, 2 * q + 1)", "(odd, 2 * q)"),
    ("03_schedules", "last tile skipped", f"{_TILES}    @T.prim_func\n{_HEAD}B: T.Tensor((K, N)",
     f"{_TILES.replace('T.ceildiv(M, block_M)', 'M // block_M')}    @T.prim_func\n{_HEAD}"
     "B: T.Tensor((K, N)"),
    ("03_schedules", "last piece skipped", f"{_GEMM}{_STORE}",
     f"{_GEMM}{_STORE.replace('piece)', 'piece - 1)')}"),
    ("03_schedules", "FP8: last step skipped", f"{_LOOP}bx * block_N",
     f"{_LOOP.replace('T.ceildiv(K, block_K)', 'K // block_K')}bx * block_N"),
    ("03_schedules", "FP8: scale lost", "acc[i, j] *= scale[0]", "acc[i, j] *= 1.0"),
    ("04_epilogue_fusion", "clear removed", "                T.clear(acc)",
     "                # clear"),
    ("04_epilogue_fusion", "bias of another tile",
     "+ 0.5 * T.Cast(\"float32\", bias[bx * block_N + j])",
     "+ 0.5 * T.Cast(\"float32\", bias[bx * piece + j])"),
    ("04_epilogue_fusion", "last tile skipped", "T.ceildiv(N, block_N)]\n\n",
     "N // block_N]\n\n"),
    ("04_epilogue_fusion", "last piece skipped", "block_N // piece)", "block_N // piece - 1)"),
    ("04_epilogue_fusion", "bias after GELU",
     "+ 0.5 * T.Cast(\"float32\", bias[bx * block_N + j])", ""),
    ("04_epilogue_fusion", "cubic term lost", "0.2854299956", "0.0"),
    ("04_epilogue_fusion", "in flight: bias of another tile",
     "bias[bx * block_N + p * piece + j]", "bias[bx * block_N + j]"),
    ("04_epilogue_fusion", "in flight: even pieces twice", "(odd, 2 * q + 1)", "(odd, 2 * q)"),
    ("05_softmax", "padding not masked", 'X[b * rows + i, j]), -T.infinity("float32"))',
     'X[b * rows + i, j]), 0.0)'),
    ("05_softmax", "maximum not subtracted", "(x[i, j] - top[i]) * LOG2E", "x[i, j] * LOG2E"),
    ("05_softmax", "last rows skipped", "T.ceildiv(M, rows)", "M // rows"),
    ("05_softmax", "sum not corrected",
     "                    total[t] *= T.exp2((before[t] - top[t]) * LOG2E)",
     "                    total[t] *= T.exp2(0.0)"),
    ("05_softmax", "starts at minus infinity", "T.fill(top, LOWEST)\n            T.clear(total)",
     'T.fill(top, -T.infinity("float32"))\n            T.clear(total)'),
    ("05_softmax", "last piece skipped", "steps = -(-N // piece)", "steps = max(1, N // piece)"),
    ("05_softmax", "kept: threads' sums not corrected",
     "        total[t] *= T.exp2((top[t] - row_top[0]) * LOG2E)\n    T.reduce_sum",
     "        total[t] *= 1.0\n    T.reduce_sum"),
    ("05_softmax", "kept: a row of no vectors", "N % (8 * parts) == 0", "N % 1 == 0"),
    ("05_softmax", "kept: last piece skipped", "steps = -(-part // piece)",
     "steps = max(1, part // piece)"),
    ("05_softmax", "kept: what lies past the part counts", "c * 8 < part", "c * 8 < part + 8"),
    ("06_flash_attention", "acc not faded",
     "T.Parallel(block_M, D):\n            acc[i, j] *= fade[i]",
     "T.Parallel(block_M, D):\n            acc[i, j] *= 1.0"),
    ("06_flash_attention", "total not faded", "T.Parallel(block_M):\n"
     "            fade[i] = T.exp2((before[i] - top[i]) * scale)\n            total[i] *= fade[i]",
     "T.Parallel(block_M):\n            fade[i] = T.exp2((before[i] - top[i]) * scale)"),
    ("06_flash_attention", "maximum not running", "S, top, dim=1, clear=False)",
     "S, top, dim=1)"),
    ("06_flash_attention", "sum not running", "S, total, dim=1, clear=False)",
     "S, total, dim=1)"),
    ("06_flash_attention", "acc not cleared", "            T.clear(acc)", "            # clear"),
    ("06_flash_attention", "total not cleared", "            T.clear(total)", "            #"),
    ("06_flash_attention", "scores not cleared", "                    T.clear(S)",
     "                    T.clear(fade)"),
    ("06_flash_attention", "causal off by one",
     "query i sees\n        return T.min(Sk, i + past + 1)",
     "query i sees\n        return T.min(Sk, i + past + 2)"),
    ("06_flash_attention", "last tile not masked",
     "if (k + 1) * block_N > visible(bx * block_M):  #",
     "if k * block_N > visible(bx * block_M):  #"),
    ("06_flash_attention", "last tile of keys skipped",
     "T.ceildiv(visible((bx + 1) * block_M - 1), block_N)",
     "T.max(1, visible((bx + 1) * block_M - 1) // block_N)"),
    ("06_flash_attention", "wrong shared head", "kv = by // (heads // kv_heads)",
     "kv = by % kv_heads"),
    ("06_flash_attention", "past ignored", "causal, past, dtype=dtype", "causal, 0, dtype=dtype"),
    ("06_flash_attention", "ahead: nothing masked", "k * block_N + j >= visible(bx * block_M + i)",
     "k * block_N + j < 0"),
    ("06_flash_attention", "ahead: last tiles left out", "T.ceildiv(everything - b, blocks)",
     "T.max(1, (everything - b) // blocks)"),
    ("06_flash_attention", "ahead: total not cleared", 'T.fill(total, 0, annotations',
     'T.fill(fade, 0, annotations'),
    ("06_flash_attention", "ahead: last key hidden",
     "causal else Sk\n\n    def place", "causal else Sk - 1\n\n    def place"),
    ("06_flash_attention", "ahead: past ignored", "Sq, Sk, D, causal, past\n",
     "Sq, Sk, D, causal, 0\n"),
    ("08_debugging", "divided by the tile's width", "- total[i] / N", "- total[i] / width"),
    ("08_debugging", "maximum for a sum", "T.reduce_sum", "T.reduce_max"),
    ("08_debugging", "clear removed", "            T.clear(acc)", "            # clear"),
    ("08_debugging", "not transposed", "transpose_B=True, ", ""),
    ("08_debugging", "last step skipped", "T.ceildiv(keys, block_N)", "keys // block_N"),
    ("09_coda_forward", "bias scaled, too", "acc * scale + bias", "(acc + bias) * scale"),
    ("09_coda_forward", "residual not normed", "scaled=x * gamma", "scaled=acc * gamma"),
    ("09_coda_forward", "gate and up swapped", "ops.silu(gate) * up", "gate * ops.silu(up)"),
    ("09_coda_forward", "position ignored", "position * frequency", "frequency"),
    ("09_coda_forward", "log-sum-exp before the norm", "lse=logits", "lse=acc"),
    ("10_coda_backward", "slope of SiLU", "s + z * s", "s - z * s"),
    ("10_coda_backward", "gate for silu(gate)", "dy * gate * s\n", "dy * gate\n"),
    ("10_coda_backward", "half of z dz", "gate * dgate + up * dup", "gate * dgate"),
    ("10_coda_backward", "row sum left out", " - unit * s", ""),
    ("10_coda_backward", "dgamma of x", "dgamma=D * unit", "dgamma=D * x"),
    ("11_coda_block", "gate not squared", "gate * gate * up", "gate * up"),
    ("11_coda_block", "sums of dh", "dbias=dz)", "dbias=dh)"),
    ("12_cudnn_first_graph", "bias lost", "relu(input=biased", "relu(input=conv"),
    ("12_cudnn_first_graph", "no ReLU", "graph.relu(", "graph.identity("),
    ("12_cudnn_first_graph", "padded on one side", "padding=[1, 1], stride",
     "pre_padding=[2, 2], post_padding=[0, 0], stride"),
    ("12_cudnn_first_graph", "output pinned row-major", "list(y.stride())",
     "list(y.contiguous().stride())"),
    ("12_cudnn_first_graph", "filter read row-major", "describe(w)", "describe(w.contiguous())"),
    ("14_cudnn_matmul_amax", "alpha added", "graph.mul(a=product, b=Alpha",
     "graph.add(a=product, b=Alpha"),
    ("14_cudnn_matmul_amax", "bias lost", "activation)(input=biased", "activation)(input=scaled"),
    ("14_cudnn_matmul_amax", "a maximum without abs", "reduction_mode.AMAX", "reduction_mode.MAX"),
    ("14_cudnn_matmul_amax", "amax before the activation", "input=value, mode",
     "input=biased, mode"),
    ("14_cudnn_matmul_amax", "always ReLU", "getattr(graph, activation)", "graph.relu"),
    ("14_cudnn_matmul_amax", "not scaled", "value = graph.mul(a=value, b=Scale",
     "graph.mul(a=value, b=Scale"),
    ("15_cudnn_attention", "the wrong diagonal", "alignment.TOP_LEFT", "alignment.BOTTOM_RIGHT"),
    ("15_cudnn_attention", "causal off by one", "bound\": 0}", "bound\": 1}"),
    ("15_cudnn_attention", "scores not scaled", "q.shape[-1] ** -0.5", "1.0"),
    ("15_cudnn_attention", "never causal", "if not causal:", "if True:"),
    ("15_cudnn_attention", "output pinned row-major", "list(o.stride())",
     "list(o.contiguous().stride())"),
    ("16_cudnn_production", "bias lost", "value = graph.add(", "graph.add("),
    ("16_cudnn_production", "always ReLU", "getattr(graph, activation)", "graph.relu"),
]
MUTATIONS += [(stem, *mutation) for stem, cases in lesson_cases.modules().items()
              for mutation in cases.MUTATIONS]


@pytest.fixture(scope="module")
def mutated(request, tmp_path_factory):
    """The mutated lessons of this session in one run: mutation -> result."""
    folder = tmp_path_factory.mktemp("mutated")
    wanted = lesson_cases.selected(request, "test_a_broken_kernel_fails_its_lesson", "stem", "what")
    names = {}
    for place, (stem, what, old, new) in enumerate(MUTATIONS):
        if (stem, what) not in wanted:
            continue
        notebook = nbformat.read(ROOT / "notebooks" / f"{stem}.ipynb", as_version=4)
        cells = [cell for cell in notebook.cells if "kernel" in cell.metadata.get("tags", [])]
        fits = [cell for cell in cells if cell.source.count(old) == 1]
        assert len(fits) == 1, (f"MUTATIONS, {stem}, {what}: {old!r} stands once in {len(fits)} of "
                                "the lesson's kernel cells; choose a text that does in one")
        (cell,) = fits
        cell.source = cell.source.replace(old, new)
        names[stem, what] = f"{50 + place % 50}_{place}_{stem[3:]}"
        nbformat.write(notebook, folder / f"{names[stem, what]}.ipynb")
    for lesson in LESSONS:  # whole, for what loads a kernel from another lesson
        shutil.copy(lesson.path, folder)

    def run(chosen):
        return runner.run(chosen, device="cpu", folder=folder,
                          out=tmp_path_factory.mktemp("runs")).lessons

    shares = [list(names.values())[start::2] for start in range(2)]  # two at a time
    with ThreadPoolExecutor(len(shares)) as pool:
        results = {result.lesson: result for lessons in pool.map(run, shares)
                   for result in lessons}
    return {key: results[name] for key, name in names.items()}


@pytest.mark.parametrize(("stem", "what"), [m[:2] for m in MUTATIONS])
def test_a_broken_kernel_fails_its_lesson(stem, what, mutated):
    result = mutated[stem, what]
    assert result.status == "failed", (
        f"{stem} ended as {result.status} with its kernel broken ({what}): a check of the lesson "
        "must see it, at a size that shows it")
    assert result.error["name"] == "WrongAnswer", (
        f"{stem}, {what}: the broken kernel must run and give a wrong result, so that lab.check "
        f"raises WrongAnswer; it raised {result.error}")


@pytest.mark.parametrize(("source", "old", "new", "names"), [
    ("02_gemm", "T.ceildiv(K, block_K)", "K // block_K", ["03_schedules", "07_autotuning"]),
    ("12_cudnn_first_graph", "relu(input=biased", "relu(input=conv",
     ["13_cudnn_engines", "16_cudnn_production"]),
    ("14_cudnn_matmul_amax", "(input=biased", "(input=scaled", ["15_cudnn_attention"]),
], ids=lambda value: value if str(value)[:2].isdigit() else "")
def test_a_broken_kernel_fails_the_lessons_that_load_it(source, old, new, names, tmp_path):
    """As lesson 03, which measures lesson 02's kernel: it must fail where that one is wrong."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for lesson in LESSONS:  # a lesson may load kernels from several
        shutil.copy(lesson.path, folder)
    notebook = nbformat.read(folder / f"{source}.ipynb", as_version=4)
    for cell in notebook.cells:
        if "kernel" in cell.metadata.get("tags", []):
            assert old in cell.source
            cell.source = cell.source.replace(old, new)
    nbformat.write(notebook, folder / f"{source}.ipynb")
    report = runner.run(names, device="cpu", out=tmp_path / "runs", folder=folder)
    assert [result.lesson for result in report.lessons] == names
    for result in report.lessons:
        assert result.status == "failed" and result.error["name"] == "WrongAnswer", result


def test_every_kernel_cell_is_mutated():
    for lesson in LESSONS:
        for cell in lesson.kernel_cells():
            if "T.WSSchedule(" in cell.source:
                continue  # who does what, and when: the CPU run leaves it out, TileLang judges it
            assert any(stem == lesson.stem and cell.source.count(old) == 1
                       for stem, _, old, _ in MUTATIONS), (
                f"no line of MUTATIONS breaks the kernel cell {cell.id} of {lesson.stem}: add "
                f"(what is broken, a text that stands once in it, its replacement) to MUTATIONS in "
                f"tests/cases_{lesson.number}.py, or in this file up to lesson 16")
