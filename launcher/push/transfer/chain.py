"""A chain of hosts: this machine feeds the first, each other one takes its bytes from one before it.

If a host fails, the ones after it continue from another host, within seconds and at the byte they
had reached. A slow host becomes a leaf: no other host takes bytes from it. A host that no other host
can feed is fed from here, with a notice, because that uses this machine's uplink once more.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import DdpctlError, HostUnreachable, PushFailed
from ...ssh.many import try_each
from ...ssh.node import Node
from ..tracker import Tracker
from .direct import END_TIMEOUT, Payload, failed
from .relay_client import Event, Relay, TransferDamaged, feed
from .tls import one_time_pair

WINDOW = 3.0  # seconds over which a rate is measured
MIN_WINDOW = 2.0  # seconds; a shorter measurement does not count
BEHIND = 2.0  # seconds, at the best rate, that a slow host lags behind its source
SLOW = 0.5  # of the best rate
SLOW_HEAD = 4e6  # bytes per second below which the first host, not the uplink, may be slow
WORTH_A_TRIAL = 15.0  # seconds that are left
TICK = 0.5  # seconds

Upstreams = list[tuple[str, int]]  # address and port


@dataclass
class HostTransfer:
    """How far one payload is on one host."""

    have: int = 0  # bytes
    recent: list[tuple[float, int]] = field(default_factory=list)  # (seconds, bytes)
    done: bool = False
    error: DdpctlError | None = None
    upstreams: Upstreams = field(default_factory=list)  # the host's current ones
    fed: bool = False  # from here

    def update(self, have: int, now: float) -> None:
        self.have = have
        self.recent = [(at, count) for at, count in self.recent if now - at <= WINDOW]
        self.recent.append((now, have))

    @property
    def rate(self) -> float:
        """Recent bytes per second; 0 if not measured for long enough."""
        if not self.recent or self.recent[-1][0] - self.recent[0][0] < MIN_WINDOW:
            return 0.0
        (began, had), (now, have) = self.recent[0], self.recent[-1]
        return (have - had) / (now - began)


class Transfer:
    """One payload on its way to the hosts of `hosts`, which are in the chain's order."""

    def __init__(self, name: str, payload: Payload, row: Sequence[Relay]) -> None:
        self.name, self.payload = name, payload
        self.hosts = {relay: HostTransfer() for relay in row}
        self.result: tuple[int, str] | None = None  # size and sha256, known at the end
        self.source_error: DdpctlError | None = None
        self.trial: float | None = None  # when feeding the second host from here began
        self.trial_over = False

    @property
    def unfinished(self) -> dict[Relay, HostTransfer]:
        return {relay: host for relay, host in self.hosts.items() if not host.done}

    def order_all(self, op: str, **arguments: object) -> None:
        for relay in self.hosts:
            relay.order(op, id=self.name, **arguments)


