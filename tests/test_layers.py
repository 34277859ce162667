"""What import-linter (see pyproject.toml) cannot check: code that runs on hosts needs only Python."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
RELAY_AGENT = REPOSITORY / "launcher/push/transfer/relay_agent.py"
SUPERVISOR = sorted((REPOSITORY / "launcher/supervisor").glob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a file imports; relative imports stay in its own folder."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).split(".")[0]


@pytest.mark.parametrize("path", [*SUPERVISOR, RELAY_AGENT], ids=lambda path: path.stem)
def test_what_runs_on_hosts_needs_nothing_but_python(path: Path) -> None:
    assert set(imported(path)) <= sys.stdlib_module_names


def test_the_supervisor_is_found() -> None:
    assert len(SUPERVISOR) > 10
