"""The newest attempt of a recorded run, with connections to its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from launcher.engines.attempt import RunningAttempt, RunningNode
from launcher.engines.choose import engine_of
from launcher.hosts import load
from launcher.plan.plan import place_in
from launcher.runs.record import RunFolder, RunRecord
from launcher.ssh.node import connected


@contextmanager
def running_attempt(folder: RunFolder, record: RunRecord) -> Iterator[RunningAttempt]:
    """Connections close at the end. Nodes come from this machine's record and hosts.yaml."""
    attempt = record.attempt.attempt
    with connected(load(folder.hosts_file, job_files=False).hosts) as nodes:
        yield RunningAttempt(
            tuple(
                RunningNode(
                    node,
                    engine_of(node, record.engine),
                    place_in(entry.run_dir, record.run_id, entry.node_rank, attempt),
                )
                for node, entry in zip(nodes, record.attempt.nodes, strict=True)
            )
        )
