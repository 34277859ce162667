"""Send a tree to `~/.ddpctl/{datasets,workdirs,images,wheels}/<digest>` on hosts.

Only missing files are sent.

A host builds the new tree as a draft, `.<digest>.<token>`, beside the old ones. Files that an
earlier tree already has are hard-linked, which is safe because pushed trees are never modified. All
others arrive as one tar stream. A rename then turns the draft into the tree. An interrupted push
leaves its draft behind, and the next push continues it. The script that writes to a draft records
its pid in the draft's file `holder`, so that no other push uses the draft.
"""

import contextlib
import re
import secrets
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from ...budget import unpack
from ...errors import CommandFailed, DdpctlError, HostUnreachable, PushFailed
from ...facts.shared_homes import find_shared_homes
from ...own_folders import cache_home, write_cache
from ...ssh import shell
from ...ssh.host_connection import HostConnection
from ...ssh.many import try_each
from ...ssh.script_files import load_script
from ..transfer.fanout import Fanout
from ..transfer.payload import Failures, Payload, script_output, without
from . import manifest, tar
from .manifest import Delta, Entry, Manifest
from .scan import Tree

CANDIDATES = 5  # number of earlier trees to compare with, newest first
KEPT = 100  # manifests in this machine's cache; for a million files, one takes 100 MB
STEP_TIMEOUT = 600.0  # seconds to link or remove a tree
SLOWEST_LINKS = 200  # files per second, on NFS; each file of the tree extends STEP_TIMEOUT

BEGIN = load_script(__file__, "begin_tree.sh")
PREPARE = load_script(__file__, "prepare_tree.sh")
RECEIVE = load_script(__file__, "receive_tree.sh")
ABANDON = load_script(__file__, "abandon_tree.sh")
READ_MANIFEST = load_script(__file__, "read_manifest.sh")


@dataclass(frozen=True)
class HostTrees:
    """The trees on one host, as far as they matter for a push.

    draft: the digest of the tree that an interrupted push copied (or `none`), and the number of
    files in its draft.
    """

    present: bool  # whether the tree itself exists
    earlier: tuple[str, ...]  # digests of other trees, newest first
    draft: tuple[str, int] | None
    free: int | None  # bytes of disk space; None if unknown


@dataclass(frozen=True)
class Start:
    """How to start a push to one host: the earlier tree to copy, and the entries to write."""

    base: str  # the digest of the earlier tree, or `none`
    write: tuple[Entry, ...]


