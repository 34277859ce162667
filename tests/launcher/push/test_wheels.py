from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from tiny_wheel import tiny_wheel

from launcher.errors import PushFailed
from launcher.hosts import Host, Job
from launcher.push.files.scan import Tree
from launcher.push.packages import wheels
from launcher.push.push_progress import PushProgress
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job for a host with Python 3.9, whose package is in a folder of wheels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(wheels, "script_output", lambda *_, **__: "3.9-x86_64 2.34\n")
    tiny_wheel(tmp_path / "wheels", "tiny", {"tiny.py": ""})
    (tmp_path / "requirements.txt").write_text("--no-index\n--find-links wheels\ntiny\n")
    return Job(engine="process", requirements=str(tmp_path / "requirements.txt"))


def collect(job: Job) -> set[str]:
    """Return the files in the tree of wheels."""
    connection = HostConnection(Host("local"))
    tree, failures = wheels.wheels_of(job, [connection], PushProgress([connection], Console()))
    assert isinstance(tree, Tree) and not failures
    return {os.fsdecode(entry.path) for entry in tree.manifest.entries if entry.is_file}


@pytest.mark.slow
@pytest.mark.parametrize("oldest", ["3.9", "3.10"])
def test_the_hosts_get_a_pip_that_runs_on_their_python(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, oldest: str
) -> None:
    own = tmp_path / "site"
    (own / "pip").mkdir(parents=True)
    (own / "pip" / "own.py").touch()
    (own / "pip-99.dist-info").mkdir()
    metadata = f"Metadata-Version: 2.1\nName: pip\nVersion: 99\nRequires-Python: >={oldest}\n"
    (own / "pip-99.dist-info" / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(own)
    tiny_wheel(tmp_path / "index", "pip", {"pip/old.py": ""})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    pip = "3.9-x86_64/pip/own.py" if oldest == "3.9" else "3.9-x86_64/pip/old.py"
    assert collect(job) == {"python", "3.9-x86_64/tiny-1-py3-none-any.whl", pip}


def test_without_pip_on_this_machine_the_remedy_is_to_install_it_here(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(PushFailed, match=r"ddpctl's Python has no pip; run `\S+ -m ensurepip`"):
        collect(job)
