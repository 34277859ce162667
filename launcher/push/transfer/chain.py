"""A chain of hosts: this machine feeds the first, and each other host reads from an earlier one.

If a host fails, its readers continue from another host within seconds, at the byte they had
reached. A slow host becomes a leaf: no other host reads from it. A host without any source is fed
from this machine, with a notice, because that uses this machine's uplink once more.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...errors import DdpctlError, HostUnreachable, PushFailed
from ...ssh.many import try_each
from ...ssh.node import Node
from ..progress import Tracker
from .payload import END_TIMEOUT, Payload, failed
from .relay_client import Event, Relay, TransferDamaged, one_time_pair

WINDOW = 2.0  # seconds over which a rate is measured
TRIAL = 5.0  # seconds: a whole window of the new order
BEHIND = 2.0  # seconds, at the best rate, by which a slow host lags behind its source
SLOW = 0.5  # fraction of the best rate
SLOW_HEAD = 4e6  # bytes/s below which the first host, rather than the uplink, may be slow
WORTH_A_TRIAL = 15.0  # minimum remaining seconds
TICK = 0.5  # seconds


@dataclass
class HostTransfer:
    have: int = 0  # bytes
    rate: float = 0.0  # bytes/s in the last whole window
    window: tuple[float, int] = (math.inf, 0)  # (start of the current window, bytes at that time)
    done: bool = False
    error: DdpctlError | None = None
    sources: list[Relay] = field(default_factory=list)  # hosts to read from, in order
    fed: bool = False  # by this machine

    def update(self, have: int, now: float) -> None:
        (began, had), self.have = self.window, have
        if now - began >= WINDOW:
            self.rate = (have - had) / (now - began)
        if not 0 <= now - began < WINDOW:
            self.window = now, have

    def restart_measurement(self) -> None:
        self.rate, self.window = 0.0, (math.inf, 0)


class Transfer:
    """A payload on its way to `hosts`, which are in the chain's order."""

    def __init__(self, name: str, payload: Payload, row: Sequence[Relay]) -> None:
        self.name, self.payload = name, payload
        self.hosts = {relay: HostTransfer() for relay in row}
        self.size: int | None = None  # unknown until the end
        self.source_error: DdpctlError | None = None
        self.trial: float | None = None  # when this machine began to feed the second host too
        self.trial_over = False

    @property
    def unfinished(self) -> dict[Relay, HostTransfer]:
        return {relay: host for relay, host in self.hosts.items() if not host.done}

    def order_all(self, op: str, **arguments: object) -> None:
        for relay in self.hosts:
            relay.order(op, id=self.name, **arguments)


