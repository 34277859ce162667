"""The items that the watchers of all nodes pass to the Monitor."""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ..engines.status import NodeStatus
from ..errors import DdpctlError
from ..logs.log_entry import LogEntry
from ..supervisor.events import Event

SIZE = 64  # items in the queue; bounds the launcher's memory
POLL = 0.2  # seconds that one `take` may last


@dataclass(frozen=True)
class NewEntries:
    """New entries of a node's journal. offset: bytes read so far, including an unfinished line."""

    node_rank: int
    entries: list[LogEntry]
    offset: int


@dataclass(frozen=True)
class PastEvents:
    """The events in the first `offset` bytes of a node's journal, with their times.

    The lines in that part have already been shown.
    """

    node_rank: int
    events: list[tuple[float, Event]]
    offset: int


@dataclass(frozen=True)
class Exited:
    """The engine has reported the node's end. journal_size: bytes; 0 if unknown or already read."""

    node_rank: int
    status: NodeStatus
    journal_size: int


@dataclass(frozen=True)
class Reached:
    """The node's host answers, and so does its engine if that had failed."""

    node_rank: int


@dataclass(frozen=True)
class Lost:
    """The node's host or its engine does not answer. The watcher keeps trying."""

    node_rank: int
    why: DdpctlError


@dataclass(frozen=True)
class ProbeFailed:
    """The node's host did not answer a probe."""

    node_rank: int
    why: DdpctlError


Item = NewEntries | PastEvents | Exited | Reached | Lost | ProbeFailed


class Inbox:
    """A queue of items. The watchers put them in from their threads, and the Monitor takes them."""

    def __init__(self) -> None:
        self.closed = threading.Event()  # tells the watchers to end
        self.was_empty = False  # whether the last `take` got every item
        self._queue: queue.Queue[Item] = queue.Queue(SIZE)

    def put(self, item: Item) -> None:
        """Wait until there is room, then add the item. Drops the item if the inbox is closed."""
        while not self.closed.is_set():
            try:
                self._queue.put(item, timeout=0.5)
                return
            except queue.Full:
                continue

    def take(self) -> Iterator[Item]:
        """Remove and yield items for at most POLL seconds."""
        until, wait = time.monotonic() + POLL, POLL
        self.was_empty = False
        while time.monotonic() < until:
            try:
                yield self._queue.get(timeout=wait)
            except queue.Empty:
                self.was_empty = True
                return
            wait = 0.0

    def close(self) -> None:
        self.closed.set()
