"""Find the runs that `kill` is to stop, and the hosts that may have nodes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.choose import engines_on
from ..engines.status import UNSTARTED, NodeStatus
from ..errors import HostsFileError, NodesFailed, StopUnconfirmed, UsageError
from ..hosts import Cluster, load
from ..run_id import time_of
from ..runs.find import find_id, find_run, hosts_to_ask, list_nodes, names_hosts
from ..runs.record import RunFolder
from ..ssh.local import account_name
from ..ssh.many import by_name, one_per_account, try_each
from ..ssh.node import Node
from ..terminal.console import Console
from ..text import counted, names


@dataclass(frozen=True)
class Target:
    """What the user asks to stop, and on which hosts.

    folder: the run, if this machine has it. prefix: the start of its id, as the user typed it.
    everything: all of this user's runs on the hosts instead.
    """

    cluster: Cluster
    folder: RunFolder | None
    prefix: str | None
    everything: bool


@dataclass(frozen=True)
class HostedRun:
    """A run, and the hosts that may have nodes of it. owners: users besides this one who own nodes."""

    run_id: str
    nodes: Sequence[Node]
    owners: Sequence[str] = ()


def read_target(
    target: str | None, hosts: str | None, console: Console, *, everything: bool = False
) -> Target:
    """Read the arguments RUN-or-HOSTS and --hosts of `kill`.

    The hosts are those that the user names, or else those of a run of this machine.
    """
    prefix = None if names_hosts(target) else target
    if file := hosts if prefix else target or hosts:
        return Target(hosts_to_ask(file, console), None, prefix, everything)
    folder = find_run(prefix)
    try:
        return Target(load(folder.hosts_file, job_files=False), folder, prefix, everything)
    except HostsFileError as error:
        remedy = f"name the run's hosts: `ddpctl kill {folder.run_id} --hosts HOSTS`"
        raise UsageError(error.what, remedy) from None


def choose_runs(nodes: Sequence[Node], target: Target, console: Console) -> list[HostedRun]:
    """Return the runs to stop on these hosts: the one that is meant, or this user's."""
    folder, prefix = target.folder, target.prefix
    if target.everything or not (folder or prefix):
        return own_runs(nodes, target.cluster, console, everything=target.everything)
    if folder and (not prefix or launched_here(folder, console)):
        return [HostedRun(folder.run_id, nodes)]
    with console.step(f"asking {counted(len(nodes), 'host')} for the run"):
        run_id = folder.run_id if folder else find_id(nodes, target.cluster, prefix)
        statuses, _ = list_nodes(nodes, target.cluster, run_id)
    others = {s.owner for s in statuses if s.run_id == run_id and s.user != account_name()}
    return [HostedRun(run_id, nodes, sorted(others))]


def launched_here(folder: RunFolder, console: Console) -> bool:
    record = folder.load_if_readable(console)
    return record is not None and not record.adopted


def own_runs(
    nodes: Sequence[Node], cluster: Cluster, console: Console, *, everything: bool
) -> list[HostedRun]:
    """Return this user's runs, each with the hosts that show it, and those that may have it.

    If not `everything`, return at most one run, the newest finished one if none is live. Raises
    UsageError if several are live.
    """
    machines = one_per_account(nodes)

    def ask(node: Node) -> tuple[list[NodeStatus], list[str]]:
        listed = [each.list_all() for each in engines_on(node, cluster.job.engine)]
        own = [s for statuses, _ in listed for s in statuses if s.user == account_name()]
        return own, [name for _, unreadable in listed for name in unreadable]

    with console.step(f"asking {counted(len(nodes), 'host')} for their runs"):
        answers, failures = try_each(machines, ask)
    own = [status for statuses, _ in answers.values() for status in statuses]
    # the launch of a node that was created but not started may have died
    live = [s for s in own if s.alive or s.state in UNSTARTED]
    run_ids = sorted({s.run_id for s in live})
    if not run_ids and not everything:
        run_ids = sorted({s.run_id for s in own}, key=time_of)[-1:]
    if not run_ids:
        unknown = {
            node: StopUnconfirmed(
                f"cannot read the labels of {names(unreadable)}",
                "remove them there if they are not in use",
            )
            for node, (_, unreadable) in answers.items()
            if unreadable
        }
        if failed := by_name(machines, {**failures, **unknown}):
            raise NodesFailed(failed)
    if len(run_ids) > 1 and not everything:
        what = f"several live runs on these hosts: {', '.join(run_ids)}"
        raise UsageError(what, "name one of them, or pass --all")

    def may_have(node: Node, run_id: str) -> bool:
        return node in failures or run_id in {s.run_id for s in answers[node][0]}

    return [HostedRun(each, [n for n in machines if may_have(n, each)]) for each in run_ids]
