"""A chain of hosts: this machine feeds the first, and each other host reads from an earlier one.

If a host fails, its readers continue from another host within seconds, at the byte they had
reached. A host that is slow, or stuck for a minute, becomes a leaf: no other host reads from it. If
a host has no source, this machine feeds it and prints a notice, because this uses the uplink once
more.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ...errors import DdpctlError, HostUnreachable
from ...text import duration
from ..push_progress import PushProgress
from .payload import Failures, Payload, end_timeout, failed, stuck
from .relay_agent import MAX_AHEAD
from .relay_client import Relay, RelayEvent, TransferDamaged

WINDOW = 2.0  # seconds over which a rate is measured
TRIAL = 5.0  # seconds to try another order; longer than WINDOW
BEHIND = 2.0  # seconds of data at the best rate; a slow host lags behind its source by more
SLOW = 0.5  # fraction of the best rate; a slow host receives at less than that
SLOW_HEAD = 4e6  # bytes/s below which the first host, rather than the uplink, may be slow
WORTH_A_TRIAL = 15.0  # seconds that the rest of the transfer must take to justify a trial
STUCK = 60.0  # seconds without a byte, although there are more, until a host is bypassed
TICK = 0.5  # seconds
STEP = 1 << 20  # bytes that count as progress; a host that reports a few at a time is stuck


@dataclass(eq=False)
class HostTransfer:
    """The state of a transfer on one host."""

    relay: Relay
    fed: bool = False  # whether this machine is its source
    offered: int = 0  # bytes that this machine has sent or is sending to it
    have: int = 0  # bytes received
    consumed: int = 0  # bytes passed to the command; tar may need hours for many small files
    rate: float = 0.0  # bytes/s in the last full window
    window: tuple[float, int] = (math.inf, 0)  # (start of the current window, bytes at that time)
    stuck: tuple[float, int] = (math.inf, -1)  # (since when it might be, bytes at that time)
    done: bool = False
    error: DdpctlError | None = None


class Transfer:
    """A payload on its way to `hosts`, which are in the order of the chain."""

    def __init__(
        self, name: str, payload: Payload, row: Sequence[Relay], progress: PushProgress
    ) -> None:
        self.name, self.payload = name, payload
        self.hosts = {relay: HostTransfer(relay) for relay in row}
        self._progress = progress
        self._size: int | None = None  # bytes; unknown until the end
        self._trial: float | None = None  # when this machine began to feed the second host too
        self._trial_over = False
        self._changed = threading.Condition()

    @property
    def over(self) -> bool:
        return all(host.done for host in self.hosts.values())

    def open(self) -> None:
        for relay, host in self.hosts.items():
            if relay.lost is not None:
                self.end(host, relay.lost)
            else:
                argv = self.payload.command(relay.connection)
                self._read_from(host, self._sources(host), "open", argv=argv)

    def finish(self) -> Failures:
        """Wait until all hosts are done. Return the errors of failed hosts."""
        since, before = 0.0, (-1, -1)
        with self._changed:
            while unfinished := [host for host in self.hosts.values() if not host.done]:
                self._changed.wait(TICK)
                steps = sum((h.have + h.consumed) // STEP for h in self.hosts.values())
                state = steps, len(unfinished)
                if state != before:
                    since, before = time.monotonic(), state
                elif time.monotonic() - since > (timeout := end_timeout(self._size or 0)):
                    for host in unfinished:
                        name = host.relay.connection.name
                        self.end(host, stuck(name, self.payload.part, timeout))
                self._bypass_slow_hosts()
                self._bypass_stuck_hosts()
                self._try_the_second_host()
        return {
            r.connection: host.error for r, host in self.hosts.items() if host.error is not None
        }

    # events of the hosts

    def handle(self, host: HostTransfer, event: RelayEvent) -> None:
        name, part = host.relay.connection.name, self.payload.part
        if self.over:
            return
        if event.kind == "have":
            self._count(host, event.count)
            host.consumed = max(host.consumed, min(int(event.text), host.have))
        elif event.kind == "starved" and not host.fed:
            self._feed_from_here(host, event)
        elif event.kind == "failed":
            error = failed(name, part, event.text)
            self.end(host, TransferDamaged(error.what, error.remedy, host=name))
        elif event.kind == "done":
            why = event.text or f"exit {event.count}"
            self.end(host, failed(name, part, why) if event.count else None)

    def _count(self, host: HostTransfer, have: int) -> None:
        with self._changed:
            have = max(host.have, min(have, self._size or sys.maxsize))
            fresh, now = have - host.have, time.monotonic()
            (began, had), host.have = host.window, have
            if now - began >= WINDOW:
                host.rate = (have - had) / (now - began)
            if not 0 <= now - began < WINDOW:
                host.window = now, have
        if fresh:
            self._progress.received(host.relay.connection, self.payload.part, fresh)

    def end(self, host: HostTransfer, error: DdpctlError | None) -> None:
        with self._changed:
            if host.done:
                return
            host.done, host.error = True, error
            if error is None and self._size is not None:
                self._count(host, self._size)
            over = self.over
            self._changed.notify_all()
        if over:
            self._order_all("close")  # the next payload needs the disk space
        self._progress.settled(host.relay.connection, self.payload.part)

    def _order_all(self, op: str, **arguments: object) -> None:
        for relay in self.hosts:
            relay.order(op, id=self.name, **arguments)

    # feeding by this machine

    def _feed_from_here(self, host: HostTransfer, event: RelayEvent) -> None:
        with self._changed:
            others = [other for other in self.hosts.values() if other.fed]
            host.fed = True
        if others and self._trial is None and all(other.relay.lost is None for other in others):
            why = " ".join(event.text.split())
            self._progress.say(
                f"{host.relay.connection.name}: cannot get the {self.payload.part} from the other hosts "
                f"({why}); sending it from this machine instead"
            )
        host.relay.feeds.put(partial(self._feed, host, event.count))

    def _feed(self, host: HostTransfer, at: int) -> None:
        """Send the payload from offset `at` to a host while this machine is its source."""
        relay, digest, done = host.relay, hashlib.sha256(), 0
        try:
            for chunk in self.payload.chunks():
                if not host.fed or self.over:
                    return
                digest.update(chunk)
                fresh = chunk[max(at - done, 0) :]
                done += len(chunk)
                if fresh:
                    host.offered = done
                    relay.feed(self.name, done - len(fresh), fresh)
                    self._progress.sent(relay.connection, len(fresh))
        except (OSError, HostUnreachable):
            return  # the host is gone: `_follow` notices, and hosts that read from it starve
        except DdpctlError as error:
            for each in self.hosts.values():
                self.end(each, error)
            return
        self._size = done
        self._order_all("end", size=done, sha256=digest.hexdigest())

    # which host reads from which

    def _sources(self, host: HostTransfer) -> list[Relay]:
        """Return the earlier hosts that are neither lost nor slow, nearest first."""
        before = itertools.takewhile(lambda relay: relay is not host.relay, self.hosts)
        return [relay for relay in before if relay.lost is None and not relay.is_leaf][::-1]

    def _read_from(
        self, host: HostTransfer, sources: Sequence[Relay], op: str = "take", **arguments: object
    ) -> None:
        """Order a host to continue reading from the first of `sources` that it can reach."""
        upstreams = [(source.address, source.port) for source in sources]
        host.relay.order(op, id=self.name, upstreams=upstreams, **arguments)

    def _bypass_slow_hosts(self) -> None:
        """Bypass a host that is far behind its source and slower than half of the best rate."""
        best = max((host.rate for host in self.hosts.values()), default=0.0)
        for host in self.hosts.values():
            if host.done or host.fed or host.relay.is_leaf or not 0 < host.rate < SLOW * best:
                continue
            source = next((self.hosts[relay] for relay in self._sources(host)), None)
            if source and source.have - host.have > BEHIND * best:
                self._bypass(host, None if source.fed else source, "too slow")
                return

    def _bypass_stuck_hosts(self) -> None:
        """Bypass a host that has received nothing for a minute although its source has more.

        A host whose command is slow to read is not stuck: it holds back what it receives.
        """
        now = time.monotonic()
        for host in self.hosts.values():
            sources = [] if host.fed else self._sources(host)
            offered = self.hosts[sources[0]].have if sources else host.offered
            waits = host.have >= offered or host.have - host.consumed > MAX_AHEAD
            if host.done or waits or host.have != host.stuck[1]:
                host.stuck = now, host.have
            elif now - host.stuck[0] > STUCK and not host.relay.is_leaf:
                source = self.hosts[sources[0]] if sources else None
                bypassed = self._bypass(host, source, f"no progress for {duration(STUCK)}")
                if sources and bypassed is host:  # the source may be what is stuck
                    self._read_from(host, sources[1:])
                return

    def _bypass(self, host: HostTransfer, source: HostTransfer | None, why: str) -> HostTransfer:
        """Turn `host` into a leaf, or `source` if it has had several slow readers.

        Return the new leaf.
        """
        if source:
            source.relay.slow_readers += 1
            if source.relay.slow_readers > 1:
                row = list(self.hosts.values())
                for wronged in row[row.index(source) : row.index(host)]:
                    wronged.relay.is_leaf = False
                host = source
        self._make_leaf(host, why)
        return host

    def _try_the_second_host(self) -> None:
        """Test whether it is faster to feed the second host directly, in case the first is slow."""
        row = [h for h in self.hosts.values() if h.relay.lost is None and not h.relay.is_leaf]
        if len(row) < 2 or self._trial_over or row[0].done:
            return
        head, second = row[:2]
        now = time.monotonic()
        if self._trial is None:
            left = (self.payload.size or 0) - head.have
            if 0 < head.rate < SLOW_HEAD and left > WORTH_A_TRIAL * head.rate and not second.done:
                self._trial = now
                self._read_from(second, [])
        elif second.done or now - self._trial > TRIAL:
            self._trial_over = True
            if second.done or second.rate > head.rate / SLOW:
                self._make_leaf(head, "too slow")
            else:
                second.fed = False
                self._read_from(second, self._sources(second))

    def _make_leaf(self, slow: HostTransfer, why: str) -> None:
        slow.relay.is_leaf = True
        self._progress.say(
            f"{slow.relay.connection.name}: {why}; the other hosts no longer wait for it"
        )
        for host in self.hosts.values():
            with self._changed:  # earlier rates belong to the old order
                host.rate, host.window, host.stuck = 0.0, (math.inf, 0), (math.inf, -1)
            if host is not slow and not host.fed and not host.done:
                self._read_from(host, self._sources(host))
