from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from push_machines import Machine, Machines, push_to
from sshd_server import Sshd

from launcher.push.push import PushResult
from launcher.ssh.node import Node


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home, state and cache of the launching machine, of this test alone."""
    folder = tmp_path_factory.mktemp("home")
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    for name in ("SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def machines(tmp_path: Path, home: Path) -> Iterator[Machines]:
    """machines(3) starts three hosts. share: their common home; others: more environment."""
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
            made.append(Machine(Node(server.host()), folder, server))
        return made[-count:]

    yield start
    for machine in made:
        machine.node.close()
        machine.server.stop()


@pytest.fixture
def pushes() -> Callable[..., PushResult]:
    """pushes(machines, dataset=..., workdir=...): one push of these."""

    def run(hosts: list[Machine], **job: str) -> PushResult:
        return push_to(hosts, **job)

    return run
