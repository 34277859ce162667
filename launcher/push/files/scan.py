"""Scan a local folder into a manifest. Unchanged files are not read again.

In a workdir, .git is skipped, and so is everything that .gitignore and .ddpctlignore exclude. As in
git, a file's patterns apply to its folder and below, a deeper file overrides, and a path below an
ignored folder cannot be re-included. .ddpctlignore is read after .gitignore.

A file is unchanged if its size, inode, mtime and ctime (both in ns) match the last scan, and it was
more than two seconds old then. A write within the same clock tick would not show.
"""

from __future__ import annotations

# Paths are bytes here, because names need not be UTF-8. pathlib does not support bytes.
# ruff: noqa: PTH112, PTH115, PTH118, PTH120, PTH123
import hashlib
import json
import os
import stat
import time
from collections.abc import Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from ...errors import PushFailed
from ...hosts import Job
from ...state import cache_home, home_folder, read_cache, state_home, write_cache
from . import manifest
from .manifest import Entry, Manifest

RACY = 2 * 10**9  # ns
BLOCK = 1 << 20  # bytes per read
SHOWN = 5  # problems listed before "and N more"
IGNORE_FILES = (b".gitignore", b".ddpctlignore")


class Stamp(NamedTuple):
    """What changes whenever a file does. A change of mode changes the ctime."""

    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    executable: bool


@dataclass
class Tree:
    """A folder and its contents at the time of the scan. skipped: sockets, pipes and devices."""

    root: bytes
    manifest: Manifest
    stamps: dict[bytes, Stamp]
    skipped: list[bytes] = field(default_factory=list)

    def path(self, entry: Entry) -> bytes:
        return b"%b/%b" % (self.root, entry.path)  # ten times as fast as os.path.join


def scan(folder: str, *, ignore: bool) -> Tree:
    """Scan a folder. ignore: skip .git and the paths in .gitignore and .ddpctlignore.

    Raises PushFailed with all unreadable paths and links that lead out of the tree.
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
        kind = "x" if stamp.executable else "f"
        walk.entries.append(Entry(path, kind, stamp.size, contents[path].encode()))
    return Tree(walk.root, manifest.make(walk.entries), walk.stamps, walk.skipped)


def scan_job(job: Job, parts: Set[str]) -> dict[str, Tree]:
    """Scan the job's folders for these parts, dataset and workdir."""
    folders = {"dataset": job.dataset, "workdir": job.workdir}
    return {
        part: scan(folder, ignore=part == "workdir")
        for part, folder in folders.items()
        if folder and part in parts
    }


def shown(path: bytes) -> str:
    """Make a path printable on one line, whatever its bytes are."""
    text = path.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(text)[1:-1]


@dataclass(frozen=True)
class Ignore:
    """The ignore rules for one folder of the tree."""

    rules: tuple[tuple[str, GitIgnoreSpec], ...] = ()  # (folder with trailing slash or "", spec)

    def inside(self, root: bytes, folder: bytes) -> Ignore:
        """Return the rules for a subfolder, including its own ignore files."""
        rules = self.rules
        for name in IGNORE_FILES:
            try:
                with open(
                    os.path.join(root, folder, name), encoding="utf-8", errors="replace"
                ) as f:
                    spec = GitIgnoreSpec.from_lines(f.read().splitlines())
            except OSError:
                continue  # no such file
            rules += ((os.fsdecode(folder) + "/" if folder else "", spec),)
        return Ignore(rules)

    def skips(self, path: str, *, is_folder: bool) -> bool:
        """Return whether `path`, relative to the tree, is ignored."""
        if path.rpartition("/")[2] == ".git":
            return True
        for base, spec in reversed(self.rules):
            name = path[len(base) :] + ("/" if is_folder else "")
            verdict = spec.check_file(name).include
            if verdict is not None:
                return bool(verdict)
        return False


class _Walk:
    def __init__(self, root: bytes) -> None:
        self.root = root
        self.entries: list[Entry] = []  # folders and links
        self.stamps: dict[bytes, Stamp] = {}  # files
        self.skipped: list[bytes] = []
        self.problems: list[str] = []
        # A home folder may contain these. They change during a push and belong to this machine
        # only.
        own = (cache_home(), state_home(), home_folder() / ".ddpctl")
        self.own = {os.fsencode(os.path.realpath(folder)) for folder in own}

    def run(self, ignore: Ignore | None) -> None:
        pending: list[tuple[bytes, Ignore | None]] = [(b"", ignore)]
        while pending:
            folder, rules = pending.pop()
            rules = rules and rules.inside(self.root, folder)
            try:
                with os.scandir(os.path.join(self.root, folder)) as found:
                    children = list(found)
            except OSError as error:
                self.problem(folder, error)
                continue
            for child in children:
                path = folder + b"/" + child.name if folder else child.name
                is_folder = child.is_dir(follow_symlinks=False)
                if rules and rules.skips(os.fsdecode(path), is_folder=is_folder):
                    continue
                if not is_folder:
                    self._leaf(path, child)
                elif os.path.join(self.root, path) not in self.own:
                    self.entries.append(Entry(path, "d"))
                    pending.append((path, rules))

    def _leaf(self, path: bytes, child: os.DirEntry[bytes]) -> None:
        try:
            status = child.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                executable = bool(status.st_mode & 0o111)
                times = status.st_mtime_ns, status.st_ctime_ns
                self.stamps[path] = Stamp(status.st_size, status.st_ino, *times, executable)
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
                f"{shown(os.path.join(self.root, path))}: is a link out of the folder "
                f"(to {shown(target)}), which the hosts do not have; put the file itself there"
            )
            return
        self.entries.append(Entry(path, "l", 0, target))

    def problem(self, path: bytes, error: OSError) -> None:
        where = shown(os.path.join(self.root, path))
        self.problems.append(
            f"{where}: {error.strerror}; make it readable or leave it out (.ddpctlignore)"
        )


def _hash_files(walk: _Walk, caches: Path, began: int) -> Mapping[bytes, str]:
    """Return the sha256 of every file, from the last scan's cache or by reading."""
    cache = caches / f"{hashlib.sha256(walk.root).hexdigest()[:32]}.json"
    known = read_cache(cache)
    found: dict[bytes, str] = {}
    unknown = []
    for path, stamp in walk.stamps.items():
        row = known.get(os.fsdecode(path))
        if isinstance(row, list) and len(row) == 6 and row[:5] == list(stamp):
            found[path] = str(row[5])
        else:
            unknown.append(path)

    def read(paths: list[bytes]) -> None:
        for path in paths:
            try:
                found[path] = _sha256(b"%b/%b" % (walk.root, path), walk.stamps[path].size)
            except OSError as error:
                walk.problem(path, error)

    with ThreadPoolExecutor(2) as pool:  # sha256 of large blocks releases the interpreter lock
        list(pool.map(read, (unknown[::2], unknown[1::2])))
    rows = {
        os.fsdecode(path): [*stamp, found[path]]
        for path, stamp in walk.stamps.items()
        if path in found and max(stamp.mtime_ns, stamp.ctime_ns) < began - RACY
    }
    if rows != known:
        write_cache(cache, json.dumps(rows))
    return found


def _sha256(path: bytes, size: int) -> str:
    length = min(size + 1, BLOCK)  # allocating a much larger buffer than the file would be slow
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
