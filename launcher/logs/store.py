"""The launching machine's copy of a run's logs: one file per node, each line once.

`node-<K>.log` holds each line with its label. For each second with entries, `.node-<K>.index` has one
line: time, attempt, offset in the host's journal, size of the log. The last line marks where to
continue. Anything in the log after that point is from a killed process and is cut off. An index is
ignored from its first impossible line on, and repaired the next time its log is opened for writing.
If it is damaged or missing, that first keeps a copy of the log.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..own_folders import make_folder, try_lock
from .log_entry import LogEntry, output_in, render

INDEX = re.compile(r"\.node-(\d{1,7})\.index")
MARK = re.compile(rb"(\d{1,12}\.\d{6}) (\d{1,7}) (\d{1,18}) (\d{1,18})")


@dataclass(frozen=True)
class Mark:
    """One line of a log's index."""

    time: float  # unix seconds on the host's clock: the time of the last entry before it
    attempt: int
    offset: int  # how many bytes of that attempt's journal the log contains
    log_size: int  # bytes


Marks = Mapping[int, Mark]  # the marks at one moment, by node rank


def offset_in(attempt: int, mark: Mark | None) -> int:
    """Return where to resume reading an attempt's journal: at its last mark, or 0 if it has none."""
    return mark.offset if mark and mark.attempt == attempt else 0


def log_file(folder: Path, node_rank: int) -> Path:
    return folder / f"node-{node_rank}.log"


def _index_file(folder: Path, node_rank: int) -> Path:
    return folder / f".node-{node_rank}.index"


class NodeLog:
    """The log of one node. One process at a time may open it for writing, which repairs it."""

    def __init__(self, folder: Path, node_rank: int, warn: Callable[[str], None]) -> None:
        index, log = _read_index(folder, node_rank), log_file(folder, node_rank)
        if index.damaged:
            shutil.copyfile(log, f"{log}.damaged")
            again = "reading the log again from the host, from the damaged entry on"
            warn(f"{log}: its index was damaged or missing; {again}; {log}.damaged is a copy")
        self.mark = index.last
        self._log = log.open("ab")
        self._log.truncate(self.mark.log_size)
        self._index = _index_file(folder, node_rank).open("a")
        self._index.truncate(index.size)

    def append(self, entries: Sequence[LogEntry], attempt: int) -> None:
        """Append the lines of the entries from the attempt's journal that come after the mark.

        If the mark is of a newer attempt, appends nothing. One read may cover hours of a quiet run. Each
        second gets its own mark, because the nodes' logs are merged by time and searched by time.
        """
        if attempt < self.mark.attempt:
            return
        known = offset_in(attempt, self.mark)
        new = [entry for entry in entries if entry.offset > known]
        for _, second in itertools.groupby(new, lambda entry: int(entry.time)):
            group = list(second)
            text, last = render(output_in(group)), group[-1]
            self._log.write(text)
            self._log.flush()
            self.mark = Mark(last.time, attempt, last.offset, self.mark.log_size + len(text))
            self._index.write(f"{last.time:.6f} {attempt} {last.offset} {self.mark.log_size}\n")
            self._index.flush()

    def close(self) -> None:
        self._log.close()
        self._index.close()


class LogStore:
    """A run's logs, one per node. One process may `acquire` it for writing; others only read."""

    def __init__(self, folder: Path, lock: IO[str], warn: Callable[[str], None]) -> None:
        self.folder = folder
        self._lock, self._warn = lock, warn
        self.failed = False  # after an error, which may have cut off a line, `append` does nothing
        self._nodes: dict[int, NodeLog] = {}

    @classmethod
    def acquire(cls, folder: Path, warn: Callable[[str], None]) -> LogStore | None:
        """Lock the store. Return None if another process on this machine holds it.

        Raises StateError if it cannot be locked.
        """
        lock = try_lock(make_folder(folder) / ".lock")
        return cls(folder, lock, warn) if lock else None

    def node(self, node_rank: int) -> NodeLog:
        if node_rank not in self._nodes:
            self._nodes[node_rank] = NodeLog(self.folder, node_rank, self._warn)
        return self._nodes[node_rank]

    def append(self, node_rank: int, entries: Sequence[LogEntry], attempt: int) -> None:
        """Append the entries of a live attempt. After an error, warn once and record no more."""
        if self.failed or not entries:
            return
        try:
            self.node(node_rank).append(entries, attempt)
        except OSError as error:
            self.failed = True
            what = error.filename or self.folder
            self._warn(f"the rest of the logs is not recorded: {what}: {error.strerror}")

    def close(self) -> None:
        """Release the lock, so that another process can write. Safe to repeat."""
        for log in self._nodes.values():
            with contextlib.suppress(OSError):  # the disk is full, which was reported already
                log.close()
        self._lock.close()


@dataclass(frozen=True)
class Index:
    marks: list[Mark]
    size: int  # bytes of the index up to the last mark
    damaged: bool  # whether an impossible line follows, or the index of a log is missing

    @property
    def last(self) -> Mark:
        return self.marks[-1] if self.marks else Mark(0.0, 0, 0, 0)


def known_marks(folder: Path) -> Marks:
    """Return the last mark of each node whose logs are on this machine."""
    matches = (INDEX.fullmatch(path.name) for path in folder.glob(".node-*.index"))
    node_ranks = sorted(int(match[1]) for match in matches if match)
    return {node_rank: read_index(folder, node_rank).last for node_rank in node_ranks}


def read_index(folder: Path, node_rank: int) -> Index:
    """Return a node's index for reading its log; an empty one if it cannot be read."""
    try:
        return _read_index(folder, node_rank)
    except OSError:
        return Index([], 0, False)


def _read_index(folder: Path, node_rank: int) -> Index:
    """Read a node's index up to its last whole line, or to the first impossible one.

    The sizes of the log must not decrease or exceed its size now. Raises OSError if the index or the
    log is there but cannot be read.
    """
    largest = 0
    try:
        largest = log_file(folder, node_rank).stat().st_size
        lines = _index_file(folder, node_rank).read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return Index([], 0, damaged=largest > 0)
    marks: list[Mark] = []
    size = log_size = 0
    for line in lines:
        match = MARK.fullmatch(line)
        if not match or not log_size <= int(match[4]) <= largest:
            return Index(marks, size, True)
        log_size = int(match[4])
        marks.append(Mark(float(match[1]), int(match[2]), int(match[3]), log_size))
        size += len(line) + 1
    return Index(marks, size, False)
