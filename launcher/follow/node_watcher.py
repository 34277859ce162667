"""Watching one node: its journal, the end of its container, and whether its host is still there.

Two threads a node put what they see into the follower's queue; see launcher.follow.monitor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from launcher.engines.attempt import RunningNode
from launcher.engines.base import NodeStatus
from launcher.errors import DdpctlError, HostUnreachable
from launcher.logs.journal import Reader, Record
from launcher.ssh.node import Node
from launcher.ssh.stream import READ_SIZE, Stream
from launcher.supervisor.events import End

BACKOFF = (0.5, 1.0, 2.0, 4.0, 5.0)  # seconds between attempts to see a host again
LOOK_TIMEOUT = 2.5  # seconds for a host to answer when it is looked for

# From byte $1 of the journal $2 on. Where tail must poll (an overlay, BusyBox) a second is long, and
# not every tail takes a fraction of one.
TAIL = (
    'tail -s 0.03 -c 0 /dev/null 2>/dev/null && exec tail -s 0.03 -c "+$1" -F "$2"; '
    'exec tail -c "+$1" -F "$2"'
)
# The events in the first $2 bytes of the journal; $3 is what only they have.
EVENTS = 'head -c "$2" "$1" | grep -a "^[0-9.]*$3"; true'


@dataclass(frozen=True)
class Batch:
    node_rank: int
    records: list[Record]
    offset: int
    consumed: int  # with the partial record at the end


@dataclass(frozen=True)
class Exited:
    node_rank: int
    status: NodeStatus
    size: int  # of the journal, bytes


@dataclass(frozen=True)
class Sight:
    node_rank: int
    lost: str | None  # why, or None: in sight again
    gone: bool = False


Item = Batch | Exited | Sight


class Watcher:
    """The eyes on one node. `put` takes what they see; they close when `over` is set."""

    def __init__(
        self,
        watched: RunningNode,
        offset: int,
        put: Callable[[Item], None],
        over: threading.Event,
    ) -> None:
        """offset: bytes of the journal that are already known."""
        self.watched, self._known = watched, offset
        self._rank = watched.place.node_rank
        self._put, self._over = put, over
        self._stream: Stream | None = None

    def start(self) -> None:
        for work in (self._read_journal, self._wait_for_exit):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        if self._stream:
            self._stream.close()

    def look(self) -> None:
        """Whether the host still answers, on a connection of its own; says so only if not."""
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        node = Node(self.watched.node.host, connect_timeout=LOOK_TIMEOUT)
        try:
            node.connect()
        except HostUnreachable as error:
            self._put(Sight(self._rank, str(error), gone=True))
        finally:
            node.close()

    def _read_journal(self) -> None:
        watched, rank = self.watched, self._rank
        reader = Reader()
        offset, tries = self._known, 0
        recalled = offset == 0
        while not self._over.is_set():
            try:
                if not recalled:
                    self._put(Batch(rank, self._recall(), offset, offset))
                    recalled = True
                stream = self._stream = watched.node.open_script(
                    TAIL, str(offset + 1), watched.place.journal, stdin=False
                )
                self._put(Sight(rank, None))
                while data := stream.read(READ_SIZE):
                    tries = 0
                    offset += len(data)
                    records = reader.feed(data)
                    self._put(Batch(rank, records, offset - reader.pending, offset))
                    if records and isinstance(records[-1].event, End):
                        return
                stream.close()
                reason = f"{watched.node.name} (its log stream ended)"
            except DdpctlError as error:
                reason = str(error)
            if not self._over.is_set():
                if tries:
                    self._put(Sight(rank, reason))
                self._over.wait(BACKOFF[min(tries, len(BACKOFF) - 1)])
                tries += 1

    def _recall(self) -> list[Record]:
        """The events among what is known already: the lines were shown, but the cause needs these."""
        watched = self.watched
        done = watched.node.script(EVENTS, watched.place.journal, str(self._known), "\t!\t")
        return Reader().feed(done.stdout)

    def _wait_for_exit(self) -> None:
        watched, rank, tries = self.watched, self._rank, 0
        while not self._over.is_set():
            try:
                status = watched.engine.wait(watched.place)
                self._put(Exited(rank, status, self._journal_size()))
                return
            except DdpctlError as error:
                if self._over.is_set():
                    return
                if tries:
                    self._put(Sight(rank, str(error)))
                self._over.wait(BACKOFF[min(tries, len(BACKOFF) - 1)])
                tries += 1

    def _journal_size(self) -> int:
        watched = self.watched
        done = watched.node.script('wc -c < "$1"', watched.place.journal)
        return int(done.stdout.split()[0]) if done.code == 0 and done.stdout.strip() else 0
