"""The setup cell and the badges: written, written again, taken back, and checked."""

from __future__ import annotations

import json
import shutil

import nbformat
import pytest
from notebook_format import ROOT, canonical

from labkit import badges, setup_cell
from labkit.cli import main
from labkit.errors import BadArgument, LabError
from labkit.setup_cell import Address

NAMES = ["00_environment.ipynb", "02_gemm.ipynb", "15_cudnn_attention.ipynb"]
README = f"# Kit\n\n{badges.BEGIN}\n{badges.END}\n\nMore.\n"
ADDRESS = Address("some-owner/kernel.kit", "v1.2/x")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with three lessons, as they are in the repository."""
    (tmp_path / "notebooks").mkdir()
    for name in NAMES:
        shutil.copy(ROOT / "notebooks" / name, tmp_path / "notebooks")
    (tmp_path / "README.md").write_text(README)
    badges.stamp(None, tmp_path)
    return tmp_path


def read(root):
    return {path.name: path.read_text() for path in [*root.glob("notebooks/*"), root / "README.md"]}


def cells(root, name):
    return json.loads((root / "notebooks" / name).read_text())["cells"]


def test_the_repositorys_own_lessons_and_readme_agree():
    assert badges.problems(ROOT) == [], "run `labkit badges --unstamped`, or --repo OWNER/NAME"


@pytest.mark.parametrize("name", NAMES)
def test_every_lesson_gets_the_same_cell_first(checkout, name):
    badges.stamp(ADDRESS, checkout)
    code = [cell for cell in cells(checkout, name) if cell["cell_type"] == "code"]
    assert code[0] == {
        "cell_type": "code", "execution_count": 1, "id": "kit-setup", "outputs": [],
        "metadata": {"tags": ["setup"]},
        "source": setup_cell.text(ADDRESS).splitlines(keepends=True)}
    assert code[1]["metadata"]["tags"] == ["imports"]
    assert len([c for c in code if "setup" in c["metadata"].get("tags", [])]) == 1
    assert f'"labkit @ git+https://github.com/{ADDRESS.repo}@v1.2/x"' in "".join(code[0]["source"])


@pytest.mark.parametrize("name", NAMES)
def test_the_badge_stands_under_the_title_and_opens_this_file(checkout, name):
    badges.stamp(ADDRESS, checkout)
    title, empty, badge, *_ = "".join(cells(checkout, name)[0]["source"]).splitlines()
    assert title.startswith(f"# {name[:2]} · ") and empty == ""
    assert badge.endswith(f"/github/{ADDRESS.repo}/blob/v1.2/x/notebooks/{name})")


def test_stamping_again_changes_nothing_and_taking_back_restores_every_byte(checkout):
    plain = read(checkout)
    assert len(badges.stamp(ADDRESS, checkout)) == 4
    stamped = read(checkout)
    assert badges.stamp(ADDRESS, checkout) == [] and read(checkout) == stamped
    assert badges.stamp(Address("other/place"), checkout)
    assert badges.stamped_address(checkout) == Address("other/place")
    badges.stamp(ADDRESS, checkout)
    assert read(checkout) == stamped
    badges.stamp(None, checkout)
    assert read(checkout) == plain


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_the_cell_the_badge_and_the_counts_differs(checkout, name):
    badges.stamp(ADDRESS, checkout)
    text = (checkout / "notebooks" / name).read_text()
    assert text == canonical(json.loads(text))
    nbformat.validate(nbformat.reads(text, as_version=4))
    before = json.loads((ROOT / "notebooks" / name).read_text())
    after = json.loads(text)

    def bare(notebook):
        kept = [cell for cell in notebook["cells"] if cell["id"] != setup_cell.CELL_ID][1:]
        for cell in kept:
            cell.pop("execution_count", None)
            cell["metadata"].pop("tags", None)
            for output in cell.get("outputs", []):
                output.pop("execution_count", None)
        return kept, notebook["metadata"]

    assert bare(before) == bare(after)


def edit(root, name, change):
    path = root / "notebooks" / name
    notebook = json.loads(path.read_text())
    change(notebook["cells"])
    path.write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def swap(old, new):
    def change(listed):
        for cell in listed:
            cell["source"] = [line.replace(old, new) for line in cell["source"]]
    return change


@pytest.mark.parametrize(("change", "says"), [
    (swap("notebooks/02_gemm", "notebooks/03_gemm"), "its badge is not the one for this file"),
    (swap("kernel.kit", "kernel.kat"), "its setup cell is not the one for"),
    (swap("hosted.set_up()", "pass"), "its setup cell is not the one for"),
    (lambda listed: listed.pop(1), "its first code cell is not the setup cell"),
    (lambda listed: listed.insert(1, listed.pop(2)), "its first code cell is not the setup cell"),
], ids=["another file", "another repository", "another cell", "no cell", "a cell before it"])
def test_a_lesson_that_disagrees_is_named(checkout, change, says):
    badges.stamp(ADDRESS, checkout)
    assert badges.problems(checkout) == []
    edit(checkout, "02_gemm.ipynb", change)
    wrong = badges.problems(checkout)
    assert wrong and all(line.startswith("notebooks/02_gemm.ipynb: ") for line in wrong)
    assert any(says in line for line in wrong)


def test_some_stamped_and_some_not_disagree(checkout):
    plain = (checkout / "notebooks" / NAMES[0]).read_text()
    badges.stamp(ADDRESS, checkout)
    (checkout / "notebooks" / NAMES[0]).write_text(plain)
    assert {line.split(":")[0] for line in badges.problems(checkout)} == {f"notebooks/{NAMES[0]}"}


def test_the_readme_is_checked_too(checkout):
    badges.stamp(ADDRESS, checkout)
    readme = (checkout / "README.md").read_text()
    assert readme.startswith("# Kit\n") and readme.endswith("\n\nMore.\n")
    assert f"blob/{ADDRESS.branch}/notebooks/{NAMES[2]})" in readme
    (checkout / "README.md").write_text(readme.replace(NAMES[2], NAMES[1]))
    assert [line.split(":")[0] for line in badges.problems(checkout)] == ["README.md"]


@pytest.mark.parametrize("block", ["", f"{badges.BEGIN}\n{badges.END}\n" * 2], ids=["none", "two"])
def test_a_readme_without_its_place_is_refused_before_anything_is_written(checkout, block):
    (checkout / "README.md").write_text(f"# Kit\n{block}")
    before = read(checkout)
    with pytest.raises(LabError, match="places between"):
        badges.stamp(ADDRESS, checkout)
    assert read(checkout) == before


@pytest.mark.parametrize(("repo", "branch"), [
    ("labkit", "main"), ("a/b/c", "main"), ("https://github.com/a/b", "main"), ("a/b c", "main"),
    ("a/b", ""), ("a/b", "-f"), ("a/b", "a b"), ("a/b", "../x"), ('a/b")', "main"),
])
def test_what_is_no_address_is_refused(repo, branch):
    with pytest.raises(BadArgument, match=r"The (repository|branch) is"):
        Address(repo, branch)


def test_the_command(checkout, monkeypatch, capsys):
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("LABKIT_NOTEBOOKS", raising=False)
    assert main(["badges", "--check"]) == 0
    assert main(["badges", "--repo", "a/b", "--branch", "v1"]) == 0
    assert badges.stamped_address(checkout) == Address("a/b", "v1")
    edit(checkout, NAMES[0], swap("a/b", "a/c"))
    capsys.readouterr()
    assert main(["badges", "--check"]) == 1
    assert "00_environment.ipynb" in capsys.readouterr().out
    assert main(["badges", "--unstamped"]) == 0 and main(["badges", "--check"]) == 0
    assert main(["badges", "--repo", "nowhere"]) == 2
    (checkout / "README.md").unlink()
    assert main(["badges", "--check"]) == 2
    assert "not a checkout" in capsys.readouterr().err


def test_nothing_is_written_where_no_option_is_given(checkout, capsys):
    with pytest.raises(SystemExit):
        main(["badges"])
    assert "--repo" in capsys.readouterr().err
