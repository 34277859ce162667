"""One host's relay agent, as the launcher has it: starts it, tells it, hears from it."""

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

from launcher.errors import DdpctlError, PushFailed
from launcher.push.transfer.send import Parcel, refused
from launcher.ssh.node import Node
from launcher.ssh.stream import Stream

SOURCE = Path(__file__).with_name("relay_agent.py").read_bytes()
BOOT = (
    "import sys; n = int(sys.stdin.buffer.readline());"
    " exec(compile(sys.stdin.buffer.read(n), 'ddpctl-agent', 'exec'))"
)
READY_TIMEOUT = 20.0  # seconds
ENOUGH = 2.0  # seconds that a rate is measured over at least


@dataclass
class Stage:
    """How far one parcel is on one host."""

    have: int = 0  # bytes
    past: list[tuple[float, int]] = field(default_factory=list)  # (seconds, bytes), recent
    over: bool = False
    error: DdpctlError | None = None

    def heard(self, have: int, now: float, window: float) -> None:
        self.have = have
        self.past = [(at, count) for at, count in self.past if now - at <= window] + [(now, have)]

    @property
    def rate(self) -> float:
        """Bytes a second of late; 0 when it was not measured for long enough."""
        if not self.past or self.past[-1][0] - self.past[0][0] < ENOUGH:
            return 0.0
        (began, had), (now, have) = self.past[0], self.past[-1]
        return (have - had) / (now - began)


class Relay:
    """`lost` is set when the host or its agent has gone."""

    def __init__(self, node: Node, address: str) -> None:
        self.node, self.address = node, address
        self.port = 0
        self.stages: dict[str, Stage] = {}
        self.lost: DdpctlError | None = None
        self._stream: Stream | None = None
        self.feeding = threading.Lock()
        self._voice = threading.Lock()
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""

    def start(self, certificate: str, key: str) -> None:
        """PushFailed when there is no python3 that can do it, or no answer."""
        self._stream = self.node.open(["python3", "-I", "-u", "-c", BOOT])
        self._stream.write(b"%d\n%s" % (len(SOURCE), SOURCE))
        threading.Thread(target=self._pass_on, daemon=True).start()
        self.tell(op="hello", cert=certificate, key=key)
        end = time.monotonic() + READY_TIMEOUT
        while self.port == 0:
            try:
                words = self._read(max(end - time.monotonic(), 0.1))
            except TimeoutError:
                words = None
            if words is None:
                said = self._stream.stderr_tail().splitlines() or ["no answer"]
                self.close()
                raise PushFailed(f"{self.node.name}: cannot relay: {said[-1]}")
            self.port = words.get("port", 0)

    def tell(self, **words: Any) -> None:
        """Does not wait: a host that has gone silent must not keep the others from being told."""
        self._orders.put(json.dumps(words).encode() + b"\n")

    def _pass_on(self) -> None:
        try:
            while order := self._orders.get():
                self._write(order)
        except (OSError, DdpctlError):
            pass  # it has gone, as `words` tells

    def feed(self, name: str, at: int, data: bytes) -> None:
        head = json.dumps({"op": "feed", "id": name, "at": at, "n": len(data)}).encode()
        self._write(head + b"\n" + data)

    def words(self) -> Iterator[dict[str, Any]]:
        """What it says, until it has gone."""
        while (words := self._read(None)) is not None:
            yield words

    def close(self) -> None:
        self._orders.put(b"")
        if self._stream is not None:
            self._stream.close()

    def _write(self, data: bytes) -> None:
        assert self._stream is not None
        with self._voice:
            self._stream.write(data)

    def _read(self, timeout: float | None) -> dict[str, Any] | None:
        assert self._stream is not None
        while b"\n" not in self._rest:
            chunk = self._stream.read(65536, timeout)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def feed(
    relay: Relay,
    parcel: Parcel,
    name: str,
    at: int,
    sent: Callable[[int], None],
    wanted: Callable[[], bool],
) -> str | None:
    """Gives a parcel from offset `at` on to one host, as long as it is `wanted`; `sent` counts.

    Returns size and sha256 of the whole parcel, None when it was not wanted to its end.
    """
    digest, done = hashlib.sha256(), 0
    for chunk in parcel.chunks():
        if not wanted():
            return None
        digest.update(chunk)
        fresh = chunk[max(at - done, 0) :]
        done += len(chunk)
        if fresh:
            relay.feed(name, done - len(fresh), fresh)
            sent(len(fresh))
    return f"{done} {digest.hexdigest()}"


def outcome(relay: Relay, parcel: Parcel, words: dict[str, Any]) -> DdpctlError | None:
    """What `done` or `failed` means: None is success."""
    host = relay.node.name
    if words["ev"] == "failed":
        why = "damaged on the way" if words["why"] == "damaged" else words["why"]
        return Damaged(f"{host}: {parcel.what}: {why}")
    if words["code"] == 0:
        return None
    return refused(host, parcel.what, words["said"], words["code"])


class Damaged(PushFailed):
    """It did not arrive as it left, or could not be kept while it was relayed."""
