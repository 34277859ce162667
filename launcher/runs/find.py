"""Find the run that the user refers to, in this machine's records or on the hosts."""

import dataclasses
import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from ..engines.choose import nodes_on
from ..engines.claims import without_idle_tickets
from ..engines.status import NodeStatus
from ..errors import DdpctlError, NodesFailed, UsageError
from ..hosts import Cluster, is_host_list, load
from ..hosts.load import Source
from ..run_id import is_run_id, is_sanity_run, time_of
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import ask_each, one_per_account, try_each
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..text import counted, names, quoted
from .adopt import adopt, caught_up
from .run_folder import RunFolder, run_folder, run_folders, unended_records

RUN_IDS = load_script(__file__, "run_ids.sh")


def names_hosts(text: str | None) -> bool:
    """Return whether `text` names hosts (a hosts file or a list of hosts) rather than a run."""
    if text is None:
        return False
    is_file = os.path.isfile(text)  # noqa: PTH113 # False for a name that is too long
    return is_file or text.endswith((".yaml", ".yml")) or is_host_list(text)


def run_and_hosts(target: str | None, hosts: str | None) -> tuple[str | None, str | None]:
    """Return the run and the hosts that RUN-or-HOSTS and --hosts name, each None if not given.

    Raises UsageError if both arguments name hosts.
    """
    if target is None or not names_hosts(target):
        return target, hosts
    if hosts is not None:
        what = f"hosts given twice, as {quoted(target)} and {quoted(hosts)}"
        raise UsageError(what, "pass one of them")
    return None, target


def hosts_to_ask(source: Source, console: Console) -> Cluster:
    """Return the hosts that may have nodes of runs. Includes spares, because a run may use one.

    A spare that does not answer is left out, and named in a message, unless a live run of this
    machine's records uses it.
    """
    cluster = load(source, job_files=False)
    if not cluster.spares:
        return cluster
    with connected(cluster.spares) as spares, console.step("connecting to the spares"):
        _, failures = try_each(spares, lambda connection: connection.connect())
    used = {host for run in unended_records(console) for host in run.hosts} if failures else ()
    left_out = [connection for connection in failures if connection.name not in used]
    if left_out:
        console.say(f"spares that do not answer are left out: {names(n.name for n in left_out)}")
    hosts = (*cluster.hosts, *(each.host for each in spares if each not in left_out))
    return dataclasses.replace(cluster, hosts=hosts, spares=())


def find(target: str | None, hosts: str | None, console: Console) -> RunFolder:
    """Return the run that `target` names by its id, by a unique prefix of the id, or by its hosts.

    Hosts mean their newest run; None means the newest run recorded on this machine. With `hosts`,
    looks for the run on those hosts, and writes or updates this machine's record of it. Raises
    UsageError or NodesFailed if the run cannot be found.
    """
    target, hosts = run_and_hosts(target, hosts)
    if hosts is None:
        return find_recorded(target)
    cluster = hosts_to_ask(hosts, console)
    step = f"asking {counted(cluster.nnodes, 'host')} about their runs"
    with connected(cluster.hosts) as connections, console.step(step):
        folder = run_folder(find_id(connections, cluster, target))
        if not folder.is_recorded:
            for status in list_nodes(connections, cluster, folder.run_id)[0]:
                if status.waits:
                    owner = f" (owner: {status.owner})" if status.owner else ""
                    what = f"{folder.run_id}{owner} is waiting in line"
                    remedy = f"run `ddpctl ps {hosts}` to see what it is waiting for"
                    raise UsageError(f"{what} and has nothing to show yet", remedy)
            adopt(folder, connections, cluster, console)
        elif record := folder.load_if_readable(console):
            caught_up(folder, record, connections, cluster, console)
    return folder


def find_recorded(text: str | None) -> RunFolder:
    """Return the recorded run with this id or unique prefix; for None, the newest non-sanity run.

    Raises UsageError if there is no such run.
    """
    folders = {folder.run_id: folder for folder in run_folders()}
    if text is not None:
        run_id = unique_match(text, folders)
        what = f"this machine has no record of run {quoted(text)}"
        remedy = "run `ddpctl ps --all` to list its runs, or add `--hosts HOSTS` to look there"
    else:
        run_id = next((each for each in folders if not is_sanity_run(each)), None)
        what = "this machine has no record of any run"
        remedy = "name the run's hosts file, as in `ddpctl attach hosts.yaml`"
    if run_id is None:
        raise UsageError(what, remedy)
    return folders[run_id]


