"""Fold identical lines of several ranks into one, as `clush -b` does: `[0-5] text`. Pure.

No line is lost, and each rank's lines stay in order: a line joins an existing group only if that
group comes after everything that the same rank wrote earlier.
"""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..text import names, ranges
from .log_entry import OutputLines

LIMIT = 4096  # maximum number of open groups; bounds memory
WAIT = 0.5  # seconds for which a group of a live run waits for more ranks


@dataclass
class Group:
    """One text and who wrote it: ranks, or hosts if the text belongs to no rank."""

    key: tuple[bool, bytes]  # whether ranks wrote it, and the text without its newline
    first: OutputLines  # the group's first line
    born: float  # time.monotonic() of the first line
    who: list[Any] = field(default_factory=list)

    @property
    def entry(self) -> OutputLines:
        if len(self.who) == 1:
            return self.first
        who = names(self.who) if self.first.rank is None else ranges(self.who)
        return self.first._replace(host=who, rank=None)


class Fold:
    """Folds lines into groups, and returns the groups as entries, in the order in which they began."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._next = 0  # number of the next group
        self._open: dict[int, Group] = {}  # by number, the oldest first
        self._alike: dict[tuple[bool, bytes], list[int]] = {}  # numbers of open groups, by key
        self._last: dict[int | str, int] = {}  # number of the newest group of each rank or host

    def feed(self, entries: Iterable[OutputLines], now: float = 0.0) -> list[OutputLines]:
        """Add lines. If too many groups are open, close and return the oldest ones."""
        for entry in entries:
            who = entry.host if entry.rank is None else entry.rank
            for line in entry.lines:
                self._add(who, line, entry, now)
        return self._take(len(self._open) - self._limit)

    def take_older(self, now: float, wait: float = WAIT) -> list[OutputLines]:
        """Close and return the groups that began more than `wait` seconds ago."""
        return self._take(sum(1 for group in self._open.values() if group.born <= now - wait))

    def take_all(self) -> list[OutputLines]:
        return self._take(len(self._open))

    def _add(self, who: int | str, line: bytes, entry: OutputLines, now: float) -> None:
        key = (entry.rank is not None, line)
        alike = self._alike.setdefault(key, [])
        place = bisect.bisect_right(alike, self._last.get(who, -1))
        if place == len(alike):
            alike.append(self._next)
            self._open[self._next] = Group(key, entry._replace(lines=[line]), now)
            self._next += 1
        self._last[who] = alike[place]
        self._open[alike[place]].who.append(who)

    def _take(self, count: int) -> list[OutputLines]:
        taken = []
        for _ in range(count):
            group = self._open.pop(next(iter(self._open)))
            alike = self._alike[group.key]
            del alike[0]  # the oldest group is also the oldest with its key
            if not alike:
                del self._alike[group.key]
            taken.append(group.entry)
        return taken
