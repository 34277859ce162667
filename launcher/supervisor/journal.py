"""Write the journal of this node's attempt.

It is append-only and has one entry per line: TIME<TAB>WHO<TAB>TEXT. TIME is unix seconds on the
node's own clock when the line was copied, up to 0.1 s after it was written. WHO is a global rank,
`-` for torchrun and the supervisor itself, or `!` for an event, whose TEXT is a JSON object with a
"kind" (see events.py). The event `end` is the last entry.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time

from .events import Event, document

# Bytes of disk reserved for the last events on a full disk, in a file that exists until the attempt
# ends: see is_open in launcher/plan/attempts.sh.
BALLAST = 1 << 20
LONGEST_REST = BALLAST // 2  # bytes kept of an entry that was cut off; the last events must fit too
STDOUT_BACKLOG = 1 << 20  # maximum bytes waiting for a reader of stdout


class Journal:
    """The journal, written unbuffered. Output is also copied to stdout, for the engine's log.

    ddpctl itself shows only what is in the journal.
    """

    def __init__(self, folder: str, host: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.path.join(folder, "journal"), flags, 0o644)
        self._ballast = os.path.join(folder, "ballast")
        self._host = host.encode()
        self._lost = 0  # number of output lines lost because the disk was full
        self._rest = b""  # the rest of an entry that the full disk has cut off
        self._stdout = b""  # bytes for stdout, not written yet
        with contextlib.suppress(OSError), open(self._ballast, "wb") as file:
            file.write(b"\0" * BALLAST)
        os.set_blocking(1, False)  # an engine that stops reading must not block the run

    def write_lines(self, who: bytes, data: bytes) -> None:
        """Write whole lines, each with its newline.

        Lines that do not fit on the disk are counted as lost.
        """
        rejected = self._append(_entries(who, data))
        self._lost += rejected.count(b"\n")
        label = self._host if who == b"-" else b"%b:%b" % (self._host, who)
        self._copy_to_engine_log(_prefixed(b"[%b] " % label, data))

    def say(self, text: str) -> None:
        """Write a message from the supervisor itself."""
        self.write_lines(b"-", b"ddpctl: %b\n" % text.encode(errors="replace"))

    def write_event(self, event: Event) -> None:
        rejected = self._append(_event_entry(event))
        if rejected or self._rest:
            with contextlib.suppress(OSError):
                os.truncate(self._ballast, 0)
            self._append(rejected)

    def try_write_event(self, event: Event) -> None:
        """Write an event that may be lost because the disk is full."""
        self._append(_event_entry(event))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._ballast)
        os.close(self._file)

    def _append(self, entries: bytes) -> bytes:
        """Append whole entries, preceded by a note on lost lines. Return those that a full disk rejects.

        The rest of an entry that is cut off is written first next time. The file is never truncated,
        because `tail -F` would then print all of it again.
        """
        text = self._rest
        if self._lost:
            note = b"ddpctl: the disk was full; lines of output missing here: %d\n" % self._lost
            text += _entries(b"-", note)
        text += entries
        written = self._write(text)
        is_cut_off = text[written - 1 : written] != b"\n" if written else bool(self._rest)
        self._rest, rejected = b"", text[written:]
        if is_cut_off:
            rest, newline, rejected = rejected.partition(b"\n")
            self._rest = rest[:LONGEST_REST] + newline
        if len(rejected) > len(entries):  # not even the note was written
            return entries
        self._lost = 0
        return rejected

    def _write(self, text: bytes) -> int:
        """Write what the disk has room for. Return how many bytes."""
        view = memoryview(text)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        return len(text) - len(view)

    def _copy_to_engine_log(self, data: bytes) -> None:
        if len(self._stdout) <= STDOUT_BACKLOG:  # otherwise only the journal gets these lines
            self._stdout += data
        with contextlib.suppress(OSError):
            while self._stdout:
                self._stdout = self._stdout[os.write(1, self._stdout[:65536]) :]


def _entries(who: bytes, lines: bytes) -> bytes:
    return _prefixed(b"%.6f\t%b\t" % (time.time(), who), lines)


def _event_entry(event: Event) -> bytes:
    return _entries(b"!", json.dumps(document(event)).encode() + b"\n")


def _prefixed(head: bytes, lines: bytes) -> bytes:
    return head + lines[:-1].replace(b"\n", b"\n" + head) + b"\n"


def publish(path: str, text: str) -> None:
    """Write a file atomically, readable by all users. Safe in a folder that others can write to."""
    folder, name = os.path.split(path)
    descriptor, scratch = tempfile.mkstemp(prefix=".%s." % name, dir=folder)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        os.replace(scratch, path)
    except OSError:
        os.unlink(scratch)
        raise
