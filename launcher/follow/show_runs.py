"""The `ps` table, once or again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.status import NodeStatus
from ..hosts.fold import names
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
from ..stop.unconfirmed import finish_pending
from ..terminal import live
from ..terminal.console import Console, table

RUN_HEAD = ["RUN", "ATTEMPT", "STATE", "NODES", "HOSTS", "OWNER", "SINCE"]
NODE_HEAD = ["RUN", "ATTEMPT", "NODE", "HOST", "STATE", "EXIT", "OWNER", "SINCE"]
EXIT_UNSEEN = 4


@dataclass(frozen=True)
class Selection:
    """Which runs are shown, and how."""

    hosts: str | None  # a hosts file or list; None: see clusters_to_ask
    everything: bool  # finished runs too
    per_node: bool  # a row per node instead of a row per run

    def of(self, statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
        alive = {status.run_id for status in statuses if status.alive or status.waits}
        return [status for status in statuses if self.everything or status.run_id in alive]

    def text(self, statuses: Sequence[NodeStatus], clusters: Connected) -> str:
        if not statuses:
            return self._nothing(clusters)
        if self.per_node:
            return table([_node_row(status) for status in statuses], NODE_HEAD)
        return table([_run_row(nodes, statuses) for nodes in by_run(statuses)], RUN_HEAD)

    def _nothing(self, clusters: Connected) -> str:
        hosts = list(dict.fromkeys(node.name for _, nodes in clusters for node in nodes))
        if not hosts:
            return (
                "this machine has no record of a live run, and there is no ./hosts.yaml; "
                "`ddpctl ps HOSTS` asks the hosts of a hosts file"
            )
        if self.everything:
            return f"no run on {names(hosts)}"
        return f"no live run on {names(hosts)}; --all shows finished runs too"


def show_runs(selection: Selection, console: Console, *, as_json: bool) -> int:
    """Returns 0, or 4 when a host did not answer."""
    clusters_asked = clusters_to_ask(selection.hosts, console, everything=selection.everything)
    with all_connected(clusters_asked) as clusters:
        for cluster, nodes in clusters:
            finish_pending(nodes, cluster, console)
        with console.step(f"asking {sum(len(nodes) for _, nodes in clusters)} hosts"):
            statuses, failures = list_runs(clusters, everything=selection.everything)
        shown = selection.of(statuses)
        if as_json:
            console.json(document(shown, failures))
        elif shown:
            console.print(selection.text(shown, clusters))
        else:
            console.say(selection.text(shown, clusters))
    report_unseen(failures, console)
    return EXIT_UNSEEN if failures else 0


def watch_runs(selection: Selection, console: Console, interval: float) -> None:
    """Shows the table every `interval` seconds until Ctrl-C.

    On a terminal each table replaces the one before it; elsewhere a table that differs is printed.
    """
    text = ""
    display = live.Live(lambda columns, rows: live.fitted(text, columns, rows), share=0.9)
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
                statuses, failures = list_runs(clusters, everything=selection.everything)
                lines = [selection.text(selection.of(statuses), clusters)]
                lines += [f"no answer from {error}" for error in failures.values()]
                before, text = text, "\n".join(lines)
                if on_terminal:
                    display.draw()
                elif text != before:
                    console.print(text + "\n")
                time.sleep(interval)
    except KeyboardInterrupt:
        if on_terminal:
            console.print(text)  # the newest table stays


def _run_row(nodes: Sequence[NodeStatus], everything: Sequence[NodeStatus]) -> list[str]:
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
        str(first.attempt),
        state,
        f"{alive}/{first.nnodes}" if state == "RUNNING" else str(first.nnodes),
        names(dict.fromkeys(node.host for node in nodes)),
        first.owner,
        _time(since if state == "RUNNING" else ended or since),
    ]


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
    return timestamp(seconds)[:19] + "Z" if seconds else "-"
