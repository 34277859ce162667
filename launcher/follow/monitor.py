"""Merge the journals and the engine status of all nodes into one stream of observations.

Journals are read by byte offset, so a broken connection costs time but never a line. Losing contact
with a host is reported but is not a failure. A node counts as ended only if its end was reported,
or if another node has failed and this one cannot be reached.
"""

import math
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from ..diagnosis.evidence import NodeEvidence
from ..engines.node_handle import AttemptHandle
from ..engines.status import warn_once
from ..errors import DdpctlError, HostUnreachable, lines
from ..logs.event_reader import LONGEST_TEXT, Unreadable
from ..logs.log_entry import LogEntry
from ..logs.store import Marks, offset_in
from ..outcomes import NodeState
from ..supervisor.events import End, Event, RestartInPlace, Usage
from ..text import names
from .inbox import Exited, Inbox, Item, Lost, NewEntries, ProbeFailed, Reached
from .node_watcher import PROBE_TIMEOUT, NodeWatcher

DRAIN_TIMEOUT = 15.0  # seconds of silence until we give up on the rest of an ended node's journal
ENGINE_TIMEOUT = 1.5  # seconds for the engine to confirm a node's end
SILENCE_TIMEOUT = 15.0  # seconds to wait for a silent host after all other nodes have ended
PROBE_DELAY = 0.5  # seconds for the other nodes to end after a failure, before they are probed
CONTACT_TIME = 1.0  # seconds during which lost or restored contacts are collected into one notice
MOST_EVENTS = 8 << 20  # bytes of events kept per node
TAIL_LINES = 400  # lines kept per node, to find the last lines of a failed rank
TRYING = "the run continues, and ddpctl keeps trying to reach it"
GIVEN_UP = "not waiting for it: another node has failed"


@dataclass
class Contact:
    """This machine's contact with a node's host. Times are from time.monotonic()."""

    lost: DdpctlError | None = None  # why contact was lost; None: in contact
    lost_at: float = math.inf  # inf: in contact
    gone: bool = False  # whether a probe after another node's failure got no answer
    announced: DdpctlError | None = None  # the `lost` that the user was told about
    probed_at: float = 0.0

    def lose(self, why: DdpctlError, *, gone: bool = False) -> None:
        self.lost, self.gone = why, gone
        self.lost_at = min(self.lost_at, time.monotonic())

    def restore(self) -> None:
        self.lost, self.lost_at, self.gone = None, math.inf, False


@dataclass
class FollowedNode(NodeEvidence):
    """The evidence about one node so far, and whether the node has ended."""

    events: list[tuple[float, Event]] = field(default_factory=list)
    tail: deque[LogEntry] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    usage: Usage | None = None  # the newest
    event_bytes: int = 0  # the size of `events` as text
    offset: int = 0  # bytes of the journal read so far; 0 until the past events have arrived
    size: int = 0  # bytes of the journal once the node has ended
    contact: Contact = field(default_factory=Contact)
    done: bool = False  # whether nothing more will come from it: see Monitor._newly_done
    killed: bool = False  # whether `kill` ended it before its supervisor could report an end
    # times by time.monotonic()
    reported_at: float = 0.0  # the last report of the node's watcher
    end_received: float = 0.0

    @property
    def end_state(self) -> NodeState:
        state = super().end_state
        return NodeState.CANCELLED if self.killed and state is NodeState.FAILED else state

    @property
    def succeeded(self) -> bool:
        return self.end_state is NodeState.SUCCEEDED

    @property
    def seems_alive(self) -> bool:
        """Whether it has not reported its end and more may come from it."""
        return not self.done and self.end is None


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
class NodeEnded:
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
Observation = NewEntries | NodeEnded | Restarted | ContactChange | Tick


