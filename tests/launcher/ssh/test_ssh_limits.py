"""Many hosts at once: bounded logins per server, one thread per connection."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sshd_server import Sshd
from supervisors import until
from test_ssh_connect import Config, Connect, Server, connect_all, listener

from launcher.errors import DdpctlError
from launcher.hosts import Host
from launcher.ssh import client, connect
from launcher.ssh.client import SshMachine, SshStream
from launcher.ssh.connection import Connection
from launcher.ssh.lean_paramiko import paramiko

LIMITS = {"nothing": 32, "one server": 8, "a jump host": 8, "a ProxyCommand": 8}


@pytest.mark.parametrize("through", LIMITS)
def test_logins_at_once_are_bounded(
    sshd: Server,
    connect_to: Connect,
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    through: str,
) -> None:
    monkeypatch.setattr(connect, "TRIES", 1)
    log = tmp_path / "log"
    seconds = 1.0 if through == "nothing" else 0.1  # of a login: long enough to exceed the limit

    def login(_: object) -> None:
        for word, pause in (("begin", seconds), ("end", 0.0)):
            with log.open("a") as file:
                file.write(f"{word}\n")
            time.sleep(pause)

    bastion = sshd(know=False)
    bastion.know(f"[localhost]:{bastion.port}")
    with listener(login, "0.0.0.0") as port:
        settings = {
            "nothing": "",
            "one server": "HostName 127.0.0.2",
            "a jump host": f"ProxyJump localhost:{bastion.port}",
            "a ProxyCommand": f"ProxyCommand sh -c 'echo begin >> {log}; sleep 0.1; echo end >> {log}'",
        }
        config(f"Host 127.0.0.*\n  {settings[through]}\n")
        hosts = [
            bastion.host(host=f"127.0.0.{n + 10}", port=port) for n in range(LIMITS[through] + 12)
        ]
        assert len(connect_all([connect_to(host) for host in hosts])) == len(hosts)
    steps = [1 if word == "begin" else -1 for word in log.read_text().split()]
    assert steps.count(1) == len(hosts)
    assert 2 <= max(itertools.accumulate(steps)) <= LIMITS[through]


def test_logins_that_a_bastion_drops_are_retried(
    sshd: Server, connect_to: Connect, config: Config, home: Path
) -> None:
    bastion = sshd(address="127.0.0.2", MaxStartups="1")
    target = sshd(address="127.0.0.3")
    config(
        f"Host 127.0.0.3\n  ProxyCommand ssh -F none -o BatchMode=yes -i {bastion.user_key} "
        f"-o UserKnownHostsFile={home}/.ssh/known_hosts -p {bastion.port} -W %h:%p 127.0.0.2\n"
    )
    assert not connect_all([connect_to(target.host(), connect_timeout=20) for _ in range(6)])
    assert "MaxStartups" in bastion.log.read_text()  # it did drop some


def test_the_session_of_the_next_command_is_opened_ahead(
    sshd: Server, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = connect_to(sshd().host())
    opened: list[paramiko.Channel] = []
    open_channel = Connection.open_channel

    def open_and_note(self: Connection, *args: Any, **kwargs: Any) -> paramiko.Channel:
        opened.append(open_channel(self, *args, **kwargs))
        return opened[-1]

    monkeypatch.setattr(Connection, "open_channel", open_and_note)
    node.connect()
    for number in range(1, 4):
        until(lambda number=number: len(opened) == number, 10.0)
        assert node.run(["echo", "hello"]).stdout == b"hello\n"
    until(lambda: len(opened) == 4, 10.0)
    opened[-1].close()  # as sshd does after its ChannelTimeout
    assert node.run(["echo", "hello"]).stdout == b"hello\n"


def test_no_session_is_opened_ahead_with_dropbear(sshd: Server, connect_to: Connect) -> None:
    """It closed the session just before the command in 3 of 160 cases."""
    node = connect_to(sshd().host())
    node.connect()
    [connection] = node._machine._live()  # type: ignore[union-attr]
    connection.remote_version = "SSH-2.0-dropbear_2022.83"
    with contextlib.closing(connection.open_session(timeout=20)):
        assert connection._ahead is None


def test_a_connection_uses_one_thread_for_all_its_streams(
    sshd: Callable[..., Sshd], connect_to: Connect
) -> None:
    server = sshd()
    before = threading.active_count()
    nodes = [connect_to(server.host()) for _ in range(6)]
    assert not connect_all(nodes)
    streams = [each.open(["cat"]) for each in nodes for _ in range(4)]
    assert threading.active_count() - before <= len(nodes)
    for stream in streams:
        stream.close()


def test_a_server_that_takes_single_bytes_holds_a_write_only_for_a_time() -> None:
    class Channel:
        left: float | None = None

        def settimeout(self, seconds: float | None) -> None:
            self.left = seconds

        def send(self, data: memoryview) -> int:
            if not self.left:
                raise TimeoutError
            time.sleep(0.01)
            return 1

    stream: Any = SshStream.__new__(SshStream)
    stream._channel = Channel()
    with pytest.raises(TimeoutError):
        stream.write(bytes(1000), timeout=0.2)


def test_a_connection_on_which_no_session_starts_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[bool] = []

    def open_session(timeout: float) -> None:
        raise paramiko.SSHException("Timeout opening channel.")

    connection = SimpleNamespace(
        open_session=open_session, loss=lambda: None, close=lambda: closed.append(True)
    )
    monkeypatch.setattr(client, "connect", lambda *_: connection)
    with pytest.raises(DdpctlError, match="sshd did not start a session within 1s"):
        SshMachine(Host("gpu1"), connect_timeout=1.0)._session()
    assert closed
