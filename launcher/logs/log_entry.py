"""Entries of a journal: lines of output, and events. Pure.

On disk and on screen, a line of output is `[host:rank] text`, or `[host] text` if it belongs to no rank.
If an IPv6 address ends like a rank, such as fd00::1:2, that is `[fd00::1:2:] text`.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..supervisor.events import Event

# host and rank, or a host that ends like a rank; no host ends with a colon, so `[fd00::2]` has no rank
LABEL = re.compile(
    rb"\[(?:([^\]]*?[^:\]])(?::(0|[1-9]\d{0,6}))?|([^\]]*[^:\]]:(?:0|[1-9]\d{0,6})):)\] "
)


class OutputLines(NamedTuple):
    """Adjacent lines of a node's output that have the same time and rank."""

    host: str  # "" if a damaged log file lacks it; from Fold, may be several hosts or ranks
    node_rank: int
    time: float  # unix seconds on the host's clock
    rank: int | None  # global rank; None for torchrun and the supervisor
    lines: Sequence[bytes]  # at least one, as written, without their newlines
    offset: int = 0  # bytes of the journal up to here; 0 if they are not from a journal

    @property
    def label(self) -> bytes:
        who = self.host if self.rank is None else f"{self.host}:{self.rank}"
        label = f"[{who}] ".encode(errors="surrogateescape") if self.host else b""
        if self.rank is None and (head := LABEL.match(label)) and head[2]:
            return label[:-2] + b":] "
        return label


class EventEntry(NamedTuple):
    """An event of a node, which is never shown."""

    time: float  # unix seconds on the host's clock
    event: Event
    offset: int  # bytes of the journal up to here


LogEntry = OutputLines | EventEntry


def output_in(entries: Iterable[LogEntry]) -> list[OutputLines]:
    return [entry for entry in entries if isinstance(entry, OutputLines)]


def events_in(entries: Iterable[LogEntry]) -> list[tuple[float, Event]]:
    """Return the events, each with its time."""
    return [(entry.time, entry.event) for entry in entries if isinstance(entry, EventEntry)]


def render(output: Iterable[OutputLines]) -> bytes:
    """Return the lines with their labels and newlines."""
    texts = []
    for entry in output:
        head = entry.label
        texts.append(head + (b"\n" + head).join(entry.lines) + b"\n")
    return b"".join(texts)


def parse(text: bytes, node_rank: int, time: float) -> list[OutputLines]:
    """Return one node's lines, from text that `render` wrote. All get the same time."""
    lines = text.split(b"\n")
    if not lines[-1]:
        del lines[-1]
    output = []
    for head, texts in grouped(lines, LABEL):
        host = (head[1] or head[3]).decode(errors="surrogateescape") if head else ""
        rank = int(head[2]) if head and head[2] else None
        output.append(OutputLines(host, node_rank, time, rank, texts))
    return output


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
