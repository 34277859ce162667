"""One connection between two supervisors."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import time
from typing import Any

BACKLOG = 1 << 20  # bytes that a peer may leave unread


class Refused(Exception):
    """The other end does not know the run's token, or speaks something else."""


class Link:
    """One connection between two supervisors: JSON lines, each with the HMAC of the run's token.

    The token never travels. Both ends say a nonce first, so that nothing recorded can be replayed.
    """

    def __init__(self, sock: socket.socket, token: str, listening: bool) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.opened = self.heard = time.monotonic()
        self.node_rank: int | None = None  # of the other end, once it has proved itself
        self._token = token.encode()
        self._listening = listening
        self._nonce = os.urandom(16).hex().encode()
        self._key: bytes | None = None
        self._sent = self._received = 0
        self._out = self._nonce + b"\n"
        self._in = b""
        self.flush()

    @property
    def ready(self) -> bool:
        return self._key is not None

    def send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        self._out += self._seal(text, self._sent, self._listening) + b" " + text + b"\n"
        self._sent += 1
        self.flush()

    def flush(self) -> None:
        """Raises OSError when the connection is broken."""
        try:
            while self._out:
                self._out = self._out[self.sock.send(self._out) :]
        except BlockingIOError:
            if len(self._out) > BACKLOG:
                raise ConnectionAbortedError("the peer takes nothing any more") from None

    def receive(self) -> list[dict[str, Any]]:
        """Raises OSError when the connection is broken or closed, Refused when it is a stranger's."""
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionResetError("closed")
        *lines, self._in = (self._in + data).split(b"\n")
        if len(self._in) > 65536:
            raise Refused("a line without an end")
        if lines and self._key is None:
            self._agree(lines.pop(0))
        return [self._open(line) for line in lines]

    def close(self) -> None:
        self.sock.close()

    def _agree(self, other: bytes) -> None:
        nonces = (self._nonce, other) if self._listening else (other, self._nonce)
        self._key = hmac.new(self._token, b"ddpctl" + b"".join(nonces), hashlib.sha256).digest()

    def _open(self, line: bytes) -> dict[str, Any]:
        seal, _, text = line.partition(b" ")
        if not hmac.compare_digest(seal, self._seal(text, self._received, not self._listening)):
            raise Refused("its token is not this run's")
        self._received += 1
        self.heard = time.monotonic()
        message = json.loads(text.decode())
        assert isinstance(message, dict)
        return message

    def _seal(self, text: bytes, count: int, from_listener: bool) -> bytes:
        assert self._key is not None
        head = b"%d %d " % (count, from_listener)
        return hmac.new(self._key, head + text, hashlib.sha256).hexdigest().encode()
