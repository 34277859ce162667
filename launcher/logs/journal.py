"""The journal of one node's attempt: what its supervisor writes and everybody else reads. Pure.

A record is one line, `TIME<TAB>WHO<TAB>TEXT`: unix seconds on the node's own clock; a global rank, `-`
for torchrun and the supervisor itself, or `!` for an event, whose text is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """One event, or lines that were written at once: all that have the same time and the same rank."""

    time: float  # unix seconds, the node's clock
    rank: int | None  # global rank; None for torchrun, the supervisor and events
    event: dict[str, Any] | None  # always with "kind"; None for output
    lines: list[bytes]  # without their newlines, as they were written; [] for an event
    beside: int  # bytes of the journal beside a line's text, or all of an event's

    @property
    def size(self) -> int:
        """Bytes of the journal that it takes."""
        if self.event is not None:
            return self.beside
        return sum(map(len, self.lines)) + self.beside * len(self.lines)

    def render(self, host: str) -> bytes:
        """The lines as CONTRACT section 4 has them, each with its newline."""
        label = b"[%b] " % (host if self.rank is None else f"{host}:{self.rank}").encode()
        return label + (b"\n" + label).join(self.lines) + b"\n"


class Reader:
    """Bytes in, records out: whole lines only, whatever pieces the bytes come in."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self.pending = 0  # bytes of the line that is not whole yet
        self._time = 0.0  # of the last record

    def feed(self, data: bytes) -> list[Record]:
        head, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(data)
            return []
        whole = b"".join([*self._partial, head])
        self._partial, self.pending = [], 0
        self._keep(rest)
        records = _records(whole.split(b"\n"), self._time)
        self._time = records[-1].time
        return records

    def _keep(self, data: bytes) -> None:
        if data:
            self._partial.append(data)
            self.pending += len(data)


NOTHING_BEGINS_WITH_IT = b"\n"


def _records(lines: list[bytes], time: float) -> list[Record]:
    """Ranks may write a million lines a second: each costs a look at how it begins, and no object."""
    records: list[Record] = []
    said: list[bytes] = []
    head, size = NOTHING_BEGINS_WITH_IT, 0
    for line in lines:
        if line.startswith(head):
            said.append(line[size:])
            continue
        record, size = _record(line, time)
        records.append(record)
        time = record.time
        said = record.lines
        head = line[:size] or NOTHING_BEGINS_WITH_IT
    return records


def _record(line: bytes, before: float) -> tuple[Record, int]:
    """Also the length of what lines of the same record begin with, 0 if there can be none.

    A line that is no record, as a full disk may leave it, is kept as a line of nobody's, said at the
    time of the record before it.
    """
    try:
        stamp, who, text = line.split(b"\t", 2)
        time = float(stamp)
        if who == b"!":
            return Record(time, None, _event(text), [], len(line) + 1), 0
        rank = None if who == b"-" else int(who)
        head = len(line) - len(text)
        return Record(time, rank, None, [text], head + 1), head
    except ValueError:
        return Record(before, None, None, [line], 1), 0


def by_time(records: Iterable[Record], span: float = 1.0) -> Iterator[list[Record]]:
    """Records in their order, those together that were written within `span` seconds."""
    together: list[Record] = []
    for record in records:
        if together and not 0 <= record.time - together[0].time < span:
            yield together
            together = []
        together.append(record)
    if together:
        yield together


def _event(text: bytes) -> dict[str, Any]:
    event = json.loads(text)
    if not isinstance(event, dict) or "kind" not in event:
        raise ValueError("an event is an object with a kind")
    return event
