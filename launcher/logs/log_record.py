"""Log lines as records. On disk and on screen, a line is `[host:rank] text`. Pure.

A line that belongs to no rank, from torchrun or the supervisor, is `[host] text`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..supervisor.events import Event

LABEL = re.compile(rb"\[([^\]]+?)(?::(0|[1-9]\d*))?")
KEPT = 1 << 14  # labels kept in memory


class Record(NamedTuple):
    """One event of a node, or the lines that one of its ranks wrote at one time."""

    host: str  # "" only for a line without a label, in a damaged log file
    node_rank: int
    time: float  # unix seconds, the host's clock
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

    @property
    def label(self) -> bytes:
        return _label(self.host, self.rank)


def label(who: str) -> bytes:
    return b"[%b] " % who.encode(errors="surrogateescape")


@functools.lru_cache(KEPT)
def _label(host: str, rank: int | None) -> bytes:
    if not host:
        return b""
    return label(host if rank is None else f"{host}:{rank}")


@functools.lru_cache(KEPT)
def _parsed_label(text: bytes) -> tuple[str, int | None] | None:
    """Return the host and rank of `[host:rank`; None if it is something else."""
    match = LABEL.fullmatch(text)
    if match is None:
        return None
    return match[1].decode(errors="surrogateescape"), int(match[2]) if match[2] else None


def render(records: Iterable[Record]) -> bytes:
    """Return the records' lines as `[host:rank] text`, each with its newline. Skips events."""
    texts = []
    for record in records:
        if record.lines:
            head = record.label
            texts.append(head + (b"\n" + head).join(record.lines) + b"\n")
    return b"".join(texts)


def parse(text: bytes, node_rank: int, time: float) -> list[Record]:
    """Parse lines that `render` returned for records of one node. They all get the same time."""
    lines = text.split(b"\n")
    if not lines[-1]:
        del lines[-1]

    def parse_line(line: bytes) -> tuple[Record, int]:
        before, end, text = line.partition(b"] ")
        who = _parsed_label(before) if end else None
        if who is None:
            return Record("", node_rank, time, None, None, [line], 0), 0
        return Record(who[0], node_rank, time, who[1], None, [text], 0), len(before) + 2

    return grouped(lines, parse_line)


def grouped(
    lines: Iterable[bytes], parse_line: Callable[[bytes], tuple[Record, int]]
) -> list[Record]:
    """Parse lines into records. Lines that begin with the same prefix share one.

    parse_line: also returns the length of the prefix that the record's further lines share, or 0.
    This is fast (a million lines a second), because a prefix is not parsed again if it is that of
    the line before.
    """
    records: list[Record] = []
    texts: list[bytes] = []
    head = b"\n"  # prefix of further lines of the same record; no line begins with a newline
    for line in lines:
        if line.startswith(head):
            texts.append(line[len(head) :])
            continue
        record, size = parse_line(line)
        if records and not size and record.event is None and record[:5] == records[-1][:5]:
            records[-1].lines.extend(record.lines)  # also malformed
            continue
        records.append(record)
        texts, head = record.lines, line[:size] or b"\n"
    return records
