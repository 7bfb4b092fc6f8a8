"""Every kind of error, provoked where the machine allows it, else from recorded text."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import subprocess
import sys
import textwrap
import traceback

import broken
import pytest
import torch

import labkit as lab
from labkit import diagnose
from labkit.diagnose import KINDS, hook
from labkit.diagnose.kind import STAGES
from labkit.errors import BadArgument, CompileFailed

BY_NAME = {kind.name: kind for kind in KINDS}
PROVOKED = [(name, call) for name, calls in broken.PROVOKE.items() for call in calls]


def raised(call) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


@pytest.mark.parametrize(("name", "call"), PROVOKED,
                         ids=[f"{name}-{i}" for i, (name, _) in enumerate(PROVOKED)])
def test_a_provoked_error_is_recognised_and_its_line_is_found(name, call, capfd):
    if name in broken.WITHOUT_GPU and torch.cuda.is_available():
        found = diagnose.recognise(RuntimeError(BY_NAME[name].raw))
        assert found.kind.name == name
        return
    error = raised(call)
    found = lab.explain(error)
    assert found.kind is not None, f"unknown: {error}"
    assert found.kind.name == name
    assert found.place is not None
    text = linecache.getline(found.place.file, found.place.line)
    if "# here" in inspect.getsource(call):
        assert "# here" in text, str(found)
    else:  # the line stands in the program that the call builds, or it is the call itself
        assert "# here" in text or text.strip() in inspect.getsource(call) or "return" in text
    assert not re.search(r"\{\w+\}", str(found))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_recorded_line_of_each_kind_is_recognised_as_that_kind(kind):
    type_ = kind.types[0] if kind.types else "RuntimeError"
    error = type(type_, (Exception,), {})(kind.raw)
    first = next(k for k in KINDS if k.match(kind.raw, type_) and (not k.only_if or k is kind))
    assert first is kind
    if not kind.only_if:
        assert diagnose.recognise(error).kind is kind


def test_each_kind_is_provoked_or_says_what_that_needs():
    for kind in KINDS:
        assert (kind.name in broken.PROVOKE) != bool(kind.needs), kind.name
    assert len(BY_NAME) == len(KINDS) >= 30
    assert sum(bool(kind.threads) for kind in KINDS) >= 30
    assert broken.PROVOKE.keys() <= BY_NAME.keys()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_sentences_are_short_and_whole(kind):
    assert kind.stage in STAGES
    for text in filter(None, (kind.what, kind.cause, kind.change)):
        assert text.endswith((".", ")")) and len(text) < 320, text
    assert not kind.cause or kind.cause.startswith("Likely")
    assert not re.search(r"\{\w+\}", kind.sentence)
    for thread in kind.threads:
        owner, number = thread.split("#")
        assert owner.count("/") == 1 and number.isdecimal()


def test_the_table_has_every_kind():
    text = repr(diagnose.table())
    assert text.count("\n") >= len(KINDS)
    assert "no available layout found" in text and "tile-ai/tilelang#2398" in text
    assert "cudnn" in repr(diagnose.table("cuDNN")).lower()
    with pytest.raises(BadArgument, match="stage"):
        diagnose.table("cooking")


# --- errors that are none of ours


@pytest.mark.parametrize("error", [
    NameError("name 'x' is not defined"), ValueError("not enough values to unpack (expected 2, "
                                                     "got 1)"),
    TypeError("f() got an unexpected keyword argument 'x'"), KeyError("x"), ZeroDivisionError(),
    TypeError("must be real number, not str"), MemoryError(), OSError("no space left"),
    ModuleNotFoundError("No module named 'numpie'"), RuntimeError("")])
def test_plain_python_errors_are_left_alone(error):
    assert diagnose.recognise(error) is None
    assert "does not know" in str(lab.explain(error))


def test_labkit_s_own_sentences_are_left_alone():
    error = raised(lambda: lab.compile(3))
    assert isinstance(error, BadArgument) and diagnose.recognise(error) is None


def test_the_last_error_is_explained(monkeypatch):
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)
    with pytest.raises(BadArgument, match="no error yet"):
        lab.explain()
    monkeypatch.setattr(sys, "last_value", ValueError(BY_NAME["shape"].raw), raising=False)
    assert lab.explain().kind.name == "shape"
    with pytest.raises(BadArgument, match="exception"):
        lab.explain("text")


def test_a_failed_compilation_carries_the_explanation_as_a_note():
    error = raised(lambda: lab.cross_compile(broken.copied(1000), "T4"))
    assert isinstance(error, CompileFailed)
    assert "What happened" not in str(error)
    assert "Change: Make the fragment's elements" in "".join(traceback.format_exception(error))


def test_reason_is_the_compiler_s_own_sentence():
    assert diagnose.reason(RuntimeError("Traceback\n  File x\nInternalError: it broke: ")
                           ) == "it broke."
    assert diagnose.reason(KeyError()) == "KeyError."


# --- in a notebook


class Shell:
    """What the hook needs of IPython's shell."""

    def __init__(self):
        self.seen = []

    def _showtraceback(self, kind, error, lines):
        self.seen = lines


