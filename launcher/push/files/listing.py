"""What a host reports about its trees, parsed into values. A host is not trusted: its names are checked."""

from __future__ import annotations

import re
from dataclasses import dataclass

DIGEST = re.compile(r"[0-9a-f]{64}")
FOLDER = re.compile(r"(datasets|workdirs)/([0-9a-f]{64}|\.[0-9a-z]+\.[0-9a-z-]+)")


@dataclass(frozen=True)
class Draft:
    """An unfinished tree that an interrupted push has left."""

    base: str  # digest of the tree that it began as a copy of, or none
    files: int


@dataclass(frozen=True)
class HostTrees:
    """The trees of one host, as far as they matter for one push."""

    present: bool  # the tree itself
    earlier: tuple[str, ...]  # digests, the newest first
    draft: Draft | None
    free: int | None  # bytes


@dataclass(frozen=True)
class Unused:
    """A tree that no run uses."""

    folder: str  # below ~/.ddpctl
    size: int  # bytes; files that other trees share count too


def parse_trees(text: str) -> HostTrees:
    """Lines that are not as expected are ignored."""
    rows = [line.split() for line in text.splitlines()]
    drafts = [
        Draft(row[1], int(row[2]))
        for row in rows
        if row[:1] == ["resume"] and len(row) == 3 and _is_size(row[2]) and _is_base(row[1])
    ]
    earlier = [row[1] for row in rows if row[:1] == ["earlier"] and len(row) == 2]
    free = [
        int(row[1]) for row in rows if row[:1] == ["free"] and _is_size(row[-1]) and row[2:] == []
    ]
    return HostTrees(
        present=["present"] in rows,
        earlier=tuple(digest for digest in earlier if DIGEST.fullmatch(digest)),
        draft=drafts[0] if drafts else None,
        free=free[0] * 1024 if free else None,
    )


def parse_unused(text: str) -> list[Unused]:
    """Lines that are not as expected are ignored."""
    rows = [line.rpartition(" ") for line in text.splitlines()]
    return [
        Unused(folder, int(size) * 1024)
        for folder, _, size in rows
        if FOLDER.fullmatch(folder) and _is_size(size)
    ]


def is_inside(path: bytes) -> bool:
    """Whether a path stays in its tree: relative, without empty, `.` or `..` parts."""
    return b"\0" not in path and not {b"", b".", b".."} & set(path.split(b"/"))


def _is_size(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def _is_base(name: str) -> bool:
    return name == "none" or DIGEST.fullmatch(name) is not None
