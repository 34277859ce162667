"""Send from one machine to many: through a chain of hosts where that pays, else directly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...errors import DdpctlError
from ...ssh.many import try_each
from ...ssh.node import Node
from ...ssh.stream import Stream
from ..progress import Tracker
from .chain import Chain, Transfer
from .payload import END_TIMEOUT, Payload, failed
from .relay_client import TransferDamaged

MIN_SAVING = 16 << 20  # bytes; a smaller saving is not worth a second to start agents


class Fanout:
    """Sends the payloads of one push. `close` ends the agents that it started."""

    def __init__(self, addresses: Mapping[Node, str], tracker: Tracker) -> None:
        """addresses: where other hosts reach each host that can relay."""
        self._addresses, self._tracker = addresses, tracker
        self._chain: Chain | None = None

    def send(
        self, payloads: Iterable[Payload], nodes: Sequence[Node], size: int | None
    ) -> dict[Node, DdpctlError]:
        """Send all payloads. Return the failed hosts with their errors.

        payloads: each host receives them in order, and none after it has failed. size: total bytes;
        None if unknown.
        """
        row = self._chain_for(size, nodes)
        if not row:
            return self._send_directly(payloads, nodes)
        seen: list[Payload] = []
        failures = self._send_through_chain(payloads, row, seen)
        rest = [node for node in nodes if node not in row]
        return {**failures, **self._send_directly(seen, rest)}

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()

    def _chain_for(self, size: int | None, nodes: Sequence[Node]) -> list[Node]:
        """Return the hosts that can relay, or [] if relaying does not pay."""
        row = [node for node in nodes if node in self._addresses]
        if len(row) < 2 or (size is not None and size * (len(row) - 1) < MIN_SAVING):
            return []
        if self._chain is None:
            self._chain = Chain(self._addresses, self._tracker)
        row = [node for node in row if node in self._chain.nodes]
        return row if len(row) > 1 else []

    def _send_directly(
        self, payloads: Iterable[Payload], nodes: Sequence[Node]
    ) -> dict[Node, DdpctlError]:
        failures: dict[Node, DdpctlError] = {}
        for payload in payloads:
            left = [node for node in nodes if node not in failures]
            failures |= try_each(left, partial(self._send_to, payload))[1]
        return failures

    def _send_to(self, payload: Payload, node: Node) -> None:
        self._tracker.progress.begin(node.name, payload.part, payload.size)
        stream = node.open(payload.command(node))
        try:
            for chunk in payload.chunks():
                stream.write(chunk)
                self._tracker.received(node, payload.part, len(chunk))
                self._tracker.sent(node, len(chunk))
            stream.close_stdin()
            while stream.read():
                pass
            code = stream.wait(END_TIMEOUT)
            if code != 0:
                raise failed(node.name, payload.part, stream.stderr_tail() or f"exit {code}")
            payload.finish(node)
        except OSError as error:  # the command stopped reading, or the host stopped answering
            raise failed(node.name, payload.part, _stderr(stream) or str(error)) from None
        finally:
            stream.close()
            self._tracker.progress.end(node.name, payload.part)

    def _send_through_chain(
        self, payloads: Iterable[Payload], row: Sequence[Node], seen: list[Payload]
    ) -> dict[Node, DdpctlError]:
        """Send, and append the payloads to `seen`. Damaged ones are sent again directly."""
        assert self._chain is not None
        transfers: list[Transfer] = []
        try:
            for payload in payloads:
                seen.append(payload)
                transfers.append(self._chain.begin(payload, row))
        except DdpctlError:  # no more payloads; a retry must not meet these transfers
            for transfer in transfers:
                self._chain.finish(transfer)
            raise
        first: dict[Node, tuple[int, DdpctlError]] = {}
        for number, transfer in enumerate(transfers):
            for node, error in self._chain.finish(transfer).items():
                first.setdefault(node, (number, error))
        failures: dict[Node, DdpctlError] = {}
        for node, (number, error) in first.items():
            if isinstance(error, TransferDamaged):
                self._tracker.say(f"{error}; sending the rest from here")
                failures |= self._send_directly(seen[number:], [node])
            else:
                failures[node] = error
        return failures


def _stderr(stream: Stream) -> str:
    """Return the error output of a command that stopped reading."""
    with contextlib.suppress(TimeoutError, DdpctlError):
        stream.wait(5.0)
    return stream.stderr.read(1.0).decode(errors="replace").strip()
