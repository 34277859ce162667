"""How parcels travel: from host to host where that pays and works, else from here to each host."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from launcher.errors import DdpctlError
from launcher.push.chain import Chain, Damaged
from launcher.push.host import HostState
from launcher.push.send import Journey, Parcel, send_directly
from launcher.remote.node import Node

WORTH_IT = 8 << 20  # bytes; agents take about a second to start


class Sender:
    """One a push. `close` ends what it has started on the hosts."""

    def __init__(self, states: Mapping[Node, HostState], journey: Journey) -> None:
        self._journey = journey
        self._addresses = {
            node: address
            for node, state in states.items()
            if not node.host.is_local
            and "python3" in state.has
            and (address := node.host.internal_ip or state.address)
        }
        self._chain: Chain | None = None
        self._in_chain: set[Node] = set()

    def send(self, parcel: Parcel, nodes: Sequence[Node]) -> dict[Node, DdpctlError]:
        """Gives the hosts that did not get it, and why."""
        row = self._row(parcel, nodes)
        rest = [node for node in nodes if node not in row]
        failures: dict[Node, DdpctlError] = {}

        def directly() -> None:
            failures.update(send_directly(parcel, rest, self._journey))

        beside = threading.Thread(target=directly)
        beside.start()
        if self._chain is not None and row:
            arrived = self._chain.send(parcel, row)
            failures.update(self._again(parcel, arrived))
        beside.join()
        return failures

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()

    def _row(self, parcel: Parcel, nodes: Sequence[Node]) -> list[Node]:
        """The hosts that relay this parcel, [] where that does not pay."""
        able = [node for node in nodes if node in self._addresses]
        if len(able) < 2 or 0 < parcel.size < WORTH_IT:
            return []
        if self._chain is None:
            self._chain = Chain(
                [(node, self._addresses[node]) for node in self._addresses], self._journey
            )
            cannot = self._chain.start()
            self._in_chain = {node for node in self._addresses if node not in cannot}
        able = [node for node in able if node in self._in_chain]
        return able if len(able) > 1 else []

    def _again(self, parcel: Parcel, failures: dict[Node, DdpctlError]) -> dict[Node, DdpctlError]:
        """What was damaged on the way goes once more, without other hosts in between."""
        damaged = [node for node, error in failures.items() if isinstance(error, Damaged)]
        for node in damaged:
            self._journey.say(f"{failures[node]} on the way; it is sent once more, from here")
            del failures[node]
        return failures | send_directly(parcel, damaged, self._journey)
