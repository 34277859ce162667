"""Following a run: every node's journal and engine at once, one queue, one story.

A journal is read by byte offset, so a cut connection costs time and never a line. Losing sight of a
host is said and is not a failure: its node is concluded only when somebody has seen it end, or when
all that can be seen has ended and it stays out of sight.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launcher.engines.attempt import RunningAttempt
from launcher.engines.base import NodeStatus
from launcher.follow.node_watcher import LOOK_TIMEOUT, Batch, Exited, Item, Sight, Watcher
from launcher.logs.events import Unreadable
from launcher.logs.journal import Record
from launcher.logs.store import LogStore, Mark, offset_in
from launcher.supervisor.events import End, Event

QUEUE_SIZE = 64  # batches in flight: what bounds the launcher's memory
DRAIN_TIMEOUT = 5.0  # seconds that a journal may lag behind the end of its container
ENGINE_TIMEOUT = 1.5  # seconds for the engine to confirm that a node has said its last word
UNSEEN_TIMEOUT = 15.0  # seconds to wait for a host out of sight once all others have ended
LAST_WORDS = 0.5  # seconds for the rest to end once a node has failed; then they are looked for
TAIL_LINES = 400  # a rank's last lines are looked for among these


@dataclass(frozen=True)
class Lines:
    """What a node has said, as CONTRACT section 4 has it: whole lines, each with its newline."""

    node_rank: int
    text: bytes


@dataclass(frozen=True)
class Line:
    host: str
    rank: int | None
    text: bytes
    time: float  # unix seconds, the host's clock


@dataclass
class NodeOutcome:
    """What has been learned of one node so far."""

    node_rank: int
    host: str
    events: list[tuple[float, Event]] = field(default_factory=list)
    unreadable: bool = False  # some of its events were malformed, and skipped
    # the newest lines, for the failure's excerpt
    tail: deque[Line] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    end: End | None = None  # the supervisor's last word
    end_heard: float = 0.0  # time.monotonic() of it
    status: NodeStatus | None = None  # the engine's, once it has exited
    unseen_since: float | None = None  # time.monotonic() since when the host is out of sight
    unseen_reason: str = ""
    gone: bool = False  # looked for after the others' failure, and not there
    done: bool = False

    def remember(self, said: Record) -> None:
        newest = said.lines[-TAIL_LINES:]
        self.tail.extend(Line(self.host, said.rank, text, said.time) for text in newest)

    @property
    def exit_code(self) -> int | None:
        if self.end is not None:
            return self.end.exit_code
        return self.status.exit_code if self.status else None

    @property
    def succeeded(self) -> bool:
        return self.end is not None and self.end.state == "succeeded"

    @property
    def ended_badly(self) -> bool:
        return self.end is not None and not self.succeeded

    @property
    def lost_peer(self) -> int | None:
        """The node rank whose going made this node end, if that was why."""
        reason = self.end.reason if self.end else None
        return reason.node_rank if reason and reason.kind == "peer-lost" else None

    @property
    def failed(self) -> bool:
        return self.done and not self.succeeded


class Follow:
    """One pass over a run, from its offsets to its end. `events()` is the loop."""

    def __init__(
        self,
        attempt: RunningAttempt,
        store: LogStore | None = None,
        known: Mapping[int, Mark] | None = None,
    ) -> None:
        """known: what has been read of the journals before."""
        self._attempt = attempt.places[0].attempt
        offsets = [offset_in(known or {}, place) for place in attempt.places]
        self.store = store
        self.outcomes = {
            m.place.node_rank: NodeOutcome(m.place.node_rank, m.node.name) for m in attempt.members
        }
        self._queue: queue.Queue[Item] = queue.Queue(QUEUE_SIZE)
        self._offsets = dict(enumerate(offsets))
        self._consumed = dict.fromkeys(self._offsets, 0)  # until the events before are recalled
        self._sizes: dict[int, tuple[int, float]] = {}  # journal size and when it was learned
        self._over = threading.Event()
        self._watchers = [
            Watcher(member, offset, self._put, self._over)
            for member, offset in zip(attempt.members, offsets, strict=True)
        ]
        self._looked_at: dict[int, float] = {}  # time.monotonic() of the last look for a node

    def events(self) -> Iterator[Lines | NodeOutcome | str | None]:
        """Lines, nodes that ended (once each), notices (str), and None at least every 0.2 s, however
        much the ranks say: it is then that a Ctrl-C is looked at."""
        for watcher in self._watchers:
            watcher.start()
        try:
            while not all(outcome.done for outcome in self.outcomes.values()):
                yield from self._next()
                yield from self._conclude()
                yield None
        finally:
            self.close()

    def close(self) -> None:
        self._over.set()
        for watcher in self._watchers:
            watcher.close()

    # --- the loop's two halves: take one item; see who is done -------------------------------

    def _next(self) -> Iterator[Lines | NodeOutcome | str | None]:
        try:
            item = self._queue.get(timeout=0.2)
        except queue.Empty:
            yield None
            return
        if isinstance(item, Batch):
            yield from self._take_batch(item)
        elif isinstance(item, Exited):
            self.outcomes[item.node_rank].status = item.status
            self._sizes[item.node_rank] = (item.size, time.monotonic())
        else:
            yield from self._take_sight(item)

    def _take_batch(self, batch: Batch) -> Iterator[Lines | str]:
        outcome = self.outcomes[batch.node_rank]
        for record in batch.records:
            if record.event is None:
                outcome.remember(record)
                continue
            if isinstance(record.event, Unreadable):
                if record.event.known and not outcome.unreadable:
                    outcome.unreadable = True
                    yield f"{outcome.host}: skipping events that cannot be read in its journal"
                continue
            outcome.events.append((record.time, record.event))
            if isinstance(record.event, End):
                outcome.end, outcome.end_heard = record.event, time.monotonic()
        self._offsets[batch.node_rank] = batch.offset
        self._consumed[batch.node_rank] = batch.consumed
        if self.store and batch.records:
            text = self.store.node(batch.node_rank).record(
                batch.records, host=outcome.host, attempt=self._attempt, offset=batch.offset
            )
        else:
            text = b"".join(r.render(outcome.host) for r in batch.records if r.event is None)
        if text:
            yield Lines(batch.node_rank, text)

    def _take_sight(self, item: Sight) -> Iterator[str]:
        outcome = self.outcomes[item.node_rank]
        if item.lost is None:
            if outcome.unseen_since is not None:
                yield f"{outcome.host}: in sight again"
            outcome.unseen_since = None
        elif item.gone and outcome.end is not None:
            return  # its last word came while it was looked for
        elif item.gone:
            outcome.gone, outcome.unseen_reason = True, item.lost
            outcome.unseen_since = outcome.unseen_since or time.monotonic()
            yield f"cannot see {item.lost}; nobody waits for it, as the run has failed elsewhere"
        elif outcome.unseen_since is None:
            outcome.unseen_since, outcome.unseen_reason = time.monotonic(), item.lost
            yield f"cannot see {item.lost}; the run goes on, and so do the attempts to see it"

    def _conclude(self) -> Iterator[NodeOutcome | str]:
        now = time.monotonic()
        for rank, outcome in self.outcomes.items():
            if not outcome.done and self._has_ended(rank, outcome, now):
                outcome.done = True
                yield outcome
        yield from self._give_up_the_lost(now)
        self._look_for_the_rest(now)
        waiting = [o for o in self.outcomes.values() if not o.done]
        if waiting and all(o.unseen_since for o in waiting):
            if len(waiting) == len(self.outcomes):
                return  # nothing at all is in sight: that says nothing about the run
            newest = max(o.unseen_since or 0.0 for o in waiting)
            ended = [o for o in self.outcomes.values() if o.done]
            if any(o.failed for o in ended) and now - newest > UNSEEN_TIMEOUT:
                for outcome in waiting:
                    outcome.done = True
                    yield outcome

    def _give_up_the_lost(self, now: float) -> Iterator[NodeOutcome]:
        """A node that its own peers have lost is not waited for: they ended because of it."""
        ended = [o for o in self.outcomes.values() if o.done]
        waiting = [o for o in self.outcomes.values() if not o.done]
        lost = {o.lost_peer for o in ended}
        if not ended or not all(o.node_rank in lost for o in waiting):
            return
        if now - max(o.end_heard for o in ended) > ENGINE_TIMEOUT:
            for outcome in waiting:
                outcome.done = True
                yield outcome

    def _look_for_the_rest(self, now: float) -> None:
        """After a failure all nodes end in seconds. One that says nothing may be dead, and SSH
        alone takes much longer to notice."""
        heard = [o.end_heard for o in self.outcomes.values() if o.failed or o.ended_badly]
        if not heard or now - min(heard) < LAST_WORDS:
            return
        for watcher in self._watchers:
            rank = watcher.watched.place.node_rank
            outcome = self.outcomes[rank]
            if outcome.done or outcome.end is not None or outcome.gone:
                continue
            if now - self._looked_at.get(rank, 0.0) < LOOK_TIMEOUT:
                continue
            self._looked_at[rank] = now
            watcher.look()

    def _has_ended(self, rank: int, outcome: NodeOutcome, now: float) -> bool:
        if outcome.gone:
            return True
        if outcome.end is not None:  # enough by itself, where the engine answers no more
            return outcome.status is not None or now - outcome.end_heard > ENGINE_TIMEOUT
        if outcome.status is None:
            return False
        size, since = self._sizes[rank]
        return self._consumed[rank] >= size or now - since > DRAIN_TIMEOUT

    def _put(self, item: Item) -> None:
        while not self._over.is_set():
            try:
                self._queue.put(item, timeout=0.5)
                return
            except queue.Full:
                continue
