"""The journal of one node's attempt: the supervisor writes it, everything else reads it. Pure.

A record is one line, `TIME<TAB>WHO<TAB>TEXT`. TIME is unix seconds on the node's own clock. WHO is
a global rank, `-` for torchrun and the supervisor itself, or `!` for an event, whose TEXT is a JSON
object.
"""

import re

from .event_reader import parsed_event
from .log_record import Record, grouped

LONGEST_LINE = 32 << 20  # bytes kept of one line; supervisors split lines long before this
RECORD = re.compile(rb"(\d{1,11}(?:\.\d{1,9})?)\t(-|!|\d{1,7})\t(.*)", re.DOTALL)


class Reader:
    """Parses a stream of bytes into records. Only whole lines become records."""

    def __init__(self, host: str = "", node_rank: int = 0) -> None:
        """host, node_rank: whose journal this is. Only the lines of ranks need them, not events."""
        self._host, self._node_rank = host, node_rank
        self._partial = bytearray()  # the unfinished line, up to LONGEST_LINE
        self.pending = 0  # bytes of the unfinished line
        self._time = 0.0  # of the last record

    def feed(self, data: bytes) -> list[Record]:
        first, *lines = data.split(b"\n")
        self._partial += first[: LONGEST_LINE - len(self._partial)]
        self.pending += len(first)
        if not lines:
            return []
        records = []
        if cut := self.pending - len(self._partial):
            long, _ = self._parse_line(bytes(self._partial))
            records = [long._replace(overhead=long.overhead + cut)]
        else:
            lines.insert(0, bytes(self._partial))
        rest = lines.pop()
        self._partial, self.pending = bytearray(rest[:LONGEST_LINE]), len(rest)
        return records + grouped(lines, self._parse_line)

    def _parse_line(self, line: bytes) -> tuple[Record, int]:
        """Parse a line. Also return the length of the prefix that lines of its record share, or 0.

        A malformed line, such as a full disk may cause, becomes output without a rank. It gets the
        time of the record before it.
        """
        host, node_rank = self._host, self._node_rank
        match = RECORD.fullmatch(line)
        if not match:
            return Record(host, node_rank, self._time, None, None, [line], 1), 0
        time, who, text = float(match[1]), match[2], match[3]
        self._time = time
        if who == b"!":
            event = parsed_event(text)
            return Record(host, node_rank, time, None, event, [], len(line) + 1), 0
        rank, size = None if who == b"-" else int(who), match.start(3)
        return Record(host, node_rank, time, rank, None, [text], size + 1), size
