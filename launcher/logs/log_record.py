"""Log lines as records. On disk and on screen, a line begins with its label. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..supervisor import journal_format

if TYPE_CHECKING:
    from ..supervisor.events import Event

LABEL = re.compile(rb"\[([^\]]+)\] ")
WHO = re.compile(rb"(.+?)(?::(0|[1-9]\d{0,6}))?", re.DOTALL)  # a label without its brackets
KEPT = 1 << 14  # labels kept in memory


class Record(NamedTuple):
    """One event of a node, or the lines that one of its ranks wrote at one time."""

    host: str  # "" only for a line without a label, in a damaged log file
    node_rank: int
    time: float  # unix seconds, the host's clock
    rank: int | None  # global rank; None for torchrun, the supervisor and events
    event: Event | None  # None for output
    lines: Sequence[bytes]  # as written, without their newlines; [] for an event
    end: int = 0  # bytes of the journal up to here; 0 if not read from one

    @property
    def label(self) -> bytes:
        return _label(self.host, self.rank)


def label(host: str, rank: int | None = None) -> bytes:
    number = b"" if rank is None else b"%d" % rank
    return journal_format.label(host.encode(errors="surrogateescape"), number)


@functools.lru_cache(KEPT)
def _label(host: str, rank: int | None) -> bytes:
    return label(host, rank) if host else b""


def render(records: Iterable[Record]) -> bytes:
    """Return the records' lines with their labels and newlines. Skips events."""
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
    records = []
    for head, texts in grouped(lines, LABEL):
        host, rank = _who(head[1]) if head else ("", None)
        records.append(Record(host, node_rank, time, rank, None, texts))
    return records


@functools.lru_cache(KEPT)
def _who(text: bytes) -> tuple[str, int | None]:
    """Return the host and rank of a label."""
    match = WHO.fullmatch(text)
    assert match
    return match[1].decode(errors="surrogateescape"), int(match[2]) if match[2] else None


def grouped(
    lines: Sequence[bytes], head: re.Pattern[bytes]
) -> Iterator[tuple[re.Match[bytes] | None, list[bytes]]]:
    """Group adjacent lines that begin with the same head. Yield its match, and the rest of each.

    Lines that begin with no head make a group too, with None. This is fast (millions of lines a
    second), because only the first line of a group is matched.
    """
    match, prefix, size = None, b"", 0
    rests: list[bytes] = []
    for line in lines:
        if size and line.startswith(prefix):
            rests.append(line[size:])
            continue
        before, match = match, head.match(line)
        if rests and (before or match):
            yield before, rests
            rests = []
        prefix = match[0] if match else b""
        size = len(prefix)
        rests.append(line[size:])
    if rests:
        yield match, rests
