"""The journal of this node's attempt: append-only, one record a line, `end` the last.

A record is TIME<TAB>WHO<TAB>TEXT: unix seconds; a global rank, `-` for torchrun and the supervisor, or
`!` for an event, whose text is a JSON object with a "kind".
"""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any

BALLAST = 1 << 20  # bytes of disk held back, so that a full disk leaves room for the last events
UNSAID = 1 << 20  # bytes that wait for a reader of stdout


class Journal:
    """Append-only, and written through at once. Its lines are copied to stdout for the engine's log."""

    def __init__(self, folder: str, host: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.path.join(folder, "journal"), flags, 0o644)
        self._ballast = os.path.join(folder, "ballast")
        self._host = host.encode()
        self._unsaid = b""  # of the copy on stdout
        self.dropped = 0  # bytes of output that a full disk did not take
        self._hold_ballast()
        os.set_blocking(1, False)  # an engine that reads no more must not stop the run

    def lines(self, who: bytes, data: bytes) -> None:
        """`data`: whole lines, each with its newline."""
        head = b"%.6f\t%b\t" % (time.time(), who)
        if not self._append(head + data[:-1].replace(b"\n", b"\n" + head) + b"\n"):
            self.dropped += len(data)
        label = b"[%b] " % (self._host if who == b"-" else self._host + b":" + who)
        self._say(label + data[:-1].replace(b"\n", b"\n" + label) + b"\n")

    def say(self, text: str) -> None:
        """The supervisor's own line in the log."""
        self.lines(b"-", b"ddpctl: %b\n" % text.encode(errors="replace"))

    def event(self, kind: str, **fields: Any) -> None:
        fields["kind"] = kind
        record = b"%.6f\t!\t%b\n" % (time.time(), json.dumps(fields).encode())
        if not self._append(record):
            self._drop_ballast()
            self._append(record)

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

    def _say(self, data: bytes) -> None:
        if len(self._unsaid) > UNSAID:
            return  # nobody reads; the journal has it
        self._unsaid += data
        try:
            while self._unsaid:
                self._unsaid = self._unsaid[os.write(1, self._unsaid[:65536]) :]
        except OSError:
            pass

    def _hold_ballast(self) -> None:
        try:
            with open(self._ballast, "wb") as file:
                file.write(b"\0" * BALLAST)
        except OSError:
            pass

    def _drop_ballast(self) -> None:
        try:
            os.unlink(self._ballast)
        except OSError:
            pass
