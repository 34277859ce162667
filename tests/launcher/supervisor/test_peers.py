"""Supervisors that talk to each other over real sockets, in one process, with the test's own clock."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from supervisors import free_port, spec, status, until, why

from launcher.logs.journal_reader import JournalReader
from launcher.logs.log_entry import events_in
from launcher.supervisor import coordinator, peers
from launcher.supervisor.channel import Channel, Decision
from launcher.supervisor.coordinator import RECONNECT
from launcher.supervisor.events import Clock, Event, Phase
from launcher.supervisor.journal import Journal
from launcher.supervisor.peers import NodePeer, Peers, Server

TOKEN = "a run's secret"


class Time:
    """The `time` module of every supervisor here; only the test moves its clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


class Network:
    """Node 0 and node 1, each with a journal, a status and a loop that the test turns."""

    def __init__(self, folder: Path, clock: Time, **given: Any) -> None:
        self.clock, self.folder = clock, folder
        self.given = {"master_addr": "127.0.0.1", "control_port": free_port(), "token": TOKEN}
        self.given |= given
        self.nodes: list[Peers] = []
        self.statuses = [status(0), status(1)]

    def add(self, kind: type[Peers], **given: Any) -> Peers:
        rank = len(self.nodes)
        folder = self.folder / str(rank)
        folder.mkdir(parents=True)
        given = {**self.given, "node_rank": rank, "host": f"gpu{rank + 1}", **given}
        made = kind(spec(**given), Journal(str(folder), "h"), selectors.DefaultSelector())
        self.nodes.append(made)
        return made

    def turn(self, *nodes: Peers) -> None:
        for node in nodes or self.nodes:
            for key, _ in node.selector.select(0):
                key.data(key.fileobj)
            node.turn(self.statuses[node.spec.node_rank])
        for thread in threading.enumerate():
            if thread.name == "connect":  # by the real clock
                thread.join(20)

    def until(self, true: Callable[[], bool], *nodes: Peers, step: float = 0.0) -> None:
        """The clock moves by `step` seconds between two looks at everything."""

        def turned() -> bool:
            self.turn(*nodes)
            while step and not true() and self.clock.now < self.end:
                self.clock.now += step
                self.turn(*nodes)
            return true()

        self.end = self.clock.now + 1000.0
        until(turned, 20)

    def events(self, rank: int, kind: type[Event]) -> list[Any]:
        entries = JournalReader().feed((self.folder / str(rank) / "journal").read_bytes())
        return [event for _, event in events_in(entries) if isinstance(event, kind)]

    def close(self) -> None:
        for node in self.nodes:
            node.decision = Decision()  # do not wait for the other end
            node.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in (coordinator, peers):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr("os.set_blocking", lambda *_: None)  # this process's own stdout
    return made


@pytest.fixture
def network(tmp_path: Path, clock: Time) -> Iterator[Network]:
    """Node 0 alone."""
    made = Network(tmp_path, clock)
    made.add(Server)
    yield made
    made.close()


@pytest.fixture
def pair(network: Network) -> Network:
    """Both nodes, once they have heard each other."""
    peer = network.add(NodePeer)
    assert isinstance(peer, NodePeer)
    network.until(lambda: 0 in peer.contacts, step=0.1)
    return network


def test_a_reason_of_one_node_is_the_verdict_on_both(pair: Network) -> None:
    reason = why("rank-failed", 1, 5.0)
    pair.statuses[1] = status(1, reason=reason, phase=Phase.STOPPED)
    pair.until(lambda: all(node.decision.verdict == reason for node in pair.nodes))
    assert not any(node.decision.over for node in pair.nodes)
    pair.statuses[0] = status(0, reason=reason, phase=Phase.STOPPED)
    pair.until(lambda: all(node.decision.over for node in pair.nodes))


def test_nodes_that_have_nothing_to_report_send_heartbeats(pair: Network) -> None:
    end = pair.clock.now + 30.0
    pair.until(lambda: pair.clock.now > end, step=0.5)
    assert not any(node.decision.verdict for node in pair.nodes)


@pytest.mark.parametrize("silent", [0, 1])
def test_a_node_whose_peer_goes_silent_ends(pair: Network, silent: int) -> None:
    """Each side of a cut network finds out by itself."""
    other = pair.nodes[1 - silent]
    pair.until(lambda: other.decision.verdict is not None, other, step=0.5)
    assert other.decision.verdict is not None
    assert (other.decision.verdict.kind, other.decision.verdict.node_rank) == ("host-lost", silent)


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_node_that_waits_for_a_file_system_is_lost_only_after_two_minutes(
    pair: Network, waiting: int
) -> None:
    """Its loop does not turn, but its thread sends heartbeats."""
    node, other = pair.nodes[waiting], pair.nodes[1 - waiting]
    began = pair.clock.now

    def lost() -> bool:
        node.beat(pair.clock.now)
        return other.decision.verdict is not None

    pair.until(lost, other, step=0.5)
    assert 125 < pair.clock.now - began < 135
    assert other.decision.verdict and other.decision.verdict.kind == "host-lost"


