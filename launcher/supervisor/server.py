"""Node 0's connections to the other supervisors."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import replace
from typing import Any

from .channel import MALFORMED, Channel, Refused, Status
from .coordinator import Contact, Coordinator
from .journal import Journal
from .peers import RETRY, Peers
from .spec import Spec

MAX_STRANGERS = 64  # unauthenticated connections, in addition to one per node that has not joined
MAX_PER_ADDRESS = 8
HELLO_TIMEOUT = 3.0  # seconds for a connection to authenticate


class Server(Peers):
    """Node 0: accepts the other nodes' connections and sends them its coordinator's decisions."""

    def __init__(self, spec: Spec, journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self.coordinator = Coordinator(spec, self.began)
        self._strangers: list[Channel] = []  # not authenticated yet
        self._channels: dict[int, Channel] = {}
        self._socket: socket.socket | None = None
        self._bind_at = 0.0

    def contacts(self) -> list[Contact]:
        return list(self.coordinator.contacts.values())

    def decide(self, status: Status, now: float) -> None:
        if self._socket is None and self.spec.nnodes > 1 and now >= self._bind_at:
            self._listen(now)
        for late in [other for other in self._strangers if now - other.opened > HELLO_TIMEOUT]:
            self.refuse("a connection that did not authenticate in time")
            self._disconnect(late)
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
        except MALFORMED as error:
            self.refuse("a connection that %s" % error)
            self._disconnect(channel)
        except OSError:
            self._disconnect(channel)

    def close(self) -> None:
        """Close the connections after every node could read the last decision."""
        deadline = time.monotonic() + 1.0
        while self._channels and self.decision.over and time.monotonic() < deadline:
            for key, _ in self.selector.select(0.05):
                key.data(key.fileobj)
        for channel in [*self._channels.values(), *self._strangers]:
            self.drop(channel.sock)
        if self._socket:
            self.drop(self._socket)
            self._socket = None

    def _listen(self, now: float) -> None:
        """Listen on node 0's own address if that is an IP address, else on all addresses."""
        address = self.spec.internal_ip or self.spec.master_addr
        try:
            family = socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)[0][0]
        except socket.gaierror:
            address, family = "", socket.AF_INET
        where = (address, self.spec.control_port)
        try:
            self._socket = socket.create_server(where, family=family, backlog=128)
        except OSError as error:
            self.coordinator.port_error, self._bind_at = error, now + RETRY
            return
        self.coordinator.port_error = None
        self._socket.setblocking(False)
        self.selector.register(self._socket, selectors.EVENT_READ, self._accept)

    def _accept(self, server: socket.socket) -> None:
        """Accept a connection. If too many are unauthenticated, the oldest one is closed."""
        try:
            sock, (address, *_) = server.accept()
            channel = Channel(sock, self.spec.token, listening=True, address=address)
        except OSError:
            return
        neighbours = [other for other in self._strangers if other.address == address]
        room = MAX_STRANGERS + self.spec.nnodes - len(self._channels)
        for crowd, most in ((neighbours, MAX_PER_ADDRESS), (self._strangers, room)):
            if len(crowd) >= most:
                self._disconnect(crowd[0])
        self._strangers.append(channel)
        self.listen_to(channel)

    def _take(self, channel: Channel, status: Status) -> None:
        rank = status.node_rank
        if rank not in range(1, self.spec.nnodes) or channel.node_rank not in (None, rank):
            raise Refused("says that it is node %r" % rank)
        if channel.node_rank is None:
            channel.node_rank = rank
            self._strangers.remove(channel)
            if rank in self._channels:
                self.drop(self._channels[rank].sock)
            self._channels[rank] = channel
        self.coordinator.report(status, channel.heard)

    def _answer(self, channel: Channel, rank: int) -> None:
        echo = self.coordinator.statuses[rank].sent
        try:
            channel.send(replace(self.decision, echo=echo, now=time.time()))
        except OSError:
            self._disconnect(channel)

    def _disconnect(self, channel: Channel) -> None:
        self.drop(channel.sock)
        if channel in self._strangers:
            self._strangers.remove(channel)
        elif channel.node_rank is not None and self._channels.get(channel.node_rank) is channel:
            del self._channels[channel.node_rank]
            self.coordinator.contacts[channel.node_rank].closed = time.monotonic()
