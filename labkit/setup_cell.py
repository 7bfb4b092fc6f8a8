"""The cell that every lesson starts with, and the badge in its title: their text, once.

In Colab and Kaggle the cell installs the kit and hands over to `labkit.hosted`; elsewhere it does
nothing. Where the kit comes from stands nowhere in the repository until `labkit badges` writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.errors import BadArgument

CELL_ID = "kit-setup"
_IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
_CELL = '''\
# In Colab and Kaggle: installs the kit, in under a minute. Elsewhere: does nothing.
import importlib.util
import os
import subprocess
import sys

# where the kit comes from: `labkit badges` writes it
KIT = {kit}
if {{"COLAB_RELEASE_TAG", "COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE"}} & set(os.environ):
    if importlib.util.find_spec("labkit") is None:
        if not KIT:
            raise RuntimeError("This lesson does not say where the kit is; install labkit first.")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", KIT]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"The kit could not be installed: {{done.stderr.strip()}}")
        importlib.invalidate_caches()
    from labkit import hosted

    hosted.set_up()'''


@dataclass(frozen=True)
class Address:
    """A repository on GitHub, as in Address("owner/name", "main").

    Raises BadArgument for a repository that is not OWNER/NAME, or a branch that is no name of one.
    """

    repo: str
    branch: str = "main"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+", self.repo):
            raise BadArgument(f"The repository is {self.repo!r}; give it as OWNER/NAME, as in "
                              "its address on GitHub.")
        if not re.fullmatch(r"[A-Za-z0-9._][A-Za-z0-9._/-]*", self.branch) or ".." in self.branch:
            raise BadArgument(f"The branch is {self.branch!r}; give the name of a branch or tag.")

    @property
    def kit(self) -> str:
        """What pip installs."""
        return f"labkit @ git+https://github.com/{self.repo}@{self.branch}"

    def badge(self, path: str) -> str:
        """The badge that opens the notebook at `path` in the repository, in Markdown."""
        return (f"[![Open in Colab]({_IMAGE})](https://colab.research.google.com/github/"
                f"{self.repo}/blob/{self.branch}/{path})")


def text(address: Address | None) -> str:
    """The setup cell's source; with None, that of a lesson without an address."""
    return _CELL.format(kit=f'"{address.kit}"' if address else '""')


def with_badge(title: str, address: Address | None, path: str) -> str:
    """The title cell's source with the badge of `address` under its first line, or without one."""
    first, _, rest = title.partition("\n")
    rest = re.sub(r"\A\n*\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)", "", rest).strip("\n")
    parts = [first, *([address.badge(path)] if address else []), *([rest] if rest else [])]
    return "\n\n".join(parts)
