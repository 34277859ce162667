"""Find the runs that `kill` should stop, and the hosts that may have nodes of these runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.choose import engines_on
from ..engines.status import UNSTARTED, NodeStatus
from ..errors import HostsFileError, NodesFailed, StopUnconfirmed, UsageError
from ..hosts import Cluster, load
from ..run_id import time_of
from ..runs.find import find_id, find_run, hosts_to_ask, list_nodes, run_and_hosts
from ..runs.record import RunFolder
from ..ssh.host_connection import HostConnection
from ..ssh.local import account_name
from ..ssh.many import by_name, one_per_account, try_each
from ..terminal.console import Console
from ..text import counted, names


@dataclass(frozen=True)
class KnownRun:
    """A run recorded on this machine. typed: its id or the start of it; None if none was typed."""

    cluster: Cluster
    folder: RunFolder
    typed: str | None


@dataclass(frozen=True)
class NamedRun:
    """A run on these hosts. typed: its id or the start of it, as the user typed it."""

    cluster: Cluster
    typed: str


@dataclass(frozen=True)
class OwnRuns:
    """This user's only live run on these hosts; if none is live, their newest ended run there.

    everything: all of the user's live runs instead.
    """

    cluster: Cluster
    everything: bool


Target = KnownRun | NamedRun | OwnRuns


@dataclass(frozen=True)
class HostedRun:
    """A run, and the hosts that may have it.

    asked: all hosts that were asked about the run, including `connections`. owners: the other users
    whose nodes are to be stopped.
    """

    run_id: str
    connections: Sequence[HostConnection]
    asked: Sequence[HostConnection]
    owners: Sequence[str] = ()


def read_target(
    run_or_hosts: str | None, hosts: str | None, console: Console, *, everything: bool = False
) -> Target:
    """Return the target that `kill` is to stop, from its arguments RUN-or-HOSTS and --hosts.

    Without hosts, the hosts are those of the run, which must be recorded on this machine.
    """
    run, hosts = run_and_hosts(run_or_hosts, hosts)
    if hosts is None:
        folder = find_run(run)
        cluster = hosts_of(folder)
        return OwnRuns(cluster, True) if everything else KnownRun(cluster, folder, run)
    cluster = hosts_to_ask(hosts, console)
    if run and not everything:
        return NamedRun(cluster, run)
    return OwnRuns(cluster, everything)


def hosts_of(folder: RunFolder) -> Cluster:
    try:
        return load(folder.hosts_file, job_files=False)
    except HostsFileError as error:
        remedy = f"name the run's hosts: `ddpctl kill {folder.run_id} --hosts HOSTS`"
        raise UsageError(error.what, remedy) from None


def choose_runs(
    connections: Sequence[HostConnection], target: Target, console: Console
) -> list[HostedRun]:
    """Return the runs that the target refers to, each with the hosts that may have it."""
    cluster = target.cluster
    match target:
        case OwnRuns(everything=everything):
            return own_runs(connections, cluster, console, everything=everything)
        case NamedRun(typed=typed):
            with console.step(f"asking {counted(len(connections), 'host')} about the run"):
                run_id = find_id(connections, cluster, typed)
            return [with_owners(run_id, connections, cluster, console)]
        case KnownRun(folder=folder):
            record = folder.load_if_readable(console)
            if record and not record.adopted:  # launched here, by this user
                return [HostedRun(folder.run_id, connections, asked=connections)]
            return [with_owners(folder.run_id, connections, cluster, console)]


def with_owners(
    run_id: str, connections: Sequence[HostConnection], cluster: Cluster, console: Console
) -> HostedRun:
    """Return the run with its hosts and the other users who own nodes of it there."""
    with console.step(f"asking {counted(len(connections), 'host')} who owns the run"):
        statuses, _ = list_nodes(connections, cluster, run_id)
    owners = {status.owner for status in statuses if status.user != account_name()}
    return HostedRun(run_id, connections, asked=connections, owners=sorted(owners))


def own_runs(
    connections: Sequence[HostConnection], cluster: Cluster, console: Console, *, everything: bool
) -> list[HostedRun]:
    """Return this user's runs, each with the hosts that list it and those that did not answer.

    With `everything`, return the live ones. Otherwise return at most one: the live one or, if none
    is live, the newest ended one; raises UsageError if several are live. Raises NodesFailed if no
    run was found but a host did not answer or has nodes with unreadable labels.
    """
    machines = one_per_account(connections)

    def ask(connection: HostConnection) -> tuple[list[NodeStatus], list[str]]:
        listings = [each.listing() for each in engines_on(connection, cluster.job.engine)]
        own = [s for each in listings for s in each.nodes if s.user == account_name()]
        return own, [name for each in listings for name in each.unreadable]

    with console.step(f"asking {counted(len(connections), 'host')} about their runs"):
        answers, failures = try_each(machines, ask)
    own = [status for statuses, _ in answers.values() for status in statuses]
    # a node may have been created by a launch that died before starting it
    live = [s for s in own if s.alive or s.state in UNSTARTED]
    run_ids = sorted({s.run_id for s in live})
    if not run_ids and not everything:
        run_ids = sorted({s.run_id for s in own}, key=time_of)[-1:]
    if not run_ids:
        unknown = {
            connection: StopUnconfirmed(
                f"cannot read the labels of {names(unreadable)}",
                "if these nodes are not in use, remove them from that host",
            )
            for connection, (_, unreadable) in answers.items()
            if unreadable
        }
        if failed := by_name(machines, {**failures, **unknown}):
            raise NodesFailed(failed)
    if len(run_ids) > 1 and not everything:
        what = f"several live runs on these hosts: {', '.join(run_ids)}"
        raise UsageError(what, "name one of them, or pass --all")

    def may_have(connection: HostConnection, run_id: str) -> bool:
        return connection in failures or run_id in {s.run_id for s in answers[connection][0]}

    return [
        HostedRun(each, [m for m in machines if may_have(m, each)], connections) for each in run_ids
    ]
