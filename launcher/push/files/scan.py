"""Scan a local folder into a manifest. Unchanged files are not read again.

In a workdir, .git is skipped, and so is everything that .gitignore and .ddpctlignore exclude. As in
git, patterns apply to the folder of their file and below, a deeper file overrides higher ones, and
a path below an ignored folder cannot be re-included. .ddpctlignore overrides .gitignore.

A file is unchanged if its size, inode, mtime and ctime (both in ns) match the last scan, and it was
more than two seconds old then. Otherwise, a write in the clock tick of that scan could go unnoticed.
"""

# Paths are bytes here, because names need not be UTF-8. pathlib does not support bytes.
# ruff: noqa: PTH112, PTH115, PTH118, PTH120
import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from pathspec import GitIgnoreSpec

from ...errors import PushFailed, Several
from ...hosts import Job
from ...state import cache_home, home_folder, read_cache, state_home, write_cache
from ...text import LONGEST_PATH, quoted
from . import manifest
from .manifest import Entry, Manifest

RACY = 2 * 10**9  # ns
SHOWN = 5  # problems listed before "and N more"

Rules = tuple[tuple[str, GitIgnoreSpec], ...]  # folder with trailing slash or "", its patterns


class Stamp(NamedTuple):
    """Tells whether a file has changed. A change of its mode changes the ctime."""

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
    """Scan a folder. ignore: skip .git and what .gitignore and .ddpctlignore exclude.

    Raises Several, with each unreadable path and each link that leads out of the tree.
    """
    walk = _Walk(os.fsencode(os.path.realpath(folder)))
    if not os.path.isdir(walk.root):
        raise PushFailed(f"{folder}: not a folder", "correct the path in the hosts file")
    began = time.time_ns()
    walk.run(ignore=ignore)
    contents = _hash_files(walk, began)
    if walk.problems:
        more = len(walk.problems) - SHOWN
        tail = [PushFailed(f"and {more} more like these")] if more > 0 else []
        raise Several(walk.problems[:SHOWN] + tail)
    for path, stamp in walk.stamps.items():
        kind = "x" if stamp.executable else "f"
        walk.entries.append(Entry(path, kind, stamp.size, contents[path].encode()))
    return Tree(walk.root, manifest.make(walk.entries), walk.stamps, walk.skipped)


def scan_job(job: Job, parts: Set[str]) -> dict[str, Tree]:
    """Scan the job's dataset and workdir, if it has them and `parts` names them."""
    folders = {"dataset": job.dataset, "workdir": job.workdir}
    return {
        part: scan(folder, ignore=part == "workdir")
        for part, folder in folders.items()
        if folder and part in parts
    }


def path_text(path: bytes) -> str:
    """Return a path as text on one line, whatever its bytes are."""
    return quoted(path.decode(errors="backslashreplace"), LONGEST_PATH)


def open_file(path: bytes) -> FileIO:
    """Open a file for reading. Raises OSError if the path has become a link."""
    return FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


class _Walk:
    def __init__(self, root: bytes) -> None:
        self.root = root
        self.entries: list[Entry] = []  # folders and links
        self.stamps: dict[bytes, Stamp] = {}  # files
        self.skipped: list[bytes] = []
        self.problems: list[PushFailed] = []
        # Never pushed, even as part of a home folder: they change during a push and belong to this
        # machine only.
        own = (cache_home(), state_home(), home_folder() / ".ddpctl")
        self.own = {os.fsencode(os.path.realpath(folder)) for folder in own}

    def run(self, *, ignore: bool) -> None:
        pending: list[tuple[bytes, Rules]] = [(b"", ())]
        while pending:
            folder, rules = pending.pop()
            if ignore:
                rules += tuple(self._rules_of(folder))
            try:
                with os.scandir(os.path.join(self.root, folder)) as found:
                    children = list(found)
            except OSError as error:
                self.problem(folder, error)
                continue
            for child in children:
                path = folder + b"/" + child.name if folder else child.name
                is_folder = child.is_dir(follow_symlinks=False)
                if ignore and _is_ignored(os.fsdecode(path), is_folder, rules):
                    continue
                if not is_folder:
                    self._leaf(path, child)
                elif os.path.join(self.root, path) not in self.own:
                    self.entries.append(Entry(path, "d"))
                    pending.append((path, rules))

    def _rules_of(self, folder: bytes) -> Iterator[tuple[str, GitIgnoreSpec]]:
        base = os.fsdecode(folder + b"/" if folder else b"")
        for name in (".gitignore", ".ddpctlignore"):
            file = Path(os.fsdecode(self.root), base, name)
            with contextlib.suppress(OSError):  # no such file
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
                yield base, GitIgnoreSpec.from_lines(lines)

    def _leaf(self, path: bytes, child: os.DirEntry[bytes]) -> None:
        try:
            status = child.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                executable = bool(status.st_mode & 0o111)
                times = status.st_mtime_ns, status.st_ctime_ns
                self.stamps[path] = Stamp(status.st_size, status.st_ino, *times, executable)
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(child.path)
                inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
                if target.startswith(b"/") or inside == b".." or inside.startswith(b"../"):
                    to = path_text(target)
                    self.problems.append(
                        PushFailed(
                            f"{path_text(child.path)}: is a link out of the folder (to {to}), "
                            "which would be broken on the hosts",
                            "replace it with what it links to",
                        )
                    )
                else:
                    self.entries.append(Entry(path, "l", 0, target))
            else:
                self.skipped.append(path)
        except OSError as error:
            self.problem(path, error)

    def problem(self, path: bytes, error: OSError) -> None:
        where = path_text(os.path.join(self.root, path))
        self.problems.append(
            PushFailed(
                f"{where}: {error.strerror}",
                "make it readable, remove it, or exclude it from the workdir with .ddpctlignore",
            )
        )


def _is_ignored(path: str, is_folder: bool, rules: Rules) -> bool:
    """Return whether `path`, relative to the tree, is .git or ignored."""
    if path.rpartition("/")[2] == ".git":
        return True
    for base, spec in reversed(rules):
        include = spec.check_file(path[len(base) :] + "/" * is_folder).include
        if include is not None:
            return bool(include)
    return False


def _hash_files(walk: _Walk, began: int) -> Mapping[bytes, str]:
    """Return the sha256 of every readable file, from the last scan's cache or by reading the file."""
    cache = cache_home() / "trees" / f"{hashlib.sha256(walk.root).hexdigest()[:32]}.json"
    known = read_cache(cache)
    found: dict[bytes, str] = {}
    for path, stamp in walk.stamps.items():
        row = known.get(os.fsdecode(path))
        if isinstance(row, list) and len(row) == 6 and row[:5] == list(stamp):
            found[path] = str(row[5])
    unknown = [path for path in walk.stamps if path not in found]

    def read(paths: list[bytes]) -> None:
        for path in paths:
            try:
                with open_file(b"%b/%b" % (walk.root, path)) as file:
                    found[path] = hashlib.file_digest(file, "sha256").hexdigest()
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
