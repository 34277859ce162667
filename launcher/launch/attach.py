"""Coming back to a run: what it said so far, then as `launch` follows it, with its exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from launcher.follow.session import EXIT, Party, follow, tell
from launcher.follow.signals import Interrupts
from launcher.follow.sync import catch_up
from launcher.hosts import load
from launcher.launch.start import connect, engine_of
from launcher.logs.query import Wanted, merged
from launcher.logs.store import LogStore, known_marks
from launcher.plan.plan import place_in
from launcher.runs.record import FINAL, RunFolder, RunRecord
from launcher.terminal.console import Console


def attach(folder: RunFolder, console: Console) -> int:
    """Follows the newest attempt to its end. A signal ends the following, never the run."""
    record = folder.load()
    with party_of(folder, record) as party:
        if store := LogStore.acquire(folder.logs):
            for host, error in catch_up(party, store).items():
                console.say(f"cannot see {host} now: {error}")
            store.close()
        known = known_marks(folder.logs)
        for lines in merged(folder.logs, Wanted(), known):
            console.lines(lines)
        console.flush()
        if record.state in FINAL:
            console.settle()
            tell(folder.run_id, record.attempt, console)
            return EXIT[record.state]
        with Interrupts() as interrupts:
            skews = [0.0] * len(party.nodes)
            return follow(
                party, folder, record, skews, console, interrupts, owned=False, known=known
            )


@contextmanager
def party_of(folder: RunFolder, record: RunRecord) -> Iterator[Party]:
    """The nodes of a run that was started earlier, from what was remembered of it."""
    cluster = load(folder.hosts_file, job_files=False)
    nodes = connect(cluster)
    try:
        yield Party(
            nodes,
            {node: engine_of(node, record.engine) for node in nodes},
            [
                place_in(n.run_dir, record.run_id, n.node_rank, record.attempt.attempt)
                for n in record.attempt.nodes
            ],
        )
    finally:
        for node in nodes:
            node.close()
