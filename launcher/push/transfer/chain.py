"""Hosts in a row: the first is fed from here, each other one takes its bytes from one before it.

A host that goes away is left out by the ones after it, within seconds and at the byte where they are.
A slow one is put at the end of a branch, where nobody waits for it. A host that no other can feed is
fed from here, which is said, as it costs this machine's uplink once more.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from functools import partial

from launcher.errors import DdpctlError, HostUnreachable, PushFailed
from launcher.push.transfer.relay import Damaged, Relay, Stage, feed, outcome
from launcher.push.transfer.send import END_TIMEOUT, Journey, Parcel
from launcher.push.transfer.tls import one_time_pair
from launcher.ssh.many import try_each
from launcher.ssh.node import Node

WINDOW = 3.0  # seconds over which a rate is measured
BEHIND = 2.0  # seconds, at the best rate, that a slow host is behind the one that feeds it
SLOW = 0.5  # of the best rate
SLOW_HEAD = 4e6  # bytes a second below which it may be the first host, not the uplink
WORTH_A_TRIAL = 15.0  # seconds that are left
TICK = 0.5  # seconds


class Transit:
    """One parcel on its way. `fed` are the hosts that are fed from here."""

    def __init__(self, name: str, parcel: Parcel, stages: dict[Relay, Stage]) -> None:
        self.name, self.parcel, self.stages = name, parcel, stages
        self.digest: str | None = None
        self.fed: set[Relay] = set()
        self.source_error: DdpctlError | None = None
        self.began = time.monotonic()
        self.trial: float | None = None  # when the second host began to be fed from here too
        self.judged = False
        self.wired: dict[Relay, list[list[object]]] = {}


class Chain:
    def __init__(self, nodes: Sequence[tuple[Node, str]], journey: Journey) -> None:
        """`nodes` with the address that the others reach each by, in the order of the row."""
        self._journey = journey
        self._relays = [Relay(node, address) for node, address in nodes]
        self._leaves: set[Relay] = set()
        self._blamed: dict[Relay, int] = {}
        self._transits: dict[str, Transit] = {}
        self._numbers = itertools.count()
        self._news = threading.Condition()

    def start(self) -> dict[Node, DdpctlError]:
        """Gives the hosts that cannot relay, and why; the row is made of the others."""
        pair = one_time_pair()
        relays = {relay.node: relay for relay in self._relays}
        _, failed = try_each(list(relays), lambda node: relays[node].start(*pair))
        self._relays = [relay for relay in self._relays if relay.node not in failed]
        for relay in self._relays:
            threading.Thread(target=self._hear, args=(relay,), daemon=True).start()
        return failed

    def close(self) -> None:
        for relay in self._relays:
            relay.close()

    def put(self, parcel: Parcel, nodes: Sequence[Node]) -> Transit:
        """Starts a parcel on its way; `settle` waits for it."""
        row = [relay for relay in self._relays if relay.node in nodes]
        transit = Transit(f"p{next(self._numbers)}", parcel, {relay: Stage() for relay in row})
        with self._news:
            self._transits[transit.name] = transit
        for relay in row:
            self._journey.progress.begin(relay.node.name, parcel.what, parcel.size)
            transit.wired[relay] = upstreams = self._upstreams(transit, relay)
            if relay.lost is not None:
                self._settled(transit, relay, relay.lost)
                continue
            relay.tell(op="open", id=transit.name, argv=list(parcel.argv), upstreams=upstreams)
        return transit

    def settle(self, transit: Transit) -> dict[Node, DdpctlError]:
        """Waits for all. Gives the hosts that do not have it, and why."""
        last_change, seen = time.monotonic(), -1
        while True:
            with self._news:
                open_ones = [stage for stage in transit.stages.values() if not stage.over]
                if not open_ones:
                    break
                self._news.wait(TICK)
                total = sum(stage.have for stage in transit.stages.values()) - len(open_ones)
            if total != seen:
                last_change, seen = time.monotonic(), total
            elif time.monotonic() - last_change > END_TIMEOUT:
                self._give_up(transit)
            self._mind_the_slow(transit)
            self._mind_the_head(transit)
        return {
            relay.node: stage.error
            for relay, stage in transit.stages.items()
            if stage.error is not None
        }

    def _give_up(self, transit: Transit) -> None:
        for relay, stage in transit.stages.items():
            if not stage.over:
                why = f"{relay.node.name}: {transit.parcel.what}: nothing for {END_TIMEOUT:.0f} s"
                self._settled(transit, relay, PushFailed(why))

    # what the hosts say

    def _hear(self, relay: Relay) -> None:
        why: DdpctlError = Damaged(f"{relay.node.name}: its relay ended")
        try:
            for words in relay.words():
                self._heard(relay, words)
        except DdpctlError as error:
            why = HostUnreachable(f"{error}; the next push goes on from there")
        except (OSError, ValueError):
            pass
        relay.lost = why
        for transit in list(self._transits.values()):
            if relay in transit.stages:
                self._settled(transit, relay, why)

    def _heard(self, relay: Relay, words: dict[str, object]) -> None:
        kind = words["ev"]
        if kind == "have":
            self._progress(relay, words["have"])  # type: ignore[arg-type]
            return
        transit = self._transits.get(str(words.get("id")))
        if transit is None or relay not in transit.stages:
            return
        if kind == "starved":
            self._starved(transit, relay, int(str(words["have"])), str(words["why"]))
        elif kind in ("done", "failed"):
            self._settled(transit, relay, self._finished(transit, relay, words))

    def _finished(
        self, transit: Transit, relay: Relay, words: dict[str, object]
    ) -> DdpctlError | None:
        error = outcome(relay, transit.parcel, words)
        if error is None and transit.parcel.finish is not None:
            try:
                transit.parcel.finish(relay.node)
            except DdpctlError as refusal:
                return refusal
        return error

    def _progress(self, relay: Relay, have: dict[str, int]) -> None:
        now = time.monotonic()
        for name, count in have.items():
            transit = self._transits.get(name)
            stage = transit.stages.get(relay) if transit else None
            if transit is None or stage is None:
                continue
            fresh = count - stage.have
            with self._news:
                stage.heard(count, now, WINDOW)
            if fresh:
                self._journey.count(relay.node, transit.parcel, fresh, from_here=False)

    def _settled(self, transit: Transit, relay: Relay, error: DdpctlError | None) -> None:
        with self._news:
            stage = transit.stages[relay]
            if stage.over:
                return
            if transit.source_error is not None:
                error = transit.source_error
            elif error is None and transit.digest is not None:
                total = int(transit.digest.split()[0])
                missing, stage.have = total - stage.have, total
                self._journey.count(relay.node, transit.parcel, missing, from_here=False)
            stage.over, stage.error = True, error
            last = all(other.over for other in transit.stages.values())
            self._news.notify_all()
        if last:
            for other in transit.stages:  # the room that it takes there is wanted for the next
                other.tell(op="close", id=transit.name)
        self._journey.progress.end(relay.node.name, transit.parcel.what)

    # what they are fed

    def _starved(self, transit: Transit, relay: Relay, have: int, why: str) -> None:
        with self._news:
            first = not transit.fed
            transit.fed.add(relay)
        if not first and transit.trial is None and all(r.lost is None for r in transit.fed):
            self._journey.say(
                f"{relay.node.name}: cannot take the {transit.parcel.what} from the other hosts "
                f"({why}): it is sent from here, over this machine's uplink once more"
            )
        threading.Thread(target=self._feed, args=(transit, relay, have), daemon=True).start()

    def _feed(self, transit: Transit, relay: Relay, at: int) -> None:
        count = self._journey.count_sent
        try:
            with relay.feeding:  # the parcel that was put first goes first
                wanted = partial(transit.fed.__contains__, relay)
                digest = feed(relay, transit.parcel, transit.name, at, count, wanted)
        except OSError:
            return  # that host has gone; `_hear` says so, and the next one starves
        except HostUnreachable:
            return
        except DdpctlError as error:
            transit.source_error = error
            for other in transit.stages:
                other.tell(op="drop", id=transit.name)
            return
        if digest is None:
            return
        with self._news:
            first, transit.digest = transit.digest is None, transit.digest or digest
        if first:
            size, sha256 = digest.split()
            for other in transit.stages:
                other.tell(op="end", id=transit.name, size=int(size), sha256=sha256)

    # who takes from whom

    def _upstreams(self, transit: Transit, relay: Relay) -> list[list[object]]:
        """All before it that are neither lost nor slow, the nearest first."""
        row = list(transit.stages)
        before = row[: row.index(relay)]
        good = [r for r in before if r.lost is None and r not in self._leaves]
        return [[r.address, r.port] for r in reversed(good)]

    def _mind_the_slow(self, transit: Transit) -> None:
        """A host well behind the one before it, at less than half of the best rate, is bypassed."""
        with self._news:
            running = [r for r, stage in transit.stages.items() if not stage.over]
            rates = {relay: transit.stages[relay].rate for relay in running}
            best = max((transit.stages[r].rate for r in transit.stages), default=0.0)
        for relay in running:
            if relay in self._leaves or relay in transit.fed or not best:
                continue
            feeder = self._feeder(transit, relay)
            if feeder is None or not rates[relay] or rates[relay] >= SLOW * best:
                continue
            behind = transit.stages[feeder].have - transit.stages[relay].have
            if behind > BEHIND * best:
                self._bypass(transit, relay, feeder)
                return

    def _feeder(self, transit: Transit, relay: Relay) -> Relay | None:
        row = list(transit.stages)
        before = [r for r in row[: row.index(relay)] if r.lost is None and r not in self._leaves]
        return before[-1] if before else None

    def _bypass(self, transit: Transit, relay: Relay, feeder: Relay) -> None:
        """The second complaint about the same feeder blames the feeder: its uplink is slow."""
        self._blamed[feeder] = self._blamed.get(feeder, 0) + 1
        slow = feeder if self._blamed[feeder] > 1 and feeder not in transit.fed else relay
        if slow is feeder:
            row = list(transit.stages)
            self._leaves -= set(row[row.index(feeder) + 1 : row.index(relay) + 1])
        self._leave_out(transit, slow)

    def _mind_the_head(self, transit: Transit) -> None:
        """Is it the uplink that is slow, or the first host? The second, fed from here too, tells."""
        row = [r for r in transit.stages if r.lost is None and r not in self._leaves]
        if len(row) < 2 or transit.judged or transit.stages[row[0]].over:
            return
        head, second = row[0], row[1]
        rate, now = transit.stages[head].rate, time.monotonic()
        if transit.trial is None:
            left = transit.parcel.size - transit.stages[head].have
            slow = 0 < rate < SLOW_HEAD and left > WORTH_A_TRIAL * rate
            if slow and not transit.stages[second].over:
                transit.trial = now
                transit.wired[second] = []
                second.tell(op="from", id=transit.name, upstreams=[])
        elif transit.stages[second].over or now - transit.trial > WINDOW + 1:
            transit.judged = True
            if transit.stages[second].over or transit.stages[second].rate > rate / SLOW:
                self._leave_out(transit, head)
            else:
                transit.fed.discard(second)
                self._wire(transit, second)

    def _leave_out(self, transit: Transit, slow: Relay) -> None:
        self._leaves.add(slow)
        self._journey.say(f"{slow.node.name}: slow, so no other host waits for it any more")
        for other, stage in transit.stages.items():
            with self._news:
                stage.past.clear()  # what was measured was measured in the old row
            if other is not slow and other not in transit.fed and not stage.over:
                self._wire(transit, other)

    def _wire(self, transit: Transit, relay: Relay) -> None:
        """Tells a host where to go on from, if the one that feeds it has changed."""
        upstreams = self._upstreams(transit, relay)
        if upstreams[:1] != transit.wired.get(relay, [])[:1]:
            transit.wired[relay] = upstreams
            relay.tell(op="from", id=transit.name, upstreams=upstreams)
