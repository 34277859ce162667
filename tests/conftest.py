"""Keep the user's own SSH, run and Docker settings out of every test, and mark tests of real things."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no failure: tests check results, not speed.
settings.register_profile("ddpctl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ddpctl")

# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

FOREIGN = ("DDPCTL_", "PET_", "TORCHELASTIC_", "TRAINER_", "NCCL_", "GLOO_")
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
OWN = ("SSH_AUTH_SOCK", "SSH_CONNECTION", "NO_COLOR", "FORCE_COLOR")


# Helpers and folders of tests that start torch, an sshd, supervisors or a browser.
REAL_HELPERS = {"local_machine", "namespaces", "push_machines", "sshd_server", "supervisors"}
REAL_FOLDERS = ("trainer", "launcher/push", "launcher/ssh", "launcher/supervisor", "integration")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what has no test of this kind: importing it takes a while, and torch makes forks slow."""
    wanted = config.option.markexpr
    if wanted == "cluster":
        return not _mentions_cluster(collection_path) or None
    return ("not real" in wanted and _below_tests(collection_path) in REAL_FOLDERS) or None


def _mentions_cluster(path: Path) -> bool:
    files = path.rglob("test_*.py") if path.is_dir() else [path]
    return any("mark.cluster" in file.read_text() for file in files)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make unit` leaves out."""
    for item in items:
        folder = _below_tests(item.path.parent)
        values = vars(getattr(item, "module", None)).values()
        helpers = {getattr(value, "__module__", getattr(value, "__name__", "")) for value in values}
        if folder in REAL_FOLDERS or helpers & REAL_HELPERS:
            item.add_marker(pytest.mark.real)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remove the group that xdist appends to a test's name: --last-failed would not find the test."""
    # only in the main process: the workers check that the name is unchanged
    if hasattr(report, "node"):
        report.nodeid = re.sub(r"@[\w.]+$", "", report.nodeid)


def _below_tests(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).as_posix()


@pytest.fixture(autouse=True)
def _clean_environment(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty home folder, and none of the variables that a run or a login would set."""
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in RANKS + OWN:
            monkeypatch.delenv(name)
    home = tmp_path_factory.getbasetemp() / "no-home"
    home.mkdir(exist_ok=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
