"""The launching machine's copy of a run's logs: one file per node, each line once.

`node-<K>.log` holds the lines as they were shown. For each second with output, `.node-<K>.index` has one
line: time, attempt, offset in the host's journal, size of the log. Its last line says where to continue;
a killed process may have written more to the log, which is cut off.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launcher.logs.journal import Record, by_time
from launcher.plan.plan import Place
from launcher.state import make_folder


@dataclass(frozen=True)
class Mark:
    """One line of the index."""

    time: float  # unix seconds, the host's clock, of the batch's last record
    attempt: int
    offset: int  # bytes of that attempt's journal that the log contains
    size: int  # bytes of the log


def offset_in(known: Mapping[int, Mark], place: Place) -> int:
    """Where in a node's journal to continue."""
    mark = known.get(place.node_rank)
    return mark.offset if mark and mark.attempt == place.attempt else 0


class NodeLog:
    """The log of one node, open for writing in one process at a time."""

    def __init__(self, folder: Path, node_rank: int) -> None:
        self.path = folder / f"node-{node_rank}.log"
        self.index = folder / f".node-{node_rank}.index"
        self.mark = last_mark(self.index)
        self._log: BinaryIO = self.path.open("ab")
        self._log.truncate(self.mark.size)
        _cut_partial_line(self.index)
        self._index = self.index.open("a")

    def record(self, records: Sequence[Record], *, host: str, attempt: int, offset: int) -> bytes:
        """Writes the records' lines and returns them. `offset`: where the records end in the journal.

        One read may return hours of a quiet run, so each second with output gets its own mark: nodes are
        merged, and lines found, by time.
        """
        at = offset - sum(record.size for record in records)
        texts = []
        for group in by_time(records):
            at += sum(record.size for record in group)
            text = b"".join(r.render(host) for r in group if r.event is None)
            if text or at == offset:  # events alone may have been recorded before
                self.write(text, time=group[-1].time, attempt=attempt, offset=at)
                texts.append(text)
        return b"".join(texts)

    def write(self, text: bytes, *, time: float, attempt: int, offset: int) -> None:
        """`text`: whole lines."""
        self._log.write(text)
        self._log.flush()
        self.mark = Mark(time, attempt, offset, self.mark.size + len(text))
        self._index.write(f"{time:.6f} {attempt} {offset} {self.mark.size}\n")
        self._index.flush()

    def close(self) -> None:
        self._log.close()
        self._index.close()


class LogStore:
    """All node logs of a run. `acquire` gives it to one process; the others only read."""

    def __init__(self, folder: Path, lock: BinaryIO) -> None:
        self.folder = folder
        self._lock = lock
        self._nodes: dict[int, NodeLog] = {}

    @classmethod
    def acquire(cls, folder: Path) -> LogStore | None:
        """None when another process of this machine is writing these logs."""
        make_folder(folder)
        lock = (folder / ".lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return cls(folder, lock)

    def node(self, node_rank: int) -> NodeLog:
        if node_rank not in self._nodes:
            self._nodes[node_rank] = NodeLog(self.folder, node_rank)
        return self._nodes[node_rank]

    def close(self) -> None:
        for log in self._nodes.values():
            log.close()
        self._lock.close()  # releases the lock


def known_marks(folder: Path) -> dict[int, Mark]:
    """The last mark of each node that this machine has logs of."""
    return {
        int(index.name.split("-")[1].split(".")[0]): last_mark(index)
        for index in folder.glob(".node-*.index")
    }


def last_mark(index: Path) -> Mark:
    """The last whole line of an index, or a mark at the very beginning."""
    marks = read_marks(index)
    return marks[-1] if marks else Mark(0.0, 0, 0, 0)


def read_marks(index: Path) -> list[Mark]:
    try:
        lines = index.read_text().split("\n")[:-1]  # a line without its newline is not whole
    except OSError:
        return []
    fields = (line.split() for line in lines)
    return [Mark(float(f[0]), int(f[1]), int(f[2]), int(f[3])) for f in fields if len(f) == 4]


def _cut_partial_line(path: Path) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        os.truncate(path, whole)
