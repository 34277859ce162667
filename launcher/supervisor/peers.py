"""The gang: all supervisors of the attempt, a star around node 0. Here the nodes other than 0."""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import Any

from .channel import Link, Refused
from .journal import Journal
from .stop_reason import Reason, reason

BEAT = 1.0  # seconds between two signs of life to a peer
SILENCE = 8.0  # seconds without one, or of a rank stopped by a signal, and it is lost
RECONNECT = 1.0  # seconds for a connection that broke to come back
SETTLE = 3.0  # seconds to wait, once this node has stopped, for the others' story


class Gang:
    """All supervisors of the attempt, a star around node 0. States are told, not commands: each node
    says how it is, node 0 says what follows for all. So a message that is lost does no harm."""

    def __init__(self, spec: dict[str, Any], journal: Journal, selector: Any) -> None:
        self.spec, self.journal, self.selector = spec, journal, selector
        self.me: int = spec["node_rank"]
        self.began = self.turned = time.monotonic()
        self.silence: float = spec.get("peer_timeout", SILENCE)
        self.verdict: Reason | None = None  # why all must stop
        self.over = False  # all nodes are done, or have stopped
        self.stacks_wanted = False  # all seem to hang: each node writes down where its ranks are
        self.offset = 0.0  # seconds to add to this node's clock to have node 0's
        self._beat_at = 0.0
        self._told: tuple[Any, ...] | None = None  # the last status sent, less its numbers

    def turn(self, status: dict[str, Any]) -> None:
        """One look at everything. `status` is this node's own."""
        now = time.monotonic()
        if now - self.turned > 2 * BEAT:  # this process slept, not the peers
            self.forgive(now)
        self.turned = now
        told = (status["phase"], status["reason"] is not None, status["alive"], status["stacks"])
        if told != self._told or now >= self._beat_at:
            self._told, self._beat_at = told, now + BEAT
            self.beat(status, now)
        self.judge(status, now)

    def beat(self, status: dict[str, Any], now: float) -> None:
        raise NotImplementedError

    def judge(self, status: dict[str, Any], now: float) -> None:
        raise NotImplementedError

    def forgive(self, now: float) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def listen_to(self, link: Link) -> None:
        self.selector.register(link.sock, selectors.EVENT_READ, lambda _: self.hear(link))

    def drop(self, link: Link) -> None:
        try:
            self.selector.unregister(link.sock)
        except (KeyError, ValueError):
            pass
        link.close()

    def hear(self, link: Link) -> None:
        raise NotImplementedError

    def lost(self, node_rank: int, how: str) -> Reason:
        host = self.spec["hosts"][node_rank]
        message = "its supervisor " + how
        self.journal.event("peer_lost", node_rank=node_rank, host=host, message=message)
        return reason("peer-lost", message, node_rank, host, time.time() + self.offset)


class Member(Gang):
    """A node other than 0: tells node 0 how it is, hears what follows."""

    def __init__(self, spec: dict[str, Any], journal: Journal, selector: Any) -> None:
        super().__init__(spec, journal, selector)
        self._link: Link | None = None
        self._socket: socket.socket | None = None  # connecting
        self._try_at = 0.0
        self._tried_at = 0.0
        self._lost_at: float | None = None
        self._joined = False
        self._best_round_trip = float("inf")

    def beat(self, status: dict[str, Any], now: float) -> None:
        if self._link and self._link.ready:
            try:
                self._link.send(dict(status, node_rank=self.me, sent=time.time()))
            except OSError:
                self._broke()

    def judge(self, status: dict[str, Any], now: float) -> None:
        if self.over:
            return
        lost: Reason | None = None
        if self._link is None:
            self._connect(now)
            lost = self._not_found(now)
        elif now - self._link.heard > self.silence:
            lost = self.lost(0, "was not heard for %d s" % self.silence)
        if lost:
            self.over = True  # as far as this node will ever know
            self.verdict = self.verdict or status["reason"] or lost

    def _not_found(self, now: float) -> Reason | None:
        if self._joined:
            if now - (self._lost_at or now) <= RECONNECT:
                return None
            return self.lost(0, "closed the connection and did not come back")
        patience = self.spec.get("start_timeout", 60.0)
        if now - self.began <= patience:
            return None
        host = self.spec["hosts"][self.me]
        message = "could not join node 0 (%s) within %d s" % (self.spec["hosts"][0], patience)
        return reason("never-joined", message, self.me, host, time.time())

    def forgive(self, now: float) -> None:
        if self._link:
            self._link.heard = now
        if self._lost_at:
            self._lost_at = now

    def hear(self, link: Link) -> None:
        try:
            was_ready = link.ready
            messages = link.receive()
            if link.ready and not was_ready:
                self._told = None  # so that the next turn introduces this node
        except Refused as error:
            self.journal.event("refused", message=str(error))
            self._broke()
            return
        except OSError:
            self._broke()
            return
        for message in messages:
            self._joined, self._lost_at = True, None
            self._set_clock(message)
            self.verdict = message["stop"] or self.verdict
            self.over = message["over"]
            self.stacks_wanted = message["stacks"]

    def close(self) -> None:
        if self._link:
            self.drop(self._link)
        self._link = None

    def _set_clock(self, message: dict[str, Any]) -> None:
        """As NTP does: node 0 read its clock in the middle of the shortest round trip."""
        now = time.time()
        round_trip = now - message["echo"]
        if 0 <= round_trip < self._best_round_trip:
            self._best_round_trip = round_trip
            self.offset = message["now"] - (message["echo"] + now) / 2
            self.journal.event("clock", offset=self.offset, error=round_trip / 2)

    def _connect(self, now: float) -> None:
        if self._socket and now - self._tried_at > SETTLE:
            self._give_up()
        if self._socket or now < self._try_at:
            return
        self._tried_at, self._try_at = now, now + 0.2
        try:
            where = (self.spec["master_addr"], self.spec["control_port"])
            family, kind, _, _, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind)
            self._socket.setblocking(False)
            self._socket.connect_ex(address)
            self.selector.register(self._socket, selectors.EVENT_WRITE, self._connected)
        except OSError:
            self._give_up()

    def _connected(self, sock: socket.socket) -> None:
        failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.selector.unregister(sock)
        self._socket = None
        try:
            if failed:
                raise OSError(failed, os.strerror(failed))
            self._link = Link(sock, self.spec["token"], listening=False)
            self.listen_to(self._link)
        except OSError:
            sock.close()
            self._link = None

    def _give_up(self) -> None:
        if self._socket:
            try:
                self.selector.unregister(self._socket)
            except (KeyError, ValueError):
                pass
            self._socket.close()
        self._socket = None

    def _broke(self) -> None:
        self.close()
        self._lost_at = self._lost_at or time.monotonic()
