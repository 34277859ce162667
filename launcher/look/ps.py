"""The `ps` command: ask the hosts for their runs and GPUs, and print tables, once or repeatedly."""

import contextlib
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..engines.claims import goes_first, rivals
from ..engines.status import ContainerState, NodeStatus
from ..errors import DdpctlError, HostsFileError, NodesFailed
from ..facts.nvidia import USE, GpuUse, parse_use
from ..follow.trainer_progress import Progress, read_progress
from ..hosts import Cluster, load
from ..outcomes import Exit, RunState, run_state
from ..plan.plan import STORE, run_dir_in
from ..runs.find import list_nodes
from ..runs.record import run_folders, timestamp
from ..runs.reported import ended_nodes
from ..ssh.many import ask_each, one_per_account
from ..ssh.node import Node, connected
from ..stop.kill import finish_pending
from ..terminal import live
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, unseen
from ..terminal.table import table
from ..text import names
from .gpu_use import GPU_HEAD, GpuRow, document, folded, joined, summary

RUN_HEAD = ["RUN", "STATE", "ATTEMPT", "NODES", "OWNER", "SINCE", "PROGRESS", "HOSTS"]
NODE_HEAD = ["RUN", "ATTEMPT", "NODE", "HOST", "STATE", "EXIT", "OWNER", "SINCE"]
DROPPED = ("ATTEMPT", "OWNER", "SINCE", "NODES", "EXIT", "MEMORY")  # least important first
TIMEOUT = 60.0  # seconds; nvidia-smi is slow to start without persistence mode
DEFAULT_HOSTS = Path("hosts.yaml")
Connected = Sequence[tuple[Cluster, Sequence[Node]]]


@dataclass(frozen=True)
class Selection:
    hosts: str | Sequence[str] | None  # a hosts file or list; None: see `clusters`
    everything: bool  # finished runs too
    per_node: bool  # a row per node instead of a row per run

    def clusters(self, console: Console) -> list[Cluster]:
        """Return the clusters to query: that of `hosts` or, if None, several.

        Those are the clusters of ./hosts.yaml and of this machine's live runs, or of all its runs
        with `everything`. Warns about a file or record that cannot be read.
        """
        if self.hosts is not None:
            return [load(self.hosts, job_files=False)]
        files = [DEFAULT_HOSTS] if DEFAULT_HOSTS.exists() else []
        for folder in run_folders():
            record = folder.load_if_readable(console)
            if self.everything or record is None or not record.state.is_final:
                files.append(folder.hosts_file)
        clusters: dict[object, Cluster] = {}
        for file in files:
            try:
                cluster = load(file, job_files=False)
            except HostsFileError as error:
                console.say(f"warning: {error}")
                continue
            accounts = frozenset(host.account for host in cluster.hosts)
            clusters.setdefault((accounts, cluster.job.engine), cluster)
        return list(clusters.values())

    @contextlib.contextmanager
    def connected(self, console: Console) -> Iterator[Connected]:
        with contextlib.ExitStack() as stack:
            clusters = self.clusters(console)
            yield [(each, stack.enter_context(connected(each.hosts))) for each in clusters]


