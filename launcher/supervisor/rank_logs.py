"""Copy the ranks' output, which torchrun redirects to files, to the journal in whole lines.

The files are polled, because inotify may not work on network file systems. Only ranks of this host
write them.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import shutil

from . import log_patterns
from .journal import Journal, LineSplitter
from .proc import read_text
from .spec import Spec

READ_SIZE = 1 << 20  # maximum bytes read from one log at a time
FREE_SIZE = 16 << 20  # bytes of disk freed at a time
PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h


class Tail:
    """One growing file, copied in whole lines."""

    def __init__(self, path: str, who: bytes, journal: Journal) -> None:
        self._file = os.open(path, os.O_RDWR)  # freeing disk blocks requires write access
        self._taken = self._freed = 0  # offsets in bytes: copied, and freed on disk, up to here
        self.lines = LineSplitter(who, journal)

    def read(self) -> int:
        """Copy at most READ_SIZE new bytes. Return their number."""
        data = os.read(self._file, READ_SIZE)
        self._taken += len(data)
        size = self._taken - self._freed
        if size >= FREE_SIZE:  # no effect if the file system does not support it
            start, length = ctypes.c_longlong(self._freed), ctypes.c_longlong(size)
            ctypes.CDLL(None).fallocate(self._file, PUNCH_HOLE, start, length)
            self._freed = self._taken
        self.lines.feed(data)
        return len(data)

    def close(self) -> None:
        os.close(self._file)


class RankLogs:
    """The files to which torchrun redirects its ranks: <folder>/*/attempt_*/<local_rank>/std*.log."""

    def __init__(self, spec: Spec, journal: Journal, folder: str) -> None:
        self.folder = folder
        self._spec, self._journal = spec, journal
        self._tails: dict[tuple[int, str], Tail] = {}
        os.makedirs(self.folder, exist_ok=True)

    def poll(self) -> int:
        """Copy new data. Return the number of bytes."""
        if len(self._tails) < 2 * self._spec.nproc_per_node:
            self._find()
        return sum(tail.read() for tail in self._tails.values())

    def drain(self, local_rank: int) -> None:
        """Copy all remaining output of a rank that has exited."""
        for (rank, _), tail in self._tails.items():
            while rank == local_rank and tail.read():
                pass

    def finish(self) -> None:
        while self.poll():
            pass
        for tail in self._tails.values():
            tail.lines.finish()

    def close(self) -> None:
        """Remove the files. The journal has a copy of them."""
        for tail in self._tails.values():
            tail.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_lines(self, local_rank: int) -> list[str]:
        """Return the end of the rank's stderr, or of its stdout if stderr is empty."""
        for stream in ("stderr", "stdout"):
            tail = self._tails.get((local_rank, stream))
            if tail and tail.lines.last:
                return log_patterns.telling_end(tail.lines.last_lines())
        return []

    def error(self, local_rank: int) -> tuple[str | None, str | None]:
        """Return (message, traceback) of the rank's exception, from torch's @record, or Nones."""
        for path in glob.glob("%s/*/attempt_*/%d/error.json" % (self.folder, local_rank)):
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                error = json.loads(read_text(path))["message"]
                if isinstance(error, str):
                    return error, None
                return error.get("message"), error.get("extraInfo", {}).get("py_callstack")
        return None, None

    def _find(self) -> None:
        # reversed: stdout before stderr
        for path in sorted(glob.glob(self.folder + "/*/attempt_*/[0-9]*/std???.log"), reverse=True):
            *_, local_rank, name = path.split("/")
            key = (int(local_rank), name[: -len(".log")])
            if key not in self._tails:
                who = b"%d" % (self._spec.first_rank + key[0])
                self._tails[key] = Tail(path, who, self._journal)
