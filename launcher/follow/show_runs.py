"""Print the `ps` table, once or repeatedly."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engines.status import NodeStatus
from ..errors import DdpctlError
from ..facts.gpu_use import SCRIPT, GpuUse, parse
from ..hosts.fold import names
from ..runs.gpus import HEAD as GPU_HEAD
from ..runs.gpus import GpuRow, folded, joined, summary
from ..runs.gpus import document as gpu_document
from ..runs.record import timestamp
from ..runs.status import (
    Connected,
    all_connected,
    by_run,
    clusters_to_ask,
    document,
    list_runs,
    run_state,
    waits_for,
)
from ..runs.unseen import report_unseen
from ..ssh.many import ask_each, one_per_account
from ..ssh.node import Node
from ..stop.stop import finish_pending
from ..terminal import live
from ..terminal.console import Console, table
from .progress import PROGRESS, Progress, parse_progress

RUN_HEAD = ["RUN", "STATE", "ATTEMPT", "NODES", "OWNER", "SINCE", "PROGRESS", "HOSTS"]
NODE_HEAD = ["RUN", "ATTEMPT", "NODE", "HOST", "STATE", "EXIT", "OWNER", "SINCE"]
DROPPED = ("ATTEMPT", "OWNER", "SINCE", "NODES", "EXIT", "MEMORY")  # least important first
EXIT_UNSEEN = 4
TIMEOUT = 60.0  # seconds; nvidia-smi is slow to start without persistence mode


@dataclass(frozen=True)
class Seen:
    """Answers of the hosts. failures: hosts that did not answer. progress: live runs, by id."""

    statuses: list[NodeStatus]
    failures: Mapping[str, DdpctlError]
    gpus: list[GpuRow]
    progress: Mapping[str, Progress]


def look(clusters: Connected, *, everything: bool) -> Seen:
    """Query runs, then the GPUs and the progress of live runs."""
    statuses, failures = list_runs(clusters, everything=everything)
    nodes = one_per_account(node for _, nodes in clusters for node in nodes)
    progress: dict[str, Progress] = {}

    def ask(node: Node) -> tuple[GpuUse, ...]:
        for status in statuses:
            if status.alive and status.node_rank == 0 and status.host == node.name:
                done = node.script(
                    PROGRESS, f".ddpctl/runs/{status.run_id}/output", timeout=TIMEOUT
                )
                if found := parse_progress(done.stdout, status.attempt):
                    progress[status.run_id] = found
        if node.host.gpus == 0:
            return ()
        return parse(node.script(SCRIPT, timeout=TIMEOUT).stdout.decode(errors="replace"))

    found, _ = ask_each([node for node in nodes if node.name not in failures], ask)
    return Seen(statuses, failures, joined(found, statuses), progress)


@dataclass(frozen=True)
class Selection:
    hosts: str | None  # a hosts file or list; None: see clusters_to_ask
    everything: bool  # finished runs too
    per_node: bool  # a row per node instead of a row per run

    def of(self, statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
        alive = {status.run_id for status in statuses if status.alive or status.waits}
        return [status for status in statuses if self.everything or status.run_id in alive]

    def tables(self, seen: Seen, columns: float = math.inf) -> list[str]:
        """Return the tables of runs, if any, and of GPUs. columns: width of the terminal."""
        shown = self.of(seen.statuses)
        found = []
        if shown and self.per_node:
            nodes = [status for run in by_run(shown) for status in unusual_first(run)]
            found.append(fitting([_node_row(status) for status in nodes], NODE_HEAD, columns))
        elif shown:
            runs = [_run_row(n, seen.statuses, seen.progress) for n in by_run(shown)]
            found.append(fitting(runs, RUN_HEAD, columns))
        if seen.gpus:
            rows = [[*cells, _time(since)] for cells, since in folded(seen.gpus)]
            found.append(f"{summary(seen.gpus)}\n{fitting(rows, GPU_HEAD, columns)}")
        return found

    def nothing(self, clusters: Connected) -> str:
        hosts = list(dict.fromkeys(node.name for _, nodes in clusters for node in nodes))
        if not hosts:
            return (
                "this machine has no record of a live run, and there is no ./hosts.yaml; "
                "`ddpctl ps HOSTS` asks the hosts in a hosts file"
            )
        if self.everything:
            return f"no run on {names(hosts)}"
        return f"no live run on {names(hosts)}; --all shows finished runs too"


def fitting(rows: Sequence[Sequence[str]], head: Sequence[str], columns: float) -> str:
    """Format a table without the least important columns if it is too wide for the terminal."""
    text = table(rows, head)
    for name in DROPPED:
        if name in head and max(map(len, text.splitlines())) >= columns:
            at = head.index(name)
            head, *rows = ([*row[:at], *row[at + 1 :]] for row in (head, *rows))
            text = table(rows, head)
    return text


def show_runs(selection: Selection, console: Console, *, as_json: bool) -> int:
    """Print the tables. Return 0, or 4 if a host did not answer."""
    clusters_asked = clusters_to_ask(selection.hosts, console, everything=selection.everything)
    with all_connected(clusters_asked) as clusters:
        for cluster, nodes in clusters:
            finish_pending(nodes, cluster, console)
        with console.step(f"asking {sum(len(nodes) for _, nodes in clusters)} hosts"):
            seen = look(clusters, everything=selection.everything)
        shown = selection.of(seen.statuses)
        if as_json:
            console.json({**document(shown, seen.failures), "gpus": gpu_document(seen.gpus)})
        else:
            if not shown:
                console.say(selection.nothing(clusters))
            if tables := selection.tables(seen):
                console.print("\n\n".join(tables))
    report_unseen(seen.failures, console)
    return EXIT_UNSEEN if seen.failures else 0


def watch_runs(selection: Selection, console: Console, interval: float) -> None:
    """Print tables every `interval` seconds until Ctrl-C: redrawn on a terminal, else if they differ."""
    text, seen, parts = "", Seen([], {}, [], {}), [""]

    def render(columns: int, rows: int) -> list[str]:
        shown = "\n\n".join([*parts, *selection.tables(seen, columns)])
        return live.fitted(f"{timestamp()[:19]}Z\n{shown}", columns, rows)

    display = live.Live(render, share=0.9)
    on_terminal = live.wanted(plain=False, quiet=console.quiet)
    clusters_asked = clusters_to_ask(selection.hosts, console, everything=selection.everything)
    try:
        with (
            all_connected(clusters_asked) as clusters,
            console.live(display) if on_terminal else contextlib.nullcontext(),
        ):
            while True:
                for cluster, nodes in clusters:
                    finish_pending(nodes, cluster, console)
                seen = look(clusters, everything=selection.everything)
                parts = [f"no answer from {error}" for error in seen.failures.values()]
                if not selection.of(seen.statuses):
                    parts.append(selection.nothing(clusters))
                before, text = text, "\n\n".join([*parts, *selection.tables(seen)])
                if on_terminal:
                    display.draw()
                elif text != before:
                    console.print(text + "\n")
                time.sleep(interval)
    except KeyboardInterrupt:
        if on_terminal:
            console.print(text)  # keep the newest table on the screen


def _run_row(
    nodes: Sequence[NodeStatus],
    everything: Sequence[NodeStatus],
    progress: Mapping[str, Progress],
) -> list[str]:
    first = nodes[0]
    alive = sum(node.alive for node in nodes)
    state = run_state(nodes)
    since = min((node.started for node in nodes if node.started), default=None)
    if state == "WAITING":
        since = first.since
        state = f"WAITING for {', '.join(waits_for(nodes, everything)) or 'its start'}"
    ended = max((node.ended for node in nodes if node.ended), default=None)
    return [
        first.run_id,
        state,
        str(first.attempt),
        f"{alive}/{first.nnodes}" if state == "RUNNING" else str(first.nnodes),
        first.owner,
        _time(since if state == "RUNNING" else ended or since),
        progress[first.run_id].brief if first.run_id in progress else "-",
        names(dict.fromkeys(node.host for node in nodes)),
    ]


def unusual_first(nodes: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Sort a run's nodes, those in an unusual state first."""
    states = [node.state for node in nodes]
    usual = max(states, key=states.count)
    return sorted(nodes, key=lambda node: node.state == usual)


def _node_row(status: NodeStatus) -> list[str]:
    return [
        status.run_id,
        str(status.attempt),
        f"{status.node_rank}/{status.nnodes}",
        status.host,
        status.state,
        "-" if status.exit_code is None else str(status.exit_code),
        status.owner,
        _time(status.ended or status.started or (status.since if status.waits else None)),
    ]


def _time(seconds: float | None) -> str:
    """Format unix seconds as 11-22T10:34Z."""
    return timestamp(seconds)[5:16] + "Z" if seconds else "-"
