"""`push --prune`: remove pushed datasets, code, packages and image files that no run uses."""

import re
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rich.filesize import decimal

from ..engines.choose import engine_traits, installed_engines
from ..errors import PushFailed
from ..facts.shared_homes import find_shared_homes
from ..hosts import Cluster
from ..push.files.scan import scan_job
from ..push.image.sif import converted_file
from ..push.packages.wheels import collected
from ..push.push import ALL, Part
from ..push.push_report import HostsNotReady, without_spares
from ..push.transfer.payload import script_output, without
from ..ssh.host_connection import HostConnection
from ..ssh.many import one_per_account, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import counted, duration
from .inventory import TIMEOUT, Inventory, sizes_of, take_inventory

REMOVE = load_script(__file__, "remove_trees.sh")
MIN_AGE = 600  # seconds; a launch may be about to use a tree that it has just pushed or found
TREE = re.compile(  # matches the names of trees and drafts
    r"(?:datasets|workdirs|wheels|venvs|images)/(?:[0-9a-f]{64}|\.[0-9a-z]+\.[0-9a-z-]+)"
)
PARTS: dict[str, Part] = {"datasets": "dataset", "workdirs": "workdir"}  # others: "image"
DIGEST = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class UnusedTree:
    host: str
    name: str  # its path in ~/.ddpctl
    size: int  # bytes; includes files shared with other trees


@dataclass(frozen=True)
class PruneResult:
    """The trees that are not in use. removed: whether they were removed.

    complete: whether no host failed; otherwise, there may be more such trees.
    """

    trees: Sequence[UnusedTree]
    removed: bool
    complete: bool

    def summary(self) -> str:
        if not self.trees:
            if not self.complete:
                return "nothing deleted"
            return (
                "nothing to delete: everything there is used by a run or by this hosts file, or was "
                f"pushed in the last {duration(MIN_AGE)}"
            )
        return f"{'deleted' if self.removed else 'kept'} {total(self.trees)}"

    def document(self) -> dict[str, Any]:
        folders = ((t.host, f"~/.ddpctl/{t.name}", t.size) for t in self.trees)
        rows = [{"host": host, "folder": path, "bytes": size} for host, path, size in folders]
        return {"version": 1, "removed": self.removed, "unused": rows}


def prune_unused(
    connections: Sequence[HostConnection],
    cluster: Cluster,
    confirm: Callable[[str, str], bool],
    console: Console,
    spares: Sequence[HostConnection] = (),
    parts: Set[Part] = ALL,
) -> PruneResult:
    """Remove the trees of these parts that neither a run nor this hosts file uses.

    If it is unknown which trees a host uses, nothing is removed from that host or from hosts that
    share its ~/.ddpctl. confirm: called with a list of the trees and their total size; returns
    whether to remove them. spares: more hosts; the failure of a spare is only a warning. Raises
    HostsNotReady if another host failed, and PushFailed if the job's folders are unreadable.
    """
    try:
        own = {tree.manifest.digest for tree in scan_job(cluster, {"dataset", "workdir"}).values()}
        own |= collected(cluster.job)
        if engine_traits(cluster.job.engine).image_files:
            own |= converted_file(cluster.job.image)
    except OSError as error:
        what = f"cannot read the job's folders: {error}; nothing was deleted"
        raise PushFailed(what, "make the folders readable", host="this machine") from None

    def look(connection: HostConnection) -> tuple[Inventory, set[str]]:
        """Return a host's inventory, and the digests of the trees that its runs use."""
        inventory = take_inventory(connection, folder=True)
        engines = installed_engines(connection, cluster.job.engine)
        mounts = "\n".join(path for engine in engines for path in engine.mounted())
        used = set(DIGEST.findall(mounts))
        return inventory, used.union(*(each.digests for each in inventory.open_attempts))

    machines = one_per_account([*connections, *spares])
    with console.step(f"looking for unused data on {counted(len(machines), 'host')}"):
        homes = find_shared_homes(machines)
        looks, failures = try_each(machines, look)
        names = {
            home[0]: unused_trees(looks[home[0]][0], own.union(*(looks[n][1] for n in home)), parts)
            for home in homes
            if not failures.keys() & set(home)
        }
        sizes, unmeasured = try_each(
            [*names], lambda connection: sizes_of(connection, names[connection])
        )
    failures |= unmeasured
    trees = {
        connection: [
            UnusedTree(connection.name, name, sizes[connection].get(name, 0))
            for name in names[connection]
        ]
        for connection in sizes
        if names[connection]
    }
    all_trees = [*chain(*trees.values())]
    listed = "\n".join(f"{t.host}: ~/.ddpctl/{t.name}  {decimal(t.size)}" for t in all_trees)
    removed = bool(trees) and confirm(listed, total(all_trees))
    if removed:

        def remove(connection: HostConnection) -> None:
            rows = "".join(f"{name}\n" for name in names[connection]).encode()
            newest = str(looks[connection][0].time - MIN_AGE)
            script_output(connection, "prune", REMOVE, newest, stdin=rows, timeout=TIMEOUT)

        with console.step("deleting unused data"):
            failures |= try_each([*trees], remove)[1]
    done = [tree for connection in without(trees, failures) for tree in trees[connection]]
    result = PruneResult(done, removed, complete=not failures)
    if failures := without_spares(failures, spares, console):
        raise HostsNotReady(failures, result)
    return result


def total(trees: Sequence[UnusedTree]) -> str:
    return f"{counted(len(trees), 'folder')}, {decimal(sum(tree.size for tree in trees))}"


def unused_trees(inventory: Inventory, keep: Collection[str], parts: Set[Part] = ALL) -> list[str]:
    """Return the names of the removable trees and drafts. keep: the digests of trees to keep."""
    return [
        name
        for name, age in inventory.ages.items()
        if TREE.fullmatch(name)
        and PARTS.get(name.partition("/")[0], "image") in parts
        and age >= MIN_AGE
        and name not in inventory.busy
        and name.partition("/")[2] not in keep
    ]
