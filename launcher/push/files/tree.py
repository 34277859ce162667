"""A folder to `~/.ddpctl/{datasets,workdirs}/<digest>` of the hosts, of which only what is missing.

A host builds the new tree beside the old ones: what an earlier version has is linked (pushed trees
are never written to), the rest comes as one tar stream, and a rename publishes it. A push that was
cut leaves `.<digest>.<token>`; the next push takes that over where it ended. While a host works on
such a folder, the process named in its `holder` lives, so two pushes at once keep apart.
"""

from __future__ import annotations

import secrets
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from launcher.errors import DdpctlError, HostUnreachable, PushFailed
from launcher.push.files import manifest, tarstream
from launcher.push.files.manifest import Delta, Entry, Manifest
from launcher.push.files.scan import Tree
from launcher.push.report import in_words
from launcher.push.transfer.send import Journey, Parcel, refused
from launcher.push.transfer.sender import Sender
from launcher.ssh.many import try_each
from launcher.ssh.node import Node
from launcher.state import cache_home

T = TypeVar("T")
FOLDERS = {"dataset": "datasets", "workdir": "workdirs"}
MANIFEST = b"manifest.z"
CANDIDATES = 5  # earlier trees that are looked at, the newest ones
STEP_TIMEOUT = 600.0  # seconds to link or publish a tree of very many files

# $1 datasets or workdirs, $2 digest, $3 token of this push
BEGIN = r"""
umask 022
mkdir -p "$HOME/.ddpctl/$1" && cd "$HOME/.ddpctl/$1" || exit 1
[ -d "$2" ] && { echo present; exit 0; }
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
for left in ".$2".*; do
  [ -f "$left/holder" ] || continue
  read -r pid since base < "$left/holder"
  [ "$since" = "${boot:-unknown}" ] || continue
  kill -0 "$pid" 2>/dev/null && continue
  mv "$left" ".$2.$3" 2>/dev/null || continue
  echo "resume $base $(find ".$2.$3/tree" -type f -print0 | tr -dc '\000' | wc -c)"
  break
done
df -Pk . | awk 'NR == 2 { print "free " $4 }'
for name in $(ls -t); do [ -d "$name" ] && echo "earlier $name"; done
exit 0
"""

# as above, $4 digest of the earlier tree or none; stdin: the paths to take out of its copy, \0
PREPARE = r"""
umask 022
cd "$HOME/.ddpctl/$1" && mkdir ".$2.$3" || exit 1
if [ "$4" != none ]; then
  cp -al "$4" ".$2.$3/tree" 2>/dev/null || { rm -rf ".$2.$3/tree" && cp -a "$4" ".$2.$3/tree"; } ||
    exit 1
  cd ".$2.$3/tree" && xargs -0 rm -rf --
else
  mkdir ".$2.$3/tree"
fi
"""

# as above; stdin: the tar stream
RECEIVE = r"""
umask 022
cd "$HOME/.ddpctl/$1/.$2.$3" || exit 1
boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
echo "$$ ${boot:-unknown} $4" > holder || exit 1
exec tar -x -o -f -
"""

PUBLISH = r"""
umask 022
cd "$HOME/.ddpctl/$1" || exit 1
mkdir -p ../manifests
[ -f ".$2.$3/manifest.z" ] && mv -f ".$2.$3/manifest.z" "../manifests/$2"
mv -T ".$2.$3/tree" "$2" || [ -d "$2" ] || exit 1
touch "$2"
rm -rf ".$2.$3"
exit 0
"""

ABANDON = 'rm -rf "$HOME/.ddpctl/$1/.$2.$3"'


@dataclass(frozen=True)
class Start:
    """Where one host begins: from which earlier tree, and what is still to be written."""

    base: str  # a digest, or none
    remove: tuple[bytes, ...]
    write: tuple[Entry, ...]


def push_tree(
    tree: Tree, what: str, nodes: Sequence[Node], sender: Sender, journey: Journey
) -> dict[Node, DdpctlError]:
    """To hosts that do not have it. Gives the ones that failed; a host has all of it or nothing."""
    return _TreePush(tree, what, sender, journey).run(nodes)


