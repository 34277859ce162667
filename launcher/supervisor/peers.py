"""The connections between an attempt's supervisors, a star around node 0.

This file has the common part, and nodes 1 and up. Nodes send states, not commands: each node its
status, which node 0 answers with its decision.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from dataclasses import replace
from typing import Any

from .channel import MALFORMED, Channel, Decision, Status
from .coordinator import SETTLE, Contact, time_limit_reason
from .events import Clock, Reason, Refused
from .journal import Journal
from .spec import Spec

HEARTBEAT = 1.0  # seconds
RETRY = 0.2  # seconds between attempts to connect or bind
REFUSED_EVERY = 60.0  # seconds between events about refused connections
TIME_LIMIT_MARGIN = 10.0  # seconds for node 0 to enforce the time limit before the other nodes do


class Peers:
    """The other nodes, from the point of view of this node's supervisor."""

    def __init__(self, spec: Spec, journal: Journal, selector: Any) -> None:
        self.spec, self.journal, self.selector = spec, journal, selector
        self.began = self.turned = time.monotonic()
        self.decision = Decision()  # node 0's newest
        self.clock_offset = 0.0  # seconds to add to this node's clock to get node 0's
        self._refused, self._report_refused_at = 0, 0.0

    def turn(self, status: Status) -> None:
        """Exchange messages; called in every turn of the loop. status: this node's own."""
        now = time.monotonic()
        if now - self.turned > 2 * HEARTBEAT:  # this process was suspended
            for contact in self.contacts():
                contact.forgive(now)  # so the silence proves nothing
        self.turned = now
        self.decide(status, now)

    # NodePeer and Server implement these differently:
    def contacts(self) -> list[Contact]:
        raise NotImplementedError

    def decide(self, status: Status, now: float) -> None: ...
    def receive(self, channel: Channel) -> None: ...
    def close(self) -> None: ...

    def refuse(self, message: str) -> None:
        """Record refused connections. At most one event a minute, so that they cannot fill the journal."""
        self._refused += 1
        if self.turned >= self._report_refused_at:
            self.journal.event(Refused(message, self._refused))
            self._refused, self._report_refused_at = 0, self.turned + REFUSED_EVERY

    def listen_to(self, channel: Channel) -> None:
        self.selector.register(channel.sock, selectors.EVENT_READ, lambda _: self.receive(channel))

    def drop(self, sock: socket.socket) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(sock)
        sock.close()


class NodePeer(Peers):
    """A node other than 0: sends its status to node 0, and follows node 0's decisions."""

    def __init__(self, spec: Spec, journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self.channel: Channel | None = None
        self.contact: Contact | None = None  # None: node 0 has never answered
        self._state: Any = None  # the part of the last status that is sent at once if it changes
        self._next_heartbeat = 0.0
        self._connecting = False
        self._connected: socket.socket | None = None  # a new connection, not yet in use
        self._tried_at = 0.0
        self._shortest_round_trip = float("inf")

    def contacts(self) -> list[Contact]:
        return [self.contact] if self.contact else []

    def decide(self, status: Status, now: float) -> None:
        if self.decision.over:
            return
        if self.channel is None:
            self._connect(now)
        elif self.channel.ready:
            self._send(self.channel, status, now)
        verdict, limit = self.decision.verdict, self.spec.time_limit
        if limit and not verdict and now - self.began > limit + TIME_LIMIT_MARGIN:
            self.decision = Decision(time_limit_reason(self.spec))
        if why := self._lost(now):  # this node will never learn more
            self.decision = Decision(self.decision.verdict or status.reason or why, over=True)

    def _send(self, channel: Channel, status: Status, now: float) -> None:
        state = (status.phase, status.reason, status.alive, status.stacks)
        if state == self._state and now < self._next_heartbeat:
            return
        self._state, self._next_heartbeat = state, now + HEARTBEAT
        try:
            channel.send(replace(status, sent=time.time()))
        except OSError:
            self._disconnect()

    def _lost(self, now: float) -> Reason | None:
        host = self.spec.hosts[0]
        if self.contact is None:
            if now - self.began <= self.spec.start_timeout:
                return None
            message = "could not join node 0 (%s) within %d s" % (host, self.spec.start_timeout)
            return Reason("never-joined", message, self.spec.node_rank, self.spec.host, time.time())
        why = self.contact.lost(now, self.spec.peer_timeout)
        return Reason("peer-lost", why, 0, host, time.time() + self.clock_offset) if why else None

    def receive(self, channel: Channel) -> None:
        try:
            was_ready = channel.ready
            decisions = channel.receive()
        except (OSError, *MALFORMED) as error:
            if not isinstance(error, OSError):
                self.refuse("node 0, which %s" % error)
            self._disconnect()
            return
        if channel.ready and not was_ready:
            self._next_heartbeat = 0.0  # so that the next turn introduces this node
        for decision in decisions:
            self.contact = Contact(channel.heard)
            self._set_clock(decision)
            self.decision = replace(decision, verdict=decision.verdict or self.decision.verdict)

    def close(self) -> None:
        if self.channel:
            self.drop(self.channel.sock)
        self.channel = None

    def _set_clock(self, decision: Decision) -> None:
        """Estimate the offset as in NTP: node 0 read its clock midway through the shortest round trip."""
        now = time.time()
        round_trip = now - decision.echo
        if 0 <= round_trip < self._shortest_round_trip:
            self._shortest_round_trip = round_trip
            self.clock_offset = decision.now - (decision.echo + now) / 2
            self.journal.event(Clock(self.clock_offset, round_trip / 2))

    def _connect(self, now: float) -> None:
        """Connect in a thread, one attempt at a time: a name server or a firewall may block it."""
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
        if self.contact and self.contact.closed is None:
            self.contact.closed = time.monotonic()
