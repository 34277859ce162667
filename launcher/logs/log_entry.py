"""Log lines as entries. Pure.

On disk and on screen, a line is `[host:rank] text`, or `[host] text` if it belongs to no rank.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..supervisor.events import Event

# host and rank; no host ends with a colon, so `[fd00::2]` has no rank
LABEL = re.compile(rb"\[([^\]]*?[^:\]])(?::(0|[1-9]\d{0,6}))?\] ")


class LogEntry(NamedTuple):
    """One event of a node, or adjacent lines of its output that have the same time and rank."""

    host: str  # "" if a damaged log file lacks it; from Fold, may be several hosts or ranks
    node_rank: int
    time: float  # unix seconds on the host's clock
    rank: int | None  # global rank; None for torchrun, the supervisor and events
    event: Event | None  # None for output
    lines: Sequence[bytes]  # as written, without their newlines; [] for an event
    end: int = 0  # where the entry ends in the journal, in bytes; 0 if it is not from a journal

    @property
    def label(self) -> bytes:
        who = self.host if self.rank is None else f"{self.host}:{self.rank}"
        return f"[{who}] ".encode(errors="surrogateescape") if self.host else b""


def render(entries: Iterable[LogEntry]) -> bytes:
    """Return the entries' lines with their labels and newlines, without events."""
    texts = []
    for entry in entries:
        if entry.lines:
            head = entry.label
            texts.append(head + (b"\n" + head).join(entry.lines) + b"\n")
    return b"".join(texts)


def parse(text: bytes, node_rank: int, time: float) -> list[LogEntry]:
    """Return the entries of one node from lines that `render` wrote. All get the same time."""
    lines = text.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    entries = []
    for head, texts in grouped(lines, LABEL):
        host = head[1].decode(errors="surrogateescape") if head else ""
        rank = int(head[2]) if head and head[2] else None
        entries.append(LogEntry(host, node_rank, time, rank, None, texts))
    return entries


def grouped(
    lines: Sequence[bytes], head: re.Pattern[bytes]
) -> Iterator[tuple[re.Match[bytes] | None, list[bytes]]]:
    """Group adjacent lines that begin with the same head. Yield (match, [text after the head]).

    Adjacent lines that begin with no head also form a group, whose match is None.
    """

    def head_of(line: bytes) -> bytes:
        match = head.match(line)
        return match[0] if match else b""

    for prefix, group in itertools.groupby(lines, head_of):
        yield head.match(prefix), [line[len(prefix) :] for line in group]