def test_the_hook_adds_lines_below_and_can_be_removed():
    shell = Shell()
    assert hook.install(shell) and hook.install(shell)  # a second time changes nothing
    shell._showtraceback(ValueError, ValueError(BY_NAME["shape"].raw), ["traceback"])
    assert shell.seen[0] == "traceback" and shell.seen[2].startswith("What happened")
    assert sum(line.startswith("What happened") for line in shell.seen) == 1
    shell._showtraceback(ValueError, ValueError("else"), ["traceback"])
    assert shell.seen == ["traceback"]
    assert hook.remove(shell) and not hook.remove(shell)
    shell._showtraceback(ValueError, ValueError(BY_NAME["shape"].raw), ["traceback"])
    assert shell.seen == ["traceback"]


def test_a_broken_explanation_does_not_hide_the_error(monkeypatch):
    shell = Shell()
    hook.install(shell)
    monkeypatch.setattr("labkit.diagnose.matching.recognise", lambda error: 1 / 0)
    shell._showtraceback(ValueError, ValueError("x"), ["traceback"])
    assert shell.seen == ["traceback"]


NOTEBOOK = """
import labkit as lab
import tilelang.language as T

@T.prim_func
def main(X: T.Tensor((1, 1000), "float32"), Y: T.Tensor((1, 1000), "float32")):
    with T.Kernel(1, threads=128):
        x = T.alloc_fragment((1, 1000), "float32")
        T.copy(X, x)
        T.copy(x, Y)
"""


def test_in_a_real_notebook_the_explanation_stands_in_the_error_s_output():
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    cells = [NOTEBOOK, "lab.cross_compile(main, 'T4')", "lab.explain()", "1 / 0",
             "from labkit.diagnose import hook; print(hook.remove())"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = NotebookClient(notebook, allow_errors=True, timeout=300)
    client.execute()
    (failed,) = notebook.cells[1].outputs
    assert failed["output_type"] == "error" and failed["ename"] == "CompileFailed"
    shown = "\n".join(failed["traceback"])
    assert "no available layout found" in shown
    assert "of the cell: x = T.alloc_fragment((1, 1000), \"float32\")" in shown
    assert "Change:" in notebook.cells[2].outputs[0]["data"]["text/plain"]
    (plain,) = notebook.cells[3].outputs
    assert plain["ename"] == "ZeroDivisionError" and "What happened" not in str(plain)
    assert "True" in notebook.cells[4].outputs[0]["text"]
    with pytest.raises(CellExecutionError, match="Change: Make the fragment"):
        NotebookClient(nbformat.v4.new_notebook(cells=notebook.cells[:2]), timeout=300).execute()


def test_the_import_is_quick_and_silent():
    code = ("import time; t = time.perf_counter(); import IPython; t = time.perf_counter(); "
            "import labkit; print(time.perf_counter() - t)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert float(done.stdout) < 0.3


def test_broken_py_marks_one_line_a_case():
    tree = ast.parse(inspect.getsource(broken))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "_":
            source = textwrap.dedent(ast.get_source_segment(inspect.getsource(broken), node))
            assert source.count("# here") <= 1
