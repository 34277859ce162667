"""Fold identical lines of several ranks into one, like `clush -b`: `[0-5] text`. Pure.

No line is lost, and each rank's lines keep their order: a line joins an earlier group only if that
group comes after everything that its rank wrote before.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from ..hosts.fold import names, ranges
from .query import PREFIX

LIMIT = 4096  # maximum number of open groups; bounds memory
WAIT = 0.5  # seconds that a group of a live run waits for more ranks


@dataclass
class Group:
    """One text, and the ranks or hosts that wrote it."""

    text: bytes  # with its newline
    first: bytes  # the first line of the group, with its prefix
    born: float
    ranks: list[int] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)  # for lines without a rank

    def render(self) -> bytes:
        if len(self.ranks) + len(self.hosts) == 1:
            return self.first
        who = ranges(self.ranks) if self.ranks else names(self.hosts)
        return b"[%b] %b" % (who.encode(), self.text)


class Fold:
    """Folds lines `[host:rank] text` into groups, in the order in which the groups began."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._next = 0  # number of the next group
        self._open: dict[int, Group] = {}  # by number, the oldest first
        self._alike: dict[tuple[bool, bytes], list[int]] = {}  # numbers of open groups by text
        self._last: dict[int | str, int] = {}  # number of the newest group of each rank

    def feed(self, line: bytes, now: float = 0.0) -> list[bytes]:
        """Add a line; return the oldest groups if too many are open."""
        match = PREFIX.match(line)
        if match is None:
            return [*self.take_all(), line]
        who: int | str = int(match[2]) if match[2] else match[1].decode(errors="replace")
        text = line[match.end() :]
        key = (isinstance(who, int), text)
        last = self._last.get(who, -1)
        alike = self._alike.setdefault(key, [])
        place = bisect.bisect_right(alike, last)
        number = alike[place] if place < len(alike) else None
        if number is None:
            number = self._next
            self._next += 1
            self._open[number] = Group(text, line, now)
            alike.append(number)
        group = self._open[number]
        if isinstance(who, int):
            group.ranks.append(who)
        else:
            group.hosts.append(who)
        self._last[who] = number
        return self._take(len(self._open) - self._limit)

    def take_older(self, now: float, wait: float = WAIT) -> list[bytes]:
        """Close and return the groups that began more than `wait` seconds ago."""
        return self._take(sum(1 for group in self._open.values() if group.born <= now - wait))

    def take_all(self) -> list[bytes]:
        return self._take(len(self._open))

    def _take(self, count: int) -> list[bytes]:
        taken = []
        for _ in range(count):
            group = self._open.pop(next(iter(self._open)))
            key = (bool(group.ranks), group.text)
            del self._alike[key][0]  # the oldest group is also the oldest with its text
            if not self._alike[key]:
                del self._alike[key]
            taken.append(group.render())
        return taken
