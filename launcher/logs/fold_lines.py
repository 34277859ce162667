"""Fold identical lines of several ranks into one, like `clush -b`: `[0-5] text`. Pure.

No line is lost, and each rank's lines keep their order: a line joins an earlier group only if that
group comes after everything that the line's rank wrote before.
"""

import bisect
from dataclasses import dataclass, field
from typing import Any

from ..text import names, ranges
from .query import PREFIX

LIMIT = 4096  # maximum number of open groups; bounds memory
WAIT = 0.5  # seconds that a group of a live run waits for more ranks


@dataclass
class Group:
    """One text, and the ranks that wrote it, or the hosts if it belongs to no rank."""

    text: tuple[type, bytes]  # int for ranks or str for hosts; the text with its newline
    first: bytes  # the first line of the group, with its prefix
    born: float  # time.monotonic() of the first line
    who: list[Any] = field(default_factory=list)

    def render(self) -> bytes:
        if len(self.who) == 1:
            return self.first
        of, text = self.text
        who = ranges(self.who) if of is int else names(self.who)
        return b"[%b] %b" % (who.encode(), text)


class Fold:
    """Folds lines `[host:rank] text` into groups, in the order in which the groups began."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._next = 0  # number of the next group
        self._open: dict[int, Group] = {}  # by number, the oldest first
        self._alike: dict[tuple[type, bytes], list[int]] = {}  # numbers of open groups by text
        self._last: dict[int | str, int] = {}  # number of the newest group of each rank

    def feed(self, line: bytes, now: float = 0.0) -> list[bytes]:
        """Add a line. Return the oldest groups if too many are open, or all if it has no prefix."""
        match = PREFIX.match(line)
        if match is None:
            return [*self.take_all(), line]
        who = int(match[2]) if match[2] else match[1].decode(errors="replace")
        text = (type(who), line[match.end() :])
        alike = self._alike.setdefault(text, [])
        place = bisect.bisect_right(alike, self._last.get(who, -1))
        if place == len(alike):
            alike.append(self._next)
            self._open[self._next] = Group(text, line, now)
            self._next += 1
        self._last[who] = alike[place]
        self._open[alike[place]].who.append(who)
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
            alike = self._alike[group.text]
            del alike[0]  # the oldest group is also the oldest with its text
            if not alike:
                del self._alike[group.text]
            taken.append(group.render())
        return taken
