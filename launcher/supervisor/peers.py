"""The connections between an attempt's supervisors, which form a star around node 0.

Messages are states, not commands: each node sends its status, and node 0 answers with its decision.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from .channel import BROKEN, Channel, Decision, Status
from .coordinator import SETTLE, Coordinator, PeerContact
from .events import Clock, Reason
from .journal import Journal
from .spec import Spec

HEARTBEAT = 1.0  # seconds
LONGEST_WAIT = 120.0  # seconds that a node may wait for a file system; failover of NFS takes 90
RETRY = 0.2  # seconds between attempts to connect
MAX_STRANGERS = 64  # unauthenticated connections allowed, in addition to one per missing node


class Peers:
    """The other nodes, as this node's supervisor sees them."""

    def __init__(self, spec: Spec, journal: Journal, selector: Any) -> None:
        self.spec, self.journal, self.selector = spec, journal, selector
        self.began = self.turned = time.monotonic()
        self.decision = Decision()  # node 0's newest
        self.contacts: dict[int, PeerContact] = {}  # with the nodes that have joined, by node rank
        self.clock_offset = 0.0  # seconds to add to this node's clock to get node 0's

    @property
    def all_joined(self) -> bool:
        """Whether node 0 has been in contact with all nodes, or this node with node 0."""
        return len(self.contacts) == (1 if self.spec.node_rank else self.spec.nnodes - 1)

    def turn(self, status: Status) -> None:
        """Send messages that are due and update `decision`. status: this node's own."""
        now = time.monotonic()
        if now - self.turned > 2 * HEARTBEAT:  # this process was suspended
            for contact in self.contacts.values():
                contact.forgive(now)  # so a peer's silence proves nothing
        self.turned = now
        self.decide(status, now)

    def keep_alive(self) -> None:
        """Send heartbeats from a thread while the loop waits for a slow or hung file system."""

        def beat() -> None:
            while True:
                time.sleep(HEARTBEAT)
                self.beat(time.monotonic())

        with contextlib.suppress(RuntimeError):  # the job has used up the process limit
            threading.Thread(target=beat, daemon=True, name="heartbeats").start()

    def beat(self, now: float) -> None:
        """Repeat the last message while the loop is late.

        Give up after a while: the loop may be stuck.
        """
        if HEARTBEAT < now - self.turned < LONGEST_WAIT:
            for channel in self.channels():
                with contextlib.suppress(OSError):  # the loop will notice
                    channel.repeat()

    # NodePeer and Server implement these differently:
    def channels(self) -> list[Channel]:
        return []

    def decide(self, status: Status, now: float) -> None: ...
    def receive(self, channel: Channel) -> None: ...
    def close(self) -> None: ...

    def listen_to(self, channel: Channel) -> None:
        self.selector.register(channel.sock, selectors.EVENT_READ, lambda _: self.receive(channel))

    def drop(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(sock)
        sock.close()


class NodePeer(Peers):
    """Peers on a node other than 0: sends the node's status to node 0 and receives its decisions."""

    def __init__(self, spec: Spec, journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self.channel: Channel | None = None
        self._sent: Any = None  # the last sent values of the fields whose changes are sent at once
        self._next_heartbeat = 0.0
        self._connecting = False
        self._connected: socket.socket | None = None  # a new connection, not yet in use
        self._tried_at = 0.0
        self._shortest_round_trip = float("inf")

    def channels(self) -> list[Channel]:
        channel = self.channel  # read once, because the loop may close it meanwhile
        return [channel] if channel else []

    def decide(self, status: Status, now: float) -> None:
        if self.decision.over:
            return
        if self.channel is None:
            self._connect(now)
        elif self.channel.ready:
            self._send(self.channel, status, now)
        if why := self._lost(now):  # this node will never learn more
            verdict = self.decision.verdict or status.reason or why
            self.decision = replace(self.decision, verdict=verdict, over=True)

    def _send(self, channel: Channel, status: Status, now: float) -> None:
        of_status = (status.round, status.phase, status.reason, status.alive, status.stacks)
        news = (channel, *of_status, status.leaving)
        if news == self._sent and now < self._next_heartbeat:
            return
        self._sent, self._next_heartbeat = news, now + HEARTBEAT
        try:
            channel.send(replace(status, sent=time.time()))
        except OSError:
            self._disconnect()

    def _lost(self, now: float) -> Reason | None:
        host = self.spec.hosts[0]
        if 0 not in self.contacts:
            if now - self.began <= self.spec.start_timeout:
                return None
            message = "could not join node 0 (%s) within %d s" % (host, self.spec.start_timeout)
            return Reason("never-joined", message, self.spec.node_rank, self.spec.host, time.time())
        why = self.contacts[0].lost(now, self.spec.peer_timeout)
        return Reason("host-lost", why, 0, host, time.time() + self.clock_offset) if why else None

    def receive(self, channel: Channel) -> None:
        try:
            for decision in channel.receive():
                self.contacts[0] = PeerContact(time.monotonic())
                self._set_clock(decision)
                self.decision = decision
        except BROKEN:
            self._disconnect()

    def close(self) -> None:
        if self.channel:
            self.drop(self.channel.sock)
        self.channel = None

    def _set_clock(self, decision: Decision) -> None:
        """Estimate the clock offset as NTP does, from the shortest round trip so far."""
        now = time.time()
        round_trip = now - decision.echo
        if 0 <= round_trip < self._shortest_round_trip:
            self._shortest_round_trip = round_trip
            self.clock_offset = decision.now - (decision.echo + now) / 2
            self.journal.write_event(Clock(self.clock_offset, round_trip / 2))

    def _connect(self, now: float) -> None:
        """Connect in a thread, because connecting may block (DNS, firewalls).

        Only one thread runs at a time.
        """
        if self._connected is not None:
            sock, self._connected = self._connected, None
            with contextlib.suppress(OSError):
                self.channel = Channel(sock, self.spec.token, listening=False)
                self.listen_to(self.channel)
        elif not self._connecting and now - self._tried_at >= RETRY:
            self._connecting, self._tried_at = True, now
            try:
                threading.Thread(target=self._dial, daemon=True, name="connect").start()
            except RuntimeError:  # the job has used up the process limit
                self._dial()

    def _dial(self) -> None:
        where = (self.spec.master_addr, self.spec.control_port)
        with contextlib.suppress(OSError):
            self._connected = socket.create_connection(where, timeout=SETTLE)
        self._connecting = False

    def _disconnect(self) -> None:
        self.close()
        if 0 in self.contacts and self.contacts[0].closed is None:
            self.contacts[0].closed = time.monotonic()


class Server(Peers):
    """Peers on node 0: accepts the other nodes' connections and sends them the decisions."""

    def __init__(self, spec: Spec, journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self.coordinator = Coordinator(spec, self.began)
        self.contacts = self.coordinator.contacts
        self._strangers: dict[Channel, str] = {}  # unauthenticated channels and their addresses
        self._channels: dict[int, Channel] = {}
        self._socket: socket.socket | None = None

    def channels(self) -> list[Channel]:
        return list(self._channels.values())

    def decide(self, status: Status, now: float) -> None:
        if self._socket is None and self.spec.nnodes > 1:
            self._listen()
        self.coordinator.report(status, now)
        self.coordinator.decide(now)
        if self.decision != self.coordinator.decision:
            self.decision = self.coordinator.decision
            for rank, channel in list(self._channels.items()):
                self._answer(channel, rank)

    def receive(self, channel: Channel) -> None:
        try:
            for status in channel.receive():
                self._take(channel, status)
            if channel.node_rank is not None:
                self._answer(channel, channel.node_rank)
        except BROKEN:
            self._disconnect(channel)

    def close(self) -> None:
        """Close the connections, after giving the nodes a second to read the last decision."""
        deadline = time.monotonic() + 1.0
        while self._channels and self.decision.over and time.monotonic() < deadline:
            for key, _ in self.selector.select(0.05):
                key.data(key.fileobj)
        for channel in [*self._channels.values(), *self._strangers]:
            self.drop(channel.sock)
        if self._socket:
            self.drop(self._socket)

    def _listen(self) -> None:
        """Listen on node 0's own address if that is an IP address, else on all addresses."""
        address = self.spec.master_addr
        try:
            family = socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)[0][0]
        except socket.gaierror:
            address, family = "", socket.AF_INET
        where = (address, self.spec.control_port)
        try:
            self._socket = socket.create_server(where, family=family, backlog=128)
        except OSError as error:
            self.coordinator.port_error = error
            return
        self.coordinator.port_error = None
        self._socket.setblocking(False)
        self.selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _accept(self, server: socket.socket) -> None:
        """Accept a connection.

        If too many connections are unauthenticated, drop one from the address that has the most.
        """
        try:
            sock, (address, *_) = server.accept()
            channel = Channel(sock, self.spec.token, listening=True)
        except OSError:
            return
        if len(self._strangers) >= MAX_STRANGERS + self.spec.nnodes - len(self._channels):
            counts = Counter(self._strangers.values())
            self._disconnect(max(self._strangers, key=lambda each: counts[self._strangers[each]]))
        self._strangers[channel] = address
        self.listen_to(channel)

    def _take(self, channel: Channel, status: Status) -> None:
        rank = status.node_rank
        if rank not in range(1, self.spec.nnodes) or channel.node_rank not in (None, rank):
            raise ValueError("it claims to be node %r" % rank)
        if channel.node_rank is None:
            channel.node_rank = rank
            del self._strangers[channel]
            if rank in self._channels:
                self.drop(self._channels[rank].sock)
            self._channels[rank] = channel
        self.coordinator.report(status, time.monotonic())

    def _answer(self, channel: Channel, rank: int) -> None:
        echo = self.coordinator.statuses[rank].sent
        try:
            channel.send(replace(self.decision, echo=echo, now=time.time()))
        except OSError:
            self._disconnect(channel)

    def _disconnect(self, channel: Channel) -> None:
        self.drop(channel.sock)
        if channel in self._strangers:
            del self._strangers[channel]
        elif channel.node_rank is not None and self._channels.get(channel.node_rank) is channel:
            del self._channels[channel.node_rank]
            self.contacts[channel.node_rank].closed = time.monotonic()