class TreePush:
    def __init__(self, tree: Tree, part: str, fanout: Fanout) -> None:
        self.tree, self.part, self.fanout = tree, part, fanout
        self.tokens: dict[HostConnection, str] = {}  # one per host, because hosts may share a home
        self.files_sent: dict[HostConnection, int] = {}
        self.deltas: dict[str, Delta] = {"none": Delta((), tree.manifest.entries)}
        self.lock = threading.Lock()

    def run(self, connections: Sequence[HostConnection]) -> Failures:
        """Push to the hosts that lack the tree. Return the errors of failed hosts.

        A failed host may keep a draft, but never a partial tree.
        """
        cached = _cache_file(self.tree.manifest.digest)
        if not cached.exists():  # tells the next push what this tree contains
            write_cache(cached, self.tree.manifest.text, keep=KEPT)
        self.tokens = {connection: secrets.token_hex(6) for connection in connections}
        homes = find_shared_homes(connections)
        failures = self._push([home[0] for home in homes])
        # The other hosts that share a home have the tree by now, unless the push to the first one failed.
        return failures | self._push([connection for home in homes for connection in home[1:]])

    def _push(self, connections: Sequence[HostConnection]) -> Failures:
        starts, failures = try_each(connections, self._start)
        groups: dict[tuple[str, int], tuple[Start, list[HostConnection]]] = {}
        for connection, start in starts.items():
            if start is not None:
                groups.setdefault((start.base, len(start.write)), (start, []))[1].append(connection)
        for start, members in groups.values():
            failures |= self._send(start, members)
        return failures

    def _names(self, connection: HostConnection) -> tuple[str, str, str]:
        return f"{self.part}s", self.tree.manifest.digest, self.tokens[connection]

    def _script(
        self, connection: HostConnection, script: str, *more: str, stdin: bytes = b""
    ) -> str:
        arguments = *self._names(connection), *more
        timeout = STEP_TIMEOUT + self.tree.manifest.files / SLOWEST_LINKS
        return script_output(
            connection, self.part, script, *arguments, stdin=stdin, timeout=timeout
        )

    def _start(self, connection: HostConnection) -> Start | None:
        """Prepare the draft. Return what to write to it; None if the host already has the tree."""
        trees = parse_trees(self._script(connection, BEGIN))
        if trees.present:
            return None
        if trees.draft:
            base, arrived = trees.draft
            if rest := self._delta(connection, base):
                files = [entry for entry in rest.write if entry.is_file]
                linked = self.tree.manifest.files - len(files)
                whole = set(files[: max(arrived - linked - 1, 0)])  # the last may be incomplete
                return Start(base, tuple(entry for entry in rest.write if entry not in whole))
        bases = ("none", *trees.earlier[:CANDIDATES])
        deltas = {base: delta for base in bases if (delta := self._delta(connection, base))}
        base = min(deltas, key=lambda base: deltas[base].size)
        size = deltas[base].size
        if trees.free is not None and size > trees.free:
            raise PushFailed(
                f"{self.part}: needs {decimal(size)}, but the disk of ~/.ddpctl has only "
                f"{decimal(trees.free)} free",
                "free up space on that disk, then push again",
                host=connection.name,
            )
        self._script(connection, PREPARE, base, stdin=b"\0".join((*deltas[base].remove, b"")))
        return Start(base, deltas[base].write)

    def _delta(self, connection: HostConnection, earlier: str) -> Delta | None:
        """Return the changes since an earlier tree; None if that tree's manifest is unavailable."""
        with self.lock:  # computed once for all hosts
            if earlier not in self.deltas and (old := cached_manifest(earlier)):
                self.deltas[earlier] = self.tree.manifest.after(old)
            if earlier in self.deltas:
                return self.deltas[earlier]
        most = 2 * len(self.tree.manifest.text) + (1 << 20)  # a longer one has too little in common
        # not under the lock, so that one slow host delays no other
        there = fetched_manifest(connection, earlier, most)
        return self.tree.manifest.after(there) if there else None

    def _send(self, start: Start, connections: Sequence[HostConnection]) -> Failures:
        size = sum(entry.size for entry in start.write)
        # Later pushes from other machines use the manifest.
        packed = zlib.compress(self.tree.manifest.text, 1)
        extra = {"manifest.z": packed} if len(packed) < max(size // 10, 65536) else {}
        extra["complete"] = b""  # the last file in the stream, which RECEIVE looks for
        payload = Payload(
            part=self.part,
            command=lambda connection: shell.script(
                RECEIVE, (*self._names(connection), start.base)
            ),
            size=tar.size_of([*(entry.size for entry in start.write), *map(len, extra.values())]),
            chunks=lambda: tar.stream(self.tree, start.write, extra),
        )
        failures = self.fanout.send(self.part, [payload], connections, payload.size)
        files = sum(1 for entry in start.write if entry.is_file)
        self.files_sent |= dict.fromkeys(without(connections, failures), files)
        for connection, error in failures.items():
            if not isinstance(error, HostUnreachable):
                with contextlib.suppress(DdpctlError):  # the draft may be what fills the disk
                    self._script(connection, ABANDON)
        return failures


def parse_trees(text: str) -> HostTrees:
    """Parse the output of BEGIN. Malformed lines are ignored, because hosts are not trusted."""
    draft = re.search("(?m)^resume (none|[0-9a-f]{64}) ([0-9]{1,18})$", text)
    free = re.search("(?m)^free ([0-9]{1,18})$", text)
    return HostTrees(
        present=bool(re.search("(?m)^present$", text)),
        earlier=tuple(re.findall("(?m)^earlier ([0-9a-f]{64})$", text)),
        draft=(draft[1], int(draft[2])) if draft else None,
        free=int(free[1]) * 1024 if free else None,
    )


def cached_manifest(digest: str) -> Manifest | None:
    with contextlib.suppress(OSError):
        return manifest.parse(_cache_file(digest).read_bytes(), digest)
    return None


def fetched_manifest(connection: HostConnection, digest: str, most: int) -> Manifest | None:
    """Fetch and cache the manifest of a host's tree. Return None if the host has no valid one.

    most: the size in bytes of the largest manifest worth fetching.
    """
    with contextlib.suppress(CommandFailed, ValueError):
        done = connection.script(READ_MANIFEST, digest, timeout=60.0, limit=most)
        text = unpack(done.stdout, most)
        if there := manifest.parse(text, digest):
            write_cache(_cache_file(digest), there.text, keep=KEPT)
            return there
    return None


def _cache_file(digest: str) -> Path:
    return cache_home() / "manifests" / digest
