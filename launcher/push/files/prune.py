"""Find pushed datasets and code on the hosts that no run uses any more, and remove them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich.filesize import decimal

from ...engines.choose import every_engine
from ...errors import PushFailed
from ...facts.shared_homes import find_shared_homes
from ...hosts import Cluster
from ...ssh.many import one_per_account, try_each
from ...ssh.node import Node
from ...ssh.script_files import load_script
from ...terminal.console import Console
from ...text import counted
from ..push_progress import HostsNotReady, PushReport
from ..transfer.payload import script_output
from .scan import scan_job

TIMEOUT = 600.0  # seconds; measuring or removing a large tree is slow
MIN_AGE = 5  # seconds; a container may be about to mount a tree that was just pushed

USED = load_script(__file__, "used_trees.sh")
FIND = load_script(__file__, "unused_trees.sh")
REMOVE = load_script(__file__, "remove_trees.sh")

# A line of FIND's output: a tree or draft of ours, and its size in KB. Hosts are not trusted.
FOUND = re.compile(
    r"^((?:datasets|workdirs)/(?:[0-9a-f]{64}|\.[0-9a-z]+\.[0-9a-z-]+)) ([0-9]{1,18})$",
    re.MULTILINE,
)


class Unused(NamedTuple):
    folder: str  # relative to ~/.ddpctl
    size: int  # bytes; includes files shared with other trees


@dataclass(frozen=True)
class PruneResult:
    """The trees that no run uses, each with its host's name. removed: whether they were removed."""

    trees: list[tuple[str, Unused]]
    removed: bool

    def summary(self) -> str:
        if not self.trees:
            return "nothing to delete: runs or this hosts file use all data and code on the hosts"
        size = decimal(sum(tree.size for _, tree in self.trees))
        return (
            f"{'deleted' if self.removed else 'kept'} {counted(len(self.trees), 'folder')}, {size}"
        )

    def document(self) -> dict[str, Any]:
        rows = [
            {"host": host, "folder": f"~/.ddpctl/{tree.folder}", "bytes": tree.size}
            for host, tree in self.trees
        ]
        return {"version": 1, "removed": self.removed, "unused": rows}


def prune(
    nodes: Sequence[Node], cluster: Cluster, confirm: Callable[[str], bool], console: Console
) -> PruneResult:
    """Remove the trees that neither a run nor this hosts file uses, if `confirm` accepts the list.

    Raises HostsNotReady with each host that failed. If it is unknown which trees a host uses, nothing
    is removed there, nor on hosts that share its ~/.ddpctl.
    """
    try:
        trees = scan_job(cluster.job, {"dataset", "workdir"})
    except OSError as error:
        raise PushFailed(
            f"cannot read the job's folders: {error}; nothing was deleted",
            "make them readable",
            host="this machine",
        ) from None

    def run(node: Node, script: str, *arguments: str) -> str:
        return script_output(node, "prune", script, *arguments, timeout=TIMEOUT)

    def in_use(node: Node) -> set[str]:
        """Return the digests of trees that containers and open attempts use on a host."""
        name = cluster.job.engine
        engines = [e for e in every_engine(node) if e.traits.name == name or e.is_installed()]
        mounts = [path for engine in engines for path in engine.mounted()]
        return set(re.findall(r"\b[0-9a-f]{64}\b", "\n".join([*mounts, run(node, USED)])))

    machines = one_per_account(nodes)
    with console.step(f"looking for unused data on {counted(len(machines), 'host')}"):
        homes = find_shared_homes(machines)
        used, failures = try_each(machines, in_use)
        keep = {tree.manifest.digest for tree in trees.values()}.union(*used.values())
        known = [group[0] for group in homes if not failures.keys() & set(group)]
        find = (FIND, str(MIN_AGE), *keep)
        found, unasked = try_each(known, lambda node: parse_unused(run(node, *find)))
    failures |= unasked
    rows = [(node.name, tree) for node, unused in found.items() for tree in unused]
    listed = "\n".join(
        f"{host}: ~/.ddpctl/{tree.folder}  {decimal(tree.size)}" for host, tree in rows
    )
    removed = bool(rows) and confirm(listed)
    if removed:
        with console.step("deleting unused data"):
            targets = [node for node, unused in found.items() if unused]
            _, left = try_each(
                targets, lambda node: run(node, REMOVE, *(tree.folder for tree in found[node]))
            )
            failures |= left
    if failures:
        raise HostsNotReady(failures, PushReport([]))
    return PruneResult(rows, removed)


def parse_unused(text: str) -> list[Unused]:
    """Parse FIND's output. Ignore malformed lines."""
    return [Unused(folder, int(size) * 1024) for folder, size in FOUND.findall(text)]
