"""Stops that nobody could confirm: remembered in run.json, finished when the host is in sight again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from launcher.engines.choose import engines_on
from launcher.errors import UsageError
from launcher.hosts import Cluster
from launcher.runs.record import run_folders, timestamp
from launcher.ssh.node import Node
from launcher.stop.stop import stop_run
from launcher.terminal.console import Console


def finish_unconfirmed(clusters: Iterable[tuple[Cluster, list[Node]]], console: Console) -> None:
    for cluster, nodes in clusters:
        finish_pending(nodes, cluster, console)


def finish_pending(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Ends on these hosts what earlier kills could not reach there. A host unseen stays pending."""
    by_name = {node.name: node for node in nodes}
    for folder in run_folders():
        try:
            record = folder.load()
        except UsageError:
            continue  # `ps` and `kill` say so where it matters
        here = [by_name[host] for host in record.pending_stop if host in by_name]
        if not here:
            continue
        stopped, _ = stop_run(
            here,
            {node: engines_on(node, cluster.job.engine) for node in here},
            record.run_id,
            record.stop_timeout,
        )
        done = {host for host, seen in stopped.items() if seen.clean}
        for host in sorted(done):
            console.say(f"{host}: finished the stop of {record.run_id} that was pending there")
        record.pending_stop = [host for host in record.pending_stop if host not in done]
        if record.state == "UNKNOWN" and not record.pending_stop:
            record.attempt.state, record.attempt.ended = "CANCELLED", timestamp()
        folder.save(record)
