"""The journal of this node's attempt: append-only, one record a line, the event `end` last.

A record is TIME<TAB>WHO<TAB>TEXT: unix seconds; a global rank, `-` for torchrun and the supervisor, or
`!` for an event, whose text is a JSON object with a "kind" (see events.py).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time

from .events import Event, document

BALLAST = 1 << 20  # bytes of disk held back, so that a full disk leaves room for the last events
LONGEST_LINE = 16 << 20  # bytes; a longer line is cut, so that memory stays bounded
LAST_BYTES = 32768  # of a stream's end, kept to explain a failure
STDOUT_BACKLOG = 1 << 20  # bytes that may wait for a reader of stdout


class Journal:
    """Unbuffered. Its lines are copied to stdout, for the container engine's own log."""

    def __init__(self, folder: str, host: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.path.join(folder, "journal"), flags, 0o644)
        self._ballast = os.path.join(folder, "ballast")
        self._host = host.encode()
        self._stdout = b""  # not written yet
        self.dropped = 0  # bytes of output that did not fit on a full disk
        with contextlib.suppress(OSError), open(self._ballast, "wb") as file:
            file.write(b"\0" * BALLAST)
        os.set_blocking(1, False)  # an engine that stops reading must not stop the run

    def lines(self, who: bytes, data: bytes) -> None:
        """`data`: whole lines, each with its newline."""
        if not self._append(_prefixed(b"%.6f\t%b\t" % (time.time(), who), data)):
            self.dropped += len(data)
        label = b"[%b] " % (self._host if who == b"-" else self._host + b":" + who)
        self._copy(_prefixed(label, data))

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        self.lines(b"-", b"ddpctl: %b\n" % text.encode(errors="replace"))

    def event(self, event: Event) -> None:
        if not self.sample(event):
            self._drop_ballast()
            self.sample(event)

    def sample(self, event: Event) -> bool:
        """Return an event that may be lost. False: the disk is full."""
        return self._append(b"%.6f\t!\t%b\n" % (time.time(), json.dumps(document(event)).encode()))

    def close(self) -> None:
        self._drop_ballast()
        os.close(self._file)

    def _append(self, data: bytes) -> bool:
        start = os.fstat(self._file).st_size
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            if len(view) != len(data):  # half a record would swallow the next one
                os.ftruncate(self._file, start)
            return False
        return True

    def _copy(self, data: bytes) -> None:
        if len(self._stdout) > STDOUT_BACKLOG:
            return  # the journal has it
        self._stdout += data
        with contextlib.suppress(OSError):
            while self._stdout:
                self._stdout = self._stdout[os.write(1, self._stdout[:65536]) :]

    def _drop_ballast(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._ballast)


class Lines:
    """Bytes of one stream in, whole lines to the journal."""

    def __init__(self, who: bytes, journal: Journal) -> None:
        self._who, self._journal = who, journal
        self._partial: list[bytes] = []
        self._size = 0  # bytes of the partial line
        self.last = b""  # the end of what was copied

    def feed(self, data: bytes) -> None:
        head, newline, rest = data.rpartition(b"\n")
        if newline:
            self._copy(b"".join([*self._partial, head, newline]))
            self._partial, self._size = [], 0
        if rest:
            self._partial.append(rest)
            self._size += len(rest)
            if self._size > LONGEST_LINE:
                self.finish()

    def finish(self) -> None:
        """A last line without its newline is a line too."""
        if self._partial:
            self._copy(b"".join(self._partial) + b"\n")
            self._partial, self._size = [], 0

    def last_lines(self) -> list[str]:
        return self.last.decode(errors="replace").rstrip("\n").split("\n")

    def _copy(self, whole: bytes) -> None:
        self._journal.lines(self._who, whole)
        self.last = (self.last + whole[-LAST_BYTES:])[-LAST_BYTES:]


def _prefixed(head: bytes, lines: bytes) -> bytes:
    return head + lines[:-1].replace(b"\n", b"\n" + head) + b"\n"
