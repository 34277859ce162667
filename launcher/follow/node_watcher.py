"""Watch one node: read its journal, wait for its end, and notice when its host does not answer."""

import threading
from collections.abc import Callable, Iterator, Sequence

from ..engines.node_handle import NodeHandle
from ..engines.status import ContainerState
from ..errors import HostUnreachable, UnusableAnswer
from ..logs.journal_reader import JournalReader
from ..logs.log_entry import EventEntry, events_in
from ..ssh import recently_silent
from ..ssh.host_connection import LONG_OUTPUT, HostConnection
from ..ssh.script_files import load_script
from ..ssh.stream import Stream
from ..supervisor.events import End
from .inbox import Exited, Inbox, Item, Lost, NewEntries, PastEvents, ProbeFailed, Reached

BACKOFF = (0.5, 1.0, 2.0, 4.0, 5.0)  # seconds between attempts to reach a host again
CHUNK = 32 << 10  # bytes of a journal read at once
PROBE_TIMEOUT = 2.5  # seconds for a host to answer a probe
SEARCH_TIMEOUT = 600.0  # seconds to search a long journal for events
TAIL = load_script(__file__, "tail_journal.sh")
EVENTS = load_script(__file__, "past_events.sh")

Watch = Callable[[], Iterator[Item]]


class NodeWatcher:
    """Watches one node in two threads, which put items into the Monitor's inbox.

    Each thread ends once it has reported the node's end, or when `inbox` is closed.
    """

    def __init__(self, member: NodeHandle, offset: int, inbox: Inbox) -> None:
        """offset: how many bytes of the journal have already been shown."""
        self.node_rank = member.place.node_rank
        self._member, self._inbox = member, inbox
        self._reader = JournalReader(member.connection.name, self.node_rank, offset)
        self._stream: Stream | None = None
        self._read_whole = False  # whether the journal was read up to the node's End
        self._waited = False  # whether the engine was asked to wait for the node's end before

    def start(self) -> None:
        for watches in ([self._past_events, self._new_entries], [self._wait_for_exit]):
            threading.Thread(target=self._repeat_each, args=(watches,), daemon=True).start()

    def close(self) -> None:
        if self._stream:
            self._stream.close()

    def probe(self) -> None:
        """Test in a thread, over a new connection, whether the host answers. Report a failure."""
        threading.Thread(target=self._probe, daemon=True).start()

    def _probe(self) -> None:
        connection = HostConnection(self._member.connection.host, connect_timeout=PROBE_TIMEOUT)
        try:
            recently_silent.forget(connection.host)
            connection.connect()
        except HostUnreachable as error:
            self._inbox.put(ProbeFailed(self.node_rank, error))
        finally:
            connection.close()

    def _repeat_each(self, watches: Sequence[Watch]) -> None:
        for watch in watches:
            self._repeat(watch)

    def _repeat(self, watch: Watch) -> None:
        """Call `watch` until it ends without an error, and put what it yields into the inbox.

        Two failures count as lost contact, unless `watch` yielded something other than Reached
        between them.
        """
        connection, tries = self._member.connection, 0
        while not self._inbox.closed.is_set():
            try:
                recently_silent.forget(connection.host)
                for item in watch():
                    if not isinstance(item, Reached):
                        tries = 0
                    self._inbox.put(item)
                return
            except Exception as error:
                reason = connection.explain(error)
            if tries and not self._inbox.closed.is_set():
                self._inbox.put(Lost(self.node_rank, reason))
            self._inbox.closed.wait(BACKOFF[min(tries, len(BACKOFF) - 1)])
            tries += 1

    def _past_events(self) -> Iterator[Item]:
        """Yield the events in the part that has already been shown; the diagnosis needs them."""
        if not (offset := self._reader.offset):
            return
        argv = [self._member.place.journal, str(offset), "\t!\t", str(LONG_OUTPUT)]
        connection = self._member.connection
        done = connection.script(EVENTS, *argv, limit=LONG_OUTPUT, timeout=SEARCH_TIMEOUT)
        yield PastEvents(self.node_rank, events_in(JournalReader().feed(done.stdout)), offset)

    def _new_entries(self) -> Iterator[Item]:
        """Yield Reached once the host answers, then the journal's entries up to the node's End.

        Resumes where the reader stopped, even in the middle of a line.
        """
        start = self._reader.offset + 1  # `tail -c` counts bytes from 1
        argv = [str(start), self._member.place.journal]
        self._stream = stream = self._member.connection.open_script(TAIL, *argv, stdin=False)
        yield Reached(self.node_rank)
        while data := stream.read(CHUNK):
            entries = self._reader.feed(data)
            yield NewEntries(self.node_rank, entries, self._reader.offset)
            match entries:
                case [*_, EventEntry(event=End())]:
                    self._read_whole = True
                    return
        stream.close()
        raise HostUnreachable("its log stream broke off", host=self._member.connection.name)

    def _wait_for_exit(self) -> Iterator[Item]:
        """Yield Exited once the engine reports the node's end. After an error, first yield Reached."""
        engine = self._member.engine
        if self._waited:
            engine.claims()  # raises until the engine answers, which `wait` does only at the end
            yield Reached(self.node_rank)
        self._waited = True
        status = engine.wait(self._member.place)
        if status.alive and status.state is not ContainerState.REMOVING:
            # the engine was shut down, or the script that waits was killed
            what = "its engine stopped waiting for the node to end; the node may still be running"
            raise UnusableAnswer(what, host=self._member.connection.name)
        journal_size = 0
        if not self._read_whole:
            done = self._member.connection.run(["wc", "-c", self._member.place.journal])
            count = done.stdout.strip().partition(b" ")[0]
            journal_size = int(count[:18]) if count.isdigit() else 0
        yield Exited(self.node_rank, status, journal_size)