class _TreePush:
    def __init__(self, tree: Tree, what: str, sender: Sender, journey: Journey) -> None:
        self.tree, self.what = tree, what
        self.sender, self.journey = sender, journey
        self.token = secrets.token_hex(6)
        self.names = (FOLDERS[what], tree.manifest.digest, self.token)
        self.failures: dict[Node, DdpctlError] = {}
        self.deltas: dict[str, Delta] = {}
        self.turn = threading.Lock()

    def run(self, nodes: Sequence[Node]) -> dict[Node, DdpctlError]:
        save(self.tree.manifest)
        starts = self._each(nodes, self._start)
        groups: dict[tuple[str, int], tuple[Start, list[Node]]] = {}
        for node, start in starts.items():
            if start is not None:
                groups.setdefault((start.base, len(start.write)), (start, []))[1].append(node)
        for start, members in groups.values():
            self._send(start, members)
        return self.failures

    def _each(self, nodes: Sequence[Node], act: Callable[[Node], T]) -> dict[Node, T]:
        """Results of the hosts that did it; the others are remembered as failures."""
        results, failures = try_each(nodes, act)
        self.failures.update(failures)
        return results

    def _script(self, node: Node, script: str, *more: str, stdin: bytes = b"") -> str:
        done = node.script(script, *self.names, *more, stdin=stdin, timeout=STEP_TIMEOUT)
        if done.code != 0:
            said = done.stderr.decode(errors="replace")
            raise refused(node.name, self.what, said, done.code)
        return done.stdout.decode(errors="replace")

    def _start(self, node: Node) -> Start | None:
        """None: another push has published the tree meanwhile."""
        said = [line.split() for line in self._script(node, BEGIN).splitlines()]
        told = {words[0]: words[1:] for words in said if words}
        if "present" in told:
            return None
        earlier = [words[1] for words in said if words[0] == "earlier"]
        resumed = self._resumed(node, told.get("resume"))
        if resumed is not None:
            return resumed
        start = self._best(node, earlier)
        needed, free = sum(entry.size for entry in start.write), int((told.get("free") or ["0"])[0])
        if told.get("free") and needed > free * 1024:
            raise PushFailed(
                f"{node.name}: {self.what}: needs {in_words(needed)} and the disk of ~/.ddpctl "
                f"has {in_words(free * 1024)} free; free space there, then push again"
            )
        self._script(node, PREPARE, start.base, stdin=b"\0".join((*start.remove, b"")))
        return start

    def _resumed(self, node: Node, told: list[str] | None) -> Start | None:
        """What a push that was cut has left; its last file may be half there and is sent again."""
        if not told:
            return None
        base, count = told[0], int(told[1])
        delta = self._delta(node, base)
        if delta is None:
            self._script(node, ABANDON)
            return None
        files = [entry for entry in delta.write if entry.is_file]
        kept = self.tree.manifest.files - len(files)
        there = set(files[: max(count - kept - 1, 0)])
        write = tuple(entry for entry in delta.write if entry not in there)
        return Start(base, (), write)

    def _best(self, node: Node, earlier: Sequence[str]) -> Start:
        """From the tree on that host that has the most of this one."""
        best = Start("none", (), self.tree.manifest.entries)
        least = self.tree.manifest.size
        for digest in earlier[:CANDIDATES]:
            delta = self._delta(node, digest)
            if delta is not None and delta.size < least:
                least = delta.size
                best = Start(digest, delta.remove, delta.write)
        return best

    def _delta(self, node: Node, earlier: str) -> Delta | None:
        """Worked out once for all hosts. None when nobody knows what that tree holds."""
        with self.turn:
            if earlier not in self.deltas:
                old = manifest.make(()) if earlier == "none" else remembered(earlier)
                if old is not None:
                    self.deltas[earlier] = self.tree.manifest.after(old)
            if earlier in self.deltas:
                return self.deltas[earlier]
        there = fetched(node, earlier)
        return None if there is None else self.tree.manifest.after(there)

    def _send(self, start: Start, nodes: Sequence[Node]) -> None:
        extra = self._manifest_file(start)
        size = tarstream.size(start.write, prefix=b"tree/", extra=extra)
        parcel = Parcel(
            what=self.what,
            argv=("sh", "-c", RECEIVE, "sh", *self.names, start.base),
            size=size,
            chunks=partial(self._stream, start, extra),
            finish=partial(self._publish, start),
        )
        failed = self.sender.send(parcel, nodes)
        for node, error in failed.items():
            self.failures[node] = error
            if not isinstance(error, HostUnreachable):
                self._abandon(node)

    def _stream(self, start: Start, extra: dict[bytes, bytes]) -> Iterator[bytes]:
        return tarstream.stream(self.tree, start.write, prefix=b"tree/", extra=extra)

    def _manifest_file(self, start: Start) -> dict[bytes, bytes]:
        """Goes along for machines that push to this host next, where it does not weigh much."""
        packed = zlib.compress(self.tree.manifest.text, 1)
        small = len(packed) * 10 <= sum(entry.size for entry in start.write)
        return {MANIFEST: packed} if small or len(packed) < 65536 else {}

    def _publish(self, start: Start, node: Node) -> None:
        self._script(node, PUBLISH)
        sent = sum(1 for entry in start.write if entry.is_file)
        report = self.journey.hosts[node]
        report.files_sent += sent
        report.files_skipped += self.tree.manifest.files - sent
        self.journey.ready(node)

    def _abandon(self, node: Node) -> None:
        """What cannot be gone on with is taken away: it may be what fills the disk."""
        try:
            self._script(node, ABANDON)
        except DdpctlError:
            pass


def save(tree: Manifest) -> None:
    """Remembered here, so that the next push knows what a host has without asking it."""
    file = cache_home() / "manifests" / tree.digest
    if not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{tree.digest}.{secrets.token_hex(4)}")
            draft.write_bytes(tree.text)
            draft.replace(file)
        except OSError:
            pass


def remembered(digest: str) -> Manifest | None:
    try:
        return manifest.parse((cache_home() / "manifests" / digest).read_bytes(), digest)
    except OSError:
        return None


def fetched(node: Node, digest: str) -> Manifest | None:
    """The manifest of a tree from the host that has it; it proves itself by its digest."""
    done = node.script('cat "$HOME/.ddpctl/manifests/$1"', digest, timeout=60.0)
    try:
        found = manifest.parse(zlib.decompress(done.stdout), digest)
    except zlib.error:
        return None
    if found is not None:
        save(found)
    return found
