"""The journal of one node's attempt: the supervisor writes it, everything else reads it. Pure.

A record is one line, `TIME<TAB>WHO<TAB>TEXT`. TIME is unix seconds on the node's own clock. WHO is
a global rank, `-` for torchrun and the supervisor itself, or `!` for an event, whose TEXT is a JSON
object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ..supervisor.events import Event
from .events import LARGEST, parsed_event

LONGEST_LINE = 32 << 20  # bytes kept of one line; supervisors split lines long before this
RANK_DIGITS = 7


@dataclass(frozen=True)
class Record:
    """One event, or the lines that one rank wrote at one time."""

    time: float  # unix seconds, the node's clock
    rank: int | None  # global rank; None for torchrun, the supervisor and events
    event: Event | None  # None for output
    lines: list[bytes]  # as written, without their newlines; [] for an event
    overhead: int  # bytes in the journal beside the lines' text; all bytes of an event

    @property
    def size(self) -> int:
        """The record's size in the journal, in bytes."""
        if self.event is not None:
            return self.overhead
        return sum(map(len, self.lines)) + self.overhead * len(self.lines)

    def render(self, host: str) -> bytes:
        """Return the lines in the format of CONTRACT section 4, each with its newline."""
        label = b"[%b] " % (host if self.rank is None else f"{host}:{self.rank}").encode()
        return label + (b"\n" + label).join(self.lines) + b"\n"


class Reader:
    """Parses a stream of bytes into records. Only whole lines become records."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self._cut = 0  # bytes of the partial line that were dropped
        self.pending = 0  # bytes of the partial line
        self._time = 0.0  # of the last record

    def feed(self, data: bytes) -> list[Record]:
        *lines, rest = data.split(b"\n")
        if not lines:
            self._keep(rest)
            return []
        self._keep(lines[0])
        lines[0], cut = b"".join(self._partial), self._cut
        self._partial, self._cut, self.pending = [], 0, 0
        self._keep(rest)
        records = []
        if cut:
            record, _ = _record(lines.pop(0), self._time)
            records = [replace(record, overhead=record.overhead + cut)]
        records += _records(lines, records[-1].time if records else self._time)
        self._time = records[-1].time
        return records

    def _keep(self, data: bytes) -> None:
        room = max(0, LONGEST_LINE - (self.pending - self._cut))
        self.pending += len(data)
        self._cut += max(0, len(data) - room)
        if data[:room]:
            self._partial.append(data[:room])


def _records(lines: list[bytes], time: float) -> list[Record]:
    """Parse lines. Fast for a million lines a second: a line like the one before is only compared."""
    records: list[Record] = []
    found: list[bytes] = []
    head = b"\n"  # prefix of further lines of the same record; no line begins with a newline
    for line in lines:
        if line.startswith(head):
            found.append(line[len(head) :])
            continue
        record, size = _record(line, time)
        records.append(record)
        time, found = record.time, record.lines
        head = line[:size] or b"\n"
    return records


def _record(line: bytes, before: float) -> tuple[Record, int]:
    """Parse a line. Also return the length of the prefix that its record's lines share, or 0.

    A malformed line, as after a full disk, becomes output without a rank at the time of the record
    before.
    """
    try:
        stamp, who, text = line.split(b"\t", 2)
        time = float(stamp)
        if not 0 <= time < LARGEST:
            raise ValueError("not a time")
        if who == b"!":
            return Record(time, None, parsed_event(text), [], len(line) + 1), 0
        if who != b"-" and not (who.isdigit() and len(who) <= RANK_DIGITS):
            raise ValueError("not a rank")
        rank = None if who == b"-" else int(who)
        head = len(line) - len(text)
        return Record(time, rank, None, [text], head + 1), head
    except ValueError:
        return Record(before, None, None, [line], 1), 0


def by_time(records: Iterable[Record], span: float = 1.0) -> Iterator[list[Record]]:
    """Yield the records in order, in groups that were written within `span` seconds."""
    group: list[Record] = []
    for record in records:
        if group and not 0 <= record.time - group[0].time < span:
            yield group
            group = []
        group.append(record)
    if group:
        yield group
