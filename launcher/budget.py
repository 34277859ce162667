"""The limits of one answer from a host: bytes, seconds and JSON values.

All code that reads hosts' answers uses this module. An answer that exceeds its budget is reported as
an error on that host.
"""

import json
import time
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from .errors import CommandFailed, CommandTimeout
from .text import duration

MAX_ITEMS = 500_000  # values in one JSON text; each takes about 100 bytes of memory
LEAST_HASH = 900.0  # seconds; a host may be slow to list many files
SLOWEST_HASH = 20_000_000  # bytes per second; a disk that is slower counts as stuck
LONGEST_HASH = 7200.0  # seconds to hash a host's files, however large they are said to be
SLOWEST = 10_000  # bytes per second; a slower transfer of a file counts as stuck


def time_to_hash(size: int) -> float:
    """Return how many seconds to wait for a host to hash files of `size` bytes in total."""
    return min(LEAST_HASH + size / SLOWEST_HASH, LONGEST_HASH)


class Readable(Protocol):
    def read(self, *, timeout: float | None) -> bytes: ...


class TooMuch(CommandFailed):
    """Raised if a host sends more bytes than its answer may have."""


class TooManyValues(ValueError):
    """Raised if a JSON text has more values than its reader accepts."""


class Deadline:
    """A point in time, `seconds` from now; None means never."""

    def __init__(self, seconds: float | None) -> None:
        self.at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Return the remaining seconds, at least 0; None if unlimited."""
        return None if self.at is None else max(self.at - time.monotonic(), 0.0)


class Budget(Deadline):
    """The bytes and seconds that are left for one answer. what: the command or server, for errors."""

    def __init__(
        self,
        what: str,
        host: str,
        size: int,
        seconds: float | None,
        *,
        slowest: int = 0,
        silence: float | None = None,
    ) -> None:
        """size: the maximum number of bytes. seconds: the maximum time; None if unlimited.

        slowest: each time this many bytes arrive, the deadline is extended by one second; 0: never.
        silence: the maximum time without data; None: `seconds`.
        """
        super().__init__(seconds)
        self._what, self._host, self._size, self._seconds = what, host, size, seconds
        self._slowest, self._taken = slowest, 0
        self.silence = seconds if silence is None else silence

    def take(self, count: int) -> None:
        """Count bytes that have arrived. Raises TooMuch or CommandTimeout."""
        self._taken += count
        if self.at is not None and self._slowest:
            self.at += count / self._slowest
        if self._taken > self._size:
            what = f"{self._what} printed more than {self._size / 1e6:g} MB and was stopped"
            remedy = "check the commands on that host's PATH and the files in its ~/.ddpctl"
            raise TooMuch(what, remedy, host=self._host)
        if self.left() == 0.0:
            raise self.late()

    def chunks(self, source: Readable) -> Iterator[bytes]:
        """Yield the source's data up to its end. Raises the same errors as `take`.

        Also raises CommandTimeout after `silence` seconds without data.
        """
        while True:
            limits = [limit for limit in (self.left(), self.silence) if limit is not None]
            try:
                data = source.read(timeout=min(limits, default=None))
            except TimeoutError:
                raise self.late() from None
            if not data:
                return
            self.take(len(data))
            yield data

    def read(self, source: Readable) -> bytes:
        """Return all of the source's data. Raises the same errors as `take`."""
        data = bytearray()  # a host may send single bytes, and a list of those would be large
        for chunk in self.chunks(source):
            data += chunk
        return bytes(data)

    def late(self) -> CommandTimeout:
        """Return the error for an answer that did not end or continue in time."""
        what = f"{self._what} did not end within {duration(self._seconds or 0.0)}"
        if self.silence != self._seconds and self.left():
            what = f"{self._what} made no progress for {duration(self.silence or 0.0)}"
        remedy = "check whether the machine or one of its disks is hanging"
        return CommandTimeout(what, remedy, host=self._host)


def parse_json(text: bytes, items: int = MAX_ITEMS) -> Any:
    """Parse JSON from a host. Raises ValueError if it is malformed, too deep or too large."""
    if sum(map(text.count, (b",", b"[", b"{"))) > items:
        raise TooManyValues(f"more than {items:,} values")
    try:
        return json.loads(text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def unpack(data: bytes, size: int) -> bytes:
    """Decompress data from a host. Raises ValueError if it is damaged or exceeds `size` bytes."""
    try:
        text = zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(text) > size:
        raise ValueError(f"unpacks to more than {size:,} bytes")
    return text
