"""Connect to the nodes of a run's newest attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..engines.attempt import RunningAttempt, RunningNode
from ..engines.choose import engine_of
from ..hosts import load
from ..plan.plan import place_in
from ..ssh.node import Node, connected
from ..terminal.console import Console
from .adopt import ask_for_record
from .record import RunFolder, RunRecord


@contextmanager
def newest_attempt(
    folder: RunFolder, console: Console, record: RunRecord | None = None
) -> Iterator[RunningAttempt]:
    """Yield the newest attempt from this machine's record.

    If that cannot be read, warns and asks the hosts. record: the one in `folder`, if already read.
    """
    cluster = load(folder.hosts_file, job_files=False)
    record = record or folder.load_if_readable(console)
    with connected(cluster.hosts) as nodes:
        ranks: Sequence[Node] = nodes
        if record is None:
            with console.step(f"asking {len(nodes)} hosts for their record of the run"):
                record, ranks = ask_for_record(folder.run_id, nodes, cluster, console)
        number = record.attempt.attempt
        members = [
            RunningNode(
                node,
                engine_of(node, record.engine),
                place_in(entry.run_dir, record.run_id, entry.node_rank, number),
            )
            for node, entry in zip(ranks, record.attempt.nodes, strict=True)
        ]
        yield RunningAttempt(tuple(members))
