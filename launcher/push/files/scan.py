"""Scan a local folder into a manifest. Unchanged files are not hashed again.

A file counts as unchanged if its size, inode, mtime and ctime (both in ns) match the last scan, and
it was more than two seconds old then. A younger file may have been written to after that scan, but
within the same clock tick.
"""

# Paths are bytes here, because names need not be UTF-8. pathlib does not support bytes.
# ruff: noqa: PTH112, PTH115, PTH118, PTH120
import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from io import FileIO
from typing import NamedTuple

from ...errors import PushFailed, Several
from ...hosts import Cluster
from ...own_folders import cache_home, read_cache, write_cache
from ...ssh.background import in_background
from ...text import LONGEST_PATH, quoted
from . import left_out, manifest
from .left_out import IgnoreFile, LeftOut, NamedPaths
from .manifest import Entry, Manifest
from .open_file import open_file

RACY = 2 * 10**9  # ns; a younger file is hashed again by the next scan
KEPT = 100  # folders whose hashes are cached; those of a million files take 200 MB
SHOWN = 5  # problems listed before "and N more"
BLOCK = 1 << 18  # bytes


class Stamp(NamedTuple):
    """The properties that show whether a file has changed."""

    size: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    executable: bool


@dataclass
class Tree:
    """A folder and its contents at the time of the scan. skipped: sockets, pipes and devices.

    left_out: see `launcher.push.files.left_out`. code_only: send only what a file contained when it
    was scanned, because a log may have grown since.
    """

    root: bytes
    manifest: Manifest
    stamps: dict[bytes, Stamp]
    skipped: list[bytes] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    file: bytes = b""  # the only file's name on disk, if the manifest has another
    code_only: bool = False

    def path(self, entry: Entry) -> bytes:
        return b"%b/%b" % (self.root, self.file or entry.path)  # ten times as fast as os.path.join


def scan(folder: str, *, code_only: bool, named: Collection[str] = ()) -> Tree:
    """Scan a folder and return its tree. code_only: apply left_out.py's rules.

    named: paths to leave out in any case. Raises PushFailed if `folder` is not a folder. Raises
    Several if paths are unreadable or links lead out of the tree.
    """
    named_paths = NamedPaths([*named, *left_out.own_folders()])
    walk = _Walk(os.fsencode(os.path.realpath(folder)), named_paths, code_only=code_only)
    if not os.path.isdir(walk.root):
        raise PushFailed(f"{folder}: not a folder", "correct the path")
    walk.run()
    return walk.tree()


def scan_file(path: str, name: str) -> Tree:
    """Return a tree that contains only the file at `path`, under the name `name`."""
    folder, own_name = os.path.split(os.fsencode(os.path.realpath(path)))
    # The root decides which cache file is used. `/.` gives this scan one of its own.
    walk = _Walk(folder + b"/.", NamedPaths([]), code_only=False)
    walk.leaf(own_name)
    tree = walk.tree()
    if not tree.stamps:
        raise PushFailed(f"{path}: not a file", "correct the path")
    [entry], [stamp] = tree.manifest.entries, tree.stamps.values()
    contents = manifest.make([Entry(name.encode(), "f", entry.size, entry.content)])
    return Tree(walk.root, contents, {name.encode(): stamp}, file=own_name)


def scan_workdir(cluster: Cluster, workdir: str) -> Tree:
    named = left_out.private_paths(cluster) + left_out.data_paths(cluster)
    return scan(workdir, code_only=True, named=named)


def scan_job(cluster: Cluster, parts: Set[str]) -> dict[str, Tree]:
    """Scan the job's dataset and workdir if `parts` names them. Return the trees by part."""
    job, trees = cluster.job, {}
    if job.dataset and "dataset" in parts:
        private = left_out.private_paths(cluster)
        trees["dataset"] = scan(job.dataset, code_only=False, named=private)
    if job.workdir and "workdir" in parts:
        trees["workdir"] = scan_workdir(cluster, job.workdir)
    return trees


def path_text(path: bytes) -> str:
    """Return a path as one line of text, no matter which bytes it contains."""
    return quoted(path.decode(errors="backslashreplace"), LONGEST_PATH)


