"""Stops that could not be confirmed are kept in run.json and finished when the host answers again."""

from __future__ import annotations

from collections.abc import Sequence

from ..engines.choose import engines_on
from ..hosts import Cluster
from ..hosts.fold import names
from ..runs.record import UnreadableRecord, run_folders, timestamp
from ..ssh.node import Node
from ..terminal.console import Console
from .stop import stop_run


def finish_pending(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Finishes on these hosts what earlier stops could not reach. A silent host stays pending."""
    by_name = {node.name: node for node in nodes}
    for folder in run_folders():
        try:
            record = folder.load()
        except UnreadableRecord:
            continue  # the command that needs this record says so
        here = [by_name[host] for host in record.pending_stop if host in by_name]
        if not here:
            continue
        by_node = {node: engines_on(node, cluster.job.engine) for node in here}
        with console.step(
            f"finishing the stop of {record.run_id} on {names(n.name for n in here)}"
        ):
            stopped, _ = stop_run(here, by_node, record.run_id, record.stop_timeout)
        done = {host for host, result in stopped.items() if result.clean}
        for host in sorted(done):
            console.say(f"{host}: finished the pending stop of {record.run_id}")
        record.pending_stop = [host for host in record.pending_stop if host not in done]
        if record.state == "UNKNOWN" and not record.pending_stop:
            record.attempt.state, record.attempt.ended = "CANCELLED", timestamp()
        folder.try_save(record, console)
