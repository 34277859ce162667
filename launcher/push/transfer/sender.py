"""How parcels travel: from host to host where that pays and works, else from here to each host."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from launcher.errors import DdpctlError
from launcher.push.host import HostState
from launcher.push.transfer.send import Journey, Parcel, send_directly
from launcher.ssh.node import Node

if TYPE_CHECKING:
    from launcher.push.transfer.chain import Chain, Transit

WORTH_IT = 16 << 20  # bytes that the uplink is spared; agents take about a second to start


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
        return self.send_all([parcel], nodes, parcel.size or None)

    def send_all(
        self, parcels: Iterable[Parcel], nodes: Sequence[Node], size: int | None
    ) -> dict[Node, DdpctlError]:
        """Parcels that each host takes in this order; one that it refuses is its last.

        `size` is of all together, in bytes; None when nobody knows yet.
        """
        row = self._row(size, nodes)
        rest = [node for node in nodes if node not in row]
        if not row:
            return self._directly(parcels, rest)
        seen = _Seen(parcels)
        failures: dict[Node, DdpctlError] = {}
        errors: list[DdpctlError] = []

        def directly() -> None:
            try:
                failures.update(self._directly(seen, rest))
            except DdpctlError as error:
                errors.append(error)

        beside = threading.Thread(target=directly, daemon=True)
        beside.start()
        through = self._through(seen, row)
        beside.join()
        failures.update(through)
        if errors:
            raise errors[0]
        return failures

    def close(self) -> None:
        if self._chain is not None:
            self._chain.close()

    def _row(self, size: int | None, nodes: Sequence[Node]) -> list[Node]:
        """The hosts that relay, [] where that does not pay."""
        able = [node for node in nodes if node in self._addresses]
        if len(able) < 2 or (size is not None and size * (len(able) - 1) < WORTH_IT):
            return []
        if self._chain is None:
            from launcher.push.transfer.chain import Chain

            row = [(node, address) for node, address in self._addresses.items()]
            self._chain = Chain(row, self._journey)
            cannot = self._chain.start()
            self._in_chain = {node for node in self._addresses if node not in cannot}
        able = [node for node in able if node in self._in_chain]
        return able if len(able) > 1 else []

    def _directly(
        self, parcels: Iterable[Parcel], nodes: Sequence[Node]
    ) -> dict[Node, DdpctlError]:
        failures: dict[Node, DdpctlError] = {}
        for parcel in parcels:
            left = [node for node in nodes if node not in failures]
            failures |= send_directly(parcel, left, self._journey)
        return failures

    def _through(self, parcels: Iterable[Parcel], row: Sequence[Node]) -> dict[Node, DdpctlError]:
        """From host to host; what was damaged on the way is sent once more, directly."""
        from launcher.push.transfer.relay import Damaged

        assert self._chain is not None
        sent: list[tuple[Parcel, Transit]] = []
        first: dict[Node, tuple[int, DdpctlError]] = {}
        try:
            for parcel in parcels:
                sent.append((parcel, self._chain.put(parcel, row)))
        except DdpctlError:  # no more parcels; the ones on their way must not meet the next try
            for _, transit in sent:
                self._chain.settle(transit)
            raise
        for number, (_, transit) in enumerate(sent):
            for node, error in self._chain.settle(transit).items():
                first.setdefault(node, (number, error))
        failures: dict[Node, DdpctlError] = {}
        for node, (number, error) in first.items():
            if isinstance(error, Damaged):
                self._journey.say(f"{error}; the rest of it is sent from here")
                again = [parcel for parcel, _ in sent[number:]]
                failures |= self._directly(again, [node])
            else:
                failures[node] = error
        return failures


class _Seen:
    """Parcels that come one by one, for more than one reader."""

    def __init__(self, parcels: Iterable[Parcel]) -> None:
        self._source, self._seen = iter(parcels), list[Parcel]()
        self._error: DdpctlError | None = None
        self._turn = threading.Lock()

    def __iter__(self) -> Iterator[Parcel]:
        at = 0
        while (parcel := self._get(at)) is not None:
            yield parcel
            at += 1

    def _get(self, at: int) -> Parcel | None:
        with self._turn:
            if self._error is not None:
                raise self._error
            if at == len(self._seen):
                try:
                    parcel = next(self._source, None)
                except DdpctlError as error:
                    self._error = error
                    raise
                if parcel is None:
                    return None
                self._seen.append(parcel)
            return self._seen[at]
