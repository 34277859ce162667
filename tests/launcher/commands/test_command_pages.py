"""The pages in docs/commands/ match the command line."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from launcher.cli import COMMANDS

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "commands"
MADE = runpy.run_path(str(ROOT / "scripts" / "command_pages.py"))["pages"]()


def test_each_command_has_a_page_and_nothing_else_has() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(MADE)
    assert {f"{name}.md" for name in COMMANDS} < set(MADE)


@pytest.mark.parametrize("name", sorted(MADE))
def test_a_page_is_as_the_command_is(name: str) -> None:
    # a failure here: run scripts/command_pages.py
    assert (FOLDER / name).read_text() == MADE[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_an_example_and_explains_every_flag(name: str) -> None:
    text = MADE[f"{name}.md"]
    assert "## Examples" in text
    assert not [line for line in text.splitlines() if line.startswith("| `") and "|  |" in line]
