"""Group ranks by their position in the code, and find the stragglers. Pure.

Two ranks are at the same position if the user's own frames match line by line and the innermost one
calls the same function. The frames inside torch vary from moment to moment, so they are ignored.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..supervisor.events import Frame, RankStacks, Stack
from ..text import names, ranges
from .evidence import NodeEvidence

PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/]+)")
STDLIB = re.compile(r"/lib(?:64)?/python\d[\d.]*/|^<frozen ")
SHORTER = re.compile(r"^.*/(?:site-packages|dist-packages|workspace|python\d[\d.]*)/")
COLLECTIVE = re.compile(r"/torch/(distributed|autograd|nn/parallel)/")  # where ranks wait
NOTES = {  # why a rank has no stack, by the supervisor's keyword
    "stopped": "stopped (SIGSTOP) until SIGCONT is sent",
    "traced": "held by a debugger",
    "exited": "exited",
    "unprepared": "no stack (still starting, not Python, or with signal handlers replaced)",
    "blocked": "no stack (signals are blocked)",
    "silent": "did not answer (blocked in the kernel, or the machine is overloaded)",
}
PLACES = ("stopped", "traced", "silent")  # notes that describe a rank's position


def owner(frame: Frame) -> str | None:
    """Return the name of the frame's package: "" for user code, None for the standard library."""
    if match := PACKAGE.search(frame.file):
        return match[1].removesuffix(".py")
    return None if STDLIB.search(frame.file) else ""


def label(frame: Frame) -> str:
    """Format a frame: `train.py:31 in main: dist.all_reduce(x)`."""
    where = f"{shown_file(frame)}:{frame.line} in {frame.function}"
    return f"{where}: {frame.text}" if frame.text else where


def shown_file(frame: Frame) -> str:
    """Return the file's path below the run's folder or the packages' folder. Home folders may differ."""
    return SHORTER.sub("", frame.file)


def without_importlib(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames without those of Python's import system, as in a traceback.

    The innermost frame stays, because it locates a rank that hangs while it reads a module from a disk.
    """
    outer = (frame for frame in frames[:-1] if not frame.file.startswith("<frozen importlib"))
    return [*outer, *frames[-1:]]


@dataclass(frozen=True)
class RankStack(Stack):
    host: str = ""
    node_rank: int = 0

    @property
    def own_frames(self) -> list[Frame]:
        """The frames of the user's code, or of the installed package that the user runs."""
        owners = [owner(frame) for frame in self.frames if owner(frame) is not None]
        whose = "" if "" in owners else next(iter(owners), None)
        return [frame for frame in self.frames if owner(frame) == whose]

    @property
    def place(self) -> tuple[object, ...]:
        if self.note:
            return (self.note,)
        own = self.own_frames
        if not own:
            return tuple((shown_file(f), f.function) for f in self.frames)
        below = self.frames[self.frames.index(own[-1]) + 1 :]
        return (
            *((shown_file(f), f.line, f.function) for f in own),
            *(f.function for f in below[:1]),
        )

    @property
    def waits(self) -> bool:
        """Whether the rank is waiting in a collective, judging by its innermost frames."""
        return any(COLLECTIVE.search(frame.file) for frame in self.frames[-3:])

    def describe(self) -> str:
        """Describe the rank's position with a phrase that can follow "rank 3:" or "ranks 3-5:"."""
        if self.note or not self.frames:
            return NOTES.get(self.note or "", "outside Python code")
        own = self.own_frames
        return f"at {label(own[-1] if own else self.frames[-1])}"


@dataclass(frozen=True)
class StackGroup:
    """Ranks at one position, in rank order."""

    members: tuple[RankStack, ...]

    @property
    def ranks(self) -> list[int]:
        return [member.rank for member in self.members]

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(member.host for member in self.members))

    @property
    def first(self) -> RankStack:
        return self.members[0]

    @property
    def has_place(self) -> bool:
        return self.first.note is None or self.first.note in PLACES

    @property
    def name(self) -> str:
        plural = "s" if len(self.members) > 1 else ""
        return f"rank{plural} {ranges(self.ranks)} on {names(self.hosts)}"

    def excerpt(self, frames: int) -> list[str]:
        last = without_importlib(self.first.frames)[-frames:]
        shown = [f"  {label(frame)}" for frame in last]
        return [f"{self.name}:", *(shown or [f"  {self.first.describe()}"])]


def located(stack: Stack, host: str, node_rank: int) -> RankStack:
    return RankStack(**vars(stack), host=host, node_rank=node_rank)


def grouped(ranks: Iterable[RankStack]) -> list[StackGroup]:
    """Group the ranks by position, the largest group first. Equally large ones are in rank order."""
    places: dict[tuple[object, ...], list[RankStack]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        places.setdefault(rank.place, []).append(rank)
    groups = [StackGroup(tuple(members)) for members in places.values()]
    return sorted(groups, key=lambda group: (-len(group.members), group.first.rank))


def newest_groups(nodes: Iterable[NodeEvidence]) -> list[StackGroup]:
    """Group the ranks by position, using the newest stacks that each node's supervisor took."""
    return grouped(
        located(stack, node.host, node.node_rank)
        for node in nodes
        for taken in node.of(RankStacks)[-1:]
        for stack in taken.ranks
    )


def stragglers(groups: Sequence[StackGroup]) -> list[StackGroup]:
    """Return the groups that the other ranks are waiting for; [] if that cannot be decided.

    If most ranks are at one position, they wait for all the others. Otherwise, the ranks in a
    collective wait for those outside, unless those outside are more than half.
    """
    placed = [group for group in groups if group.has_place]
    total = sum(len(group.members) for group in placed)
    if len(placed) < 2:
        return []
    if 2 * len(placed[0].members) > total and placed[0].first.note is None:
        return placed[1:]
    late = [group for group in placed if not group.first.waits]
    return late if sum(len(group.members) for group in late) * 2 <= total else []


def verdict(groups: Sequence[StackGroup]) -> list[str]:
    """Return one line per group of stragglers or, if there are none, at most one about all ranks.

    One more line follows for each group whose position is unknown.
    """
    lines = []
    for group in stragglers(groups):
        verb = "are" if len(group.members) > 1 else "is"
        where = "" if group.first.note else f" {verb} not where the other ranks are"
        lines.append(f"{group.name}{where}: {group.first.describe()}")
    shown = [group for group in groups if group.first.note is None]
    if not lines and len(shown) == 1 and len(shown[0].members) > 1:
        lines = [f"all {len(shown[0].members)} ranks are {shown[0].first.describe()}"]
    elif not lines and len(shown) > 1:
        lines = [f"the ranks are at {len(shown)} positions, none of which has a majority"]
    lines += [f"{group.name}: {group.first.describe()}" for group in groups if not group.has_place]
    return lines