@dataclass(frozen=True)
class Run:
    """The nodes of one run. waits_for: ids of the runs ahead of it in line."""

    nodes: Sequence[NodeStatus]
    waits_for: Sequence[str]

    @property
    def is_live(self) -> bool:
        return any(node.alive or node.waits for node in self.nodes)

    @property
    def state(self) -> RunState:
        return run_state([node.node_state for node in self.nodes], self.nodes[0].nnodes)

    def document(self) -> dict[str, Any]:
        of_run = ("run_id", "name", "nnodes", "owner")
        rows = [asdict(node) for node in self.nodes]
        return {key: rows[0][key] for key in (*of_run, "attempt")} | {
            "nodes": [{k: v for k, v in row.items() if k not in of_run} for row in rows],
            "state": self.state,
            "waits_for": self.waits_for,
        }

    def row(self, progress: Progress | None) -> list[str]:
        first, state = self.nodes[0], self.state
        shown = str(state)
        since = min((node.started for node in self.nodes if node.started), default=None)
        if state is RunState.WAITING:
            since = first.since
            ahead = ", ".join(self.waits_for)
            shown = f"{state} for {ahead}" if ahead else f"{state} to start"
        if state is not RunState.RUNNING:
            since = max((node.ended for node in self.nodes if node.ended), default=since)
        alive = sum(node.alive for node in self.nodes)
        return [
            first.run_id,
            shown,
            str(first.attempt),
            f"{alive}/{first.nnodes}" if state is RunState.RUNNING else str(first.nnodes),
            first.owner,
            _time(since),
            progress.brief if progress else "-",
            names(dict.fromkeys(node.host for node in self.nodes)),
        ]

    def node_rows(self) -> list[list[str]]:
        """Return a row per node, those in an unusual state first."""
        states = [node.state for node in self.nodes]
        usual = max(states, key=states.count)
        return [
            [
                node.run_id,
                str(node.attempt),
                f"{node.node_rank}/{node.nnodes}",
                node.host,
                node.state,
                "-" if node.exit_code is None else str(node.exit_code),
                node.owner,
                _time(node.ended or node.started or (node.since if node.waits else None)),
            ]
            for node in sorted(self.nodes, key=lambda node: node.state == usual)
        ]


@dataclass(frozen=True)
class Seen:
    """Answers of the hosts. failures: of silent hosts. progress: of live runs, by run id."""

    selection: Selection
    hosts: Sequence[str]
    runs: Sequence[Run]
    failures: Mapping[str, DdpctlError]
    gpus: Sequence[GpuRow]
    progress: Mapping[str, Progress]

    def tables(self, columns: float = math.inf) -> list[str]:
        """Return the tables of runs, if any, and of GPUs. columns: width of the terminal."""
        found = []
        if self.runs and self.selection.per_node:
            rows = [row for run in self.runs for row in run.node_rows()]
            found.append(fitting(rows, NODE_HEAD, columns))
        elif self.runs:
            rows = [run.row(self.progress.get(run.nodes[0].run_id)) for run in self.runs]
            found.append(fitting(rows, RUN_HEAD, columns))
        if self.gpus:
            rows = [[*cells, _time(since)] for cells, since in folded(self.gpus)]
            found.append(f"{summary(self.gpus)}\n{fitting(rows, GPU_HEAD, columns)}")
        return found

    def nothing(self) -> str:
        """Return what to say if there is no run: only about hosts that answered."""
        if not self.hosts:
            return (
                "this machine has no record of a live run, and there is no ./hosts.yaml; "
                "`ddpctl ps HOSTS` asks the hosts in a hosts file"
            )
        answered = [host for host in self.hosts if host not in self.failures]
        if not answered:
            return ""  # nothing is known
        if self.selection.everything:
            return f"no run on {names(answered)}"
        return f"no live run on {names(answered)}; --all shows finished runs too"


def look(clusters: Connected, selection: Selection, console: Console) -> Seen:
    """Complete pending stops, then query runs, then the GPUs and the progress of live runs."""
    found: dict[tuple[str, str], NodeStatus] = {}
    failures: dict[str, DdpctlError] = {}
    for cluster, nodes in clusters:
        finish_pending(nodes, cluster, console)
        statuses, failed = list_nodes(nodes, cluster)
        failures |= failed
        found |= {(status.host, status.handle): status for status in statuses}
        # including runs that left only folders, such as killed ones
        known = {(s.run_id, s.node_rank, s.attempt): s for s in statuses}
        for status in ended_nodes(nodes) if selection.everything else ():
            container = known.get((status.run_id, status.node_rank, status.attempt))
            if container is None:
                found.setdefault((status.host, status.handle), status)
            elif status.state is ContainerState.CANCELLED and not container.alive:
                # the container only shows that it was stopped
                found[container.host, container.handle] = replace(container, state=status.state)
    machines = one_per_account(node for _, nodes in clusters for node in nodes)
    progress: dict[str, Progress] = {}

    def ask(node: Node) -> tuple[GpuUse, ...]:
        for status in found.values():
            if status.alive and status.node_rank == 0 and status.host == node.name:
                run_dir = run_dir_in(STORE, status.run_id)
                if newest := read_progress(node, run_dir, status.attempt, TIMEOUT):
                    progress[status.run_id] = newest
        if node.host.gpus == 0:
            return ()
        return parse_use(node.script(USE, timeout=TIMEOUT).stdout.decode(errors="replace"))

    gpus, _ = ask_each([node for node in machines if node.name not in failures], ask)
    hosts = list(dict.fromkeys(node.name for _, nodes in clusters for node in nodes))
    runs = [run for run in runs_of(found.values()) if selection.everything or run.is_live]
    return Seen(selection, hosts, runs, failures, joined(gpus, found.values()), progress)


