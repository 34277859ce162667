"""`kill`: stop runs on all their hosts, say what was stopped, and record it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engines.choose import engine_traits, engines_on
from ..engines.status import UNSTARTED, NodeStatus
from ..errors import (
    CommandFailed,
    DdpctlError,
    HostsFileError,
    NodesFailed,
    StopUnconfirmed,
    UsageError,
)
from ..hosts import Cluster, load
from ..outcomes import Exit, RunState
from ..run_id import time_of
from ..runs.find import find_id, find_run, hosts_to_ask, list_nodes, names_hosts
from ..runs.record import RunFolder, RunRecord, UnreadableRecord, run_folder, run_folders, timestamp
from ..ssh.local import account_name
from ..ssh.many import ask_each, by_name, one_per_account, try_each
from ..ssh.node import Node, connected
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, report_unconfirmed, unseen
from ..text import counted, names
from .stop_run import Stop, Stopped

STOP_TIMEOUT = 60  # seconds between SIGTERM and SIGKILL for a run without a record


def kill(
    target: str | None,
    hosts: str | None,
    console: Console,
    *,
    everything: bool,
    as_json: bool,
    confirm: Callable[[str], bool],
) -> Exit:
    """Stop runs on all their hosts. Return 6 if a host did not confirm that nothing is left, else 0.

    everything: all of this user's runs on the hosts, and remove the containers of finished ones.
    confirm: asked if the user names no run.
    """
    cluster, folder = hosts_and_run(target, hosts, console)
    if everything and not confirm("Stop all your runs on these hosts?"):
        return Exit.INTERRUPTED
    if not everything and folder and target is None and not confirm(f"Stop run {folder.run_id}?"):
        return Exit.INTERRUPTED
    named = None if everything or names_hosts(target) else target  # a run id or its prefix
    with connected(cluster.hosts) as nodes:
        try:
            chosen = choose_runs(nodes, cluster, folder, named, console, everything=everything)
        except NodesFailed as error:
            if as_json:
                console.json({"version": 1, "runs": [], "unseen": unseen(error.failures)})
            raise
        if chosen.owners and not confirm(chosen.question):
            return Exit.INTERRUPTED
        killed = [
            kill_run(on, cluster, run_id, console, owners=chosen.owners, asked=nodes)
            for run_id, on in chosen.hosts.items()
        ]
        if everything and engine_traits(cluster.job.engine).keeps_containers:
            remove_finished(nodes, cluster, console)
    if as_json:
        console.json({"version": 1, "runs": [run.document() for run in killed], "unseen": []})
    elif not killed:
        console.say(f"you have no live run on {names(host.name for host in cluster.hosts)}")
    return Exit.UNCONFIRMED if any(run.unconfirmed for run in killed) else Exit.DONE


def kill_run(
    nodes: Sequence[Node],
    cluster: Cluster,
    run_id: str,
    console: Console,
    *,
    owners: Collection[str] = (),
    asked: Collection[Node] = (),
    finishing: bool = False,
) -> Killed:
    """Stop one run on these hosts at once, say what was stopped, and record it.

    owners: see `Stop`. asked: other hosts that do not have the run. finishing: complete an earlier
    stop: a failed run may still restart, and the caller says which hosts did not answer.
    """
    folder = run_folder(run_id)
    record = folder.load_if_readable(console)
    machines = one_per_account(nodes)
    timeout = record.stop_timeout if record else STOP_TIMEOUT
    with console.step(f"stopping {run_id} on {names(node.name for node in machines)}"):
        owners = [*owners, record.owner if record else ""]
        about_to_restart = finishing and record is not None and record.state is RunState.FAILED
        stop = Stop(run_id, cluster.job.engine, timeout, owners, cancel=not about_to_restart)
        stopped, failures = stop.on_all(machines)
    killed = Killed(run_id, machines, stopped, failures)
    killed.report(console, silent_hosts=not finishing)
    if record := folder.load_if_readable(console):  # it may have a new attempt by now
        killed.note_in(record, {node.name for node in (*nodes, *asked)})
        folder.try_save(record, console)
    return killed


@dataclass(frozen=True)
class Chosen:
    """The runs to stop, each with the hosts that may have it.

    owners: the other users who own nodes of the run. A run of this machine or of this user has none.
    """

    hosts: Mapping[str, Sequence[Node]]
    owners: Sequence[str] = ()

    @property
    def question(self) -> str:
        return f"Stop run {', '.join(self.hosts)} of {', '.join(self.owners)}?"


def choose_runs(
    nodes: Sequence[Node],
    cluster: Cluster,
    folder: RunFolder | None,
    named: str | None,
    console: Console,
    *,
    everything: bool,
) -> Chosen:
    """Return this machine's run, or else the run that is `named`, or else this user's runs there."""
    if folder and not everything and (not named or launched_here(folder, console)):
        return Chosen({folder.run_id: nodes})
    if named:
        return run_from_elsewhere(nodes, cluster, named, folder, console)
    return Chosen(own_runs(nodes, cluster, console, everything=everything))


@dataclass(frozen=True)
class Killed:
    """What a stop of one run did on its machines, or why that is unknown."""

    run_id: str
    machines: Sequence[Node]
    stopped: Mapping[Node, Stopped]
    failures: Mapping[Node, DdpctlError]

    @property
    def unconfirmed(self) -> list[str]:
        """The names of the hosts that may still run something."""
        unclean = [node for node, result in self.stopped.items() if not result.clean]
        return sorted({node.name for node in (*self.failures, *unclean)})

    def report(self, console: Console, *, silent_hosts: bool) -> None:
        results = by_name(self.machines, self.stopped)
        for host, result in results.items():
            if result.nodes or not result.clean:
                console.detail(f"{host}: {result.describe()}")
        if silent_hosts:
            report_unconfirmed(by_name(self.machines, self.failures), console)
        if results:
            console.say(self.summary())

    def summary(self) -> str:
        results = by_name(self.machines, self.stopped)
        unclean = [f"{host}: {r.describe()}" for host, r in results.items() if not r.clean]
        statuses = [status for result in results.values() for status in result.nodes]
        what = "nothing to stop"
        if statuses:
            alive = any(status.alive or status.waits for status in statuses)
            what = f"{'stopped' if alive else 'had ended; removed'}, nothing left"
        parts = unclean or [f"{what} on {names(results)}"]
        if others := [host for host, result in results.items() if result.others]:
            owners = {status.owner for result in results.values() for status in result.others}
            theirs = ", ".join(sorted(owners)) or "an unknown user"
            parts.append(f"left alone on {names(others)}: nodes of {theirs}")
        return f"run {self.run_id}: {'; '.join(parts)}"

    def note_in(self, record: RunRecord, asked: Collection[str]) -> None:
        """Record the end of the run, or the hosts on which it must still be confirmed."""
        elsewhere = {*record.pending_stop} - {*asked}
        record.pending_stop = sorted({*self.unconfirmed, *elsewhere})
        everywhere = {*record.hosts} <= {*asked}
        settled = record.state is RunState.UNKNOWN and not record.pending_stop
        if (everywhere and not record.state.is_final) or settled:
            record.attempt.state, record.attempt.ended = RunState.CANCELLED, timestamp()

    def document(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "confirmed": not self.unconfirmed,
            "hosts": [
                {
                    "host": host,
                    "stopped": len(result.nodes),
                    "left": [each.removeprefix("pid ") for each in result.remaining],
                    "clean": result.clean,
                    "left_alone": sorted({status.owner for status in result.others}),
                }
                for host, result in by_name(self.machines, self.stopped).items()
            ],
            "unseen": unseen(by_name(self.machines, self.failures)),
        }


def finish_pending(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Complete stops that run.json lists as unconfirmed on these hosts."""
    for folder in run_folders():
        if folder.is_settled():
            continue
        try:
            record = folder.load()
        except UnreadableRecord:
            continue  # the command that needs this record reports it
        if here := [node for node in nodes if node.name in record.pending_stop]:
            kill_run(here, cluster, folder.run_id, console, finishing=True)


