"""A running command, local or over SSH: its input, its output and its end."""

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from queue import Empty, Queue
from typing import Self

from ..errors import CommandFailed
from .background import LONGEST_WAIT, in_background

CHUNK = 256 * 1024  # bytes per read or write; the fastest size measured over SSH
LAST_OUTPUT_TIMEOUT = 1.0  # seconds to wait for output in transit after a command has ended
STDERR_TAIL = 64 * 1024  # bytes
AHEAD = 4  # chunks of output that may wait for their reader; after that, the command waits


@dataclass(frozen=True)
class Completed:
    """The result of a command. `code` is its exit code, or 128 + N if signal N ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def reason(self) -> str:
        """Why the command failed: the last line of stderr or, if there is none, the exit code."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit {self.code}"

    def expect(self, what: str, remedy: str, host: str) -> Self:
        """Return self if the command succeeded. Otherwise, raise CommandFailed (`what: reason`)."""
        if self.code != 0:
            raise CommandFailed(f"{what}: {self.reason}", remedy, host=host)
        return self

    def rows(self) -> Iterator[bytes]:
        """Yield the NUL-terminated parts of stdout, without the NULs, one at a time."""
        start = 0
        while (end := self.stdout.find(b"\0", start)) >= 0:
            yield self.stdout[start:end]
            start = end + 1


class Stderr:
    """The last STDERR_TAIL bytes of a command's standard error, collected as they arrive."""

    def __init__(self, *, ended: bool = False) -> None:
        self._data = bytearray()
        self._ended = threading.Event()
        if ended:
            self.close()

    def feed(self, data: bytes) -> None:
        self._data += data
        del self._data[:-STDERR_TAIL]

    def close(self) -> None:
        self._ended.set()

    def read(self, timeout: float) -> bytes:
        """Wait at most `timeout` seconds for stderr to end. Return what has been collected."""
        self._ended.wait(max(timeout, 0.0))
        return bytes(self._data)


class Stream(AbstractContextManager["Stream"]):
    """A running command. Its stderr is collected in the background, so stderr never blocks it.

    If the command was opened with `tty` true or false, use `read_stderr`, because nothing is collected.
    """

    stderr: Stderr

    @abstractmethod
    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        """Return 1 to `size` bytes of standard output, or b"" at its end.

        Raises TimeoutError after `timeout` seconds without output; reading may then continue.
        Raises HostUnreachable if the connection is lost.
        """

    def read_stderr(self) -> bytes:
        """Return some bytes of standard error; b"" at its end and, on a terminal, always."""
        return b""

    def output(self) -> Iterator[tuple[int, bytes]]:
        """Yield output as it arrives: (1, stdout) or (2, stderr). Raises the errors of `read`."""
        chunks: Queue[tuple[int, bytes | Exception]] = Queue(AHEAD)

        def copy(number: int, read: Callable[[], bytes]) -> None:
            try:
                while data := read():
                    chunks.put((number, data))
                chunks.put((number, b""))
            except Exception as error:
                chunks.put((number, error))

        reads = (self.read, self.read_stderr)
        for number, read in enumerate(reads, 1):
            in_background(copy, number, read)

        def next_chunk() -> tuple[int, bytes | Exception]:
            while True:
                with contextlib.suppress(Empty):
                    return chunks.get(timeout=LONGEST_WAIT)

        for _ in reads:
            while (chunk := next_chunk())[1]:
                number, data = chunk
                if isinstance(data, Exception):
                    raise data
                yield number, data

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Send all of `data` to standard input.

        Raises BrokenPipeError if the command no longer reads its input. Raises TimeoutError if
        the next CHUNK bytes could not be sent within `timeout` seconds.
        """

    @abstractmethod
    def close_stdin(self) -> None:
        """Send end-of-file to the command."""

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the command's terminal, if it has one."""
        return

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int:
        """Wait for the command to end and return its exit code, or 128 + N if signal N ended it.

        Raises TimeoutError after `timeout` seconds. Unread output may block the command, so read
        to the end first.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Return whether the command is running, as far as this machine knows."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the command. Safe to repeat.

        Also stops the command if it is local or has no standard input.
        """

    def __exit__(self, *_: object) -> None:
        self.close()

    def stderr_tail(self) -> str:
        """Return the end of stderr. If the command has ended, first wait a moment for the rest."""
        timeout = 0.0 if self.is_alive() else LAST_OUTPUT_TIMEOUT
        return self.stderr.read(timeout).decode(errors="replace").strip()
