"""Stepping through a block in a real page: JupyterLab and Chromium, driven by keys."""

import itertools
import re

import nbformat
import pytest
import torch
from browser import chromium, opened, run_all

import labkit as lab

pytestmark = pytest.mark.browser

SETUP = """import torch

import labkit as lab

torch.manual_seed(0)
A, B = torch.randn(8, 40).half(), torch.randn(40, 4).half()
gemm = lab.kernel("02", "gemm")(8, 4, 40, block_M=32, block_N=32, block_K=16)"""
STEP = "lab.step_through(gemm, [A, B]).show()"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    chromium()
    folder = tmp_path_factory.mktemp("stepping")
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": {
        "name": "python3", "display_name": "Python 3"}})
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, STEP)]
    path = folder / "steps.ipynb"
    nbformat.write(notebook, path)
    (folder / "page").mkdir()
    with opened(folder / "page", path) as page:
        run_all(page)
        page.wait_for_selector(".labkit-step-maps svg", timeout=60_000)
        page.labkit_folder = folder
        yield page


@pytest.fixture
def first(page):
    """The page at step 0, with the focus on the slider."""
    page.locator(".labkit-stepper .noUi-handle").focus()
    page.keyboard.press("Home")
    at(page, 0)
    return page


def at(page, number):
    """Waits for a step: its picture comes last."""
    page.wait_for_function(
        "number => new RegExp(`After step ${number}\\\\b`).test("
        "document.querySelector('.labkit-step-maps svg > title').textContent)", arg=number,
        timeout=20_000)


def written(page):
    """The buffers marked as written, and the numbers that stand in the picture's last buffer."""
    texts = page.locator(".labkit-step-maps svg > text").all_text_contents()
    return [before for before, mark in itertools.pairwise(texts) if mark == "written"]


def marked(page):
    return page.locator('.labkit-step-source [aria-current="step"]').all_text_contents()


def test_the_last_step_shows_the_product(first):
    """Slider to the end: the numbers in the page are those of the reference."""
    page = first
    page.keyboard.press("End")
    at(page, 11)
    assert written(page) == ["C[0:8, 0:4]"]
    assert "T.copy(C_tile, C[by * block_M, bx * block_N])" in marked(page)[0]
    torch.manual_seed(0)
    A, B = torch.randn(8, 40).half(), torch.randn(40, 4).half()
    wanted = (A.float() @ B.float()).half().float().reshape(-1).tolist()
    shown = page.locator(".labkit-step-maps svg > text").all_text_contents()
    start = shown.index("global · 8 × 4 float16") + 1
    numbers = [float(text) for text in shown[start:start + 32]]
    assert all(abs(x - y) <= 6e-3 * max(1, abs(y)) for x, y in zip(numbers, wanted, strict=True))
    page.locator(".labkit-stepper").screenshot(path=str(page.labkit_folder / "last.png"))
    print(f"\nscreenshot: {page.labkit_folder / 'last.png'}")


def test_keys_and_buttons_go_step_by_step(first):
    page = first
    expected = lab.step_through(lab.kernel("02", "gemm")(8, 4, 40, block_M=32, block_N=32,
                                                         block_K=16),
                                [torch.zeros(8, 40).half(), torch.zeros(40, 4).half()])
    for step in expected:
        at(page, step.number)
        title = page.locator(".labkit-step-title").inner_text()
        assert f"After step {step.number}, line {step.line}" in title
        assert all(f"{name} = {value}" in title for name, value in step.loops.items())
        (line,) = marked(page)
        assert step.text.split(", ")[0] in line
        assert [name.split("[")[0] for name in written(page)] == list(step.changed)
        page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Back").click()
    at(page, 10)
    page.get_by_role("button", name="Next").click()
    at(page, 11)
    page.get_by_role("button", name="Next").click()
    page.wait_for_timeout(300)
    at(page, 11)


def test_the_page_reports_no_error(page):
    assert not [line for line in page.labkit_console
                if line.startswith("error") and not re.search(r"favicon|404|manifest", line)]
