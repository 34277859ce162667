"""Remove all traces of ddpctl from the hosts: list, remove, list again.

The traces are `~/.ddpctl` of the account in the hosts file, and containers with our label that
mount a part of it. Hosts with a run that is live or may start are left alone. Images in an engine
stay, because other programs may use them. If several hosts share one ~/.ddpctl, only one of them
cleans it, and only if no other host may have a live run in it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.filesize import decimal

from ..engines.choose import installed_engines
from ..engines.status import NodeStatus
from ..errors import CommandFailed, DdpctlError, DockerUnavailable
from ..facts.shared_homes import one_per_home
from ..hosts import Cluster
from ..outcomes import Exit
from ..run_id import is_run_id
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import by_name, one_per_account, try_each, unique_names
from ..ssh.script_files import load_script
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..text import counted
from .choose_runs import HostedRun
from .inventory import TIMEOUT, Inventory, sizes_of, take_inventory
from .kill import cancel_starts, kill_runs, wholly_asked
from .stopped_run import StoppedRun

# ~/.ddpctl may be a link to another disk, and hosts may share the link but not the disk. So all
# hosts empty their folders before any host removes the link.
EMPTY = load_script(__file__, "empty_store.sh")
REMOVE = load_script(__file__, "remove_store.sh")


@dataclass(frozen=True)
class Traces:
    """ddpctl's traces on one host. parts: sizes in bytes, by run or other entry of ~/.ddpctl."""

    inventory: Inventory
    parts: Mapping[str, int]
    nodes: Sequence[NodeStatus]  # those that use a part of the folder, and tickets

    @property
    def none(self) -> bool:
        return not self.parts and not self.nodes

    @property
    def runs(self) -> set[str]:
        """The ids of all runs that have files, nodes or tickets on the host."""
        named = {part.split("/", 1)[1] for part in self.parts if part.startswith("runs/")}
        return named | {status.run_id for status in self.nodes}

    @property
    def live_runs(self) -> set[str]:
        working = {process.run_id for process in self.inventory.processes} & self.runs
        return working | {s.run_id for s in self.nodes if s.alive or s.may_start}

    def with_tickets_of(self, run_ids: Collection[str]) -> "Traces":
        nodes = [s for s in self.nodes if not s.is_ticket or s.run_id in run_ids]
        return replace(self, nodes=nodes)

    @property
    def containers(self) -> list[NodeStatus]:
        return [status for status in self.nodes if not status.is_process]

    def document(self, host: str, *, clean: bool) -> dict[str, Any]:
        return {
            "host": host,
            "containers": [status.handle for status in self.containers],
            "folder": self.inventory.folder,
            "parts": [{"name": part, "bytes": size} for part, size in self.parts.items()],
            "alive": sorted(self.live_runs),
            "clean": clean,
        }

    def lines(self) -> list[str]:
        host, folder = self.inventory.host, self.inventory.folder
        return [
            *(f"{host}  container  {s.handle}  {s.state}" for s in self.containers),
            *(f"{host}  {folder}/{part}  {decimal(n)}" for part, n in self.parts.items()),
        ]


def clean(
    cluster: Cluster, console: Console, *, kill: bool, as_json: bool, confirm: Callable[[str], bool]
) -> Exit:
    """List all traces, and remove them if `confirm` agrees.

    Return UNCONFIRMED if some may be left after a removal, UNREACHABLE if nothing was removed and a
    host did not answer, and DONE otherwise. kill: also stop live runs. confirm: called with the
    totals after the listing; returns whether to remove what was listed.
    """
    with connected(cluster.hosts) as connections:
        machines = one_per_account(connections)
        with console.step(f"looking for traces on {counted(len(machines), 'host')}"):
            leaders = one_per_home(connections)
            look_on = partial(look, leaders=leaders, cluster=cluster)
            traces, failures = look_on(machines)
        kept = {} if kill else may_be_live(traces.values())
        to_remove = {n: t for n, t in traces.items() if not t.none and not t.runs & kept.keys()}
        if not as_json:
            for each in to_remove.values():
                for line in each.lines():
                    console.print(line)
            for connection, each in traces.items():
                for run_id in sorted(each.runs & kept.keys()):
                    console.say(f"{connection.name}: not cleaned: {run_id} {kept[run_id]}")
        removed = bool(to_remove) and confirm(total(to_remove.values()))
        after, killed = traces, list[StoppedRun]()
        if removed:
            with console.step(f"looking again on {counted(len(to_remove), 'host')}"):
                now, _ = look_on([*to_remove], sizes=False)
                to_remove = without_new_runs(to_remove, now, console)
            with console.step(f"removing traces from {counted(len(to_remove), 'host')}"):
                killed = kill_live_runs(to_remove, traces, cluster, console)
                report_errors(by_name(machines, remove(to_remove, leaders, cluster)), console)
                after, failures = look_on(machines)
    errors = by_name(machines, failures)
    report_errors(errors, console)
    unclean = not all(each.none for each in after.values())
    if as_json:
        rows = [
            traces[connection].document(host, clean=connection in after and after[connection].none)
            for connection, host in unique_names(machines).items()
            if connection in traces
        ]
        console.json({"version": 1, "removed": removed, "hosts": rows, "unseen": unseen(errors)})
    elif removed:
        for connection, each in after.items():
            items = f"{counted(len(each.lines()), 'item')} still there"
            console.say(f"{connection.name}: {'clean' if each.none else items}")
    elif not unclean and not failures:
        console.say("no traces of ddpctl on these hosts")
    if removed:
        unconfirmed = failures or unclean or any(each.unconfirmed for each in killed)
        return Exit.UNCONFIRMED if unconfirmed else Exit.DONE
    return Exit.UNREACHABLE if failures else Exit.DONE


