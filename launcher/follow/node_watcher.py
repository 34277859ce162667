"""Watch one node: read its journal, wait for its end, and notice when its host does not answer.

Two threads per node put items into the queue of launcher.follow.monitor.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..engines.running import RunningNode
from ..engines.status import NodeStatus
from ..errors import DdpctlError, HostUnreachable
from ..logs.journal_reader import JournalReader
from ..logs.log_entry import LogEntry
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.script_files import load_script
from ..ssh.stream import Stream
from ..supervisor.events import End

BACKOFF = (0.5, 1.0, 2.0, 4.0, 5.0)  # seconds between attempts to reach a host again
CHUNK = 32 << 10  # bytes of a journal per batch
PROBE_TIMEOUT = 2.5  # seconds for a host to answer a probe
TAIL = load_script(__file__, "tail_journal.sh")
EVENTS = load_script(__file__, "past_events.sh")


@dataclass(frozen=True)
class NewEntries:
    """New entries of the journal. consumed: bytes read so far, including an unfinished line."""

    node_rank: int
    entries: list[LogEntry]
    consumed: int


@dataclass(frozen=True)
class Exited:
    """The node has ended. size: bytes of its journal; 0 if unknown or if all was read."""

    node_rank: int
    status: NodeStatus
    size: int


@dataclass(frozen=True)
class ContactReport:
    """Contact changed. lost: why it was lost; None if restored. gone: a probe got no answer."""

    node_rank: int
    lost: DdpctlError | None
    gone: bool = False


Item = NewEntries | Exited | ContactReport


class NodeWatcher:
    """Watches one node: two threads pass items to `put` until `closed` is set."""

    def __init__(
        self,
        member: RunningNode,
        offset: int,
        put: Callable[[Item], None],
        closed: threading.Event,
    ) -> None:
        """offset: how many bytes of the journal were already shown."""
        self.node_rank = member.place.node_rank
        self._member, self._put, self._closed = member, put, closed
        self._past = offset  # bytes of the journal whose events have not been read yet
        self._reader = JournalReader(member.connection.name, self.node_rank, offset)
        self._stream: Stream | None = None
        self._read_whole = False  # whether the journal was read up to its end

    def start(self) -> None:
        for watch in (self._read_journal, self._wait_for_exit):
            threading.Thread(target=self._repeat, args=(watch,), daemon=True).start()

    def close(self) -> None:
        if self._stream:
            self._stream.close()

    def probe(self) -> None:
        """Test in a thread, over a new connection, whether the host answers. Report a failure."""
        threading.Thread(target=self._probe, daemon=True).start()

    def _probe(self) -> None:
        connection = HostConnection(self._member.connection.host, connect_timeout=PROBE_TIMEOUT)
        try:
            connection.connect()
        except HostUnreachable as error:
            self._put(ContactReport(self.node_rank, error, gone=True))
        finally:
            connection.close()

    def _repeat(self, watch: Callable[[], Iterator[Item]]) -> None:
        """Call `watch` until it ends without an error, and pass what it yields to `put`.

        Two failures in a row count as lost contact, unless `watch` yielded something other than a
        ContactReport between them.
        """
        connection, tries = self._member.connection, 0
        while not self._closed.is_set():
            try:
                for item in watch():
                    if not isinstance(item, ContactReport):
                        tries = 0
                    self._put(item)
                return
            except Exception as error:
                reason = connection.explain(error)
            if tries and not self._closed.is_set():
                self._put(ContactReport(self.node_rank, reason))
            self._closed.wait(BACKOFF[min(tries, len(BACKOFF) - 1)])
            tries += 1

    def _read_journal(self) -> Iterator[Item]:
        """Resume where the reader stopped, even in a line that a lost connection cut off."""
        connection, journal = self._member.connection, self._member.place.journal
        if self._past:  # the lines were shown before, but the diagnosis needs the events
            done = connection.script(EVENTS, journal, str(self._past), "\t!\t", limit=LONG_OUTPUT)
            events = JournalReader(connection.name, self.node_rank).feed(done.stdout)
            yield NewEntries(
                self.node_rank, [e._replace(end=self._past) for e in events], self._past
            )
            self._past = 0
        start = self._reader.consumed + 1  # for tail, bytes count from 1
        stream = connection.open_script(TAIL, str(start), journal, stdin=False)
        self._stream = stream
        yield ContactReport(self.node_rank, None)
        while data := stream.read(CHUNK):
            entries = self._reader.feed(data)
            yield NewEntries(self.node_rank, entries, self._reader.consumed)
            if entries and isinstance(entries[-1].event, End):
                self._read_whole = True
                return
        stream.close()
        raise HostUnreachable("its log stream ended", host=connection.name)

    def _wait_for_exit(self) -> Iterator[Item]:
        status = self._member.engine.wait(self._member.place)
        size = 0
        if not self._read_whole:
            done = self._member.connection.run(["wc", "-c", self._member.place.journal])
            count = done.stdout.strip().partition(b" ")[0]
            size = int(count[:18]) if count.isdigit() else 0
        yield Exited(self.node_rank, status, size)
