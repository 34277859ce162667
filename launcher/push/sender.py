"""How parcels travel: from host to host where that pays and works, else from here to each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.errors import DdpctlError
from launcher.push.host import HostState
from launcher.push.send import Journey, Parcel, send_directly
from launcher.remote.node import Node


class Sender:
    """One a push. `close` ends what it has started on the hosts."""

    def __init__(self, states: Mapping[Node, HostState], journey: Journey) -> None:
        self._states = states
        self._journey = journey

    def send(self, parcel: Parcel, nodes: Sequence[Node]) -> dict[Node, DdpctlError]:
        """Gives the hosts that did not get it, and why."""
        return send_directly(parcel, nodes, self._journey)

    def close(self) -> None:
        pass