class Chain:
    def __init__(self, addresses: Mapping[Node, str], tracker: Tracker) -> None:
        """addresses: where the other hosts reach each host, in the chain's order."""
        self._tracker = tracker
        self._relays = {node: Relay(node, address) for node, address in addresses.items()}
        self._leaves: set[Relay] = set()
        self._blamed: dict[Relay, int] = {}
        self._transfers: dict[str, Transfer] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()

    @property
    def nodes(self) -> frozenset[Node]:
        """The hosts that relay."""
        return frozenset(self._relays)

    def start(self) -> None:
        """Start the agents. A host whose agent does not start is not part of the chain."""
        pair = one_time_pair()
        started, _ = try_each(list(self._relays), lambda node: self._relays[node].start(*pair))
        self._relays = {node: self._relays[node] for node in started}
        for relay in self._relays.values():
            threading.Thread(target=self._follow, args=(relay,), daemon=True).start()

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()

    def begin(self, payload: Payload, nodes: Sequence[Node]) -> Transfer:
        """Start sending a payload; `finish` waits for it."""
        row = [relay for node, relay in self._relays.items() if node in nodes]
        transfer = Transfer(f"p{next(self._numbers)}", payload, row)
        with self._changed:
            self._transfers[transfer.name] = transfer
        for relay, host in transfer.hosts.items():
            self._tracker.progress.begin(relay.node.name, payload.part, payload.size)
            host.upstreams = self._upstreams(transfer, relay)
            if relay.lost is not None:
                self._end(transfer, relay, relay.lost)
                continue
            argv = payload.command(relay.node)
            relay.order("open", id=transfer.name, argv=argv, upstreams=host.upstreams)
        return transfer

    def finish(self, transfer: Transfer) -> dict[Node, DdpctlError]:
        """Wait for all hosts. Returns those that failed, with the reason."""
        last_change, seen = time.monotonic(), (-1, 0)
        while True:
            with self._changed:
                if not transfer.unfinished:
                    break
                self._changed.wait(TICK)
                have = sum(host.have for host in transfer.hosts.values())
                state = (have, len(transfer.unfinished))
            if state != seen:
                last_change, seen = time.monotonic(), state
            elif time.monotonic() - last_change > END_TIMEOUT:
                for relay in transfer.unfinished:
                    why = f"{relay.node.name}: {transfer.payload.part}: no progress for"
                    self._end(transfer, relay, PushFailed(f"{why} {END_TIMEOUT:.0f} s"))
            self._bypass_slow_hosts(transfer)
            self._try_the_second_host(transfer)
        return {r.node: host.error for r, host in transfer.hosts.items() if host.error is not None}

    # events of the hosts

    def _follow(self, relay: Relay) -> None:
        why: DdpctlError = TransferDamaged(f"{relay.node.name}: its relay agent ended")
        try:
            for event in relay.events():
                self._handle(relay, event)
        except DdpctlError as error:
            why = HostUnreachable(f"{error}; the next push continues from there")
        except (OSError, ValueError):
            pass
        relay.lost = why
        for transfer in list(self._transfers.values()):
            if relay in transfer.hosts:
                self._end(transfer, relay, why)

    def _handle(self, relay: Relay, event: Event) -> None:
        if event.kind == "have":
            for name, count in event.have.items():
                if (transfer := self._transfers.get(name)) and relay in transfer.hosts:
                    self._count(transfer, relay, count)
            return
        transfer = self._transfers.get(event.payload)
        if transfer is None or relay not in transfer.hosts:
            return
        host, part = relay.node.name, transfer.payload.part
        if event.kind == "starved":
            self._feed_from_here(transfer, relay, event)
        elif event.kind == "failed":
            why = "damaged on the way" if event.text == "damaged" else event.text
            self._end(transfer, relay, TransferDamaged(str(failed(host, part, why))))
        elif event.kind == "done" and event.count != 0:
            why = event.text or f"exit {event.count}"
            self._end(transfer, relay, failed(host, part, why))
        elif event.kind == "done":
            self._end(transfer, relay, self._complete(transfer, relay))

    def _complete(self, transfer: Transfer, relay: Relay) -> DdpctlError | None:
        try:
            if transfer.payload.finish is not None:
                transfer.payload.finish(relay.node)
        except DdpctlError as error:
            return error
        return None

    def _count(self, transfer: Transfer, relay: Relay, have: int) -> None:
        host = transfer.hosts[relay]
        with self._changed:
            fresh = have - host.have
            host.update(have, time.monotonic())
        if fresh:
            self._tracker.received(relay.node, transfer.payload.part, fresh)

    def _end(self, transfer: Transfer, relay: Relay, error: DdpctlError | None) -> None:
        host = transfer.hosts[relay]
        with self._changed:
            if host.done:
                return
            host.done, host.error = True, transfer.source_error or error
            if host.error is None and transfer.result is not None:
                self._count(transfer, relay, transfer.result[0])
            all_done = not transfer.unfinished
            self._changed.notify_all()
        if all_done:
            transfer.order_all("close")  # the next payload needs the disk space
        self._tracker.progress.end(relay.node.name, transfer.payload.part)

    # feeding from here

    def _feed_from_here(self, transfer: Transfer, relay: Relay, event: Event) -> None:
        with self._changed:
            others = [r for r, host in transfer.hosts.items() if host.fed]
            transfer.hosts[relay].fed = True
        if others and transfer.trial is None and all(r.lost is None for r in others):
            why = " ".join(event.text.split())
            self._tracker.say(
                f"{relay.node.name}: cannot take the {transfer.payload.part} from the other hosts "
                f"({why}): sending it from here, over this machine's uplink once more"
            )
        threading.Thread(
            target=self._feed, args=(transfer, relay, event.count), daemon=True
        ).start()

    def _feed(self, transfer: Transfer, relay: Relay, at: int) -> None:
        try:
            with relay.feeding:  # payloads go to a host in their order
                result = feed(
                    relay,
                    transfer.payload,
                    transfer.name,
                    at,
                    sent=lambda count: self._tracker.sent(relay.node, count),
                    wanted=lambda: transfer.hosts[relay].fed,
                )
        except (OSError, HostUnreachable):
            return  # the host is gone: `_follow` notices, and the next host will be starved
        except DdpctlError as error:
            transfer.source_error = error
            transfer.order_all("drop")
            return
        with self._changed:
            first = transfer.result is None
            transfer.result = transfer.result or result
        if first and result:
            transfer.order_all("end", size=result[0], sha256=result[1])

    # who takes from whom

    def _sources(self, transfer: Transfer, relay: Relay) -> list[Relay]:
        """The hosts before it that are neither lost nor slow, the nearest first."""
        row = list(transfer.hosts)
        before = reversed(row[: row.index(relay)])
        return [r for r in before if r.lost is None and r not in self._leaves]

    def _upstreams(self, transfer: Transfer, relay: Relay) -> Upstreams:
        return [(source.address, source.port) for source in self._sources(transfer, relay)]

    def _rewire(self, transfer: Transfer, relay: Relay, upstreams: Upstreams) -> None:
        """Tell a host where to continue from, if its first source has changed."""
        host = transfer.hosts[relay]
        if upstreams[:1] != host.upstreams[:1]:
            host.upstreams = upstreams
            relay.order("from", id=transfer.name, upstreams=upstreams)

    def _bypass_slow_hosts(self, transfer: Transfer) -> None:
        """Find a host far behind its source, at less than half of the best rate."""
        best = max((host.rate for host in transfer.hosts.values()), default=0.0)
        for relay, host in transfer.unfinished.items():
            source = next(iter(self._sources(transfer, relay)), None)
            if relay in self._leaves or host.fed or source is None:
                continue
            behind = transfer.hosts[source].have - host.have
            if 0 < host.rate < SLOW * best and behind > BEHIND * best:
                self._bypass(transfer, relay, source)
                return

    def _bypass(self, transfer: Transfer, relay: Relay, source: Relay) -> None:
        """The second slow host behind one source means that the source's uplink is slow."""
        self._blamed[source] = self._blamed.get(source, 0) + 1
        if self._blamed[source] > 1 and not transfer.hosts[source].fed:
            row = list(transfer.hosts)
            self._leaves -= set(row[row.index(source) : row.index(relay) + 1])
            relay = source
        self._make_leaf(transfer, relay)

    def _try_the_second_host(self, transfer: Transfer) -> None:
        """If the first host is slow: feed the second from here too. Is that faster?"""
        row = [r for r in transfer.hosts if r.lost is None and r not in self._leaves]
        if len(row) < 2 or transfer.trial_over or transfer.hosts[row[0]].done:
            return
        head, second = transfer.hosts[row[0]], transfer.hosts[row[1]]
        now = time.monotonic()
        if transfer.trial is None:
            left = transfer.payload.size - head.have
            if 0 < head.rate < SLOW_HEAD and left > WORTH_A_TRIAL * head.rate and not second.done:
                transfer.trial = now
                self._rewire(transfer, row[1], [])
        elif second.done or now - transfer.trial > WINDOW + 1:
            transfer.trial_over = True
            if second.done or second.rate > head.rate / SLOW:
                self._make_leaf(transfer, row[0])
            else:
                second.fed = False
                self._rewire(transfer, row[1], self._upstreams(transfer, row[1]))

    def _make_leaf(self, transfer: Transfer, slow: Relay) -> None:
        self._leaves.add(slow)
        self._tracker.say(f"{slow.node.name}: slow; no other host waits for it any more")
        for relay, host in transfer.hosts.items():
            with self._changed:
                host.recent.clear()  # measured in the old order
            if relay is not slow and not host.fed and not host.done:
                self._rewire(transfer, relay, self._upstreams(transfer, relay))