def test_a_node_that_waited_for_a_file_system_continues(pair: Network) -> None:
    first, second = pair.nodes
    end = pair.clock.now + 100.0

    def over() -> bool:
        first.beat(pair.clock.now)
        return pair.clock.now > end

    pair.until(over, second, step=0.5)
    pair.until(lambda: pair.clock.now > end + 20.0, step=0.5)
    assert not any(node.decision.verdict for node in pair.nodes)


def test_a_short_silence_is_nothing(pair: Network) -> None:
    first, second = pair.nodes
    end = pair.clock.now + 7.5
    pair.until(lambda: pair.clock.now > end, second, step=0.5)
    assert second.decision.verdict is None
    first.turned = pair.clock.now  # it ran, but its packets were lost
    pair.until(lambda: pair.clock.now > end + 10, step=0.5)
    assert not any(node.decision.verdict for node in pair.nodes)


def test_a_connection_that_breaks_comes_back(pair: Network) -> None:
    peer = pair.nodes[1]
    assert isinstance(peer, NodePeer) and peer.channel
    peer.channel.sock.shutdown(socket.SHUT_RDWR)
    before = peer.contacts[0]
    pair.until(lambda: before.closed is not None)
    pair.until(lambda: peer.channel is not None and peer.contacts[0] is not before, step=0.02)
    assert not any(node.decision.verdict for node in pair.nodes)


