from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd_server import Sshd

from launcher.hosts import Host
from launcher.ssh.host_connection import HostConnection


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, so that no test reads your ~/.ssh or uses your agent."""
    folder = tmp_path / "home"
    (folder / ".ssh").mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("HOME", str(folder))
    for name in ("SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def config(home: Path) -> Callable[[str], None]:
    """Write ~/.ssh/config."""

    def write(text: str) -> None:
        (home / ".ssh" / "config").write_text(text)

    return write


@pytest.fixture
def sshd(tmp_path: Path, home: Path) -> Iterator[Callable[..., Sshd]]:
    """Starts a server: sshd(MaxSessions="2"), sshd(address="127.0.0.2")."""
    started: list[Sshd] = []
    count = itertools.count()

    def start(
        *,
        address: str = "127.0.0.1",
        host_key_kinds: tuple[str, ...] = ("ed25519",),
        know: bool = True,
        **options: str,
    ) -> Sshd:
        server = Sshd(
            tmp_path / f"sshd{next(count)}",
            home,
            address=address,
            options=options,
            host_key_kinds=host_key_kinds,
        )
        started.append(server)
        if know:
            server.know()
        return server.start()

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def connect_to() -> Iterator[Callable[..., HostConnection]]:
    """Makes connections and closes them after the test."""
    made: list[HostConnection] = []

    def make(host: Host, connect_timeout: float = 5.0) -> HostConnection:
        made.append(HostConnection(host, connect_timeout=connect_timeout))
        return made[-1]

    yield make
    for each in made:
        each.close()