class _Walk:
    """A scan: walks the folder, then reads the files that have changed since the last scan."""

    def __init__(self, root: bytes, named: NamedPaths, *, code_only: bool) -> None:
        self.root, self.named, self.code_only = root, named, code_only
        self.began = time.time_ns()
        self.entries: list[Entry] = []  # folders and links
        self.stamps: dict[bytes, Stamp] = {}  # files
        self.skipped: list[bytes] = []
        self.left_out: list[LeftOut] = []
        self.problems: list[PushFailed] = []

    def run(self) -> None:
        pending: list[tuple[bytes, tuple[IgnoreFile, ...]]] = [(b"", ())]
        while pending:
            folder, rules = pending.pop()
            try:
                with os.scandir(os.path.join(self.root, folder)) as listed:
                    children = list(listed)
            except OSError as error:
                if not self.is_left_out(folder, frozenset(), rules):
                    self.unreadable(folder, error)
                continue
            names = {os.fsdecode(child.name) for child in children}
            if folder and self.is_left_out(folder, names, rules):
                self.leave_out(folder)
                continue
            if folder:
                self.entries.append(Entry(folder, "d"))
            if self.code_only:
                try:
                    rules += tuple(left_out.ignore_files(self.root, folder, rules))
                except left_out.TooManyPatterns as error:
                    what = f"more than {left_out.MOST_PATTERNS} patterns apply to one folder"
                    self.problem(error.args[0], what, "name folders instead of single files")
                    continue
            for child in children:
                path = folder + b"/" + child.name if folder else child.name
                if self.named.include(child):
                    self.leave_out(path)
                elif child.is_dir(follow_symlinks=False):
                    pending.append((path, rules))
                elif self.is_left_out(path, None, rules):
                    self.leave_out(path)
                else:
                    self.leaf(path)

    def is_left_out(
        self, path: bytes, children: Set[str] | None, rules: Collection[IgnoreFile]
    ) -> bool:
        text = os.fsdecode(path)
        return self.code_only and left_out.is_left_out(self.root, text, children, rules)

    def leave_out(self, path: bytes) -> None:
        self.left_out.append(left_out.measured(self.root, path))

    def leaf(self, path: bytes) -> None:
        """Add the file or link at `path`, which is relative to the tree."""
        full = os.path.join(self.root, path)
        try:
            status = os.lstat(full)
            if stat.S_ISREG(status.st_mode):
                executable = bool(status.st_mode & 0o111)
                times = status.st_mtime_ns, status.st_ctime_ns
                self.stamps[path] = Stamp(status.st_size, status.st_ino, *times, executable)
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(full)
                if self._leads_out(os.path.dirname(path), target):
                    to = f"a link that leaves the folder (to {path_text(target)})"
                    what = f"is {to}, so it would be broken on the hosts"
                    remedy = (
                        "replace it with its target, or exclude it from the workdir with "
                        ".ddpctlignore"
                    )
                    self.problem(path, what, remedy)
                else:
                    self.entries.append(Entry(path, "l", 0, target))
            else:
                self.skipped.append(path)
        except OSError as error:
            self.unreadable(path, error)

    def _leads_out(self, folder: bytes, target: bytes) -> bool:
        """Return whether a link in `folder` would lead out of the tree on a host.

        The disk is read only if `..` follows a name, because that name may be a link itself.
        """
        inside = os.path.normpath(os.path.join(folder, target))
        if target.startswith(b"/") or inside == b".." or inside.startswith(b"../"):
            return True
        if b".." not in target.lstrip(b"./").split(b"/"):
            return False
        real = os.path.realpath(os.path.join(self.root, folder, target))
        return real != os.path.realpath(os.path.join(self.root, inside))

    def unreadable(self, path: bytes, error: OSError) -> None:
        remedy = "make it readable, remove it, or exclude it from the workdir with .ddpctlignore"
        self.problem(path, str(error.strerror), remedy)

    def problem(self, path: bytes, what: str, remedy: str) -> None:
        where = path_text(os.path.join(self.root, path))
        self.problems.append(PushFailed(f"{where}: {what}", remedy))

    def tree(self) -> Tree:
        """Return the scanned tree. Raises Several if any path cannot be pushed."""
        hashes = self._hash_files()
        if self.problems:
            more = len(self.problems) - SHOWN
            tail = [PushFailed(f"and {more} more like these")] if more > 0 else []
            raise Several(self.problems[:SHOWN] + tail)
        for path, stamp in self.stamps.items():
            kind = "x" if stamp.executable else "f"
            self.entries.append(Entry(path, kind, stamp.size, hashes[path].encode()))
        contents = manifest.make(self.entries)
        walked = self.stamps, self.skipped, self.left_out
        return Tree(self.root, contents, *walked, code_only=self.code_only)

    def _hash_files(self) -> Mapping[bytes, str]:
        """Return the sha256 of every readable file, from the cache if the file is unchanged."""
        cache = cache_home() / "trees" / f"{hashlib.sha256(self.root).hexdigest()[:32]}.json"
        known = read_cache(cache)
        hashes: dict[bytes, str] = {}
        for path, stamp in self.stamps.items():
            row = known.get(os.fsdecode(path))
            if isinstance(row, list) and row[:-1] == list(stamp):
                hashes[path] = str(row[-1])
        unknown = [path for path in self.stamps if path not in hashes]

        def read(paths: list[bytes]) -> None:
            for path in paths:
                try:
                    with open_file(b"%b/%b" % (self.root, path)) as file:
                        hashes[path] = _sha256(file, self.stamps[path].size)
                except OSError as error:
                    self.unreadable(path, error)

        # sha256 of large blocks releases the interpreter lock
        for thread in [in_background(read, part) for part in (unknown[::2], unknown[1::2])]:
            thread.result()
        rows = {
            os.fsdecode(path): [*stamp, hashes[path]]
            for path, stamp in self.stamps.items()
            if path in hashes and max(stamp.mtime_ns, stamp.ctime_ns) < self.began - RACY
        }
        if rows != known:
            write_cache(cache, json.dumps(rows), keep=KEPT)
        elif rows:
            with contextlib.suppress(OSError):
                os.utime(cache)  # it is in use, so keep it
        return hashes


def _sha256(file: FileIO, size: int) -> str:
    """Return the sha256 of the first `size` bytes, because a log may have grown since its size was read."""
    digest = hashlib.sha256()
    while block := file.read(min(size, BLOCK)):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()
