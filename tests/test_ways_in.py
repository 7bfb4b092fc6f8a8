"""The other ways in: the workflow, the dev container and the rehearsal name what exists."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import yaml
from notebook_format import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from test_packaging import PROJECT

from labkit.cli import _parser

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "lessons.yml").read_text())
JOB = WORKFLOW["jobs"]["lessons"]
CONTAINER = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
VARIABLES = set(re.findall(r"^([A-Z_]+) \?=", (ROOT / "Makefile").read_text(), re.M))


def commands():
    """Each command of the workflow and of the dev container, as words."""
    lines = [line for step in JOB["steps"] for line in step.get("run", "").splitlines()]
    lines += CONTAINER["postCreateCommand"].split("&&")
    return [shlex.split(line) for line in lines if line.strip()]


def test_the_workflow_runs_on_changes_and_on_demand():
    assert set(WORKFLOW[True]) == {"push", "pull_request", "workflow_dispatch"}  # `on` is true here
    assert WORKFLOW["permissions"] == {"contents": "read"}


def test_the_workflow_covers_the_pythons_of_the_kit():
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert JOB["strategy"]["matrix"]["python"] == [
        f"3.{minor}" for minor in range(9, 16) if f"3.{minor}.1" in allowed]


def test_every_command_exists():
    called = commands()
    assert ["make", "setup"] in called and ["make", "run"] in called
    for words in called:
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, words
        elif words[0].endswith("labkit"):
            assert callable(_parser().parse_args(words[1:]).command), words
        else:
            assert words[:2] == ["sudo", "apt-get"] and words[2] in ("update", "install"), words


@pytest.mark.parametrize("parameters", ["", "--parameters class.json"])
def test_the_runs_options_exist_and_its_report_is_what_is_uploaded(parameters):
    """With a class's parameters and without: they are in an expression of the workflow."""
    (step,) = [step for step in JOB["steps"] if step.get("run") == "make run"]
    arguments = re.sub(r"\$\{\{.*?\}\}", parameters, step["env"]["RUN_ARGS"])
    assert "'--parameters class.json'" in step["env"]["RUN_ARGS"]
    options = _parser().parse_args(["run", *arguments.split()])
    assert options.device == "cpu" and options.parameters == (parameters[13:] or None)
    upload = JOB["steps"][-1]
    assert upload["uses"].startswith("actions/upload-artifact@") and upload["if"] == "always()"
    assert upload["with"]["path"] == options.out
    # lessons that hang are ended by the kit, which then still reports, and not with the job
    assert options.total_timeout < JOB["timeout-minutes"] * 60


def test_every_variable_for_make_exists():
    for step in JOB["steps"]:
        assert set(step.get("env", {})) <= VARIABLES, step


def test_the_dev_container_has_a_python_of_the_kit():
    version = re.search(r"python:(\d+\.\d+)-", CONTAINER["image"])[1]
    assert f"{version}.1" in SpecifierSet(PROJECT["requires-python"])
    assert CONTAINER["hostRequirements"]["gpu"] == "optional"
    assert "/.venv/bin/python" in CONTAINER["customizations"]["vscode"]["settings"][
        "python.defaultInterpreterPath"]


def test_what_the_rehearsal_preinstalls_is_a_torch_of_the_kit():
    lines = (ROOT / "tests" / "colab_preinstalled.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all([s.operator for s in pin.specifier] == ["=="] for pin in pins)
    ours = {r.name: r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    for pin in pins:
        if pin.name in ours:
            assert next(iter(pin.specifier)).version in ours[pin.name], pin.name
    assert {"torch", "numpy", "ipykernel", "ipywidgets"} <= {pin.name for pin in pins}


def test_the_rehearsal_is_a_command_of_make():
    assert "colab-check" in TARGETS
    assert "tests/colab_rehearsal.py $(COLAB_ARGS)" in (ROOT / "Makefile").read_text()
