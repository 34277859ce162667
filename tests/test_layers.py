"""Which part may import which: read from the source, so a late import inside a function counts too."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
COLLECTIVES = REPOSITORY / "launcher/sanity/collectives.py"  # shipped to the hosts, never imported
LAUNCHER = sorted(set((REPOSITORY / "launcher").rglob("*.py")) - {COLLECTIVES})
TRAINER = sorted((REPOSITORY / "trainer").rglob("*.py"))

EFFECTS = {"subprocess", "socket", "paramiko", "docker", "launcher.remote"}
PURE = (
    *("accusations", "cause", "checkpoints", "evidence", "facts", "journal"),
    *("rankend", "stopping", "summary", "suspect"),
    *(
        "hosts/cluster",
        "hosts/hostfile",
        "hosts/read",
        "hosts/rules",
        "hosts/schema",
        "hosts/values",
    ),
    *("report/curves", "report/numbers", "report/page"),
    *("hang", "plan", "show", "signs", "spec", "standing", "topology"),
    *("checks/details", "checks/engines", "checks/findings", "checks/gpus", "checks/images"),
    *("checks/machine", "checks/nvidia", "checks/probe", "checks/resources", "checks/routes"),
    *("checks/runs", "checks/trials"),
)
AGENT = REPOSITORY / "launcher/push/transfer/relay_agent.py"


def imported(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, absolute, with its parents: a.b gives a and a.b."""
    package = path.relative_to(REPOSITORY).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def offences(files: list[Path], forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(REPOSITORY)} imports {name}"
        for path in files
        for name in sorted(set(imported(path)) & forbidden)
    ]


def test_the_files_are_found() -> None:
    assert len(LAUNCHER) > 20 and len(TRAINER) > 10


def test_relative_and_late_imports_are_seen() -> None:
    assert "launcher.remote" in set(imported(REPOSITORY / "launcher" / "launch.py"))
    assert "launcher.ssh.stream" in set(imported(REPOSITORY / "launcher/remote/docker_api.py"))


def test_the_launcher_knows_neither_the_trainer_nor_torch() -> None:
    assert offences(LAUNCHER, {"trainer", "torch", "torchvision", "numpy"}) == []


def test_the_trainer_does_not_know_the_launcher() -> None:
    assert offences(TRAINER, {"launcher", "paramiko", "docker"}) == []


def test_only_remote_imports_paramiko_and_docker() -> None:
    others = [path for path in LAUNCHER if "remote" not in path.parts]
    assert offences(others, {"paramiko", "docker"}) == []


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_have_no_effects(name: str) -> None:
    assert offences([REPOSITORY / "launcher" / f"{name}.py"], EFFECTS) == []


def test_what_runs_on_hosts_needs_nothing_but_python() -> None:
    """The files of the supervisor see each other; the push agent is one file."""
    for path in (*sorted((REPOSITORY / "launcher/supervisor").glob("*.py")), AGENT):
        others = {each for each in imported(path) if not each.startswith("launcher.supervisor")}
        foreign = {each.split(".")[0] for each in others - {"launcher"}}
        assert foreign <= sys.stdlib_module_names, f"{path.name} imports {sorted(foreign)}"
