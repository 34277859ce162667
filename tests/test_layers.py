"""What import-linter (see pyproject.toml) cannot check about imports and names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
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
def test_code_for_hosts_imports_only_the_standard_library(path: Path) -> None:
    assert set(imported(path)) <= sys.stdlib_module_names


def test_the_supervisor_is_found() -> None:
    assert len(SUPERVISOR) > 10


def test_every_package_that_the_launcher_imports_is_a_declared_dependency() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    plot = project["optional-dependencies"]["plot"]
    declared = {re.split(r"[<>=]", name)[0] for name in [*project["dependencies"], *plot]}
    torch_code = REPOSITORY / "launcher/sanity/collectives.py"  # sent to the hosts
    sources = {*(REPOSITORY / "launcher").rglob("*.py")} - {torch_code}
    packages = set().union(*map(imported, sources)) - sys.stdlib_module_names
    assert {"pyyaml" if name == "yaml" else name for name in packages} == declared


@pytest.mark.parametrize("names", ["launcher, ddpctl", "ddpctl, launcher.errors"])
def test_a_checkout_cannot_be_imported_under_both_names(names: str) -> None:
    argv = [sys.executable, "-c", f"import {names}"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True)
    first = names.split(",")[0]
    assert f"is already imported as {first}; use only that name" in done.stderr


def test_a_package_of_the_user_may_be_called_launcher(tmp_path: Path) -> None:
    (tmp_path / "launcher.py").touch()
    (tmp_path / "ddpctl").symlink_to(REPOSITORY / "launcher")
    code = "import launcher, ddpctl.errors"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize("module", ["stop.kill", "look.ps", "runs.run_folder"])
def test_modules_without_need_for_diagnosis_or_ssh_import_neither(module: str) -> None:
    code = f"import sys, launcher.{module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = done.stdout.split()
    assert not {"docker", "paramiko", "requests", "launcher.diagnosis"} & set(loaded)


def test_a_name_of_a_module_or_class_of_the_launcher_says_where_it_is() -> None:
    """Only `commands/X.py` and the module that it calls share a name."""
    files = [*(REPOSITORY / "launcher").rglob("*.py")]
    modules = Counter(
        file.stem
        for file in files
        if file.parent.name != "commands" and not file.stem.startswith("__")
    )
    classes = Counter(
        node.name
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in (modules + classes).items() if count > 1] == []


def test_two_files_of_tests_never_share_a_name() -> None:
    """pytest imports them as top-level modules, so that the second would not be collected."""
    names = Counter(path.name for path in (REPOSITORY / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
