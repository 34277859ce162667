"""What is known about one node of a live attempt: its evidence so far, and whether more may come."""

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..diagnosis.evidence import NodeEvidence
from ..engines.status import warn_once
from ..errors import DdpctlError
from ..logs.event_reader import LONGEST_TEXT, Unreadable
from ..logs.log_entry import OutputLines
from ..outcomes import NodeState
from ..supervisor.events import End, Event, RestartInPlace, Usage

DRAIN_TIMEOUT = 15.0  # seconds of silence until we give up on the rest of an ended node's journal
ENGINE_TIMEOUT = 1.5  # seconds for the engine to confirm a node's end
MOST_EVENTS = 8 << 20  # bytes of events kept per node
KEPT_LINES = 400  # lines kept per node, to find the last lines of a failed rank


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
    """A node that the Monitor follows."""

    events: list[tuple[float, Event]] = field(default_factory=list)
    newest_lines: deque[OutputLines] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    usage: Usage | None = None  # the newest
    event_bytes: int = 0  # the size of `events` as text
    offset: int = 0  # bytes of the journal read so far; 0 until the past events have arrived
    journal_size: int = 0  # see Exited
    contact: Contact = field(default_factory=Contact)
    done: bool = False  # whether nothing more will come from it: see Monitor._newly_done
    killed: bool = False  # whether `kill` ended it before its supervisor could report an end
    # times by time.monotonic()
    heard_at: float = 0.0  # when its watcher last passed on anything
    end_heard_at: float = 0.0  # when `end` arrived

    @property
    def end_state(self) -> NodeState:
        state = super().end_state
        return NodeState.CANCELLED if self.killed and state is NodeState.FAILED else state

    @property
    def succeeded(self) -> bool:
        return self.end_state is NodeState.SUCCEEDED

    @property
    def has_ended(self) -> bool:
        """Whether the node's supervisor or engine has reported its end."""
        return self.end is not None or self.exited

    @property
    def seems_alive(self) -> bool:
        """Whether the node has not reported its end, and may still report more."""
        return not self.done and self.end is None

    @property
    def was_read(self) -> bool:
        """Whether the node's journal was read to the end."""
        return self.end is not None or (self.exited and self.offset >= self.journal_size)

    def keep(
        self, output: Iterable[OutputLines], events: Iterable[tuple[float, Event]], offset: int
    ) -> None:
        """Keep the lines and events that end at byte `offset` of the journal."""
        self.offset = offset
        for entry in output:
            self.keep_lines(entry)
        for at, event in events:
            self.keep_event(at, event)

    def keep_lines(self, entry: OutputLines) -> None:
        """Keep the last few lines, each in an OutputLines of its own."""
        host, node_rank, at, rank, lines, _ = entry  # `_replace` takes more than twice as long
        newest = ([line[:LONGEST_TEXT]] for line in lines[-KEPT_LINES:])
        self.newest_lines.extend(OutputLines(host, node_rank, at, rank, line) for line in newest)

    def keep_event(self, at: float, event: Event) -> None:
        """Keep an event. at: unix seconds, by the node's clock."""
        if isinstance(event, Unreadable):
            warn_once(f"{self.host}: skipping unreadable events in its journal")
            return
        if isinstance(event, Usage):  # keep only the newest, because one arrives every few seconds
            self.usage = event
            self.gpus_before = self.gpus_before or event.gpus
            return
        if isinstance(event, End):
            self.exit_code, self.end_heard_at = event.exit_code, time.monotonic()
        self.events.append((at, event))
        self.event_bytes += len(repr(event))
        if self.event_bytes > MOST_EVENTS:  # after many restarts in place; the newest matter
            half = len(self.events) // 2
            newer = enumerate(self.events[half:], half)
            restarts = (index for index, (_, e) in newer if isinstance(e, RestartInPlace))
            del self.events[: next(restarts, half)]  # no part of a round would show its cause
            self.event_bytes = sum(len(repr(kept)) for _, kept in self.events)

    def nothing_more_comes(self, now: float, *, drained: bool) -> bool:
        """Return whether the node will report nothing more, for one of these reasons:

        - Its host did not answer a probe after another node's failure.
        - The node and its engine have reported its end.
        - The node reported its end ENGINE_TIMEOUT ago, and its engine has not confirmed it.
        - Its engine has reported its end, and its whole journal was read.
        - Its engine has reported its end, and nothing has arrived for DRAIN_TIMEOUT.

        now: time.monotonic(). drained: whether the Monitor has taken all items from its inbox.
        """
        if self.contact.gone:
            return True
        if self.end:
            return self.exited or (drained and now - self.end_heard_at > ENGINE_TIMEOUT)
        silent = drained and now - self.heard_at > DRAIN_TIMEOUT
        return self.was_read or (self.exited and silent)
