"""From one machine to many: through a chain of hosts where that pays, else to each host directly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...errors import DdpctlError
from ...ssh.node import Node
from ..host import HostState
from ..tracker import Tracker
from .chain import Chain, Transfer
from .direct import Payload, send_directly
from .relay_client import TransferDamaged

MIN_SAVING = 16 << 20  # bytes; to save the uplink less is not worth a second to start agents


class Fanout:
    """One per push. `close` ends the agents that it started on the hosts."""

    def __init__(self, states: Mapping[Node, HostState], tracker: Tracker) -> None:
        self._tracker = tracker
        self._addresses = {
            node: address
            for node, state in states.items()
            if not node.is_local
            and "python3" in state.has
            and (address := node.host.internal_ip or state.address)
        }
        self._chain: Chain | None = None

    def send(
        self, payloads: Iterable[Payload], nodes: Sequence[Node], size: int | None
    ) -> dict[Node, DdpctlError]:
        """Returns the hosts that failed, with the reason. A host that fails gets no more payloads.

        payloads: each host gets them in this order. size: of all together in bytes, None if unknown.
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
        """The hosts that can relay, or [] if relaying does not pay."""
        row = [node for node in nodes if node in self._addresses]
        if len(row) < 2 or (size is not None and size * (len(row) - 1) < MIN_SAVING):
            return []
        if self._chain is None:
            self._chain = Chain(self._addresses, self._tracker)
            self._chain.start()
        row = [node for node in row if node in self._chain.nodes]
        return row if len(row) > 1 else []

    def _send_directly(
        self, payloads: Iterable[Payload], nodes: Sequence[Node]
    ) -> dict[Node, DdpctlError]:
        failures: dict[Node, DdpctlError] = {}
        for payload in payloads:
            left = [node for node in nodes if node not in failures]
            failures |= send_directly(payload, left, self._tracker)
        return failures

    def _send_through_chain(
        self, payloads: Iterable[Payload], row: Sequence[Node], seen: list[Payload]
    ) -> dict[Node, DdpctlError]:
        """Adds the payloads to `seen`. What arrived damaged is sent again, directly."""
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
