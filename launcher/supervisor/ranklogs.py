"""What the ranks write: the files that torchrun redirects them to, handed on in whole lines."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import Any

from .journal import Journal

READ_SIZE = 1 << 20  # bytes taken from one log at a time
LONGEST_LINE = 16 << 20  # bytes; what is longer is cut, so that memory stays bounded
FREE_SIZE = 16 << 20  # bytes that are given back to the disk at a time
PUNCH_HOLE = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
LAST_BYTES = 32768  # of a stream's end, kept as evidence
TRACEBACK = re.compile(r"(\[rank\d+\]: )?Traceback \(most recent call last\)")


class Tail:
    """One growing file, handed on in whole lines."""

    def __init__(self, path: str, who: bytes, journal: Journal) -> None:
        self.path = path
        self._file = open_to_free(path)
        self._taken = self._freed = 0  # bytes from the beginning
        self._who, self._journal = who, journal
        self._partial: list[bytes] = []
        self.last = b""  # the end of what was written

    def read(self) -> int:
        """Takes what is there now, at most READ_SIZE. Returns the number of bytes."""
        data = os.read(self._file, READ_SIZE)
        self._taken += len(data)
        if self._taken - self._freed >= FREE_SIZE:
            free(self._file, self._freed, self._taken - self._freed)
            self._freed = self._taken
        head, newline, rest = data.rpartition(b"\n")
        if newline:
            whole = b"".join(self._partial) + head + newline
            self._partial = []
            self._hand_on(whole)
        if rest:
            self._partial.append(rest)
            if len(data) == READ_SIZE and sum(map(len, self._partial)) > LONGEST_LINE:
                self.finish()
        return len(data)

    def finish(self) -> None:
        """A last line without its newline is a line too."""
        if self._partial:
            whole = b"".join(self._partial) + b"\n"
            self._partial = []
            self._hand_on(whole)

    def _hand_on(self, whole: bytes) -> None:
        self._journal.lines(self._who, whole)
        self.last = (self.last + whole[-LAST_BYTES:])[-LAST_BYTES:]


def open_to_free(path: str) -> int:
    """For reading, and for writing where we may, which giving room back needs."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError:
        return os.open(path, os.O_RDONLY)


def free(file: int, start: int, size: int) -> None:
    """Gives the disk back what the journal has by now, where the file system can; the rank writes on."""
    try:
        import ctypes

        fallocate = ctypes.CDLL(None).fallocate
        fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong]
        fallocate(file, PUNCH_HOLE, start, size)
    except (ImportError, AttributeError, OSError):
        pass


class RankLogs:
    """The files that torchrun redirects its ranks to: <folder>/*/attempt_0/<local_rank>/std*.log."""

    def __init__(self, folder: str, first_rank: int, nproc: int, journal: Journal) -> None:
        self.folder = folder
        self._first, self._nproc, self._journal = first_rank, nproc, journal
        self._tails: dict[tuple[int, str], Tail] = {}
        os.makedirs(folder, exist_ok=True)

    def poll(self) -> int:
        """Copies what is new. Returns the number of bytes; 0 when nothing was."""
        if len(self._tails) < 2 * self._nproc:
            self._find()
        return sum(tail.read() for tail in self._tails.values())

    def growing_paths(self) -> list[str]:
        """What changes when there is something new to read."""
        return [tail.path for tail in self._tails.values()] or [self.folder]

    def drain(self, local_rank: int) -> None:
        """All that one rank wrote, once it has ended; the others may write on without end."""
        for (rank, _), tail in self._tails.items():
            while rank == local_rank and tail.read():
                pass

    def finish(self) -> None:
        while self.poll():
            pass
        for tail in self._tails.values():
            tail.finish()

    def last_lines(self, local_rank: int) -> list[str]:
        """The end of the rank's stderr, or of its stdout when stderr is empty.

        From the last traceback on if there is one: a crash at exit may write a lot after it.
        """
        for stream in ("stderr", "stdout"):
            tail = self._tails.get((local_rank, stream))
            if tail and tail.last:
                lines = tail.last.decode(errors="replace").rstrip("\n").split("\n")
                starts = [n for n, line in enumerate(lines) if TRACEBACK.match(line)]
                return lines[starts[-1] :][:80] if starts else lines[-40:]
        return []

    def error(self, local_rank: int) -> dict[str, Any] | None:
        """What @record wrote about the rank's exception: {message, traceback}, or None."""
        for path in glob.glob(os.path.join(self.folder, "*/attempt_*/%d/error.json" % local_rank)):
            try:
                with open(path) as file:
                    message = json.load(file)["message"]
            except (OSError, ValueError, KeyError):
                continue
            if isinstance(message, str):
                return {"message": message, "traceback": ""}
            info = message.get("extraInfo", {})
            return {"message": message.get("message"), "traceback": info.get("py_callstack", "")}
        return None

    def _find(self) -> None:
        if not os.listdir(self.folder):
            return
        for local_rank in range(self._nproc):
            for stream in ("stdout", "stderr"):
                if (local_rank, stream) in self._tails:
                    continue
                name = "*/attempt_*/%d/%s.log" % (local_rank, stream)
                for path in glob.glob(os.path.join(self.folder, name)):
                    who = b"%d" % (self._first + local_rank)
                    self._tails[local_rank, stream] = Tail(path, who, self._journal)
