"""From host to host, over real SSH and real TLS on loopback."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from push_machines import Machine, Machines

from launcher.errors import HostUnreachable, PushFailed
from launcher.push.push import PushResult
from launcher.push.push_progress import PushProgress
from launcher.push.push_report import HostsNotReady
from launcher.push.transfer import chain, payload, relay_client
from launcher.push.transfer.fanout import MIN_SAVING, Fanout
from launcher.push.transfer.payload import Payload
from launcher.terminal.console import Console

SIZE = 24 << 20  # bytes

Pushes = Callable[..., PushResult]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "big").write_bytes(os.urandom(SIZE))
    (folder / "small").write_text("x")
    return folder


def has(machine: Machine, data: Path) -> bool:
    trees = machine.trees("datasets")
    return len(trees) == 1 and not subprocess.run(["diff", "-r", trees[0], data]).returncode


def agents(machine: Machine) -> list[int]:
    """Process ids of relay agents on a host."""
    found = []
    for pid in machine.server.descendants():
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"ddpctl-agent" in command.read_bytes():
            found.append(pid)
    return found


def test_the_bytes_leave_this_machine_once(machines: Machines, pushes: Pushes, data: Path) -> None:
    hosts = machines(4)
    report = pushes(hosts, dataset=str(data)).report
    assert all(has(machine, data) for machine in hosts)
    assert SIZE < report.sent_bytes < 1.02 * SIZE
    assert all(host.received_bytes == report.sent_bytes for host in report.hosts)
    until(lambda: not any(agents(machine) for machine in hosts))
    assert not any(list((machine.home / ".ddpctl" / "spool").iterdir()) for machine in hosts)


def test_a_host_that_dies_half_way_does_not_delay_the_others(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.push.sender.PAUSES", (0.1,) * 3)
    slowly(monkeypatch, 8 << 20)
    for victim in (0, 1):  # the one that is fed from here, and one in the middle
        hosts = machines(4)
        killer = threading.Thread(target=kill_when, args=(hosts[victim], 4 << 20))
        killer.start()
        with pytest.raises(HostsNotReady) as caught:
            pushes(hosts, dataset=str(data))
        killer.join()
        assert list(caught.value.failures) == [hosts[victim].connection.name]
        assert isinstance(caught.value.failures[hosts[victim].connection.name], HostUnreachable)
        rest = [machine for machine in hosts if machine is not hosts[victim]]
        assert all(has(machine, data) for machine in rest)
        assert caught.value.report.sent_bytes < 1.9 * SIZE
        assert not hosts[victim].trees("datasets")


def test_a_flipped_byte_on_the_way_is_detected_and_sent_again(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second host relays one wrong byte; the one after it detects that."""
    hosts = machines(3)
    wrong = (
        b"data = data[:-1] + bytes([data[-1] ^ 1]) if at <= 4 << 20 < at + len(data) and "
        b"os.environ['HOME'].endswith('host1') else data\n                "
    )
    assert relay_client.SOURCE.count(b'link.sendall(struct.pack(">I", len(data)) + data)') == 1
    altered = relay_client.SOURCE.replace(
        b'link.sendall(struct.pack(">I", len(data)) + data)',
        wrong + b'link.sendall(struct.pack(">I", len(data)) + data)',
    )
    monkeypatch.setattr(relay_client, "SOURCE", altered)
    report = pushes(hosts, dataset=str(data)).report
    assert all(has(machine, data) for machine in hosts)
    (notice,) = report.notices
    assert notice.startswith(
        f"{hosts[2].connection.name}: dataset: damaged in transit; the push resumes"
    )