def runs_of(statuses: Collection[NodeStatus]) -> list[Run]:
    """Group the nodes by run, newest run first."""
    by_run: dict[str, list[NodeStatus]] = {}
    for status in sorted(statuses, key=lambda s: (s.run_id, s.node_rank)):
        by_run.setdefault(status.run_id, []).append(status)
    runs = []
    for run_id, nodes in by_run.items():
        ahead = {
            rival.run_id
            for node in nodes
            if node.waits
            for rival in rivals(run_id, node.resources, statuses)
            if rival.host == node.host and goes_first(rival, (node.since, run_id))
        }
        runs.append(Run(nodes, sorted(ahead)))
    return sorted(runs, key=lambda run: -max(n.started or n.ended or n.since for n in run.nodes))


def fitting(rows: Sequence[Sequence[str]], head: Sequence[str], columns: float) -> str:
    """Format a table. Drop the least important columns until it fits into `columns` characters."""
    text = table(rows, head)
    for name in DROPPED:
        if name in head and max(map(len, text.splitlines())) >= columns:
            at = head.index(name)
            head, *rows = ([*row[:at], *row[at + 1 :]] for row in (head, *rows))
            text = table(rows, head)
    return text


def show_runs(selection: Selection, console: Console, *, as_json: bool) -> Exit:
    """Print the tables. Return 0, or 4 if a host did not answer."""
    with (
        selection.connected(console) as clusters,
        console.step(f"asking {sum(len(nodes) for _, nodes in clusters)} hosts"),
    ):
        seen = look(clusters, selection, console)
    report_errors(seen.failures, console)
    if as_json:
        console.json(
            {
                "version": 1,
                "runs": [run.document() for run in seen.runs],
                "unseen": unseen(seen.failures),
                "gpus": document(seen.gpus),
            }
        )
    else:
        if not seen.runs and (nothing := seen.nothing()):
            console.say(nothing)
        if tables := seen.tables():
            console.print("\n\n".join(tables))
    return Exit.UNREACHABLE if seen.failures else Exit.DONE


def watch_runs(selection: Selection, console: Console, interval: float) -> None:
    """Ask the hosts every `interval` seconds until Ctrl-C, and print tables.

    Redraws them on a terminal. Elsewhere, prints them whenever they have changed.
    """
    text = ""
    seen: Seen | None = None

    def shown(columns: float = math.inf) -> str:
        if seen is None:
            return ""
        parts = [str(NodesFailed(seen.failures))] if seen.failures else []
        if not seen.runs:
            parts.append(seen.nothing())
        return "\n\n".join(filter(None, [*parts, *seen.tables(columns)]))

    def render(columns: int, rows: int) -> list[str]:
        return live.fitted(f"{timestamp()[:19]}Z\n{shown(columns)}", columns, rows)

    display = live.Live(render, share=0.9)
    on_terminal = live.wanted(plain=False, quiet=console.quiet)
    try:
        with (
            selection.connected(console) as clusters,
            console.live(display) if on_terminal else contextlib.nullcontext(),
        ):
            while True:
                seen = look(clusters, selection, console)
                before, text = text, shown()
                if on_terminal:
                    display.draw()
                elif text != before:
                    console.print(text + "\n")
                time.sleep(interval)
    except KeyboardInterrupt:
        if on_terminal:
            console.print(text)  # keep the newest table on the screen


def _time(seconds: float | None) -> str:
    """Format unix seconds as 11-22T10:34Z; `-` if unknown."""
    return timestamp(seconds)[5:16] + "Z" if seconds else "-"
