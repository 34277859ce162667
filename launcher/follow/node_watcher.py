"""Watch one node: its journal, its end, and whether its host answers.

Two threads per node put their observations into the queue of launcher.follow.monitor.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ..engines.running import RunningNode
from ..engines.status import NodeStatus
from ..errors import DdpctlError, HostUnreachable
from ..logs.journal_reader import Reader
from ..logs.log_record import Record
from ..ssh.node import LONG_OUTPUT, Node
from ..ssh.script_files import load_script
from ..ssh.stream import Stream
from ..supervisor.events import End

BACKOFF = (0.5, 1.0, 2.0, 4.0, 5.0)  # seconds between attempts to reach a host again
CHUNK = 32 << 10  # bytes of a journal per batch
PROBE_TIMEOUT = 2.5  # seconds for a host to answer a probe
TAIL = load_script(__file__, "tail_journal.sh")
EVENTS = load_script(__file__, "past_events.sh")


@dataclass(frozen=True)
class Batch:
    """Records of the journal. offset: end of the last whole record. consumed: all bytes read."""

    node_rank: int
    records: list[Record]
    offset: int
    consumed: int


@dataclass(frozen=True)
class Exited:
    """The node has ended. size: bytes of its journal; 0 if all was read or unknown."""

    node_rank: int
    status: NodeStatus
    size: int


@dataclass(frozen=True)
class ContactReport:
    """lost: why contact with the host was lost; None: restored. gone: a probe got no answer."""

    node_rank: int
    host: str
    lost: DdpctlError | None
    gone: bool = False


Item = Batch | Exited | ContactReport


@dataclass
class NodeWatcher:
    """Watches one node.

    Reads its journal from byte `offset` and passes items to `put` until `closed` is set.
    """

    member: RunningNode
    offset: int
    put: Callable[[Item], None]
    closed: threading.Event
    stream: Stream | None = None
    read_whole: bool = False  # whether the journal was read up to its end

    @property
    def rank(self) -> int:
        return self.member.place.node_rank

    def start(self) -> None:
        for work in (self._read_journal, self._wait_for_exit):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        if self.stream:
            self.stream.close()

    def probe(self) -> None:
        """Test in a thread, with a new connection, whether the host answers. Reports only a failure."""
        threading.Thread(target=self._probe, daemon=True).start()

    def _probe(self) -> None:
        node = Node(self.member.node.host, connect_timeout=PROBE_TIMEOUT)
        try:
            node.connect()
        except HostUnreachable as error:
            self.put(ContactReport(self.rank, node.name, error, gone=True))
        finally:
            node.close()

    def _read_journal(self) -> None:
        node, journal = self.member.node, self.member.place.journal
        reader, offset, tries = Reader(node.name, self.rank), self.offset, 0
        known_events = offset > 0
        while not self.closed.is_set():
            reason: DdpctlError = HostUnreachable("its log stream ended", host=node.name)
            try:
                if known_events:  # lines up to here were shown, but the diagnosis needs the events
                    done = node.script(EVENTS, journal, str(offset), "\t!\t", limit=LONG_OUTPUT)
                    self.put(Batch(self.rank, Reader().feed(done.stdout), offset, offset))
                    known_events = False
                stream = self.stream = node.open_script(TAIL, str(offset + 1), journal, stdin=False)
                self.put(ContactReport(self.rank, node.name, None))
                while data := stream.read(CHUNK):
                    tries = 0
                    offset += len(data)
                    records = reader.feed(data)
                    self.put(Batch(self.rank, records, offset - reader.pending, offset))
                    if records and isinstance(records[-1].event, End):
                        self.read_whole = True
                        return
                stream.close()
            except Exception as error:
                reason = node.explain(error)
            self._retry(tries, reason)
            tries += 1

    def _wait_for_exit(self) -> None:
        tries = 0
        while not self.closed.is_set():
            try:
                status = self.member.engine.wait(self.member.place)
                size = 0
                if not self.read_whole:
                    done = self.member.node.run(["wc", "-c", self.member.place.journal])
                    count = done.stdout.strip().partition(b" ")[0]
                    size = int(count[:18]) if count.isdigit() else 0
                self.put(Exited(self.rank, status, size))
                return
            except Exception as error:
                self._retry(tries, self.member.node.explain(error))
            tries += 1

    def _retry(self, tries: int, reason: DdpctlError) -> None:
        """Wait before the next try. A second failure in a row counts as lost contact."""
        if self.closed.is_set():
            return
        if tries:
            self.put(ContactReport(self.rank, self.member.node.name, reason))
        self.closed.wait(BACKOFF[min(tries, len(BACKOFF) - 1)])
