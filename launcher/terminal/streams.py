"""Safe writing to stdout and stderr: a stream that is closed or fails never ends the command."""

import contextlib
import errno
import os
import select
import sys
from collections.abc import Callable
from typing import TextIO

from ..text import printable
from .sanitize import colored


class ResultStream:
    """stdout. Files and pipes get all bytes unchanged. For a terminal, see `colored`."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        """on_failure: called once, with the reason, when stdout can no longer be written to."""
        self.closed = reserve("stdout")
        self._on_failure = on_failure

    @property
    def on_terminal(self) -> bool:
        return not self.closed and sys.stdout.isatty()

    @property
    def reader_left(self) -> bool:
        """Whether nobody can read stdout anymore. For a pipe, this is known before the next write."""
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # errors are reported even if no event is asked for
        return self.closed or bool(poll.poll(0))

    def write(self, data: bytes) -> None:
        if self.on_terminal:
            text = colored(data.decode(errors="replace"))
            data = text.encode(sys.stdout.encoding or "utf-8", errors="replace")
        self._try(lambda: sys.stdout.buffer.write(data))

    def flush(self) -> None:
        self._try(lambda: sys.stdout.flush())

    def _try(self, act: Callable[[], object]) -> None:
        if self.closed:
            return
        try:
            act()
        except OSError as error:  # the reader has left, or the disk is full
            self.closed = True
            abandon(sys.stdout)
            reason = "the reader closed it" if error.errno == errno.EPIPE else error.strerror
            self._on_failure(f"nothing more will be printed to stdout: {reason}")


def write_message(text: str) -> None:
    """Print a line to stderr, always without escape sequences."""
    try:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
    except OSError:
        abandon(sys.stderr)


def abandon(stream: TextIO) -> None:
    """Redirect the stream to /dev/null, so that Python's flush at exit does not fail."""
    with open(os.devnull, "w") as null, contextlib.suppress(OSError):  # noqa: PTH123
        os.dup2(null.fileno(), stream.fileno())


def reserve(name: str) -> bool:
    """Replace a standard stream with /dev/null if it was closed before ddpctl started (`>&-`).

    Otherwise the next file or connection would get its descriptor. Return whether it was closed.
    """
    closed = getattr(sys, name) is None
    if closed:
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
    return closed
