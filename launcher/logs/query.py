"""Query this machine's copy of a run's logs, filtered and with all nodes merged by time."""

import contextlib
import itertools
import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .log_entry import OutputLines, parse
from .store import Marks, read_index


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

    known: the marks up to which to read. shown: those from which to read (default: from the start).
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
    return sorted({mark.attempt for rank in known for mark in read_index(folder, rank).marks})


def _batches(
    folder: Path, log_filter: LogFilter, known: Marks, shown: Marks
) -> Iterator[list[OutputLines]]:
    """Yield the recorded lines that the filter selects by time and attempt."""
    spans = []
    for node_rank, last in known.items():
        start = shown[node_rank].size if node_rank in shown else 0
        marks = read_index(folder, node_rank).marks
        # each node's lines stay in order even if its clock was set back
        moments = itertools.accumulate(((m.attempt, m.time) for m in reversed(marks)), min)
        for moment, mark in zip(reversed([*moments]), marks, strict=True):
            if start < mark.size <= last.size:
                late = log_filter.since is None or mark.time >= log_filter.since
                if late and log_filter.attempt in (None, mark.attempt):
                    spans.append((moment, node_rank, start, mark.size))
                start = mark.size
    with contextlib.ExitStack() as opened:
        paths = {node_rank: folder / f"node-{node_rank}.log" for _, node_rank, _, _ in spans}
        files = {rank: opened.enter_context(path.open("rb")) for rank, path in paths.items()}
        for (_, time), node_rank, start, stop in sorted(spans):
            files[node_rank].seek(start)
            yield parse(files[node_rank].read(stop - start), node_rank, time)