class Chain:
    def __init__(self, addresses: Mapping[Node, str], tracker: Tracker) -> None:
        """Start the agents. Hosts whose agent does not start are not part of the chain.

        addresses: where other hosts reach each host, in the chain's order.
        """
        self._tracker = tracker
        pair = one_time_pair()

        def start(node: Node) -> Relay:
            return Relay(node, addresses[node], *pair)

        self._relays, _ = try_each(list(addresses), start)
        self._leaves: set[Relay] = set()
        self._blamed: dict[Relay, int] = {}
        self._transfers: dict[str, Transfer] = {}
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        for relay in self._relays.values():
            threading.Thread(target=self._follow, args=(relay,), daemon=True).start()

    @property
    def nodes(self) -> frozenset[Node]:
        """The hosts that relay."""
        return frozenset(self._relays)

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()

    def begin(self, payload: Payload, nodes: Sequence[Node]) -> Transfer:
        """Start sending a payload; call `finish` to wait for it."""
        row = [relay for node, relay in self._relays.items() if node in nodes]
        transfer = Transfer(f"p{next(self._numbers)}", payload, row)
        with self._changed:
            self._transfers[transfer.name] = transfer
        for relay, host in transfer.hosts.items():
            self._tracker.progress.begin(relay.node.name, payload.part, payload.size)
            host.sources = self._sources(transfer, relay)
            if relay.lost is not None:
                self._end(transfer, relay, relay.lost)
                continue
            argv = payload.command(relay.node)
            relay.order("open", id=transfer.name, argv=argv, upstreams=_upstreams(host.sources))
        return transfer

    def finish(self, transfer: Transfer) -> dict[Node, DdpctlError]:
        """Wait for all hosts. Return the failed hosts with their errors."""
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
            why = HostUnreachable(f"{error}; the next push continues where this one stopped")
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
            why = "damaged in transit" if event.text == "damaged" else event.text
            self._end(transfer, relay, TransferDamaged(str(failed(host, part, why))))
        elif event.kind == "done" and event.count != 0:
            why = event.text or f"exit {event.count}"
            self._end(transfer, relay, failed(host, part, why))
        elif event.kind == "done":
            try:
                transfer.payload.finish(relay.node)
                self._end(transfer, relay, None)
            except DdpctlError as error:
                self._end(transfer, relay, error)

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
            if host.error is None and transfer.size is not None:
                self._count(transfer, relay, transfer.size)
            all_done = not transfer.unfinished
            self._changed.notify_all()
        if all_done:
            transfer.order_all("close")  # the next payload needs the disk space
        self._tracker.progress.end(relay.node.name, transfer.payload.part)

    # feeding by this machine

    def _feed_from_here(self, transfer: Transfer, relay: Relay, event: Event) -> None:
        with self._changed:
            others = [r for r, host in transfer.hosts.items() if host.fed]
            transfer.hosts[relay].fed = True
        if others and transfer.trial is None and all(r.lost is None for r in others):
            why = " ".join(event.text.split())
            self._tracker.say(
                f"{relay.node.name}: cannot take the {transfer.payload.part} from the other hosts "
                f"({why}): sending it from this machine instead"
            )
        threading.Thread(
            target=self._feed, args=(transfer, relay, event.count), daemon=True
        ).start()

    def _feed(self, transfer: Transfer, relay: Relay, at: int) -> None:
        """Send the payload from offset `at` to one host, as long as this machine is its source."""
        digest, done = hashlib.sha256(), 0
        try:
            with relay.feeding:  # a host receives payloads in order
                for chunk in transfer.payload.chunks():
                    if not transfer.hosts[relay].fed:
                        return
                    digest.update(chunk)
                    fresh = chunk[max(at - done, 0) :]
                    done += len(chunk)
                    if fresh:
                        relay.feed(transfer.name, done - len(fresh), fresh)
                        self._tracker.sent(relay.node, len(fresh))
        except (OSError, HostUnreachable):
            return  # the host is gone: `_follow` notices, and its reader will report starvation
        except DdpctlError as error:
            transfer.source_error = error
            transfer.order_all("drop")
            return
        transfer.size = done
        transfer.order_all("end", size=done, sha256=digest.hexdigest())

    # which host reads from which

    def _sources(self, transfer: Transfer, relay: Relay) -> list[Relay]:
        """Return the earlier hosts that are neither lost nor slow, nearest first."""
        row = list(transfer.hosts)
        before = reversed(row[: row.index(relay)])
        return [r for r in before if r.lost is None and r not in self._leaves]

    def _rewire(self, transfer: Transfer, relay: Relay, sources: list[Relay]) -> None:
        """Order a host to continue from its first source, if that has changed."""
        host = transfer.hosts[relay]
        if sources[:1] != host.sources[:1]:
            host.sources = sources
            relay.order("take", id=transfer.name, upstreams=_upstreams(sources))

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
        """Bypass a slow host. A second slow host behind one source means that the source is slow."""
        self._blamed[source] = self._blamed.get(source, 0) + 1
        if self._blamed[source] > 1 and not transfer.hosts[source].fed:
            row = list(transfer.hosts)
            self._leaves -= set(row[row.index(source) : row.index(relay) + 1])
            relay = source
        self._make_leaf(transfer, relay)

    def _try_the_second_host(self, transfer: Transfer) -> None:
        """Test whether feeding the second host directly is faster, in case the first host is slow."""
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
        elif second.done or now - transfer.trial > TRIAL:
            transfer.trial_over = True
            if second.done or second.rate > head.rate / SLOW:
                self._make_leaf(transfer, row[0])
            else:
                second.fed = False
                self._rewire(transfer, row[1], self._sources(transfer, row[1]))

    def _make_leaf(self, transfer: Transfer, slow: Relay) -> None:
        self._leaves.add(slow)
        self._tracker.say(f"{slow.node.name}: slow; the other hosts no longer wait for it")
        for relay, host in transfer.hosts.items():
            with self._changed:
                host.restart_measurement()  # earlier rates belong to the old order
            if relay is not slow and not host.fed and not host.done:
                self._rewire(transfer, relay, self._sources(transfer, relay))


def _upstreams(sources: Sequence[Relay]) -> list[tuple[str, int]]:
    return [(source.address, source.port) for source in sources]
