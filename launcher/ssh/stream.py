"""A running command: what it says, what it is told, how it ended. SSH and local alike."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass

CHUNK = 256 * 1024  # bytes in one write: the fastest that was measured over SSH
READ_SIZE = 1 << 18  # bytes read at once where a lot is expected
LAST_WORDS = 1.0  # seconds for what is still on its way when a command has ended
STDERR_TAIL = 64 * 1024  # bytes


@dataclass(frozen=True)
class Completed:
    """How a command ended. `code` is 128 + N when signal N ended it."""

    code: int
    stdout: bytes
    stderr: bytes


class Stream(ABC):
    """Both its outputs are read all the time, so neither can block the command."""

    def __init__(self, *, stderr_limit: int | None = STDERR_TAIL) -> None:
        self._stderr = bytearray()
        self._stderr_limit = stderr_limit
        self._drain = threading.Thread(target=self._keep_stderr, daemon=True, name="stderr")

    @abstractmethod
    def read(self, size: int = CHUNK, timeout: float | None = None) -> bytes:
        """At most `size` bytes of standard output, at least one; b"" at its end.

        Waits; TimeoutError after `timeout` seconds of nothing, and reading may go on after it.
        HostUnreachable when the connection is lost.
        """

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview, timeout: float | None = None) -> None:
        """Sends all of `data` to standard input. BrokenPipeError when nobody reads it any more;
        TimeoutError when nothing at all could be sent for `timeout` seconds."""

    @abstractmethod
    def close_stdin(self) -> None:
        """Standard input ends here."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> int:
        """The exit code, 128 + N after signal N. TimeoutError after `timeout` seconds.

        Unread standard output may hold the command back: read to the end first.
        """

    @abstractmethod
    def is_alive(self) -> bool:
        """Whether it still runs, as far as is known here."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of it, whatever it is doing. Safe to repeat."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stderr_tail(self) -> str:
        """The end of what it has said on standard error so far; all of it once it has ended."""
        if not self.is_alive():
            self._drain.join(LAST_WORDS)
        return bytes(self._stderr).decode(errors="replace").strip()

    def stderr_all(self, timeout: float) -> bytes:
        """Standard error to its end, or what there is of it after `timeout` seconds."""
        self._drain.join(max(timeout, 0))
        return bytes(self._stderr)

    @abstractmethod
    def _read_stderr(self) -> bytes:
        """Some of standard error; b"" at its end, however it ended."""

    def _keep_stderr(self) -> None:
        while chunk := self._read_stderr():
            self._stderr += chunk
            if self._stderr_limit is not None:
                del self._stderr[: -self._stderr_limit]


class Deadline:
    """A moment to be done by. None is never."""

    def __init__(self, seconds: float | None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self, at_most: float | None = None) -> float | None:
        """Seconds left, never below zero, never above `at_most`."""
        if self._at is None:
            return at_most
        left = max(self._at - time.monotonic(), 0.0)
        return left if at_most is None else min(left, at_most)

    @property
    def passed(self) -> bool:
        return self._at is not None and time.monotonic() >= self._at
