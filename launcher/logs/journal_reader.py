"""The journal of one node's attempt: the supervisor writes it, everything else reads it. Pure.

A record is one line, `TIME<TAB>WHO<TAB>TEXT`. TIME is unix seconds on the node's own clock. WHO is
a global rank, `-` for torchrun and the supervisor itself, or `!` for an event, whose TEXT is a JSON
object.
"""

import re
from dataclasses import dataclass, replace

from ..supervisor.events import Event
from .event_reader import parsed_event

LONGEST_LINE = 32 << 20  # bytes kept of one line; supervisors split lines long before this
RECORD = re.compile(rb"(\d{1,11}(?:\.\d{1,9})?)\t(-|!|\d{1,7})\t(.*)", re.DOTALL)


@dataclass(frozen=True)
class Record:
    """One event, or the lines that one rank wrote at one time."""

    time: float  # unix seconds, the node's clock
    rank: int | None  # global rank; None for torchrun, the supervisor and events
    event: Event | None  # None for output
    lines: list[bytes]  # as written, without their newlines; [] for an event
    overhead: int  # bytes of each line in the journal beside its text; all bytes of an event

    @property
    def size(self) -> int:
        """The record's size in the journal, in bytes."""
        if self.event is not None:
            return self.overhead
        return sum(map(len, self.lines)) + self.overhead * len(self.lines)

    def render(self, host: str) -> bytes:
        """Return the lines as `[host:rank] text`, each with its newline."""
        label = b"[%b] " % (host if self.rank is None else f"{host}:{self.rank}").encode()
        return label + (b"\n" + label).join(self.lines) + b"\n"


class Reader:
    """Parses a stream of bytes into records. Only whole lines become records."""

    def __init__(self) -> None:
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
            [long] = self._records([bytes(self._partial)])
            records = [replace(long, overhead=long.overhead + cut)]
        else:
            lines.insert(0, bytes(self._partial))
        rest = lines.pop()
        self._partial, self.pending = bytearray(rest[:LONGEST_LINE]), len(rest)
        return records + self._records(lines)

    def _records(self, lines: list[bytes]) -> list[Record]:
        """Parse lines.

        It is fast (a million lines a second), because it does not parse the prefix of a line again
        if it is that of the line before.
        """
        records: list[Record] = []
        found: list[bytes] = []
        head = b"\n"  # prefix of further lines of the same record; no line begins with a newline
        for line in lines:
            if line.startswith(head):
                found.append(line[len(head) :])
                continue
            record, size = _record(line, self._time)
            records.append(record)
            self._time, found = record.time, record.lines
            head = line[:size] or b"\n"
        return records


def _record(line: bytes, before: float) -> tuple[Record, int]:
    """Parse a line. Also return the length of the prefix that its record's lines share, or 0.

    A malformed line, such as a full disk may cause, becomes output without a rank. It gets the time
    of the record before it.
    """
    match = RECORD.fullmatch(line)
    if not match:
        return Record(before, None, None, [line], 1), 0
    time, who, text = float(match[1]), match[2], match[3]
    if who == b"!":
        return Record(time, None, parsed_event(text), [], len(line) + 1), 0
    rank = None if who == b"-" else int(who)
    return Record(time, rank, None, [text], match.start(3) + 1), match.start(3)