class Monitor:
    """Follows one attempt to its end, beginning with the first line that is not yet on screen."""

    def __init__(
        self, handle: AttemptHandle, shown: Marks, clock_skews: Sequence[float] = ()
    ) -> None:
        """shown: where the lines on screen end, by node rank. clock_skews: see StartedRun."""
        self.nodes = {
            rank: FollowedNode(rank, member.connection.name, unit=member.engine.traits.unit)
            for rank, member in enumerate(handle.members)
        }
        for node, skew in zip(self.nodes.values(), clock_skews, strict=False):
            node.clock_skew = skew
        self._inbox = Inbox()
        self._watchers = [
            NodeWatcher(member, offset_in(member.place.attempt, shown.get(rank)), self._inbox)
            for rank, member in enumerate(handle.members)
        ]
        self._announced_at = 0.0  # time.monotonic() when the user last knew all contacts' state

    def observations(self) -> Generator[Observation]:
        """Yield observations until all nodes have ended. Closing the generator ends the watchers.

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
                yield from map(NodeEnded, self._newly_done())
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
        node.reported_at = time.monotonic()
        match item:
            case NewEntries():
                return [item, *self._note_entries(node, item)]
            case Reached():
                node.contact.restore()
            case Lost(_, why) if not node.contact.lost:
                node.contact.lose(why)
            case ProbeFailed(_, why) if not node.end:  # it may have ended during the probe
                node.contact.lose(why, gone=True)
            case Exited():
                node.engine_saw_end, node.size = True, item.size
                node.oom_killed = item.status.oom_killed
                if node.end is None:
                    node.exit_code = item.status.exit_code
        return []

    def _note_entries(self, node: FollowedNode, new: NewEntries) -> list[Restarted]:
        restarts = []
        for entry in new.entries:
            if entry.event is None:
                newest = (line[:LONGEST_TEXT] for line in entry.lines[-TAIL_LINES:])
                origin = (entry.host, entry.node_rank, entry.time, entry.rank)
                # not `_replace`, which takes more than twice as long
                node.tail.extend(LogEntry(*origin, None, [line]) for line in newest)
            elif restarted := self._note_event(node, entry.time, entry.event):
                restarts.append(restarted)
        node.offset = new.offset
        return restarts

    def _note_event(self, node: FollowedNode, at: float, event: Event) -> Restarted | None:
        """Keep an event. If it reports a restart in place, return the observation, else None.

        at: unix seconds, by the node's clock.
        """
        if isinstance(event, Unreadable):
            warn_once(f"{node.host}: skipping unreadable events in its journal")
            return None
        if isinstance(event, Usage):  # keep only the newest, because one arrives every few seconds
            node.usage = event
            node.gpus_before = node.gpus_before or event.gpus
            return None
        node.events.append((at, event))
        node.event_bytes += len(repr(event))
        if node.event_bytes > MOST_EVENTS:  # after many restarts in place; the newest matter
            half = len(node.events) // 2
            newer = enumerate(node.events[half:], half)
            restarts = (index for index, (_, e) in newer if isinstance(e, RestartInPlace))
            del node.events[: next(restarts, half)]  # no part of a round would show its cause
            node.event_bytes = sum(len(repr(kept)) for _, kept in node.events)
        if isinstance(event, End):
            node.exit_code, node.end_received = event.exit_code, time.monotonic()
        return Restarted(node, at, event) if isinstance(event, RestartInPlace) else None

    def _contact_changes(self, wait: float) -> Iterator[ContactChange]:
        """Yield all contact changes that were not announced, `wait` seconds after the first of them."""
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
            node.done = _is_done(node, now, drained=self._inbox.was_empty)
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
            return now - max(node.end_received for node in ended) > ENGINE_TIMEOUT
        silence = now - max(node.contact.lost_at for node in remaining)
        return any(not node.succeeded for node in ended) and silence > SILENCE_TIMEOUT

    def _probe_remaining_nodes(self) -> None:
        """After a node has failed, probe the nodes that still seem to be running.

        All nodes should end within seconds of a failure. A node that does not end may be on a host
        without power, which SSH alone takes much longer to notice.
        """
        now, nodes = time.monotonic(), self.nodes.values()
        failed = (node for node in nodes if not (node.seems_alive or node.succeeded))
        failed_at = (node.end_received for node in failed)
        if now - min(failed_at, default=now) < PROBE_DELAY:
            return
        for watcher in self._watchers:
            node = self.nodes[watcher.node_rank]
            if node.seems_alive and now - node.contact.probed_at >= PROBE_TIMEOUT:
                node.contact.probed_at = now
                watcher.probe()


def _is_done(node: FollowedNode, now: float, *, drained: bool) -> bool:
    """Return whether nothing more will come from the node, for one of these reasons:

    - Its host did not answer a probe after another node's failure.
    - The node and its engine have reported its end.
    - The node reported its end ENGINE_TIMEOUT ago, and its engine has not confirmed it.
    - Its engine has reported its end, and its whole journal was read.
    - Its engine has reported its end, and nothing has arrived for DRAIN_TIMEOUT.

    now: time.monotonic(). drained: whether the Monitor has taken all items from its inbox.
    """
    if node.contact.gone:
        return True
    if node.end:
        return node.engine_saw_end or (drained and now - node.end_received > ENGINE_TIMEOUT)
    silent = drained and now - node.reported_at > DRAIN_TIMEOUT
    return node.engine_saw_end and (silent or node.offset >= node.size)
