"""A manifest lists the contents of a tree: paths, kinds, executable bits, sizes and hashes.

The sha256 of the manifest's text is the tree's digest, which is the tree's name on every host.
Times, owners and all other mode bits are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Entry:
    """A path in a tree, relative to its root. content: a file's hex sha256, or a link's target."""

    path: bytes
    kind: str  # d folder, l link, f file, x executable file
    size: int = 0  # bytes
    content: bytes = b""

    @property
    def is_file(self) -> bool:
        return self.kind in "fx"


@dataclass(frozen=True)
class Delta:
    """The difference from an earlier tree: paths to remove, then entries to write."""

    remove: tuple[bytes, ...]
    write: tuple[Entry, ...]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.write)


@dataclass(frozen=True)
class Manifest:
    """The entries of a tree: folders, then links, then files, each group sorted by path."""

    entries: tuple[Entry, ...]

    @cached_property
    def text(self) -> bytes:
        return b"".join(
            b"%s %d %s\0%s\0" % (entry.kind.encode(), entry.size, entry.content, entry.path)
            for entry in self.entries
        )

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text).hexdigest()

    @property
    def files(self) -> int:
        return sum(1 for entry in self.entries if entry.is_file)

    def after(self, earlier: Manifest) -> Delta:
        """Return how to turn a copy of `earlier` into this tree. Changed entries are replaced."""
        old = {entry.path: entry for entry in earlier.entries}
        new = {entry.path for entry in self.entries}
        write = tuple(entry for entry in self.entries if old.get(entry.path) != entry)
        replaced = {entry.path for entry in write}
        remove = tuple(path for path in old if path not in new or path in replaced)
        return Delta(remove, write)


def make(entries: Iterable[Entry]) -> Manifest:
    """Return the manifest of `entries`, sorted so that a folder precedes its contents."""
    order = {"d": 0, "l": 1, "f": 2, "x": 2}
    return Manifest(tuple(sorted(entries, key=lambda entry: (order[entry.kind], entry.path))))


def parse(text: bytes, digest: str) -> Manifest | None:
    """Parse a manifest. Return None if it is damaged or malformed, or if a path leaves the tree."""
    if hashlib.sha256(text).hexdigest() != digest:
        return None
    fields = text.split(b"\0")
    entries = []
    with contextlib.suppress(ValueError):
        for head, path in zip(fields[0:-1:2], fields[1::2], strict=True):
            kind, size, content = head.split(b" ", 2)
            if kind not in (b"d", b"l", b"f", b"x") or not is_inside(path):
                return None
            entries.append(Entry(path, kind.decode(), int(size), content))
    manifest = Manifest(tuple(entries))
    return manifest if manifest.text == text else None


def is_inside(path: bytes) -> bool:
    """Return whether a path stays in its tree: it is relative, without empty, `.` or `..` parts."""
    return b"\0" not in path and not {b"", b".", b".."} & set(path.split(b"/"))
