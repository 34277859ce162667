"""Which paths of a workdir are not pushed: .git, and what .gitignore and .ddpctlignore exclude.

As in git, a file's patterns apply to its folder and below, the deeper file wins, and a path below an
ignored folder cannot be re-included. .ddpctlignore is read after .gitignore.
"""

from __future__ import annotations

# Paths are bytes here, as a name need not be UTF-8, and pathlib has no bytes.
# ruff: noqa: PTH118, PTH123
import os
from collections.abc import Sequence
from dataclasses import dataclass

from pathspec import GitIgnoreSpec

FILES = (".gitignore", ".ddpctlignore")


@dataclass(frozen=True)
class Ignore:
    """The rules that apply in one folder of the tree."""

    rules: tuple[tuple[str, GitIgnoreSpec], ...] = ()  # (folder with trailing slash or "", spec)

    def inside(self, folder: str, texts: Sequence[str]) -> Ignore:
        """The rules in a subfolder. `folder` is relative to the tree; texts: its ignore files."""
        base = f"{folder}/" if folder else ""
        found = tuple((base, GitIgnoreSpec.from_lines(text.splitlines())) for text in texts)
        return Ignore(self.rules + found)

    def skips(self, path: str, *, is_folder: bool) -> bool:
        """Whether `path`, relative to the tree, is ignored."""
        if path.rpartition("/")[2] == ".git":
            return True
        for base, spec in reversed(self.rules):
            name = path[len(base) :] + ("/" if is_folder else "")
            verdict = spec.check_file(name).include
            if verdict is not None:
                return bool(verdict)
        return False


def read_rules(folder: bytes) -> list[str]:
    """The texts of a folder's ignore files, of those that exist and can be read."""
    texts = []
    for name in FILES:
        try:
            with open(os.path.join(folder, name.encode()), encoding="utf-8", errors="replace") as f:
                texts.append(f.read())
        except OSError:
            continue
    return texts