def test_a_node_joins_although_no_thread_can_start(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    peer = network.add(NodePeer)
    assert isinstance(peer, NodePeer)
    network.until(lambda: 0 in peer.contacts, step=0.1)


def test_a_dead_supervisor_is_noticed_at_once(pair: Network) -> None:
    first, second = pair.nodes
    first.close()
    gone = pair.clock.now
    pair.until(lambda: second.decision.over, second, step=0.1)
    assert second.decision.verdict and (
        second.decision.verdict.kind,
        second.decision.verdict.node_rank,
    ) == ("host-lost", 0)
    assert pair.clock.now - gone < RECONNECT + 1.0
    pair.nodes.remove(first)


def test_clocks_are_compared(pair: Network) -> None:
    [clock, *_] = pair.events(1, Clock)
    assert abs(clock.offset) < clock.error + 0.001 < 1.0


def test_a_node_that_joins_late_learns_that_the_run_has_ended(network: Network) -> None:
    [first] = network.nodes
    reason = why("start", 0, 1.0)
    network.statuses[0] = status(0, reason=reason, phase=Phase.STOPPED, alive=0)
    network.until(lambda: first.decision.verdict == reason)
    second = network.add(NodePeer)
    network.until(lambda: second.decision.verdict == reason, step=0.1)


def test_a_node_that_cannot_reach_node_0_says_so(network: Network) -> None:
    peer = network.add(NodePeer, control_port=free_port(), start_timeout=30.0)
    network.until(lambda: peer.decision.over, peer, step=1.0)
    assert peer.decision.verdict and peer.decision.verdict.kind == "never-joined"
    assert peer.decision.verdict.message == "could not join node 0 (gpu1) within 30 s"


def test_a_stranger_is_refused_and_does_no_harm(pair: Network) -> None:
    where = ("127.0.0.1", pair.given["control_port"])
    stranger = Channel(socket.create_connection(where), "a guess", listening=False)
    pair.until(lambda: stranger.receive() == [] and stranger.ready)
    stranger.send(status(1, reason=why("rank-failed", 1, 0.0), phase=Phase.STOPPED))
    pair.until(lambda: sock_closed(stranger.sock))
    with socket.create_connection(where) as noise:
        noise.sendall(b"GET / HTTP/1.1\r\n\r\n")
        pair.until(lambda: noise.recv(1) == b"" or True)
    end = pair.clock.now + 3.0
    pair.until(lambda: pair.clock.now > end, step=0.5)
    assert not any(node.decision.verdict for node in pair.nodes)
    stranger.sock.close()


def test_the_token_never_travels_and_nothing_can_be_replayed() -> None:
    ends = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(ends.getsockname())
    accepted, _ = ends.accept()
    first, second = Channel(accepted, TOKEN, True), Channel(client, TOKEN, False)
    until(lambda: first.receive() == [] and first.ready, 5)
    until(lambda: second.receive() == [] and second.ready, 5)
    second.send(status(1))
    until(lambda: bool(first.receive()), 5)
    recorded = second._signature(b"{}", 0, False) + b" {}\n"
    client.send(recorded)  # number 0 was used
    with pytest.raises(ValueError, match="token"):
        until(lambda: bool(first.receive()), 5)
    for each in (accepted, client, ends):
        each.close()


def test_a_taken_control_port_is_reported(network: Network) -> None:
    [first] = network.nodes
    with socket.create_server(("127.0.0.1", network.given["control_port"])):
        network.until(lambda: first.decision.verdict is not None, step=0.5)
    assert first.decision.verdict and first.decision.verdict.kind == "port-in-use"


def test_a_control_port_that_becomes_free_is_taken(network: Network) -> None:
    with socket.create_server(("127.0.0.1", network.given["control_port"])):
        network.turn()
    peer = network.add(NodePeer)
    network.until(lambda: 0 in peer.contacts, step=0.1)
    end = network.clock.now + coordinator.SETTLE + 1.0
    network.until(lambda: network.clock.now > end, step=0.5)
    assert not any(node.decision.verdict for node in network.nodes)


# --- strangers ------------------------------------------------------------------------------------


@pytest.fixture
def strangers(network: Network) -> Iterator[list[socket.socket]]:
    """Connections from `127.0.0.<n>` that the tests open."""
    opened: list[socket.socket] = []
    yield opened
    for sock in opened:
        sock.close()


def connect(network: Network, number: int) -> socket.socket:
    where = ("127.0.0.1", network.given["control_port"])
    return socket.create_connection(where, source_address=(f"127.0.0.{number}", 0))


def test_idle_connections_cannot_use_up_the_descriptors(
    network: Network, strangers: list[socket.socket]
) -> None:
    """A node can still join, and is not dropped."""
    network.turn()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(240):
        strangers.append(connect(network, 2))
        network.turn()
        held = len(list(Path("/proc/self/fd").iterdir())) - before - len(strangers)
        assert held <= 64 + 2
    peer = network.add(NodePeer)
    assert isinstance(peer, NodePeer)
    network.until(lambda: 0 in peer.contacts, step=0.1)
    end = network.clock.now + 10.0
    network.until(lambda: network.clock.now > end, step=0.5)
    assert peer.channel is not None and not any(node.decision.verdict for node in network.nodes)


def test_connections_from_one_address_push_out_no_other_node(
    network: Network, strangers: list[socket.socket]
) -> None:
    [first] = network.nodes
    network.turn()
    node = connect(network, 3)
    strangers.append(node)
    for _ in range(100):
        strangers.append(connect(network, 2))
        network.turn(first)
    assert not sock_closed(node)


def test_all_nodes_may_connect_at_once(
    tmp_path: Path, clock: Time, strangers: list[socket.socket]
) -> None:
    network = Network(tmp_path / "many", clock, nnodes=201)
    first = network.add(Server)
    network.turn()
    for number in range(2, 202):
        strangers.append(connect(network, number))
        network.turn(first)
    assert not any(sock_closed(sock) for sock in strangers)
    network.close()


def sock_closed(sock: socket.socket) -> bool:
    """By the other end."""
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_bad_hellos_do_not_fill_the_journal(pair: Network, strangers: list[socket.socket]) -> None:
    before = pair.events(0, Event)
    for _ in range(50):
        strangers.append(connect(pair, 2))
        strangers[-1].sendall(b"hello\nworld\n")
        pair.until(lambda: sock_closed(strangers[-1]))
    assert pair.events(0, Event) == before


# --- the time limit -------------------------------------------------------------------------------


def test_node_0_ends_all_nodes_at_the_time_limit(tmp_path: Path, clock: Time) -> None:
    network = Network(tmp_path, clock, time_limit=60.0)
    network.add(Server)
    network.add(NodePeer)
    began = clock.now
    network.until(lambda: all(node.decision.verdict for node in network.nodes), step=0.5)
    assert 60 < clock.now - began < 62
    for node in network.nodes:
        assert node.decision.verdict
        assert (node.decision.verdict.kind, node.decision.verdict.node_rank) == ("time-limit", 0)
        assert node.decision.verdict.message == "the run reached its time limit of 60 s"
    network.close()


@pytest.mark.parametrize(
    "text",
    [b"[]", b"{}", b"7", b"\xff", b'{"node_rank": 5}', b'{"node_rank": 1, "new": 2}',
     b'{"node_rank": 1, "reason": {"kind": "x"}}', b"[" * 30_000],
)  # fmt: skip
def test_a_malformed_message_is_refused_even_with_the_token(
    network: Network, strangers: list[socket.socket], text: bytes
) -> None:
    network.turn()
    strangers.append(connect(network, 2))
    other = Channel(strangers[0], TOKEN, listening=False)
    network.until(lambda: other.receive() == [] and other.ready)
    strangers[0].sendall(other._signature(text, 0, False) + b" " + text + b"\n")
    network.until(lambda: sock_closed(strangers[0]))
