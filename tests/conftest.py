"""Shared by all tests: their order over several processes, and what may be skipped."""

from __future__ import annotations

import os
import re

import pytest

# A skip is expected only for what the machine lacks by nature. Any other one fails the run,
# so that a green run cannot hide tests that did not happen.
EXPECTED_SKIPS = ("needs a CUDA GPU", "needs Chromium", "needs Playwright", "needs a libcudnn",
                  "needs Triton", "needs the right to mount a small disk")
_unexpected: list[str] = []


# What takes longest begins first, so that no process works on it alone at the end. The lessons'
# nbval comes last: it finds compiled what other tests needed.
LONGEST = ("test_notebooks.py", "test_matrix.py", "test_exercises.py", "test_mutations.py",
           "test_epilogue_matrix.py", "test_epilogue.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST
               else len(LONGEST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """With --dist=loadfile a file's tests stay in one process: they share what they compiled and
    the lessons they ran. Those of a broken lesson share no more than that lesson."""
    if config.option.dist != "loadfile":
        return None  # xdist's own

    from xdist.scheduler import LoadFileScheduling

    class ByFileOrLesson(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            lesson = re.search(r"::test_(?:a_broken_kernel_fails_its_lesson|its_cell_put_back_"
                               r"passes)\[(\w+)", nodeid)
            return f"{file} {lesson[1]}" if lesson else file

    return ByFileOrLesson(config, log)


@pytest.fixture
def cuda():
    """Skips where torch sees no GPU (under `make test-gpu`: fails); returns torch otherwise."""
    import torch

    if not torch.cuda.is_available():
        if os.environ.get("LABKIT_REQUIRE_GPU"):
            pytest.fail("torch sees no CUDA GPU, and `make test-gpu` is for one")
        pytest.skip("needs a CUDA GPU")
    return torch


@pytest.fixture
def libcudnn():
    """Skips where there is no libcudnn (extra `deviceless`); returns what was loaded otherwise.
    With LABKIT_REQUIRE_CUDNN set it fails instead."""
    from labkit.cudnn_loader import load_cudnn

    found = load_cudnn()
    if not found.found:
        if os.environ.get("LABKIT_REQUIRE_CUDNN"):
            pytest.fail("no libcudnn here, and LABKIT_REQUIRE_CUDNN is set")
        pytest.skip("needs a libcudnn")
    return found


@pytest.fixture
def compiling(libcudnn):
    """As `libcudnn`, where cuDNN can compile for GPUs that are not here as well: no GPU, and a
    stand-in for the driver (`make test-deviceless`)."""
    from labkit import cudnn_support

    if not cudnn_support._stand_in():
        if os.environ.get("LABKIT_REQUIRE_CUDNN"):
            pytest.fail("no stand-in for the driver, and LABKIT_REQUIRE_CUDNN is set")
        pytest.skip("needs a libcudnn and a stand-in for the driver")
    return libcudnn


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(expected in reason for expected in EXPECTED_SKIPS):
            _unexpected.append(f"{report.nodeid}: {reason}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _unexpected.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if _unexpected and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _unexpected:
        terminalreporter.section("unexpected skips: the run fails")
        for line in _unexpected:
            terminalreporter.line(line)
