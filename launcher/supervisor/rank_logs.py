"""Copy the output files of torchrun and its ranks to the journal, in whole lines.

The files are polled, because inotify may not work on network file systems. Only processes on this
host write them.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import shutil

from . import quoted_error
from .journal import Journal
from .proc import read_text
from .spec import Spec

TORCHRUN_LOG = "torchrun.log"  # torchrun's own output
# A rank's folder below torchrun's PET_LOG_DIR. It contains std{out,err}.log and, after an
# exception, error.json.
RANK_FOLDER = "*/attempt_*/{local_rank}"
READ_SIZE = 1 << 20  # maximum bytes read from one log at a time
FREE_SIZE = 16 << 20  # bytes of disk freed at a time
PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
LONGEST_LINE = 16 << 20  # bytes; longer lines are split, so that memory stays bounded
LAST_BYTES = 32768  # bytes kept from the end of a log, to explain a failure


class Tail:
    """A growing file whose whole lines are copied to the journal."""

    def __init__(self, path: str, who: bytes, journal: Journal) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)  # freeing disk blocks needs write access
        self._who, self._journal = who, journal
        self._read = self._freed = 0  # how many bytes have been read, and freed on disk
        self._pending = bytearray()  # read, but not in the journal yet
        self._last = b""  # the end of what is in the journal

    def copy_new(self) -> int:
        """Read up to READ_SIZE new bytes, and copy whole lines. Return how many bytes were read."""
        data = os.read(self._file, READ_SIZE)
        self._read += len(data)
        self._free_disk()
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            self._pending += whole
            self._copy_pending()
        self._pending += rest
        if len(self._pending) > LONGEST_LINE:
            self._copy_pending()
        return len(data)

    def has_grown(self) -> bool:
        return os.fstat(self._file).st_size > self._read

    def finish(self) -> None:
        """Copy the rest, including a last line without a newline."""
        while self.copy_new():
            pass
        if self._pending:
            self._copy_pending()

    def close(self) -> None:
        os.close(self._file)

    def last_lines(self) -> list[str]:
        return self._last.decode(errors="replace").rstrip("\n").split("\n") if self._last else []

    def _free_disk(self) -> None:
        """Free the disk blocks of copied output once there are many, if the file system can."""
        size = self._read - self._freed
        if size >= FREE_SIZE:
            start, length = ctypes.c_longlong(self._freed), ctypes.c_longlong(size)
            ctypes.CDLL(None).fallocate(self._file, PUNCH_HOLE, start, length)
            self._freed = self._read

    def _copy_pending(self) -> None:
        lines = bytes(self._pending) + b"\n"
        self._pending.clear()
        self._journal.write_lines(self._who, lines)
        self._last = (self._last + lines[-LAST_BYTES:])[-LAST_BYTES:]


class RankLogs:
    """The folder that holds torchrun's own output and, in RANK_FOLDERs, its ranks' output."""

    def __init__(self, spec: Spec, journal: Journal, folder: str) -> None:
        self.folder = folder
        self._spec, self._journal = spec, journal
        os.makedirs(folder, exist_ok=True)
        self.torchrun_tail = Tail(os.path.join(folder, TORCHRUN_LOG), b"-", journal)
        self._tails: dict[tuple[int, str], Tail] = {}  # by local rank and stream

    def torchrun_is_ready(self) -> bool:
        """Return whether torchrun has created a folder here, as it does before it starts ranks.

        Returns True if that is unknown.
        """
        with contextlib.suppress(OSError):
            return len(os.listdir(self.folder)) > 1  # TORCHRUN_LOG is there from the start
        return True

    def have_grown(self) -> bool:
        """Return whether there is output that `copy_new` has not copied."""
        return any(tail.has_grown() for tail in (self.torchrun_tail, *self._tails.values()))

    def copy_new(self) -> int:
        """Copy new output. Return how many bytes of it came from ranks."""
        self.torchrun_tail.copy_new()
        if len(self._tails) < 2 * self._spec.nproc_per_node:
            self._find()
        return sum(tail.copy_new() for tail in self._tails.values())

    def drain(self, local_rank: int) -> None:
        """Copy all remaining whole lines of a rank that has exited.

        An unfinished last line waits for `finish`.
        """
        self._find()  # the rank may have started and exited since the last `copy_new`
        for (owner, _), tail in self._tails.items():
            while owner == local_rank and tail.copy_new():
                pass

    def finish(self) -> None:
        """Copy all remaining output, once torchrun and its ranks have ended."""
        self._find()
        for tail in (self.torchrun_tail, *self._tails.values()):
            tail.finish()

    def close(self) -> None:
        """Remove the files. The journal has a copy of them."""
        for tail in (self.torchrun_tail, *self._tails.values()):
            tail.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_lines(self, local_rank: int) -> list[str]:
        """Return the end of the rank's stderr, or of its stdout if stderr is empty."""
        streams = (self._tails.get((local_rank, name)) for name in ("stderr", "stdout"))
        lines = (tail.last_lines() for tail in streams if tail)
        return quoted_error.telling_end(next(filter(None, lines), []))

    def error(self, local_rank: int) -> tuple[str | None, str | None]:
        """Return the message and traceback that torch's @record saved; None for what is missing."""
        for path in self._paths(str(local_rank), "error.json"):
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
                error = json.loads(read_text(path))["message"]
                if isinstance(error, str):
                    return error, None
                return error.get("message"), error.get("extraInfo", {}).get("py_callstack")
        return None, None

    def _find(self) -> None:
        # in reverse order, so that stdout precedes stderr
        for path in sorted(self._paths("[0-9]*", "std???.log"), reverse=True):
            *_, local_rank, name = path.split("/")
            key = (int(local_rank), name[: -len(".log")])
            if key not in self._tails:
                who = b"%d" % (self._spec.first_rank + key[0])
                self._tails[key] = Tail(path, who, self._journal)

    def _paths(self, local_rank: str, name: str) -> list[str]:
        folder = RANK_FOLDER.format(local_rank=local_rank)
        return glob.glob(os.path.join(glob.escape(self.folder), folder, name))
