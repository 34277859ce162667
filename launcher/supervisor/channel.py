"""A connection between two supervisors, and the messages sent over it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import threading
from dataclasses import asdict, dataclass
from typing import Any

from .events import Phase, Reason, RestartInPlace

LONGEST_MESSAGE = 1 << 16  # bytes
# raised if the connection breaks, or if the data cannot come from a supervisor with the run's token
BROKEN = (OSError, ValueError, TypeError, LookupError, RecursionError)


@dataclass(frozen=True)
class Status:
    """The state of a node, which the node sends to node 0. Ages and durations are in seconds."""

    node_rank: int
    round: int = 0  # the number of restarts in place
    phase: Phase = Phase.RUNNING
    reason: Reason | None = None  # why this node is stopping
    alive: int = 0  # number of running ranks
    early: Reason | None = None  # the first exit with code 0 while other ranks ran
    stuck: float = 0.0  # time since any rank last showed activity
    begun: bool = False  # whether a rank has written output
    stacks: bool = False  # whether the stacks that node 0 requested are in the journal
    log_age: float = 0.0  # time since the ranks' last output
    progress_age: float | None = None  # time since the trainer's last report; None if there is none
    leaving: bool = False  # whether this node must not start torchrun again
    # once stopped
    cause: Reason | None = None  # this node's candidate for the first failure
    weight: int = 0  # the classify.Weight of `cause`
    saved: bool = False  # whether there is a new checkpoint since the start of this round
    sent: float = 0.0  # unix seconds on the sender's clock


@dataclass(frozen=True)
class Decision:
    """Node 0's decision, which it sends to all nodes."""

    restart: RestartInPlace | None = None  # the newest; the other fields apply to the time after it
    verdict: Reason | None = None  # why all nodes must stop
    over: bool = False  # whether every node is done, has stopped or is lost
    refusal: str = ""  # why node 0 does not restart the run
    stacks: bool = False  # whether every node must write its ranks' stacks to its journal
    echo: float = 0.0  # the `sent` field of the status that this decision answers
    now: float = 0.0  # unix seconds on node 0's clock


class Channel:
    """JSON lines over TCP, signed with a key derived from the run's token and both ends' nonces.

    The token itself is never sent, and a recorded conversation cannot be replayed.
    """

    def __init__(self, sock: socket.socket, token: str, listening: bool) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.node_rank: int | None = None  # the peer's, once it is authenticated
        self._token = token.encode()
        self._listening = listening
        self._nonce = os.urandom(16).hex().encode()
        self.ready = False  # whether both ends have agreed on a key
        self._key = b""
        self._sent = self._received = 0
        self._sending = threading.RLock()
        self._last: Status | Decision | None = None  # the last message sent
        self._out = self._nonce + b"\n"
        self._in = b""
        self._flush()

    def send(self, message: Status | Decision) -> None:
        """Send a message. Raises OSError if the connection is broken."""
        text = json.dumps(asdict(message)).encode()
        with self._sending:
            self._last = message
            self._out += self._signature(text, self._sent, self._listening) + b" " + text + b"\n"
            self._sent += 1
            self._flush()

    def repeat(self) -> None:
        """Send the last message again, from any thread. Raises OSError if the connection is broken."""
        with self._sending:
            if self._last is not None:
                self.send(self._last)

    def receive(self) -> list[Any]:
        """Return the new messages: Decisions from node 0, or Statuses from another node.

        Raises one of BROKEN if the connection is unusable.
        """
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed")
        *lines, self._in = (self._in + data).split(b"\n")
        if len(self._in) > LONGEST_MESSAGE:
            raise ValueError("the line is too long")
        if lines and not self.ready:
            self.ready = True
            other = lines.pop(0)
            nonces = self._nonce + other if self._listening else other + self._nonce
            self._key = hmac.new(self._token, b"ddpctl" + nonces, hashlib.sha256).digest()
        return [self._message(line) for line in lines]

    def _message(self, line: bytes) -> Status | Decision:
        signature, _, text = line.partition(b" ")
        expected = self._signature(text, self._received, not self._listening)
        if not hmac.compare_digest(signature, expected):
            raise ValueError("the sender does not have this run's token")
        self._received += 1
        fields = dict(json.loads(text.decode()))
        for name in ("reason", "early", "cause", "verdict"):
            if fields.get(name):
                fields[name] = _reason(fields[name])
        if fields.get("restart"):
            cause = _reason(fields["restart"]["cause"])
            fields["restart"] = RestartInPlace(**dict(fields["restart"], cause=cause))
        if not self._listening:
            return Decision(**fields)
        return Status(**dict(fields, phase=Phase(fields["phase"])))

    def _signature(self, text: bytes, count: int, from_listener: bool) -> bytes:
        head = b"%d %d " % (count, from_listener)
        return hmac.new(self._key, head + text, hashlib.sha256).hexdigest().encode()

    def _flush(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._out:
                self._out = self._out[self.sock.send(self._out) :]


def _reason(fields: dict[str, Any]) -> Reason:
    return Reason(**dict(fields, last_lines=tuple(fields["last_lines"])))
