"""Hosts for tests of the push, each with its own home folder and sshd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sshd_server import Sshd

from launcher.hosts import Cluster, Job
from launcher.push.push import PushResult, push
from launcher.ssh.host_connection import HostConnection
from launcher.terminal.console import Console


@dataclass
class Machine:
    """A host with its own home folder, behind its own sshd."""

    connection: HostConnection
    home: Path
    server: Sshd

    def trees(self, kind: str) -> list[Path]:
        """Return the published trees, without drafts."""
        folder = self.home / ".ddpctl" / kind
        return sorted(folder.glob("[!.]*")) if folder.exists() else []

    def drafts(self, kind: str) -> list[Path]:
        folder = self.home / ".ddpctl" / kind
        return sorted(folder.glob(".[!.]*")) if folder.exists() else []


Machines = Callable[..., list[Machine]]


def push_to(hosts: list[Machine], **job: str) -> PushResult:
    cluster = Cluster(
        hosts=tuple(machine.connection.host for machine in hosts),
        job=Job(**{"engine": "process", **job}),  # type: ignore[arg-type]
    )
    connections = [machine.connection for machine in hosts]
    return push(connections, cluster, console=Console(quiet=True))


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launching machine's home, with state and cache, for this test alone."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    for name in ("SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def machines(tmp_path: Path, home: Path) -> Iterator[Machines]:
    """machines(3) starts three hosts. share: a home for all; others: more variables."""
    made: list[Machine] = []

    def start(
        count: int, *, path: str = "/usr/bin:/bin", share: Path | None = None, **others: str
    ) -> list[Machine]:
        more = [f"{key}={value}" for key, value in others.items()]
        for _ in range(count):
            number = len(made)
            folder = share or tmp_path / f"host{number}"
            folder.mkdir(exist_ok=share is not None)
            server = Sshd(
                tmp_path / f"sshd{number}",
                home,
                address=f"127.0.0.{number + 1}",
                options={"SetEnv": " ".join([f"HOME={folder} PATH={path}", *more])},
            )
            server.know()
            server.start()
            made.append(Machine(HostConnection(server.host()), folder, server))
        return made[-count:]

    yield start
    for machine in made:
        machine.connection.close()
        machine.server.stop()
