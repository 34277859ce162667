"""Connect to the nodes of a run's newest attempt."""

import contextlib
from collections.abc import Iterator, Sequence

from ..engines.choose import engine_of
from ..engines.node_handle import AttemptHandle, NodeHandle
from ..errors import UsageError
from ..hosts import Cluster, load
from ..plan.plan import place_in
from ..ssh.host_connection import HostConnection, connected
from ..terminal.console import Console
from ..text import counted
from .adopt import ask_for_record, caught_up
from .record import RunRecord
from .run_folder import RunFolder


@contextlib.contextmanager
def newest_attempt(
    folder: RunFolder, console: Console, record: RunRecord | None = None
) -> Iterator[AttemptHandle]:
    """Yield the newest attempt, as this machine's record describes it.

    First adds to the record the attempts that another machine has started. If the record is missing
    or (after a warning) unreadable, builds one from the hosts' reports, without saving it. Asks again
    if the run's recorder restarts the run meanwhile. record: use this record, without asking the hosts.
    """
    while True:
        cluster = load(folder.hosts_file, job_files=False)
        with connected(cluster.hosts) as connections:
            if record:
                newest, ranks = record, in_rank_order(connections, record, folder)
            else:
                newest, ranks = _ask_for_newest(folder, connections, cluster, console)
                now = folder.load_if_readable(console)
                if now and now.attempt.number > newest.attempt.number:
                    continue
            members, number = [], newest.attempt.number
            for connection, entry in zip(ranks, newest.attempt.nodes, strict=True):
                place = place_in(entry.run_dir, newest.run_id, entry.node_rank, number)
                members.append(NodeHandle(connection, engine_of(connection, newest.engine), place))
            yield AttemptHandle(tuple(members))
            return


def _ask_for_newest(
    folder: RunFolder, connections: Sequence[HostConnection], cluster: Cluster, console: Console
) -> tuple[RunRecord, list[HostConnection]]:
    """Return the record, and the connections to its newest attempt's nodes in rank order."""
    hosts = counted(len(connections), "host")
    if own := folder.load_if_readable(console):
        with console.step(f"asking {hosts} about newer attempts"):
            record = caught_up(folder, own, connections, cluster, console)
        return record, in_rank_order(connections, record, folder)
    with console.step(f"asking {hosts} for their records of the run"):
        return ask_for_record(folder.run_id, connections, cluster, console)


def in_rank_order(
    connections: Sequence[HostConnection], record: RunRecord, folder: RunFolder
) -> list[HostConnection]:
    """Return the connections to the newest attempt's nodes, in rank order.

    Raises UsageError if hosts.yaml lacks the host of a node. While the run waits in line,
    hosts.yaml may list more hosts than the attempt has nodes.
    """
    rest, ranks = [*connections], []
    for entry in record.attempt.nodes:
        connection = next(
            (connection for connection in rest if connection.name == entry.host), None
        )
        if connection is None:
            what = f"{folder.hosts_file}: host {entry.host} of node {entry.node_rank} is missing"
            remedy = (
                f"put it back, or remove {folder.record_file} and pass --hosts to make a new record"
            )
            raise UsageError(what, remedy)
        rest.remove(connection)
        ranks.append(connection)
    return ranks
