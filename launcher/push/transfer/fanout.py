"""Send from one machine to many: through a chain of hosts if that saves time, else directly."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from ...errors import DdpctlError
from ...ssh.many import try_each
from ...ssh.node import Node
from ..push_progress import PushProgress
from .chain import Chain, Transfer
from .payload import END_TIMEOUT, Payload, failed
from .relay_client import TransferDamaged

MIN_SAVING = 16 << 20  # bytes; a smaller saving is not worth a second for starting agents


class Fanout:
    """Sends the payloads of one push. `close` ends the agents that it started."""

    def __init__(self, addresses: Mapping[Node, str], progress: PushProgress) -> None:
        """addresses: where other hosts reach each host that can relay."""
        self._addresses, self.progress = addresses, progress
        self._chain: Chain | None = None

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()

    def send(
        self, part: str, payloads: Iterable[Payload], nodes: Sequence[Node], size: int | None
    ) -> dict[Node, DdpctlError]:
        """Send all payloads of a part. Return the failed hosts with their errors.

        payloads: each host receives them in order, and none after it has failed. size: total bytes;
        None if unknown.
        """
        self.progress.begin(part, nodes, size)
        failures = self._send(payloads, nodes, size)
        self.progress.end(part, [node for node in nodes if node not in failures])
        return failures

    def _send(
        self, payloads: Iterable[Payload], nodes: Sequence[Node], size: int | None
    ) -> dict[Node, DdpctlError]:
        row = [node for node in nodes if node in self._addresses]
        if len(row) < 2 or (size is not None and size * (len(row) - 1) < MIN_SAVING):
            return self._send_directly(payloads, nodes)
        chain = self._chain = self._chain or Chain(self._addresses, self.progress)
        row = [node for node in row if node in chain.relays]
        if len(row) < 2:
            return self._send_directly(payloads, nodes)
        earlier: list[Payload] = []
        failures = self._send_through(chain, payloads, row, earlier)
        rest = [node for node in nodes if node not in row]
        return {**failures, **self._send_directly(earlier, rest)}

    def _send_directly(
        self, payloads: Iterable[Payload], nodes: Sequence[Node]
    ) -> dict[Node, DdpctlError]:
        failures: dict[Node, DdpctlError] = {}
        for payload in payloads:
            ready = [node for node in nodes if node not in failures]
            failures |= try_each(ready, partial(self._send_to, payload))[1]
        return failures

    def _send_to(self, payload: Payload, node: Node) -> None:
        stream = node.open(payload.command(node))
        try:
            for chunk in payload.chunks():
                stream.write(chunk)
                self.progress.received(node, payload.part, len(chunk))
                self.progress.sent(node, len(chunk))
            stream.close_stdin()
            while stream.read():
                pass
            code = stream.wait(END_TIMEOUT)
            if code != 0:
                raise failed(node.name, payload.part, stream.stderr_tail() or f"exit {code}")
            payload.finish(node)
        except OSError as error:  # the command stopped reading, or the host stopped answering
            with contextlib.suppress(TimeoutError, DdpctlError):
                stream.wait(5.0)
            raise failed(node.name, payload.part, stream.stderr_tail() or str(error)) from None
        finally:
            stream.close()
            self.progress.settled(node, payload.part)

    def _send_through(
        self, chain: Chain, payloads: Iterable[Payload], row: Sequence[Node], earlier: list[Payload]
    ) -> dict[Node, DdpctlError]:
        """Send, and append the payloads to `earlier`. From a damaged one on, send them again directly."""
        transfers: list[Transfer] = []
        try:
            for payload in payloads:
                earlier.append(payload)
                transfers.append(chain.begin(payload, row))
        except DdpctlError:  # `payloads` failed; let these transfers end before any retry
            for transfer in transfers:
                transfer.finish()
            raise
        failures: dict[Node, DdpctlError] = {}
        damaged: dict[Node, int] = {}
        for number, errors in enumerate([transfer.finish() for transfer in transfers]):
            for node in [node for node in errors if node not in failures]:
                failures[node] = errors[node]
                if isinstance(errors[node], TransferDamaged):
                    damaged[node] = number
        for node, number in damaged.items():
            self.progress.say(f"{failures.pop(node)}; sending the rest from this machine")
            rest = earlier[number:]
            self.progress.begin(rest[0].part, [node], sum(payload.size for payload in rest))
            failures |= self._send_directly(rest, [node])
        return failures
