"""From a folder on this machine to its manifest; a file that has not changed is not read again.

A file counts as unchanged when its size, inode, mtime and ctime (both in ns) are those of the last
scan, and it was older than two seconds then: a write in the same clock tick would not show.
"""

from __future__ import annotations

# Paths are bytes here, as a name need not be UTF-8, and pathlib has no bytes.
# ruff: noqa: PTH112, PTH115, PTH118, PTH120
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from launcher.errors import PushFailed
from launcher.push.files import manifest
from launcher.push.files.ignore import Ignore, read_rules
from launcher.push.files.manifest import Entry, Manifest
from launcher.state import cache_home, home_folder, state_home

RACY = 2 * 10**9  # ns
BLOCK = 1 << 20  # bytes read at once
LARGE = 1 << 18  # bytes in a file from which a second thread helps
SHOWN = 5  # problems named before "and N more"

Stamp = tuple[int, int, int, int]  # size, inode, mtime_ns, ctime_ns


@dataclass
class Tree:
    """A folder here and what it held when it was scanned. `skipped` are sockets, pipes, devices."""

    root: bytes
    manifest: Manifest
    stamps: dict[bytes, Stamp]
    skipped: list[bytes] = field(default_factory=list)

    def path(self, entry: Entry) -> bytes:
        return b"%b/%b" % (self.root, entry.path)  # os.path.join takes ten times as long


def scan(folder: str, *, ignore: bool) -> Tree:
    """`ignore`: leave out what .gitignore and .ddpctlignore say, and .git.

    PushFailed names each path that cannot go: unreadable, or a link that leads out of the tree.
    """
    walk = _Walk(os.fsencode(os.path.realpath(folder)))
    if not os.path.isdir(walk.root):
        raise PushFailed(f"{folder}: not a folder; mend the path in the hosts file")
    began = time.time_ns()
    walk.run(Ignore() if ignore else None)
    cache = _Cache(walk.root)
    contents = _contents(walk, cache)
    if walk.problems:
        raise PushFailed("\n".join(_some(walk.problems)))
    for path, number in walk.files.items():
        stamp, executable = number
        kind = "x" if executable else "f"
        walk.entries.append(Entry(path, kind, stamp[0], contents[path].encode()))
    cache.save(walk.files, contents, began)
    found = manifest.make(walk.entries)
    stamps = {path: stamp for path, (stamp, _) in walk.files.items()}
    return Tree(walk.root, found, stamps, walk.skipped)


def shown(path: bytes) -> str:
    """A path on one line of a message, whatever its bytes are."""
    text = path.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(text)[1:-1]


class _Walk:
    def __init__(self, root: bytes) -> None:
        self.root = root
        self.entries: list[Entry] = []
        self.files: dict[bytes, tuple[Stamp, bool]] = {}
        self.skipped: list[bytes] = []
        self.problems: list[str] = []
        # They change while a push runs, and belong to this machine: a home folder may hold them.
        own = (cache_home(), state_home(), home_folder() / ".ddpctl")
        self.own = {os.fsencode(os.path.realpath(folder)) for folder in own}

    def run(self, ignore: Ignore | None) -> None:
        pending: list[tuple[bytes, Ignore | None]] = [(b"", ignore)]
        while pending:
            folder, rules = pending.pop()
            if rules is not None:
                texts = read_rules(os.path.join(self.root, folder))
                rules = rules.inside(os.fsdecode(folder), texts)
            for child in self._children(folder):
                path = folder + b"/" + child.name if folder else child.name
                is_folder = child.is_dir(follow_symlinks=False)
                if rules is not None and rules.skips(os.fsdecode(path), folder=is_folder):
                    continue
                if is_folder and os.path.join(self.root, path) in self.own:
                    continue
                if is_folder:
                    self.entries.append(Entry(path, "d"))
                    pending.append((path, rules))
                else:
                    self._leaf(path, child)

    def _children(self, folder: bytes) -> Iterator[os.DirEntry[bytes]]:
        where = os.path.join(self.root, folder)
        try:
            with os.scandir(where) as found:
                yield from found
        except OSError as error:
            self._problem(where, error)

    def _leaf(self, path: bytes, child: os.DirEntry[bytes]) -> None:
        try:
            status = child.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                stamp = (status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
                self.files[path] = (stamp, bool(status.st_mode & 0o111))
            elif stat.S_ISLNK(status.st_mode):
                self._link(path, os.readlink(child.path))
            else:
                self.skipped.append(path)
        except OSError as error:
            self._problem(child.path, error)

    def _link(self, path: bytes, target: bytes) -> None:
        inside = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if target.startswith(b"/") or inside == b".." or inside.startswith(b"../"):
            self.problems.append(
                f"{shown(os.path.join(self.root, path))}: links out of the folder "
                f"(to {shown(target)}), where the hosts cannot follow; put the file itself there"
            )
            return
        self.entries.append(Entry(path, "l", 0, target))

    def _problem(self, path: bytes, error: OSError) -> None:
        self.problems.append(
            f"{shown(path)}: {error.strerror}; make it readable or leave it out (.ddpctlignore)"
        )


def _contents(walk: _Walk, cache: _Cache) -> dict[bytes, str]:
    """The sha256 of every file, from the cache where it may be believed."""
    found = {}
    unknown = []
    for path, (stamp, _) in walk.files.items():
        known = cache.get(path, stamp)
        if known is None:
            unknown.append(path)
        else:
            found[path] = known

    def read(path: bytes) -> str:
        try:
            return _sha256(b"%b/%b" % (walk.root, path), walk.files[path][0][0])
        except OSError as error:
            walk._problem(os.path.join(walk.root, path), error)
            return ""

    def read_all(paths: list[bytes]) -> None:
        found.update([(path, read(path)) for path in paths])

    if sum(walk.files[path][0][0] for path in unknown) < LARGE * len(unknown):
        read_all(unknown)
    else:  # sha256 of large blocks leaves the interpreter free for a second thread
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read_all, (unknown[::2], unknown[1::2])))
    return found


def _sha256(path: bytes, size: int) -> str:
    """`size` as it was seen; a buffer that is much larger than a file costs more than its bytes."""
    length = min(size + 1, BLOCK)
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        block = os.read(number, length)
        digest = hashlib.sha256(block)
        while len(block) == length:
            block = os.read(number, length)
            digest.update(block)
        return digest.hexdigest()
    finally:
        os.close(number)


def _some(problems: list[str]) -> list[str]:
    more = len(problems) - SHOWN
    return problems[:SHOWN] + ([f"and {more} more like these"] if more > 0 else [])


class _Cache:
    """Hashes of the last scan of one folder. Losing it costs time only."""

    def __init__(self, root: bytes) -> None:
        name = hashlib.sha256(root).hexdigest()[:32]
        self.file = cache_home() / "trees" / f"{name}.json"
        self.known: dict[str, list[int | str]] = {}
        try:
            self.known = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            pass

    def get(self, path: bytes, stamp: Stamp) -> str | None:
        known = self.known.get(os.fsdecode(path))
        if known is None or tuple(known[:4]) != stamp:
            return None
        return str(known[4])

    def save(
        self, files: dict[bytes, tuple[Stamp, bool]], contents: dict[bytes, str], began: int
    ) -> None:
        known = {
            os.fsdecode(path): [*stamp, contents[path]]
            for path, (stamp, _) in files.items()
            if max(stamp[2], stamp[3]) < began - RACY
        }
        if known == self.known:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft = self.file.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps(known))
            draft.replace(self.file)
        except OSError:
            pass
