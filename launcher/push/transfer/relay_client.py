"""The launcher's side of one host's relay agent: start it, send it orders, read its events."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import DdpctlError, PushFailed
from ...ssh.node import Node
from ...ssh.stream import Stream
from .direct import Payload, failed

SOURCE = Path(__file__).with_name("relay_agent.py").read_bytes()
BOOT = (
    "import sys; n = int(sys.stdin.buffer.readline());"
    " exec(compile(sys.stdin.buffer.read(n), 'ddpctl-agent', 'exec'))"
)
READY_TIMEOUT = 20.0  # seconds
MAX_EVENT = 1 << 20  # bytes


class TransferDamaged(PushFailed):
    """A payload did not arrive as it was sent, or could not be stored while it was relayed."""


@dataclass(frozen=True)
class Event:
    """One message of an agent; relay_agent.py explains the kinds."""

    kind: str  # ready, have, starved, done or failed
    payload: str = ""  # its id
    count: int = 0  # a port, bytes or an exit code
    text: str = ""
    have: dict[str, int] = field(default_factory=dict)  # payload id -> bytes


def parse_event(line: bytes) -> Event:
    """ValueError if the host sent something else."""
    try:
        found = json.loads(line)
        return Event(
            kind=str(found["event"]),
            payload=str(found.get("id", "")),
            count=int(found.get("count", 0)),
            text=str(found.get("text", "")),
            have={str(name): int(count) for name, count in found.get("have", {}).items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not an event: {line[:100]!r}") from error


class Relay:
    """One host with an agent. `lost` is set once the host or its agent is gone."""

    def __init__(self, node: Node, address: str) -> None:
        """address: where the other hosts reach it."""
        self.node, self.address = node, address
        self.port = 0
        self.lost: DdpctlError | None = None
        self.feeding = threading.Lock()  # held while a payload is sent to it from here
        self._stream: Stream | None = None
        self._writing = threading.Lock()
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._unread = b""

    def start(self, certificate: str, key: str) -> None:
        """PushFailed if the host has no suitable python3, or does not answer."""
        try:
            self._stream = self.node.open(["python3", "-I", "-u", "-c", BOOT])
            self._stream.write(b"%d\n%s" % (len(SOURCE), SOURCE))
            threading.Thread(target=self._write_orders, daemon=True).start()
            self.order("hello", cert=certificate, key=key, address=self.address)
            end = time.monotonic() + READY_TIMEOUT
            while self.port == 0:
                event = self._read(max(end - time.monotonic(), 0.1))
                if event is None:
                    raise ValueError("it ended at once")
                self.port = event.count if event.kind == "ready" else 0
        except (OSError, ValueError) as error:
            lines = self._stream.stderr_tail().splitlines() if self._stream else []
            self.close()
            raise failed(self.node.name, "relay", (lines or [str(error)])[-1]) from None

    def order(self, op: str, **arguments: Any) -> None:
        """Queue an order. Does not block: a silent host must not delay the orders for others."""
        self._orders.put(json.dumps({"op": op, **arguments}).encode() + b"\n")

    def feed(self, name: str, at: int, data: bytes) -> None:
        """Send bytes of a payload from offset `at`."""
        head = json.dumps({"op": "feed", "id": name, "at": at, "n": len(data)}).encode()
        self._write(head + b"\n" + data)

    def events(self) -> Iterator[Event]:
        """Until the agent ends. HostUnreachable, OSError or ValueError if that is not orderly."""
        while (event := self._read(None)) is not None:
            yield event

    def close(self) -> None:
        self._orders.put(b"")
        if self._stream is not None:
            self._stream.close()

    def _write_orders(self) -> None:
        try:
            while order := self._orders.get():
                self._write(order)
        except (OSError, DdpctlError):
            pass  # the host is gone, which `events` reports

    def _write(self, data: bytes) -> None:
        assert self._stream is not None
        with self._writing:
            self._stream.write(data)

    def _read(self, timeout: float | None) -> Event | None:
        assert self._stream is not None
        while b"\n" not in self._unread:
            chunk = self._stream.read(65536, timeout)
            if not chunk:
                return None
            self._unread += chunk
            if len(self._unread) > MAX_EVENT:
                raise ValueError("a message without an end")
        line, _, self._unread = self._unread.partition(b"\n")
        return parse_event(line)


def feed(
    relay: Relay,
    payload: Payload,
    name: str,
    at: int,
    sent: Callable[[int], None],
    wanted: Callable[[], bool],
) -> tuple[int, str] | None:
    """Send a payload from offset `at` to one host for as long as it is `wanted`; `sent` counts.

    Returns size and sha256 of the whole payload, or None if it was not sent to its end.
    """
    digest, done = hashlib.sha256(), 0
    for chunk in payload.chunks():
        if not wanted():
            return None
        digest.update(chunk)
        fresh = chunk[max(at - done, 0) :]
        done += len(chunk)
        if fresh:
            relay.feed(name, done - len(fresh), fresh)
            sent(len(fresh))
    return done, digest.hexdigest()
