"""List the runs on the hosts for `ps`, with their nodes, GPUs and progress."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..engines.choose import engine_of
from ..engines.claims import goes_first, rivals
from ..engines.status import UNSTARTED, ContainerState, NodeStatus
from ..errors import DdpctlError
from ..facts.nvidia import USE, GpuUse, parse_use
from ..follow.slow_ranks import slow_nodes
from ..follow.trainer_progress import Progress, read_progress
from ..hosts import Cluster
from ..logs.event_reader import parsed_event
from ..outcomes import RunState, run_state
from ..plan.plan import STORE, place_in, run_dir_in
from ..runs.find import list_nodes
from ..runs.record import parse_timestamp
from ..runs.reported import agreed_attempt, ended_nodes
from ..runs.run_folder import unended_records
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each, one_per_account
from ..supervisor.events import Usage
from ..terminal.console import Console
from ..text import names
from .ps_gpus import GpuRow, joined, short_time

TIMEOUT = 60.0  # seconds; without persistence mode, nvidia-smi is slow to start
Connected = Sequence[tuple[Cluster, Sequence[HostConnection]]]


@dataclass(frozen=True)
class ListedRun:
    """The nodes of one run. waits_for: ids of the runs that get its GPUs first.

    slow: why nodes hold up the run, by node rank. progress: None unless the run is live and writes metrics.
    recorded: whether this is from this machine's record, because no host of the run answered.
    """

    nodes: Sequence[NodeStatus]
    waits_for: Sequence[str]
    slow: Mapping[int, str] = field(default_factory=dict)
    progress: Progress | None = None
    recorded: bool = False

    @property
    def run_id(self) -> str:
        return self.nodes[0].run_id

    @property
    def is_live(self) -> bool:
        return any(node.alive or node.waits for node in self.nodes)

    @property
    def state(self) -> RunState:
        if self.recorded:
            return RunState.UNKNOWN
        return run_state([node.node_state for node in self.nodes], self.nodes[0].nnodes)

    def document(self) -> dict[str, Any]:
        of_run = ("run_id", "name", "nnodes", "owner")
        rows = [asdict(node) for node in self.nodes]
        return {key: rows[0][key] for key in (*of_run, "attempt")} | {
            "nodes": [
                {k: v for k, v in row.items() if k not in of_run}
                | {"slow": self.slow.get(row["node_rank"], "")}
                for row in rows
            ],
            "state": self.state,
            "waits_for": self.waits_for,
        }

    def row(self) -> list[str]:
        first, state = self.nodes[0], self.state
        words = str(state)
        since = min((node.started for node in self.nodes if node.started), default=None)
        if state is RunState.WAITING:
            since = first.since
            ahead = ", ".join(self.waits_for)
            has_run = first.attempt > 1 or any(node.has_ended for node in self.nodes)
            again = "restart" if has_run else "start"
            words = f"{state} for {ahead}" if ahead else f"{state} to {again}"
        if state is not RunState.RUNNING:
            since = max((node.ended for node in self.nodes if node.ended), default=since)
        # two hosts files may name one machine differently, and then each name lists its nodes
        alive = len({node.node_rank for node in self.nodes if node.alive})
        return [
            first.run_id,
            words,
            str(first.attempt),
            f"{alive}/{first.nnodes}" if state is RunState.RUNNING else str(first.nnodes),
            first.owner,
            short_time(since),
            self.progress.brief if self.progress else "-",
            names(dict.fromkeys(node.host for node in self.nodes)),
        ]

    def node_rows(self) -> list[list[str]]:
        """Return a row per node, with nodes in an unusual state first."""
        states = [self.slow.get(node.node_rank, node.state) for node in self.nodes]
        usual = max(states, key=states.count)
        rows = sorted(zip(self.nodes, states, strict=True), key=lambda row: row[1] == usual)
        return [
            [
                node.run_id,
                str(node.attempt),
                f"{node.node_rank}/{node.nnodes}",
                node.host,
                state,
                "-" if node.exit_code is None else str(node.exit_code),
                node.owner,
                short_time(node.ended or node.started or (node.since if node.waits else None)),
            ]
            for node, state in rows
        ]


@dataclass(frozen=True)
class Listing:
    """The hosts' answers. failures: the errors of hosts that did not answer a question.

    unlisted: the hosts that did not list their nodes.
    """

    hosts: Sequence[str]
    runs: Sequence[ListedRun]
    failures: Mapping[str, DdpctlError]
    gpus: Sequence[GpuRow]
    unlisted: Collection[str]


def list_runs(clusters: Connected, *, finished: bool, slow: bool = False) -> Listing:
    """Return the hosts' runs and GPUs, and the progress of live runs.

    finished: include finished runs. slow: also find the nodes that hold up their run.
    """
    statuses, failures, unlisted = _nodes_of_runs(clusters, finished=finished)
    all_connections = [each for _, connections in clusters for each in connections]
    machines = one_per_account(all_connections)
    with_gpus = {each.host.account for each in all_connections if each.host.gpus != 0}
    answering = [connection for connection in machines if connection.name not in failures]
    progress: dict[str, Progress] = {}
    usages: dict[str, dict[int, Usage]] = {}  # by run id and node rank

    def ask(connection: HostConnection) -> tuple[GpuUse, ...]:
        for status in statuses:
            if not status.alive or status.host != connection.name:
                continue
            run, run_dir = status.run_id, run_dir_in(STORE, status.run_id)
            rank, attempt = status.node_rank, status.attempt
            if rank == 0 and (newest := read_progress(connection, run_dir, attempt, TIMEOUT)):
                progress[run] = newest
            if slow:
                control_dir = place_in(run_dir, run, rank, attempt).control_dir
                newest_usage = connection.run(["cat", f"{control_dir}/usage.json"], timeout=TIMEOUT)
                usage = parsed_event(newest_usage.stdout)
                if isinstance(usage, Usage):  # otherwise its supervisor has not written one yet
                    usages.setdefault(run, {})[rank] = usage
        if connection.host.account not in with_gpus:
            return ()
        return parse_use(connection.script(USE, timeout=TIMEOUT).stdout.decode(errors="replace"))

    gpus, odd = ask_each(answering, ask)
    hosts = list(dict.fromkeys(connection.name for connection in all_connections))
    runs = []
    for run in runs_of(statuses):
        if finished or run.is_live:
            own = progress.get(run.run_id)
            slow_ones = slow_nodes(own.slow if own else {}, usages.get(run.run_id, {}))
            runs.append(replace(run, slow=slow_ones, progress=own))
    return Listing(hosts, runs, failures | odd, joined(gpus, statuses), unlisted)


def _nodes_of_runs(
    clusters: Connected, *, finished: bool
) -> tuple[Collection[NodeStatus], dict[str, DdpctlError], set[str]]:
    """Return each node once, the errors of hosts that did not answer, and who did not list nodes.

    finished: include nodes of finished runs, even if only their folders are left, as after `kill`.
    """
    by_handle: dict[tuple[str, str], NodeStatus] = {}
    failures: dict[str, DdpctlError] = {}
    listed = [list_nodes(connections, cluster) for cluster, connections in clusters]
    of_all = [status for statuses, _ in listed for status in statuses]
    shown = {s.run_id for s in of_all if finished or s.alive or s.state in UNSTARTED}
    for (cluster, connections), (all_nodes, failed) in zip(clusters, listed, strict=True):
        own = [status for status in all_nodes if status.run_id in shown]
        statuses, odd = _with_details(own, cluster, connections)
        failures |= failed | odd
        by_handle |= {(status.host, status.handle): status for status in statuses}
        containers = {(s.run_id, s.node_rank, s.attempt): s for s in statuses}
        for status in ended_nodes(connections) if finished else ():
            container = containers.get((status.run_id, status.node_rank, status.attempt))
            if container is None:
                by_handle.setdefault((status.host, status.handle), status)
            elif status.state is ContainerState.CANCELLED and not container.alive:
                # the container only shows that it was stopped
                by_handle[container.host, container.handle] = replace(container, state=status.state)
    return by_handle.values(), failures, {host for _, failed in listed for host in failed}


def _with_details(
    statuses: Sequence[NodeStatus], cluster: Cluster, connections: Sequence[HostConnection]
) -> tuple[list[NodeStatus], dict[str, DdpctlError]]:
    """Return the statuses with all fields, and the errors of hosts that did not answer.

    The statuses of these hosts are returned as they are.
    """
    by_host: dict[str, list[NodeStatus]] = {}
    for status in statuses:
        by_host.setdefault(status.host, []).append(status)

    def ask(connection: HostConnection) -> Sequence[NodeStatus]:
        return engine_of(connection, cluster.job.engine).details(by_host[connection.name])

    machines = [each for each in one_per_account(connections) if each.name in by_host]
    answers, failures = ask_each(machines, ask)
    return [status for own in {**by_host, **answers}.values() for status in own], failures


def recorded_runs(listing: Listing, console: Console) -> Iterator[ListedRun]:
    """Yield the live runs in this machine's records none of whose hosts listed its nodes."""
    listed = {run.run_id for run in listing.runs}
    for record in unended_records(console) if listing.unlisted else ():
        if record.run_id in listed:
            continue
        attempt = record.attempt
        nodes = [
            NodeStatus(
                attempt.number,
                node.node_rank,
                node.host,
                run_id=record.run_id,
                name=record.name,
                nnodes=len(attempt.nodes),
                owner=record.owner,
                started=parse_timestamp(attempt.started),
            )
            for node in attempt.nodes
        ]
        if nodes and all(node.host in listing.unlisted for node in nodes):
            yield ListedRun(nodes, (), recorded=True)


def runs_of(statuses: Collection[NodeStatus]) -> list[ListedRun]:
    """Group the nodes by run, newest run first. Leave out the ended nodes of earlier attempts."""
    by_run: dict[str, list[NodeStatus]] = {}
    for status in sorted(statuses, key=lambda s: (s.run_id, s.node_rank)):
        by_run.setdefault(status.run_id, []).append(status)
    runs = []
    for run_id, listed in by_run.items():
        by_attempt = sorted(listed, key=lambda status: status.attempt)
        agreed = agreed_attempt({node.host: node.attempt for node in by_attempt}.values())
        nodes = [n for n in listed if n.attempt >= agreed or not n.has_ended]
        ahead = {
            rival.run_id
            for node in nodes
            if node.waits
            for rival in rivals(run_id, node.resources, statuses)
            if rival.host == node.host and goes_first(rival, (node.since, run_id))
        }
        runs.append(ListedRun(nodes, sorted(ahead)))
    return sorted(runs, key=lambda run: -max(n.started or n.ended or n.since for n in run.nodes))
