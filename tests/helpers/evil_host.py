"""An evil host, among fakes or behind a real sshd: it runs a node of a run, then answers nonsense.

cluster = evil_cluster(tmp_path, monkeypatch)
cluster.evil.turn(scripts="endless", docker="a gzip bomb")
cluster.ddpctl("ps")
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from evil_answers import FOREVER, SCRIPTS, Pieces, docker_answer, whole_request
from fakes import FakeCluster, FakeHost, FakeMachine

from launcher.engines import docker_client
from launcher.hosts import Host
from launcher.look import stacks
from launcher.preflight import container_test
from launcher.runs import sync_logs
from launcher.ssh.host_connection import HostConnection
from launcher.ssh.stream import CHUNK, Completed, Stderr, Stream

PATIENCE = 0.1  # seconds that these tests wait for any answer


class EvilStream(Stream):
    """A command on the evil host. docker: whether it is the connection to the host's engine."""

    def __init__(self, scripts: str, docker: str | None) -> None:
        self.stderr = Stderr()
        self.stderr.close()
        self._docker = docker
        self._pieces: Pieces = iter(()) if docker else SCRIPTS[scripts]()
        self._ahead = self._requests = b""
        self._changed = threading.Condition()
        self._closed = False

    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        patience = FOREVER if timeout is None else min(timeout, PATIENCE)
        with self._changed:
            while not self._ahead and not self._closed:
                piece = next(self._pieces, FOREVER if self._docker else b"")
                if isinstance(piece, bytes):
                    self._ahead = piece
                    break
                if not self._changed.wait(min(piece, patience)) and piece >= patience:
                    raise TimeoutError(f"no output for {patience} s")
            data, self._ahead = self._ahead[:size], self._ahead[size:]
            return data

    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        with self._changed:
            self._requests += bytes(data)
            while self._docker and (size := whole_request(self._requests)):
                self._pieces = docker_answer(self._docker, self._requests)
                self._requests = self._requests[size:]
                self._changed.notify_all()

    def close_stdin(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def is_alive(self) -> bool:
        return not self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class EvilHost(FakeHost):
    """A host that is honest until `turn` is called."""

    scripts = docker = ""

    def turn(self, *, scripts: str, docker: str) -> None:
        self.scripts, self.docker = scripts, docker


class EvilMachine(FakeMachine):
    host: EvilHost

    def open(self, argv: Sequence[str], **how: Any) -> Stream:
        if not self.host.scripts:
            return super().open(argv, **how)
        dials = any("dial-stdio" in word for word in argv)
        return EvilStream(self.host.scripts, self.host.docker if dials else None)


class EvilCluster(FakeCluster):
    """Two honest hosts around an evil one; its name sorts before theirs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **job: Any) -> None:
        self._connect = docker_client._connect
        super().__init__(folder, monkeypatch, ["good1", "evil", "good2"], **job)
        self.evil = EvilHost("evil", folder / "hosts" / "evil-too")
        self.hosts["evil"] = self.evil
        run = HostConnection.run

        def impatient(
            connection: HostConnection, *args: Any, timeout: float = PATIENCE, **how: Any
        ) -> Completed:
            timeout = (
                min(timeout, PATIENCE)
                if connection.name == "evil" and self.evil.scripts
                else timeout
            )
            return run(connection, *args, timeout=timeout, **how)

        monkeypatch.setattr(HostConnection, "run", impatient)
        monkeypatch.setattr(sync_logs, "SYNC_TIMEOUT", 0.5)
        monkeypatch.setattr(container_test, "TIMEOUT", PATIENCE)  # fakes do not run what it starts
        monkeypatch.setattr(stacks, "TIMEOUT", 1)

    def launch_run(self) -> None:
        """Make all hosts honest, and start a live run on them unless they have one."""
        self.evil.turn(scripts="", docker="")
        if len(self.nodes) == len(self.hosts) and Path(self.nodes[0].journal).exists():
            return
        for host in self:
            host.nodes.clear()
        code, out, err = self.launch("--detach")
        assert code == 0, err
        self.run_id = out.strip()
        for node in self.nodes:
            node.say(f"line of {node.host}", node.node_rank)
            output = node.journal.parents[3] / "output" / f"{node.host}.txt"
            output.write_text(node.host)

    @property
    def good(self) -> Iterator[FakeHost]:
        return (host for host in self if host is not self.evil)

    def _machine(self, host: Host, connect_timeout: float) -> FakeMachine:
        fake = self.host(host.name)
        return EvilMachine(fake) if isinstance(fake, EvilHost) else FakeMachine(fake)

    def _docker(self, connection: HostConnection) -> Any:
        if not getattr(self.host(connection.name), "scripts", ""):
            return super()._docker(connection)
        api = self._connect(connection)
        # fast answers must be ended by their size, not by the timeout
        api.timeout = PATIENCE if self.evil.docker == "dripping" else 10.0
        return api


def force_command(kinds: Path) -> str:
    """Return the ForceCommand of an evil sshd. kinds: a file with the values of `turn`, one per line."""
    program = Path(__file__).with_name("evil_answers.py")
    return f"{sys.executable} -I -S {program} {kinds}"
