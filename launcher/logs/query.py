"""Query this machine's copy of a run's logs: all nodes merged by time, filtered."""

import contextlib
import datetime
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..text import seconds_in
from .store import Mark, known_marks, read_index

PREFIX = re.compile(rb"\[([^\]]*?)(?::(\d+))?\] ")


@dataclass(frozen=True)
class Wanted:
    """A filter for lines. A field that is None selects all. since: unix seconds."""

    nodes: Collection[int] | None = None
    ranks: Collection[int] | None = None
    hosts: Collection[str] | None = None
    attempt: int | None = None
    grep: re.Pattern[bytes] | None = None
    since: float | None = None
    tail: int | None = None

    def choose(self, node_rank: int, text: bytes) -> bytes:
        """Return the lines of a node's `text` that match by node, rank, host and `grep`.

        `text` consists of whole lines.
        """
        if self.nodes is not None and node_rank not in self.nodes:
            return b""
        if self.ranks is None and self.hosts is None and self.grep is None:
            return text
        # splitlines would also split at a carriage return
        return b"".join(line + b"\n" for line in text.split(b"\n")[:-1] if self._takes(line))

    def _takes(self, line: bytes) -> bool:
        host, rank = match.groups() if (match := PREFIX.match(line)) else (b"", None)
        return (
            (self.ranks is None or (rank is not None and int(rank) in self.ranks))
            and (self.hosts is None or host.decode(errors="replace") in self.hosts)
            and (self.grep is None or self.grep.search(line) is not None)
        )


def parse_numbers(text: str, count: int) -> frozenset[int]:
    """Parse `0-3,5`; all numbers must be below `count`. Raises ValueError."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        try:
            first, last = int(low), int(high or low)
        except ValueError:
            first = last = -1
        if not 0 <= first <= last < count:
            raise ValueError(f"{part!r} is not a number or range within 0-{count - 1}")
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def merged(
    folder: Path,
    wanted: Wanted,
    known: Mapping[int, Mark] | None = None,
    shown: Mapping[int, Mark] | None = None,
) -> Iterator[tuple[int, bytes]]:
    """Yield (node rank, recorded lines), in batches ordered by time.

    known: the marks to end at; by default the last. shown: the marks to begin after; by default the
    first line.
    """
    marks = known_marks(folder) if known is None else known
    batches = _batches(folder, wanted, marks, shown or {})
    chosen = ((rank, text) for rank, batch in batches if (text := wanted.choose(rank, batch)))
    if wanted.tail is None:
        return chosen
    lines = ((rank, line + b"\n") for rank, text in chosen for line in text.split(b"\n")[:-1])
    return iter(deque(lines, maxlen=wanted.tail))


def attempts_in(folder: Path, known: Mapping[int, Mark]) -> list[int]:
    return sorted({mark.attempt for rank in known for mark in read_index(folder, rank).marks})


def _batches(
    folder: Path, wanted: Wanted, known: Mapping[int, Mark], shown: Mapping[int, Mark]
) -> Iterator[tuple[int, bytes]]:
    spans = []
    for node_rank, last in known.items():
        start = shown[node_rank].size if node_rank in shown else 0
        for mark in read_index(folder, node_rank).marks:
            if start < mark.size <= last.size:
                late = wanted.since is None or mark.time >= wanted.since
                if late and wanted.attempt in (None, mark.attempt):
                    spans.append((mark.time, node_rank, start, mark.size))
                start = mark.size
    with contextlib.ExitStack() as opened:
        files = {
            node_rank: opened.enter_context((folder / f"node-{node_rank}.log").open("rb"))
            for node_rank in {node_rank for _, node_rank, _, _ in spans}
        }
        for _, node_rank, start, end in sorted(spans):
            files[node_rank].seek(start)
            yield node_rank, files[node_rank].read(end - start)


def parse_since(text: str, now: float) -> float:
    """Convert a duration (ago) or an RFC 3339 time to unix seconds. Raises ValueError."""
    seconds = seconds_in(text)
    if seconds is not None:
        return now - seconds
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment.timestamp()
