"""Parse a node's journal, whose format launcher.supervisor.journal defines. Pure."""

import re
from collections.abc import Iterator

from .event_reader import parsed_event
from .log_entry import EventEntry, LogEntry, OutputLines, grouped

LONGEST_LINE = 32 << 20  # bytes kept of one line; supervisors split lines long before this
HEAD = re.compile(rb"(\d{1,11}(?:\.\d{1,9})?)\t(-|!|\d{1,7})\t")  # TIME and WHO of an entry


class JournalReader:
    """Parses one journal, fed in pieces of any size. Only whole lines become entries."""

    def __init__(self, host: str = "", node_rank: int = 0, offset: int = 0) -> None:
        """host, node_rank: labels for the lines. offset: where the first piece begins, in bytes."""
        self.offset = offset  # bytes of the journal read so far, including the unfinished line
        self._host, self._node_rank = host, node_rank
        self._partial = bytearray()  # the unfinished line, up to LONGEST_LINE
        self._time = 0.0  # the time of the last entry

    def feed(self, data: bytes) -> list[LogEntry]:
        """Parse the next piece. Return the entries that it completes."""
        first, *lines = data.split(b"\n")
        self._partial += first[: LONGEST_LINE - len(self._partial)]
        # counted back from the line's last byte, because its beginning may be all that was kept
        begin = self.offset + len(first) - len(self._partial)
        self.offset += len(data)
        if not lines:
            return []
        rest = lines.pop()
        entries = [*self._entries([bytes(self._partial), *lines], begin)]
        self._partial = bytearray(rest[:LONGEST_LINE])
        return entries

    def _entries(self, lines: list[bytes], offset: int) -> Iterator[LogEntry]:
        """Yield the entries in whole lines. offset: where the lines begin in the journal.

        A malformed line, which a full disk may cause, becomes output without a rank. It gets the
        time of the entry before it.
        """
        for head, texts in grouped(lines, HEAD):
            prefix, time, who = head.group(0, 1, 2) if head else (b"", self._time, b"-")
            self._time = float(time)
            extra = len(prefix) + 1  # bytes of a line in addition to its text
            if who == b"!":
                for text in texts:
                    offset += extra + len(text)
                    yield EventEntry(self._time, parsed_event(text), offset)
            else:
                offset += extra * len(texts) + sum(map(len, texts))
                rank = None if who == b"-" else int(who)
                yield OutputLines(self._host, self._node_rank, self._time, rank, texts, offset)
