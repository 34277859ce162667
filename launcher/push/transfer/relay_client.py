"""The launcher's side of one host's relay agent: start it, send orders, read events."""

import datetime
import json
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...budget import parse_json
from ...errors import DdpctlError, PushFailed
from ...ssh.host_connection import HostConnection
from .payload import failed

SOURCE = Path(__file__).with_name("relay_agent.py").read_bytes()
BOOT = (
    "import sys; n = int(sys.stdin.buffer.readline());"
    " exec(compile(sys.stdin.buffer.read(n), 'ddpctl-agent', 'exec'))"
)
READY_TIMEOUT = 20.0  # seconds
MAX_EVENT, MAX_ITEMS = 1 << 16, 100  # bytes and values in one event
VALID = datetime.timedelta(days=2)  # and the day before, for hosts with wrong clocks


class TransferDamaged(PushFailed):
    """Raised if a payload arrives damaged or cannot be stored by a relay, or if an agent ends."""


@dataclass(frozen=True)
class RelayEvent:
    """One message from an agent. relay_agent.py documents the kinds."""

    kind: str  # ready, have, starved, done or failed
    payload: str  # payload id
    count: int  # a port, bytes or an exit code
    text: str


class Relay:
    """A host and its agent. `lost`: the error, once the host or its agent is gone."""

    def __init__(
        self, connection: HostConnection, address: str, certificate: str, key: str
    ) -> None:
        """Start the agent. address: where other hosts reach this host.

        Raises PushFailed if the host has no suitable python3 or does not answer.
        """
        self.connection, self.address = connection, address
        self.lost: DdpctlError | None = None
        self.is_leaf = False  # too slow for other hosts to read from it
        self.slow_readers = 0  # how many hosts were slow while they read from it
        self.feeds: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._unread = b""
        self._stream = connection.open(["python3", "-I", "-u", "-c", BOOT])
        try:
            self._stream.write(b"%d\n%s" % (len(SOURCE), SOURCE))
            threading.Thread(target=self._write_orders, daemon=True).start()
            threading.Thread(target=self._run_feeds, daemon=True).start()
            self.order("hello", certificate=certificate, key=key, address=address)
            event = self._read(READY_TIMEOUT)
            if event is None or event.kind != "ready":
                raise ValueError("the agent ended immediately")
            if not 0 < event.count < 1 << 16:  # other hosts are told to connect to it
                raise ValueError(f"the agent reports port {event.count}")
            self.port = event.count
        except (OSError, ValueError) as error:
            lines = self._stream.stderr_tail().splitlines()
            self.close()
            raise failed(connection.name, "relay", (lines or [str(error)])[-1]) from None

    def order(self, op: str, **arguments: Any) -> None:
        """Queue an order. Never blocks, so that an unresponsive host does not delay the others."""
        self._orders.put(json.dumps({"op": op, **arguments}).encode() + b"\n")

    def feed(self, name: str, at: int, data: bytes) -> None:
        """Send part of the payload `name`: `data`, which starts at offset `at`."""
        head = json.dumps({"op": "receive", "id": name, "at": at, "n": len(data)}).encode()
        self._write(head + b"\n" + data)

    def events(self) -> Iterator[RelayEvent]:
        """Yield events until the agent ends.

        Raises HostUnreachable or OSError if the connection fails, ValueError for a malformed event.
        """
        return iter(self._read, None)

    def close(self) -> None:
        self._orders.put(b"")
        self.feeds.put(None)
        self._stream.close()

    def _write_orders(self) -> None:
        try:
            while order := self._orders.get():
                self._write(order)
        except (OSError, DdpctlError):
            pass  # the host is gone, which `events` reports

    def _run_feeds(self) -> None:
        """Run the queued feeds one after the other, because a host receives payloads in order."""
        for feed in iter(self.feeds.get, None):
            feed()

    def _write(self, data: bytes) -> None:
        with self._writing:
            self._stream.write(data)

    def _read(self, timeout: float | None = None) -> RelayEvent | None:
        while b"\n" not in self._unread:
            chunk = self._stream.read(65536, timeout)
            if not chunk:
                return None
            self._unread += chunk
            if len(self._unread) > MAX_EVENT:
                raise ValueError("the agent sent a message that does not end")
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            event, id, count, text = parse_json(line, MAX_ITEMS)
            return RelayEvent(str(event), str(id), int(count), str(text))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not an event: {line[:100]!r}") from error


def one_time_pair() -> tuple[str, str]:
    """Return a new self-signed P-256 certificate and its key (PEM) for one push.

    Every machine with the key can take part in that push. This machine writes neither to disk.
    """
    from cryptography import x509  # slow to import
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ddpctl push")])
    now = datetime.datetime.now(datetime.UTC)
    public = key.public_key()
    certificate = (
        x509.CertificateBuilder(name, name, public, x509.random_serial_number())
        .not_valid_before(now - VALID / 2)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, pkcs8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), secret.decode()
