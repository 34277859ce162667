"""Fold identical lines of several ranks into one, as `clush -b` does: `[0-5] text`. Pure.

No line is lost, and each rank's lines stay in order: a line joins an existing group only if that
group comes after everything that the same rank wrote earlier.
"""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..text import names, ranges
from .log_entry import LogEntry

LIMIT = 4096  # maximum number of open groups; bounds memory
WAIT = 0.5  # seconds for which a group of a live run waits for more ranks


@dataclass
class Group:
    """One text and who wrote it: ranks, or hosts if the text belongs to no rank."""

    text: tuple[type, bytes]  # int for ranks or str for hosts, and the text without its newline
    first: bytes  # the label of the group's first line
    born: float  # time.monotonic() of the first line
    who: list[Any] = field(default_factory=list)

    def render(self) -> bytes:
        of, text = self.text
        if len(self.who) == 1:
            return self.first + text + b"\n"
        who = ranges(self.who) if of is int else names(self.who)
        return b"[%b] %b\n" % (who.encode(errors="surrogateescape"), text)


class Fold:
    """Folds lines into groups, and renders the groups in the order in which they began."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._next = 0  # number of the next group
        self._open: dict[int, Group] = {}  # by number, the oldest first
        self._alike: dict[tuple[type, bytes], list[int]] = {}  # numbers of open groups, by text
        self._last: dict[int | str, int] = {}  # number of the newest group of each rank or host

    def feed(self, entries: Iterable[LogEntry], now: float = 0.0) -> bytes:
        """Add lines. If too many groups are open, close and return the oldest ones."""
        for entry in entries:
            who = entry.host if entry.rank is None else entry.rank
            for line in entry.lines:
                self._add(who, line, entry.label, now)
        return self._take(len(self._open) - self._limit)

    def take_older(self, now: float, wait: float = WAIT) -> bytes:
        """Close and return the groups that began more than `wait` seconds ago."""
        return self._take(sum(1 for group in self._open.values() if group.born <= now - wait))

    def take_all(self) -> bytes:
        return self._take(len(self._open))

    def _add(self, who: int | str, line: bytes, first: bytes, now: float) -> None:
        text = (type(who), line)
        alike = self._alike.setdefault(text, [])
        place = bisect.bisect_right(alike, self._last.get(who, -1))
        if place == len(alike):
            alike.append(self._next)
            self._open[self._next] = Group(text, first, now)
            self._next += 1
        self._last[who] = alike[place]
        self._open[alike[place]].who.append(who)

    def _take(self, count: int) -> bytes:
        taken = []
        for _ in range(count):
            group = self._open.pop(next(iter(self._open)))
            alike = self._alike[group.text]
            del alike[0]  # the oldest group is also the oldest with its text
            if not alike:
                del self._alike[group.text]
            taken.append(group.render())
        return b"".join(taken)
