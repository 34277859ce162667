"""Merge the journals and the engine status of all nodes into one stream of observations.

Journals are read by byte offset, so a broken connection costs time but never a line. Losing contact
with a host is reported but is not a failure. A node is done only if its end was reported, or if
another node has failed and this one cannot be reached.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..engines.node_handle import AttemptHandle
from ..errors import HostUnreachable, lines
from ..logs.log_entry import events_in, output_in
from ..logs.store import Marks, offset_in
from ..supervisor.events import Event, RestartInPlace
from ..text import names
from .followed_node import ENGINE_TIMEOUT, FollowedNode
from .inbox import Exited, Inbox, Item, Lost, NewEntries, PastEvents, ProbeFailed, Reached
from .node_watcher import PROBE_TIMEOUT, NodeWatcher

SILENCE_TIMEOUT = 15.0  # seconds to wait for a silent host after all other nodes have ended
PROBE_DELAY = 0.5  # seconds for the other nodes to end after a failure, before they are probed
CONTACT_TIME = 1.0  # seconds during which lost or restored contacts are collected into one notice
TRYING = "the run continues, and ddpctl keeps trying to reach it"
GIVEN_UP = "not waiting for it: another node has failed"


@dataclass(frozen=True)
class ContactChange:
    """Contact with hosts was lost or restored. nodes: one node per host."""

    nodes: Sequence[FollowedNode]

    @property
    def texts(self) -> list[str]:
        """Lines for the user. Hosts that were lost for the same reason share a line."""
        lost = lines(
            HostUnreachable(why.what, GIVEN_UP if node.contact.gone else TRYING, host=node.host)
            for node in self.nodes
            if (why := node.contact.lost)
        )
        restored = names(node.host for node in self.nodes if not node.contact.lost)
        back = [f"{restored}: contact restored"] if restored else []
        return [*(f"lost contact with {line}" for line in lost), *back]


@dataclass(frozen=True)
class NodeDone:
    """A node is done. Observed once for each node."""

    node: FollowedNode


@dataclass(frozen=True)
class Restarted:
    """A node's report of a restart in place; all nodes send one. time: by the node's clock."""

    node: FollowedNode
    time: float
    restart: RestartInPlace


@dataclass(frozen=True)
class Tick:
    """It is time to show the lines so far, save the record and handle signals.

    Observed at least every inbox.POLL seconds, however much the ranks print.
    """


# NewEntries are passed on as they come from the inbox
Observation = NewEntries | NodeDone | Restarted | ContactChange | Tick


class Monitor:
    """Follows one attempt to its end, beginning with the first line that is not yet on screen."""

    def __init__(
        self, handle: AttemptHandle, shown: Marks, clock_skews: Sequence[float] = ()
    ) -> None:
        """shown: the marks up to which lines are on screen. clock_skews: see StartedRun."""
        self.nodes = {
            node_rank: FollowedNode(
                node_rank, member.connection.name, unit=member.engine.traits.unit
            )
            for node_rank, member in enumerate(handle.members)
        }
        for node, skew in zip(self.nodes.values(), clock_skews, strict=False):
            node.clock_skew = skew
        self._inbox = Inbox()
        self._watchers = [
            NodeWatcher(member, offset_in(member.place.attempt, shown.get(node_rank)), self._inbox)
            for node_rank, member in enumerate(handle.members)
        ]
        self._announced_at = 0.0  # time.monotonic() when the user last knew all contacts' state

    def observations(self) -> Generator[Observation]:
        """Yield observations until all nodes are done. Closing the generator ends the watchers.

        NewEntries come before the observations that their events cause, so that their lines are
        shown and recorded before ddpctl reacts to the events.
        """
        for watcher in self._watchers:
            watcher.start()
        try:
            while self._waiting():
                for item in self._inbox.take():
                    yield from self._observe(item)
                yield Tick()
                yield from map(NodeDone, self._newly_done())
                self._probe_remaining_nodes()
                yield from self._contact_changes(CONTACT_TIME)
            yield from self._contact_changes(0.0)
        finally:
            self._inbox.close()
            for watcher in self._watchers:
                watcher.close()

    def _waiting(self) -> list[FollowedNode]:
        return [node for node in self.nodes.values() if not node.done]

    # --- from the watchers' items to observations ----------------------------------------------

    def _observe(self, item: Item) -> list[Observation]:
        node = self.nodes[item.node_rank]
        node.heard_at = time.monotonic()
        match item:
            case NewEntries(_, entries, offset):
                events = events_in(entries)
                node.keep(output_in(entries), events, offset)
                return [item, *_restarts(node, events)]
            case PastEvents(_, events, offset):
                node.keep([], events, offset)
                return [*_restarts(node, events)]
            case Reached():
                node.contact.restore()
            case Lost(_, why) if not node.contact.lost:
                node.contact.lose(why)
            case ProbeFailed(_, why) if not node.end:  # it may have ended during the probe
                node.contact.lose(why, gone=True)
            case Exited():
                node.exited, node.journal_size = True, item.journal_size
                node.oom_killed = item.status.oom_killed
                if node.end is None:
                    node.exit_code = item.status.exit_code
        return []

    def _contact_changes(self, wait: float) -> Iterator[ContactChange]:
        """Yield the contact changes not yet announced, once `wait` seconds have passed since the first."""
        nodes = self.nodes.values()
        changed = [node for node in nodes if node.contact.lost is not node.contact.announced]
        if not changed:
            self._announced_at = time.monotonic()
        elif time.monotonic() - self._announced_at >= wait:
            for node in changed:
                node.contact.announced = node.contact.lost
            yield ContactChange([*{node.host: node for node in changed}.values()])

    # --- which nodes are done ------------------------------------------------------------------

    def _newly_done(self) -> list[FollowedNode]:
        """Mark the nodes that are done, and return those that were not marked before."""
        waiting, now = self._waiting(), time.monotonic()
        for node in waiting:
            node.done = node.nothing_more_comes(now, drained=self._inbox.was_empty)
        remaining = [node for node in waiting if node.seems_alive]
        if self._are_lost(remaining, now):
            for node in remaining:
                node.done = True
        return [node for node in waiting if node.done]

    def _are_lost(self, remaining: Sequence[FollowedNode], now: float) -> bool:
        """Return whether all remaining nodes were lost by their peers or by this machine.

        As long as no node has ended, losing contact with all nodes proves nothing about the run.
        """
        ended = [node for node in self.nodes.values() if not node.seems_alive]
        if not remaining or not ended:
            return False
        reasons = [node.end.reason for node in ended if node.end]
        lost_by_peers = {r.node_rank for r in reasons if r and r.kind == "host-lost"}
        if all(node.node_rank in lost_by_peers for node in remaining):
            return now - max(node.end_heard_at for node in ended) > ENGINE_TIMEOUT
        silence = now - max(node.contact.lost_at for node in remaining)
        return any(not node.succeeded for node in ended) and silence > SILENCE_TIMEOUT

    def _probe_remaining_nodes(self) -> None:
        """After a node has failed, probe the nodes that still seem to be running.

        All nodes should end within seconds of a failure. A node that does not end may be on a host
        without power, which SSH alone takes much longer to notice.
        """
        now, nodes = time.monotonic(), self.nodes.values()
        failed = (node for node in nodes if not (node.seems_alive or node.succeeded))
        failed_at = (node.end_heard_at for node in failed)
        if now - min(failed_at, default=now) < PROBE_DELAY:
            return
        for watcher in self._watchers:
            node = self.nodes[watcher.node_rank]
            if node.seems_alive and now - node.contact.probed_at >= PROBE_TIMEOUT:
                node.contact.probed_at = now
                watcher.probe()


def _restarts(node: FollowedNode, events: Iterable[tuple[float, Event]]) -> Iterator[Restarted]:
    return (Restarted(node, at, e) for at, e in events if isinstance(e, RestartInPlace))