def hosts_and_run(
    target: str | None, hosts: str | None, console: Console
) -> tuple[Cluster, RunFolder | None]:
    """Return the hosts that the user names, or else those of a run of this machine, with that run."""
    if file := target if names_hosts(target) else hosts:
        return hosts_to_ask(file, console), None
    folder = find_run(target)
    try:
        return load(folder.hosts_file, job_files=False), folder
    except HostsFileError as error:
        remedy = f"name the run's hosts: `ddpctl kill {folder.run_id} --hosts HOSTS`"
        raise UsageError(error.what, remedy) from None


def launched_here(folder: RunFolder, console: Console) -> bool:
    record = folder.load_if_readable(console)
    return record is not None and not record.adopted


def run_from_elsewhere(
    nodes: Sequence[Node], cluster: Cluster, name: str, folder: RunFolder | None, console: Console
) -> Chosen:
    """Return a run that this machine did not launch, and the other users who own it."""
    with console.step(f"asking {counted(len(nodes), 'host')} for the run"):
        run_id = folder.run_id if folder else find_id(nodes, cluster, name)
        statuses, _ = list_nodes(nodes, cluster, run_id)
    theirs = {s.owner for s in statuses if s.run_id == run_id and s.user != account_name()}
    return Chosen({run_id: nodes}, sorted(theirs))


def own_runs(
    nodes: Sequence[Node], cluster: Cluster, console: Console, *, everything: bool
) -> dict[str, list[Node]]:
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

    return {run_id: [n for n in machines if may_have(n, run_id)] for run_id in run_ids}


def remove_finished(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Remove the containers of this user's finished runs, but not their folders. Prints how many."""

    def remove(node: Node) -> set[str]:
        run_ids = set()
        for engine in engines_on(node, cluster.job.engine):
            for status in engine.list() if engine.traits.keeps_containers else ():
                if status.user == account_name() and status.has_ended:
                    engine.remove(status)
                    run_ids.add(status.run_id)
        return run_ids

    with console.step("removing the containers of finished runs"):
        removed, failures = ask_each(one_per_account(nodes), remove)
    if run_ids := set().union(*removed.values()):
        count = counted(len(run_ids), "finished run")
        console.say(f"removed the containers of {count}; `ddpctl fetch` still finds the files")
    what = "containers of finished runs may be left"
    errors = {h: CommandFailed(f"{what}: {e.what}", e.remedy) for h, e in failures.items()}
    report_errors(errors, console)