def test_hosts_without_space_to_relay_are_sent_the_bytes_directly(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = b"self.spool.write(data)\n"
    assert relay_client.SOURCE.count(store) == 1
    full = relay_client.SOURCE.replace(store, b"raise OSError(28, 'No space left on device')\n")
    monkeypatch.setattr(relay_client, "SOURCE", full)
    hosts = machines(3)
    report = pushes(hosts, dataset=str(data)).report
    assert all(has(machine, data) for machine in hosts)
    assert any("No space left on device; the push resumes" in each for each in report.notices)


def test_hosts_relay_a_layer_before_the_next_is_ready_and_keep_it_if_that_fails(
    machines: Machines,
) -> None:
    hosts = machines(3)
    connections = [machine.connection for machine in hosts]
    layer = os.urandom(MIN_SAVING)

    def layers() -> Iterator[Payload]:
        yield Payload(
            "image",
            lambda connection: ("sh", "-c", "cat >$HOME/layer && : >$HOME/has-it"),
            len(layer),
            lambda: iter([layer]),
        )
        until(lambda: all((machine.home / "has-it").exists() for machine in hosts), 30)
        raise PushFailed("the engine failed")

    progress = PushProgress(connections, Console(quiet=True))
    with closing(
        Fanout({connection: connection.host.host for connection in connections}, progress)
    ) as fanout:
        with pytest.raises(PushFailed, match="the engine failed"):
            fanout.send("image", layers(), connections, None)
        assert all((machine.home / "layer").read_bytes() == layer for machine in hosts)
    assert len(layer) <= progress.report.sent_bytes < 1.1 * len(layer)


@pytest.mark.slow
@pytest.mark.parametrize("slow", [0, 1])
def test_no_host_waits_for_a_slow_one(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    """The slow one accepts 2 MB/s. It is the first host, fed from here, or one in the middle."""
    for name in ("WINDOW", "TRIAL", "BEHIND", "WORTH_A_TRIAL"):  # twice as fast
        monkeypatch.setattr(chain, name, getattr(chain, name) / 2)
    hosts = machines(4)
    slowly(monkeypatch, 8 << 20)
    receive = b"    def receive(self, at: int, data: bytes) -> None:\n"
    assert relay_client.SOURCE.count(receive) == 1
    late = (
        b"        import time\n"
        b"        if os.environ['HOME'].endswith('host%d'):\n"
        b"            time.sleep(len(data) / 2e6)\n"
    ) % slow
    slowed = relay_client.SOURCE.replace(receive, receive + late)
    monkeypatch.setattr(relay_client, "SOURCE", slowed)
    report = pushes(hosts, dataset=str(data)).report
    assert all(has(machine, data) for machine in hosts)
    rest = [host.seconds for number, host in enumerate(report.hosts) if number != slow]
    assert report.hosts[slow].seconds > 10
    assert max(rest) < 7
    assert (
        f"{hosts[slow].connection.name}: too slow; the other hosts no longer wait"
        in report.notices[0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("receives", [False, True])
def test_no_host_waits_for_one_that_stays_connected_but_passes_nothing_on(
    machines: Machines,
    pushes: Pushes,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    receives: bool,
) -> None:
    """From some byte on, the first host or one in the middle sends only empty frames."""
    monkeypatch.setattr(chain, "STUCK", 1.0)
    monkeypatch.setattr(payload, "TIMEOUT", 4.0)
    monkeypatch.setattr(payload, "SLOWEST_DISK", 1e9)
    mine = b"os.environ['HOME'].endswith('host%d')" % number
    if receives:
        line = b'link.sendall(struct.pack(">I", len(data)) + data)'
        stuck = b"if at > 4 << 20 and " + mine + b": data = time.sleep(KEEPALIVE) or b''\n"
    else:
        line = b"data = data[max(self.have - at, 0) :]"
        stuck = b"if self.have > 4 << 20 and " + mine + b": return\n"
    assert relay_client.SOURCE.count(line) == 1
    indent = b" " * (16 if receives else 12)
    monkeypatch.setattr(
        relay_client, "SOURCE", relay_client.SOURCE.replace(line, stuck + indent + line)
    )
    hosts = machines(4)
    name = hosts[number].connection.name
    if receives:
        report = pushes(hosts, dataset=str(data)).report
    else:
        with pytest.raises(HostsNotReady) as caught:
            pushes(hosts, dataset=str(data))
        assert list(caught.value.failures) == [name]
        report = caught.value.report
    rest = [machine for machine in hosts if receives or machine is not hosts[number]]
    assert all(has(machine, data) for machine in rest)
    notice = f"{name}: no progress for 1s; the other hosts no longer wait for it"
    assert any(notice in each for each in report.notices)


def test_hosts_that_cannot_reach_each_other_are_fed_from_here_with_a_notice(
    machines: Machines, pushes: Pushes, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = machines(3)
    address = b"for where in (address, "
    assert relay_client.SOURCE.count(address) == 1
    unreachable = relay_client.SOURCE.replace(address, b'for where in ("::1", ')
    monkeypatch.setattr(relay_client, "SOURCE", unreachable)
    report = pushes(hosts, dataset=str(data)).report
    assert all(has(machine, data) for machine in hosts)
    assert report.sent_bytes > 2.9 * SIZE
    assert sum("sending it from this machine instead" in text for text in report.notices) == 2


def test_a_host_without_python_is_sent_the_bytes_directly(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "tar", "cat", "mkdir", "mv", "rm", "cp", "ls", "df", "awk", "find", "tr"):
        (tools / name).symlink_to(f"/bin/{name}")
    for name in ("touch", "wc", "xargs"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    plain = machines(1, path=str(tools))
    others = machines(2)
    report = pushes(plain + others, dataset=str(data)).report
    assert all(has(machine, data) for machine in plain + others)
    assert 1.9 * SIZE < report.sent_bytes < 2.1 * SIZE


def test_a_read_only_disk_is_reported_and_the_hosts_after_it_have_the_tree(
    machines: Machines, pushes: Pushes, data: Path
) -> None:
    hosts = machines(3)
    folder = hosts[1].home / ".ddpctl"
    (folder / "datasets").mkdir(parents=True)
    (folder / "datasets").chmod(0o555)
    if os.geteuid() == 0:
        subprocess.run(["chattr", "+i", folder / "datasets"], check=False, capture_output=True)
        if not subprocess.run(["touch", folder / "datasets" / "x"], capture_output=True).returncode:
            pytest.skip("root may write everywhere here")
    try:
        with pytest.raises(HostsNotReady) as caught:
            pushes(hosts, dataset=str(data))
    finally:
        subprocess.run(["chattr", "-i", folder / "datasets"], check=False, capture_output=True)
    assert list(caught.value.failures) == [hosts[1].connection.name]
    assert has(hosts[0], data)
    assert has(hosts[2], data)


def test_an_agent_answers_only_with_the_certificate_of_the_push(
    machines: Machines, data: Path
) -> None:
    (machine,) = machines(1)
    agent = relay_client.Relay(machine.connection, "127.0.0.1", *relay_client.one_time_pair())
    try:
        stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        link = stranger.wrap_socket(socket.create_connection(("127.0.0.1", agent.port), 5))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            link.sendall(b'{"id": "p0", "at": 0}\n')
            if not link.recv(1):
                raise ConnectionError
    finally:
        agent.close()


def test_a_host_may_ask_for_a_payload_before_the_order_to_open_it_arrives(
    machines: Machines, tmp_path: Path
) -> None:
    (machine,) = machines(1)
    pair = relay_client.one_time_pair()
    (tmp_path / "pair").write_text("".join(pair))
    other = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    other.check_hostname, other.verify_mode = False, ssl.CERT_NONE
    other.load_cert_chain(tmp_path / "pair")
    agent = relay_client.Relay(machine.connection, "127.0.0.1", *pair)
    try:
        link = other.wrap_socket(socket.create_connection(("127.0.0.1", agent.port)))
        link.sendall(b'{"id": "p0", "at": 0}\n')
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.recv(1)
        agent.order("open", id="p0", argv=["cat"], upstreams=[])
        assert any(event.kind == "starved" for event in agent.events())
        agent.feed("p0", 0, b"bytes")
        link.settimeout(10)
        received = b""
        while b"bytes" not in received:
            received += link.recv(100) or pytest.fail("the agent hung up")
    finally:
        agent.close()


@pytest.mark.parametrize(("address", "elsewhere"), [("127.0.0.7", False), ("192.0.2.1", True)])
def test_an_agent_listens_where_the_other_hosts_reach_it_and_nowhere_else(
    machines: Machines, address: str, elsewhere: bool
) -> None:
    """On all addresses only if the host does not have that one, as behind NAT."""
    (machine,) = machines(1)
    agent = relay_client.Relay(machine.connection, address, *relay_client.one_time_pair())
    try:
        with socket.socket() as link:
            assert (link.connect_ex(("127.0.0.1", agent.port)) == 0) == elsewhere
        if not elsewhere:
            socket.create_connection((address, agent.port), 5).close()
    finally:
        agent.close()


@pytest.mark.parametrize("python", ["exit 0", "echo rubbish; exec cat", "echo '{}'; exec cat"])
def test_a_host_with_a_useless_python_is_sent_the_bytes_directly(
    machines: Machines, pushes: Pushes, data: Path, tmp_path: Path, python: str
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "python3").write_text(f"#!/bin/sh\n{python}\n")
    (tools / "python3").chmod(0o755)
    hosts = machines(2) + machines(1, path=f"{tools}:/usr/bin:/bin")
    pushes(hosts, dataset=str(data))
    assert all(has(machine, data) for machine in hosts)


def slowly(monkeypatch: pytest.MonkeyPatch, rate: int) -> None:
    """The launcher feeds no faster than `rate` bytes a second."""
    feed = relay_client.Relay.feed

    def later(self: relay_client.Relay, name: str, at: int, data: bytes) -> None:
        time.sleep(len(data) / rate)
        feed(self, name, at, data)

    monkeypatch.setattr(relay_client.Relay, "feed", later)


def kill_when(machine: Machine, size: int) -> None:
    """As if its power had been cut, once it has written some."""
    draft = machine.home / ".ddpctl" / "datasets"
    until(lambda: sum(f.stat().st_size for f in draft.glob(".*/tree/*")) > size)
    machine.server.stop()


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_interrupted_push_ends_at_once_and_leaves_no_agent(
    machines: Machines, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(24):
        (data / str(number)).write_bytes(os.urandom(16 << 20))
    hosts = machines(3)
    rows = [m.connection.host for m in hosts]
    (tmp_path / "hosts.yaml").write_text(
        "hosts:\n"
        + "".join(
            f"  - {{host: {h.host}, port: {h.port}, identity_file: {h.identity_file}}}\n"
            for h in rows
        )
        + f"job: {{dataset: {data}}}\n"
    )
    argv = [sys.executable, "-m", "launcher", "push", str(tmp_path / "hosts.yaml")]
    process = subprocess.Popen(
        [*argv, "--dataset"],
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: any((hosts[2].home / ".ddpctl").rglob("*")), 60)  # it has begun there
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    until(lambda: not any(agents(machine) for machine in hosts))
    assert not any(machine.trees("datasets") for machine in hosts)
