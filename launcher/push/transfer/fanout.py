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
        chain = self._chain_for(nodes, size)
        row = [node for node in nodes if chain and node in chain.relays]
        if chain and len(row) > 1:
            sent, failures = self._send_through(chain, payloads, row)
            failures |= self._send_directly(sent, [node for node in nodes if node not in row])
        else:
            failures = self._send_directly(payloads, nodes)
        self.progress.end(part, [node for node in nodes if node not in failures])
        return failures

    def _chain_for(self, nodes: Sequence[Node], size: int | None) -> Chain | None:
        """Return the chain, which starts with the first payload for which it pays."""
        saved = sum(node in self._addresses for node in nodes) - 1  # copies on the uplink
        if saved > 0 and (size is None or size * saved >= MIN_SAVING):
            self._chain = self._chain or Chain(self._addresses, self.progress)
            return self._chain
        return None

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
        self, chain: Chain, payloads: Iterable[Payload], row: Sequence[Node]
    ) -> tuple[list[Payload], dict[Node, DdpctlError]]:
        """Send through the chain. Return the payloads, and the failed hosts with their first errors."""
        transfers: list[Transfer] = []
        try:
            for payload in payloads:
                transfers.append(chain.begin(payload, row))
        except DdpctlError:  # `payloads` failed; let these transfers end before any retry
            for transfer in transfers:
                transfer.finish()
            raise
        failures: dict[Node, DdpctlError] = {}
        for transfer in transfers:
            failures = transfer.finish() | failures
        return [transfer.payload for transfer in transfers], failures
