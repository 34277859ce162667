"""Send from one machine to many: through a chain of hosts if that saves time, else directly."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

from ...errors import DdpctlError
from ...ssh.many import try_each
from ...ssh.node import Node
from ..push_progress import PushProgress
from .chain import Chain
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

    def send(self, payloads: Sequence[Payload], nodes: Sequence[Node]) -> dict[Node, DdpctlError]:
        """Send the payloads of a part. Return the failed hosts with their errors.

        Each host receives the payloads in order, and none after it has failed.
        """
        part, sizes = payloads[0].part, [payload.size for payload in payloads]
        size = None if None in sizes else sum(filter(None, sizes))
        self.progress.begin(part, nodes, size)
        row = self._row(nodes, size)
        failures: dict[Node, DdpctlError] = {}
        if self._chain and row:
            for transfer in [self._chain.begin(payload, row) for payload in payloads]:
                failures = transfer.finish() | failures  # the first error of each host
        failures |= self._send_directly(payloads, [node for node in nodes if node not in row])
        self.progress.end(part, [node for node in nodes if node not in failures])
        return failures

    def _row(self, nodes: Sequence[Node], size: int | None) -> list[Node]:
        """Return the hosts to send to through the chain; [] if that saves too little."""
        saved = sum(node in self._addresses for node in nodes) - 1  # copies on the uplink
        if saved < 1 or (size is not None and size * saved < MIN_SAVING):
            return []
        self._chain = self._chain or Chain(self._addresses, self.progress)
        row = [node for node in nodes if node in self._chain.relays]
        return row if len(row) > 1 else []

    def _send_directly(
        self, payloads: Sequence[Payload], nodes: Sequence[Node]
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
