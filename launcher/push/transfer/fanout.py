"""Send from one machine to many: through a chain of hosts if that saves time, else directly."""

import contextlib
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from ...budget import Deadline
from ...errors import DdpctlError, HostUnreachable
from ...ssh.host_connection import HostConnection
from ...ssh.many import try_each
from ..push_progress import PushProgress
from .chain import Transfer
from .payload import TIMEOUT, Failures, Payload, end_timeout, failed, stuck, without
from .relay_client import Relay, TransferDamaged, one_time_pair

MIN_SAVING = 16 << 20  # bytes; starting agents takes a second, so a smaller saving is not worth it


class Fanout:
    """Sends the payloads of one push. `close` ends the agents that it started."""

    def __init__(self, addresses: Mapping[HostConnection, str], progress: PushProgress) -> None:
        """addresses: where other hosts reach each host that can relay, in the chain's order."""
        self._addresses, self.progress = addresses, progress
        self._relays: dict[HostConnection, Relay] | None = None  # the hosts whose agent has started
        self._transfers: dict[str, Transfer] = {}

    def close(self) -> None:
        for relay in (self._relays or {}).values():
            relay.close()

    def send(
        self,
        part: str,
        payloads: Iterable[Payload],
        connections: Sequence[HostConnection],
        size: int | None,
    ) -> Failures:
        """Send the payloads of a part. Return the errors of failed hosts.

        Each host receives the payloads in order, until it fails. Starts sending each payload before
        the next one is ready. size: the total size of the payloads in bytes; None if unknown.
        """
        self.progress.begin(part, connections, size)
        failures: Failures = {}
        row: list[Relay] = []
        transfers: list[Transfer] = []
        begun = 0  # bytes
        try:
            for payload in payloads:
                begun += MIN_SAVING if payload.size is None else payload.size
                row = row or self._row(without(connections, failures), begun)
                if row:
                    name = f"p{len(self._transfers)}"
                    transfers.append(Transfer(name, payload, row, self.progress))
                    self._transfers[name] = transfers[-1]
                    transfers[-1].open()
                else:
                    failures |= self._send_directly(payload, connections, failures)
                if len(failures) == len(connections):
                    break
        except DdpctlError:  # from making a payload; hosts may still be receiving earlier ones
            for transfer in transfers:
                transfer.finish()
            raise
        for transfer in transfers:
            failures = transfer.finish() | failures  # the first error of each host
        others = without(connections, {relay.connection for relay in row})
        for transfer in transfers:
            failures |= self._send_directly(transfer.payload, others, failures)
        self.progress.end(part, without(connections, failures))
        return failures

    def _row(self, connections: Sequence[HostConnection], size: int) -> list[Relay]:
        """Return the relays of the chain in order, or [] if a chain would save too little."""
        # the number of copies that do not cross the uplink
        saved = sum(connection in self._addresses for connection in connections) - 1
        if saved < 1 or size * saved < MIN_SAVING:
            return []
        if self._relays is None:
            pair = one_time_pair()
            self._relays, _ = try_each(
                [*self._addresses],
                lambda connection: Relay(connection, self._addresses[connection], *pair),
            )
            for relay in self._relays.values():
                threading.Thread(target=self._follow, args=(relay,), daemon=True).start()
        row = [relay for connection, relay in self._relays.items() if connection in connections]
        return row if len(row) > 1 else []

    def _follow(self, relay: Relay) -> None:
        """Handle a host's events until its agent ends, and then end the host's transfers."""
        why: DdpctlError = TransferDamaged("its relay agent ended", host=relay.connection.name)
        try:
            for event in relay.events():
                transfer = self._transfers.get(event.payload)
                if transfer and relay in transfer.hosts:
                    transfer.handle(transfer.hosts[relay], event)
        except DdpctlError as error:
            remedy = f"{error.remedy}; push again to continue where it stopped"
            why = HostUnreachable(error.what, remedy, host=relay.connection.name)
        except (OSError, ValueError):
            pass
        relay.lost = why
        for transfer in list(self._transfers.values()):
            if relay in transfer.hosts:
                transfer.end(transfer.hosts[relay], why)

    def _send_directly(
        self,
        payload: Payload,
        connections: Sequence[HostConnection],
        failed: Collection[HostConnection],
    ) -> Failures:
        return try_each(without(connections, failed), partial(self._send_to, payload))[1]

    def _send_to(self, payload: Payload, connection: HostConnection) -> None:
        stream = connection.open(payload.command(connection))
        sent, timeout = 0, TIMEOUT
        try:
            for chunk in payload.chunks():
                stream.write(chunk, timeout)
                sent += len(chunk)
                self.progress.received(connection, payload.part, len(chunk))
                self.progress.sent(connection, len(chunk))
            stream.close_stdin()
            timeout = end_timeout(sent)
            deadline = Deadline(timeout)
            while stream.read(timeout=deadline.left()):
                if deadline.left() == 0:
                    raise TimeoutError
            code = stream.wait(deadline.left())
            if code != 0:
                raise failed(connection.name, payload.part, stream.stderr_tail() or f"exit {code}")
        except TimeoutError:
            raise stuck(connection.name, payload.part, timeout) from None
        except OSError as error:  # the command stopped reading, or the host stopped answering
            with contextlib.suppress(TimeoutError, DdpctlError):
                stream.wait(5.0)
            raise failed(
                connection.name, payload.part, stream.stderr_tail() or str(error)
            ) from None
        finally:
            stream.close()
            self.progress.settled(connection, payload.part)