def unique_match(text: str, run_ids: Collection[str]) -> str | None:
    """Return the id that equals `text`, or else the only id that starts with it, or else None.

    Raises UsageError if several ids start with it.
    """
    if text in run_ids:
        return text
    matching = [run_id for run_id in run_ids if text and run_id.startswith(text)]
    if len(matching) > 1:
        listed = ", ".join(matching[:5])
        raise UsageError(f"{quoted(text)} matches several runs ({listed})", "type more of the id")
    return matching[0] if matching else None


def find_id(connections: Sequence[HostConnection], cluster: Cluster, prefix: str | None) -> str:
    """Return the id of the hosts' run whose id starts with `prefix`.

    Without a prefix, return the id of the newest live run or, if none is live, of the newest run.
    Runs of other accounts count only if this account has none. Killed runs are found by their
    folders. Raises UsageError if there is no such run, or if only one host lists the newest run and
    the others list an older one. Raises NodesFailed if no run was found but some hosts did not
    answer.
    """
    statuses, failures = list_nodes(connections, cluster)
    runs = runs_by_host(connections, statuses, prefix)
    which, remedy = "", "start one with `ddpctl launch`"
    if prefix:
        run_id = unique_match(prefix, sorted(set().union(*runs.values())))
        which, remedy = f" {quoted(prefix)}", "run `ddpctl ps HOSTS --all` to list their runs"
    else:
        run_id = newest_run(runs.values())
        where = [host for host in runs if run_id in runs[host]]
        others = newest_run(there for host, there in runs.items() if host not in where)
        if run_id and others and len(where) == 1 and not run_folder(run_id).is_recorded:
            what = f"the newest run is {run_id}, but only {where[0]} lists it"
            elsewhere = f"and {others} is the newest on the other hosts"
            remedy = "name the run that you mean"
            raise UsageError(f"{cluster.source}: {what}, {elsewhere}", remedy)
    if run_id is None:
        answered = [
            connection.name for connection in connections if connection.name not in failures
        ]
        no_run = UsageError(f"{cluster.source}: no run{which} on {names(answered)}", remedy)
        if failures:
            raise NodesFailed(failures, *([no_run] if answered else []))
        raise no_run
    return run_id


def runs_by_host(
    connections: Sequence[HostConnection], statuses: Iterable[NodeStatus], prefix: str | None
) -> dict[str, dict[str, bool]]:
    """Return each host's run ids, from its folders and nodes, and whether the run is alive there.

    Without a prefix, leaves out runs that have nodes but no folder. They belong to other accounts,
    unless this account has no run at all.
    """
    arguments = [prefix] if prefix else []
    machines = one_per_account(connections)
    listed, _ = ask_each(machines, lambda connection: connection.script(RUN_IDS, *arguments).stdout)
    runs: dict[str, dict[str, bool]] = {}
    for host, text in listed.items():
        words = text.decode(errors="replace").split()
        runs[host] = dict.fromkeys(filter(is_run_id, words), False)
    own = set().union(*runs.values())
    for status in statuses:
        if own and not (prefix or status.waits or status.run_id in own):
            continue
        there = runs.setdefault(status.host, {})
        there[status.run_id] = status.alive or there.get(status.run_id, False)
    return runs


def newest_run(runs: Iterable[Mapping[str, bool]]) -> str | None:
    """Return the id of the newest live run or else of the newest run; None if there are no runs.

    Sanity runs do not count. runs: for each host, its run ids and whether each is alive there.
    """
    alive: dict[str, bool] = {}
    for there in runs:
        alive |= {run_id: alive.get(run_id, False) or lives for run_id, lives in there.items()}
    own = [run_id for run_id in alive if not is_sanity_run(run_id)]
    return max(own, key=lambda run_id: (alive[run_id], time_of(run_id)), default=None)


def list_nodes(
    connections: Sequence[HostConnection], cluster: Cluster, run_id: str | None = None
) -> tuple[list[NodeStatus], dict[str, DdpctlError]]:
    """Return the nodes that the hosts' engines list, and the errors of hosts that did not answer.

    Leaves out the tickets of live nodes. run_id: None for all runs, with fewer fields; see
    `Engine.details`.
    """
    machines, engine = one_per_account(connections), cluster.job.engine
    listed, failures = ask_each(machines, lambda connection: nodes_on(connection, engine, run_id))
    statuses = (status for each in listed.values() for status in each)
    return without_idle_tickets(s for s in statuses if is_run_id(s.run_id)), failures
