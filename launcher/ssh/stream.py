"""A running command: its input, its output, and how it ended. The same for SSH and local commands."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

CHUNK = 256 * 1024  # bytes per write: the fastest measured over SSH
READ_SIZE = 1 << 18  # bytes per read where much is expected
LAST_OUTPUT_TIMEOUT = 1.0  # seconds for output still in transit after a command ended
STDERR_TAIL = 64 * 1024  # bytes


@dataclass(frozen=True)
class Completed:
    """How a command ended. `code` is 128 + N if signal N ended it."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def reason(self) -> str:
        """Why it failed: the last line of its standard error or, without one, its exit code."""
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"exit {self.code}"


class Stderr:
    """The standard error of a command, or its last `limit` bytes, collected as it arrives."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._data = bytearray()
        self._ended = threading.Event()

    def feed(self, data: bytes) -> None:
        self._data += data
        if self._limit is not None:
            del self._data[: -self._limit]

    def close(self) -> None:
        self._ended.set()

    def read(self, timeout: float) -> bytes:
        """Everything up to its end, or what has arrived after `timeout` seconds."""
        self._ended.wait(max(timeout, 0.0))
        return bytes(self._data)


class Stream(ABC):
    """Standard error is collected in the background, so it never blocks the command."""

    stderr: Stderr

    @abstractmethod
    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        """At least one and at most `size` bytes of standard output; b"" at its end.

        TimeoutError after `timeout` seconds without output; you may read again after it.
        HostUnreachable if the connection is lost.
        """

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Send all of `data` to standard input.

        BrokenPipeError if the command no longer reads it; TimeoutError if nothing could be sent
        for `timeout` seconds.
        """

    @abstractmethod
    def close_stdin(self) -> None:
        """Send end-of-file."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, 128 + N after signal N. TimeoutError after `timeout` seconds.

        Read to the end first: unread standard output may block the command.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Return whether the command still runs, as far as this machine knows."""

    @abstractmethod
    def close(self) -> None:
        """Release the command, running or not. Safe to repeat."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stderr_tail(self) -> str:
        """Return the end of standard error so far; all of it once the command has ended."""
        timeout = 0.0 if self.is_alive() else LAST_OUTPUT_TIMEOUT
        return self.stderr.read(timeout).decode(errors="replace").strip()


class Deadline:
    """A point in time by which something must be done; with None, never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left, at least zero."""
        return None if self._at is None else max(self._at - time.monotonic(), 0.0)

    @property
    def passed(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at
