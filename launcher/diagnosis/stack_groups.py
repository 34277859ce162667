"""Where ranks stand: those at the same place together, and who stands elsewhere. Pure.

Two ranks are at the same place when the user's own frames are the same, line by line, and call the same
thing: what torch does below differs by some lines from moment to moment and says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.hosts.fold import ranges

PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
STDLIB = re.compile(r"/lib(?:64)?/python\d[\d.]*/|^<frozen ")
SHORTER = re.compile(r"^.*/(?:site-packages|dist-packages|workspace|python\d[\d.]*)/")
# What a rank waits in when another one does not come.
WAITING = re.compile(r"/torch/(distributed|autograd|nn/parallel)/")
NOTES = {  # why a rank shows no stack, as the supervisor has it
    "stopped": "is stopped (SIGSTOP): SIGCONT lets it go on",
    "traced": "is held by a debugger",
    "exited": "has exited",
    "unprepared": "shows no stack: it is just starting, is no Python, or has changed its signals",
    "blocked": "shows no stack: it blocks signals",
    "silent": "did not answer: it waits in the kernel, or its machine is overloaded",
}
JUDGED = ("stopped", "traced", "silent")  # notes that are a place too


@dataclass(frozen=True)
class Frame:
    file: str
    line: int
    function: str
    text: str = ""  # of the source, if it could be read

    @property
    def owner(self) -> str | None:
        """The package that the file belongs to, "" for the user's own, None for Python's."""
        if match := PACKAGE.search(self.file):
            return match[1].removesuffix(".py")
        return None if STDLIB.search(self.file) else ""

    def __str__(self) -> str:
        where = f"{SHORTER.sub('', self.file)}:{self.line} in {self.function}"
        return f"{where}: {self.text}" if self.text else where


@dataclass(frozen=True)
class Standing:
    """One rank. `frames`: its main thread's, the innermost last."""

    rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int  # inside its container
    state: str  # the kernel's letter: R S D T
    note: str | None  # a key of NOTES where there is no stack
    frames: tuple[Frame, ...]
    threads: tuple[tuple[str, tuple[Frame, ...]], ...] = ()

    @property
    def own_frames(self) -> list[Frame]:
        """Those of the user's code; of a program that is installed, those of its package."""
        owners = [frame.owner for frame in self.frames if frame.owner is not None]
        whose = "" if "" in owners else next(iter(owners), None)
        return [frame for frame in self.frames if frame.owner == whose]

    @property
    def place(self) -> tuple[object, ...]:
        if self.note:
            return (self.note,)
        own = self.own_frames
        if not own:
            return tuple((f.file, f.function) for f in self.frames)
        below = self.frames[self.frames.index(own[-1]) + 1 :]
        return (*((f.file, f.line, f.function) for f in own), *(f.function for f in below[:1]))

    @property
    def waits(self) -> bool:
        """In a collective, as far as its frames tell."""
        below = self.frames[-3:]
        return any(WAITING.search(frame.file) for frame in below)

    def says(self) -> str:
        """Where it is, in a few words."""
        if self.note or not self.frames:
            return NOTES.get(self.note or "", "shows no Python frame")
        own = self.own_frames
        return f"at {own[-1] if own else self.frames[-1]}"


@dataclass(frozen=True)
class Group:
    """Ranks at one place, in their order."""

    members: tuple[Standing, ...]

    @property
    def ranks(self) -> list[int]:
        return [member.rank for member in self.members]

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(member.host for member in self.members))

    @property
    def first(self) -> Standing:
        return self.members[0]

    @property
    def judged(self) -> bool:
        return self.first.note is None or self.first.note in JUDGED

    def who(self) -> str:
        plural = "s" if len(self.members) > 1 else ""
        return f"rank{plural} {ranges(self.ranks)} of {', '.join(self.hosts)}"


def standing(document: dict[str, Any], host: str, node_rank: int) -> Standing:
    """One rank of a supervisor's answer or of its journal's `stacks` event."""
    return Standing(
        rank=int(document["rank"]),
        local_rank=int(document["local_rank"]),
        node_rank=node_rank,
        host=host,
        pid=int(document["pid"]),
        state=str(document["state"]),
        note=document["note"],
        frames=_frames(document["frames"]),
        threads=tuple((t["thread"], _frames(t["frames"])) for t in document["threads"]),
    )


def _frames(documents: Iterable[dict[str, Any]]) -> tuple[Frame, ...]:
    return tuple(Frame(**document) for document in documents)


def grouped(ranks: Iterable[Standing]) -> list[Group]:
    """The largest group first, then by the lowest rank."""
    places: dict[tuple[object, ...], list[Standing]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        places.setdefault(rank.place, []).append(rank)
    groups = [Group(tuple(members)) for members in places.values()]
    return sorted(groups, key=lambda group: (-len(group.members), group.first.rank))


def elsewhere(groups: Sequence[Group]) -> list[Group]:
    """The groups that are not where the others are; [] where that cannot be said.

    Where most ranks are is where one should be. Without such a majority, those who wait in a
    collective wait for those who do not.
    """
    judged = [group for group in groups if group.judged]
    total = sum(len(group.members) for group in judged)
    if len(judged) < 2:
        return []
    if 2 * len(judged[0].members) > total and judged[0].first.note is None:
        return judged[1:]
    late = [group for group in judged if not group.first.waits]
    return late if sum(len(group.members) for group in late) * 2 <= total else []


def verdict(groups: Sequence[Group]) -> list[str]:
    """A sentence for each group that stands elsewhere; one for all when none does."""
    odd = elsewhere(groups)
    lines = [_sentence(group) for group in odd]
    shown = [group for group in groups if group.first.note is None]
    if not lines and len(shown) == 1 and len(shown[0].members) > 1:
        lines = [f"all {len(shown[0].members)} ranks stand {shown[0].first.says()}"]
    elif not lines and len(shown) > 1:
        lines = [f"the ranks stand at {len(shown)} places, and no place has most of them"]
    lines += [f"{group.who()} {group.first.says()}" for group in groups if not group.judged]
    return lines


def _sentence(group: Group) -> str:
    if group.first.note:
        return f"{group.who()} {group.first.says()}"
    verb = "stand" if len(group.members) > 1 else "stands"
    return f"{group.who()} {verb} elsewhere than the others: {group.first.says()}"