def total(traces: Collection[Traces]) -> str:
    """Return the totals as text, such as `7 items, 1.2 GB, on 2 hosts`."""
    items = counted(sum(len(each.lines()) for each in traces), "item")
    size = decimal(sum(sum(each.parts.values()) for each in traces))
    return f"{items}, {size}, on {counted(len(traces), 'host')}"


def look(
    connections: Sequence[HostConnection],
    leaders: Collection[HostConnection],
    cluster: Cluster,
    *,
    sizes: bool = True,
) -> tuple[dict[HostConnection, Traces], dict[HostConnection, DdpctlError]]:
    """Return the traces of the hosts that answer, and the errors of the others.

    leaders, sizes: see `look_at`.
    """
    found, failures = try_each(connections, lambda each: look_at(each, leaders, cluster, sizes))
    # other accounts' runs wait on these hosts too; with a shared home, one host has all the files
    own = set().union(*(each.with_tickets_of(()).runs for each in found.values()))
    return {connection: each.with_tickets_of(own) for connection, each in found.items()}, failures


def look_at(
    connection: HostConnection,
    leaders: Collection[HostConnection],
    cluster: Cluster,
    sizes: bool,
) -> Traces:
    """Return a host's traces, with the tickets of all accounts.

    leaders: the hosts that look into ~/.ddpctl, one for each shared folder. sizes: whether to
    measure the parts, which is slow if they are large. Raises CommandFailed if the host has no home
    folder, and DockerUnavailable if the job's engine does not answer.
    """
    inventory = take_inventory(connection, folder=connection in leaders)
    if not inventory.folder:
        what = "cannot find the account's home folder"
        remedy = "give the account a home folder in that host's /etc/passwd"
        raise CommandFailed(what, remedy, host=connection.name)
    # all entries but `runs` itself and the pushed trees
    names = [n for n in inventory.ages if n.startswith("runs/") or ("/" not in n and n != "runs")]
    measured = sizes_of(connection, names) if names and sizes else {}
    nodes: list[NodeStatus] = []
    for engine in installed_engines(connection, cluster.job.engine):
        try:
            nodes += engine.using(inventory.folder)
        except DockerUnavailable:
            # without the job's engine, the state of its runs is unknown
            if engine.traits.name == cluster.job.engine:
                raise
    return Traces(inventory, {name: measured.get(name, 0) for name in names}, nodes)


def without_new_runs(
    listed: Mapping[HostConnection, Traces], now: Mapping[HostConnection, Traces], console: Console
) -> dict[HostConnection, Traces]:
    """Return `listed` without the hosts that have a new run `now`, or have not answered again.

    Print the new runs.
    """
    new = {
        run_id
        for connection, each in now.items()
        for run_id in (each.runs - listed[connection].runs)
        | (each.live_runs - listed[connection].live_runs)
    }
    for connection, each in now.items():
        for run_id in sorted(each.runs & new):
            console.say(
                f"{connection.name}: not cleaned: {run_id} has started since you saw the list"
            )
    return {
        connection: listed[connection] for connection, each in now.items() if not each.runs & new
    }


def may_be_live(traces: Collection[Traces]) -> dict[str, str]:
    """Return the ids of the runs that keep their hosts from being cleaned, each with the reason."""
    checked = {each.inventory.hostname for each in traces}
    elsewhere = "may be alive on {}, which was not checked; pass --kill to clean this host anyway"
    unsure = {
        attempt.run_id: elsewhere.format(attempt.host)
        for each in traces
        for attempt in each.inventory.open_attempts
        if attempt.host not in checked and is_run_id(attempt.run_id)
    }
    sure = "is running or about to start; stop it with `ddpctl kill {}`, or clean with --kill"
    live = {run_id: sure.format(run_id) for each in traces for run_id in each.live_runs}
    return {**unsure, **live}


def kill_live_runs(
    to_remove: Mapping[HostConnection, Traces],
    answered: Collection[HostConnection],
    cluster: Cluster,
    console: Console,
) -> list[StoppedRun]:
    """Stop the live runs, each only on hosts that themselves list it. Return the results."""

    def hosted(run_id: str) -> HostedRun:
        there = [
            connection for connection in to_remove if run_id in to_remove[connection].live_runs
        ]
        owners = {
            s.owner
            for connection in there
            for s in to_remove[connection].nodes
            if s.run_id == run_id
        }
        others = [connection for connection in answered if connection not in there]
        return HostedRun(run_id, there, others, sorted(owners))

    live = sorted(set().union(*(each.live_runs for each in to_remove.values())))
    runs = [*map(hosted, live)]
    cancel_starts(wholly_asked(runs, console), console)
    return kill_runs(runs, cluster.job, console)


def remove(
    to_remove: Mapping[HostConnection, Traces],
    leaders: Collection[HostConnection],
    cluster: Cluster,
) -> dict[HostConnection, DdpctlError]:
    """Remove the containers and folders. Return the errors of the hosts on which that failed."""

    def do(script: str, connection: HostConnection) -> None:
        if (done := connection.script(script, timeout=TIMEOUT)).code != 0:
            remedy = "ask the owner of these files, or root, to remove them"
            raise CommandFailed(done.reason, remedy, host=connection.name)

    def empty(connection: HostConnection) -> None:
        if containers := to_remove[connection].containers:
            for engine in installed_engines(connection, cluster.job.engine):
                for status in containers if engine.traits.keeps_containers else ():
                    engine.remove(status)
        if connection in leaders:
            do(EMPTY, connection)

    _, failures = try_each([*to_remove], empty)
    emptied = [
        connection
        for connection in to_remove
        if connection in leaders and connection not in failures
    ]
    return failures | try_each(emptied, partial(do, REMOVE))[1]
