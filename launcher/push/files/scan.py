"""From a folder on this machine to its manifest. A file that has not changed is not read again.

A file counts as unchanged if size, inode, mtime and ctime (both in ns) are those of the last scan,
and it was older than two seconds then: a write within the same clock tick would not show.
"""

from __future__ import annotations

# Paths are bytes here, as a name need not be UTF-8, and pathlib has no bytes.
# ruff: noqa: PTH112, PTH115, PTH118, PTH120
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...errors import PushFailed
from ...state import cache_home, home_folder, state_home, write_cache
from . import manifest
from .ignore import Ignore, read_rules
from .manifest import Entry, Manifest

RACY = 2 * 10**9  # ns
BLOCK = 1 << 20  # bytes read at once
SHOWN = 5  # problems listed before "and N more"


class Stamp(NamedTuple):
    """What changes when a file does."""

    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int


@dataclass
class Tree:
    """A folder and its content when it was scanned. skipped: sockets, pipes and devices."""

    root: bytes
    manifest: Manifest
    stamps: dict[bytes, Stamp]
    skipped: list[bytes] = field(default_factory=list)

    def path(self, entry: Entry) -> bytes:
        return b"%b/%b" % (self.root, entry.path)  # os.path.join takes ten times as long


def scan(folder: str, *, ignore: bool) -> Tree:
    """ignore: leave out .git and what .gitignore and .ddpctlignore exclude.

    PushFailed lists the paths that cannot be pushed: unreadable, or a link out of the tree.
    """
    walk = _Walk(os.fsencode(os.path.realpath(folder)))
    if not os.path.isdir(walk.root):
        raise PushFailed(f"{folder}: not a folder; fix the path in the hosts file")
    began = time.time_ns()
    walk.run(Ignore() if ignore else None)
    contents = _hash_files(walk, cache_home() / "trees", began)
    if walk.problems:
        more = len(walk.problems) - SHOWN
        tail = [f"and {more} more like these"] if more > 0 else []
        raise PushFailed("\n".join(walk.problems[:SHOWN] + tail))
    for path, stamp in walk.stamps.items():
        kind = "x" if path in walk.executable else "f"
        walk.entries.append(Entry(path, kind, stamp.size, contents[path].encode()))
    return Tree(walk.root, manifest.make(walk.entries), walk.stamps, walk.skipped)


def shown(path: bytes) -> str:
    """A path on one line of a message, whatever its bytes are."""
    text = path.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(text)[1:-1]


class _Walk:
    def __init__(self, root: bytes) -> None:
        self.root = root
        self.entries: list[Entry] = []  # folders and links
        self.stamps: dict[bytes, Stamp] = {}  # files
        self.executable: set[bytes] = set()
        self.skipped: list[bytes] = []
        self.problems: list[str] = []
        # A home folder may hold these. They change during a push and belong to this machine.
        own = (cache_home(), state_home(), home_folder() / ".ddpctl")
        self.own = {os.fsencode(os.path.realpath(folder)) for folder in own}

    def run(self, ignore: Ignore | None) -> None:
        pending: list[tuple[bytes, Ignore | None]] = [(b"", ignore)]
        while pending:
            folder, rules = pending.pop()
            if rules and (texts := read_rules(os.path.join(self.root, folder))):
                rules = rules.inside(os.fsdecode(folder), texts)
            for child in self._children(folder):
                path = folder + b"/" + child.name if folder else child.name
                is_folder = child.is_dir(follow_symlinks=False)
                if rules and rules.skips(os.fsdecode(path), is_folder=is_folder):
                    continue
                if not is_folder:
                    self._leaf(path, child)
                elif os.path.join(self.root, path) not in self.own:
                    self.entries.append(Entry(path, "d"))
                    pending.append((path, rules))

    def _children(self, folder: bytes) -> Iterator[os.DirEntry[bytes]]:
        try:
            with os.scandir(os.path.join(self.root, folder)) as found:
                yield from found
        except OSError as error:
            self.problem(folder, error)

    def _leaf(self, path: bytes, child: os.DirEntry[bytes]) -> None:
        try:
            status = child.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                self.stamps[path] = Stamp(
                    status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
                )
                if status.st_mode & 0o111:
                    self.executable.add(path)
            elif stat.S_ISLNK(status.st_mode):
                self._link(path, os.readlink(child.path))
            else:
                self.skipped.append(path)
        except OSError as error:
            self.problem(path, error)

    def _link(self, path: bytes, target: bytes) -> None:
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if target.startswith(b"/") or inside == b".." or inside.startswith(b"../"):
            self.problems.append(
                f"{shown(os.path.join(self.root, path))}: links out of the folder "
                f"(to {shown(target)}), where the hosts cannot follow; put the file itself there"
            )
            return
        self.entries.append(Entry(path, "l", 0, target))

    def problem(self, path: bytes, error: OSError) -> None:
        where = shown(os.path.join(self.root, path))
        self.problems.append(
            f"{where}: {error.strerror}; make it readable or leave it out (.ddpctlignore)"
        )


def _hash_files(walk: _Walk, caches: Path, began: int) -> Mapping[bytes, str]:
    """The sha256 of every file: from the cache of the last scan, or read now and cached."""
    cache = caches / f"{hashlib.sha256(walk.root).hexdigest()[:32]}.json"
    known = _read_cache(cache)
    found: dict[bytes, str] = {}
    unknown = []
    for path, stamp in walk.stamps.items():
        row = known.get(os.fsdecode(path))
        if isinstance(row, list) and len(row) == 5 and row[:4] == list(stamp):
            found[path] = str(row[4])
        else:
            unknown.append(path)

    def read(paths: list[bytes]) -> None:
        for path in paths:
            try:
                found[path] = _sha256(b"%b/%b" % (walk.root, path), walk.stamps[path].size)
            except OSError as error:
                walk.problem(path, error)

    with ThreadPoolExecutor(2) as pool:  # sha256 of large blocks releases the interpreter's lock
        list(pool.map(read, (unknown[::2], unknown[1::2])))
    rows = {
        os.fsdecode(path): [*stamp, found[path]]
        for path, stamp in walk.stamps.items()
        if path in found and max(stamp.mtime_ns, stamp.ctime_ns) < began - RACY
    }
    if rows != known:
        write_cache(cache, json.dumps(rows))
    return found


def _read_cache(file: Path) -> dict[str, list[int | str]]:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _sha256(path: bytes, size: int) -> str:
    length = min(size + 1, BLOCK)  # a buffer much larger than the file would cost more than it
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        digest = hashlib.sha256()
        while block := os.read(descriptor, length):
            digest.update(block)
            if len(block) < length:
                break
        return digest.hexdigest()
    finally:
        os.close(descriptor)
