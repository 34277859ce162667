"""Query this machine's copy of a run's logs, filtered and with all nodes merged by time."""

import contextlib
import itertools
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from .log_entry import OutputLines, parse
from .store import Mark, Marks, log_file, read_index


@dataclass(frozen=True)
class LogFilter:
    """Selects lines. A field that is None does not limit the selection. since: unix seconds.

    grep: a pattern to find anywhere in `[host:rank] text`. tail: how many of the last lines to
    keep.
    """

    nodes: Collection[int] | None = None
    ranks: Collection[int] | None = None
    hosts: Collection[str] | None = None
    attempt: int | None = None
    grep: re.Pattern[bytes] | None = None
    since: float | None = None
    tail: int | None = None

    def choose(self, output: Iterable[OutputLines]) -> list[OutputLines]:
        """Return the lines that match `nodes`, `ranks`, `hosts` and `grep`."""
        chosen = []
        for entry in filter(self._takes, output):
            if self.grep:
                label = entry.label
                lines = [line for line in entry.lines if self.grep.search(label + line)]
                entry = entry._replace(lines=lines)
            if entry.lines:
                chosen.append(entry)
        return chosen

    def _takes(self, entry: OutputLines) -> bool:
        return (
            (self.nodes is None or entry.node_rank in self.nodes)
            and (self.ranks is None or entry.rank in self.ranks)
            and (self.hosts is None or entry.host in self.hosts)
        )


def merged(
    folder: Path, log_filter: LogFilter, known: Marks, shown: Marks | None = None
) -> Iterator[list[OutputLines]]:
    """Yield the recorded lines that the filter selects, in batches ordered by attempt and time.

    shown: the marks at which to begin (default: the start). known: the marks at which to stop.
    """
    batches = map(log_filter.choose, _batches(folder, log_filter, known, shown or {}))
    if log_filter.tail is None:
        return batches
    return iter([last_lines(itertools.chain.from_iterable(batches), log_filter.tail)])


def last_lines(output: Iterable[OutputLines], count: int) -> list[OutputLines]:
    """Return the last `count` lines."""
    last: deque[OutputLines] = deque()
    extra = -count  # lines in `last` beyond `count`
    for entry in output:
        last.append(entry)
        extra += len(entry.lines)
        while last and len(last[0].lines) <= extra:
            extra -= len(last.popleft().lines)
    if extra > 0:
        last[0] = last[0]._replace(lines=last[0].lines[extra:])
    return list(last)


def attempts_in(folder: Path, known: Marks) -> list[int]:
    indexes = (read_index(folder, node_rank) for node_rank in known)
    return sorted({mark.attempt for index in indexes for mark in index.marks})


class Span(NamedTuple):
    """A part of one node's log. In order, the spans of all nodes are the merged log."""

    attempt: int
    time: float  # unix seconds; not after that of the next span of this log
    node_rank: int
    start: int  # bytes of the log
    stop: int


def _batches(
    folder: Path, log_filter: LogFilter, known: Marks, shown: Marks
) -> Iterator[list[OutputLines]]:
    """Yield the recorded lines that the filter selects by time and attempt."""
    spans: list[Span] = []
    for node_rank, last in known.items():
        first = shown[node_rank].log_size if node_rank in shown else 0
        marks = read_index(folder, node_rank).marks
        spans += _spans(node_rank, marks, log_filter, first, last.log_size)
    with contextlib.ExitStack() as opened:
        logs = {
            node_rank: opened.enter_context(log_file(folder, node_rank).open("rb"))
            for node_rank in {span.node_rank for span in spans}
        }
        for span in sorted(spans):
            logs[span.node_rank].seek(span.start)
            text = logs[span.node_rank].read(span.stop - span.start)
            yield parse(text, span.node_rank, span.time)


def _spans(
    node_rank: int, marks: Sequence[Mark], log_filter: LogFilter, start: int, stop: int
) -> Iterator[Span]:
    """Yield the parts of a log, from byte `start` to `stop`, that the filter selects."""
    # a node's lines stay in order even if its clock was set back: no time is after a later one
    moments = itertools.accumulate(((m.attempt, m.time) for m in reversed(marks)), min)
    for (attempt, time), mark in zip(reversed([*moments]), marks, strict=True):
        if start < mark.log_size <= stop:
            late = log_filter.since is None or mark.time >= log_filter.since
            if late and log_filter.attempt in (None, mark.attempt):
                yield Span(attempt, time, node_rank, start, mark.log_size)
            start = mark.log_size
