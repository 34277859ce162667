"""Connect to the nodes of a run's newest attempt, and update this machine's copy of its logs."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from rich.filesize import decimal

from ..budget import Budget, TooMuch
from ..engines.choose import engine_of
from ..engines.node_handle import AttemptHandle, NodeHandle
from ..errors import CommandFailed, DdpctlError, StateError, UsageError
from ..hosts import Cluster, load
from ..logs.journal_reader import JournalReader
from ..logs.store import LogStore, offset_in
from ..plan.plan import place_in
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import ask_each
from ..terminal.console import Console
from ..text import counted
from .record import RunFolder, RunRecord
from .reported import ask_for_record, caught_up

LONGEST_SYNC = 10**9  # bytes of a journal that one command copies; the next command continues
SYNC_TIMEOUT = 300.0  # seconds
POLL = 0.2  # seconds between attempts to lock the log store


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


@contextlib.contextmanager
def log_store(
    folder: RunFolder,
    console: Console,
    patience: float = 0.0,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[LogStore | None]:
    """Yield the run's log store; None if another process is writing to it or if it is unwritable.

    Prints an error if it is unwritable. patience: seconds to wait for the other process, unless
    `interrupted` returns True meanwhile.
    """
    deadline = time.monotonic() + patience
    try:
        while not (store := LogStore.acquire(folder.logs, console.say)):
            if time.monotonic() >= deadline or interrupted():
                break
            time.sleep(POLL)
    except StateError as error:
        console.error(f"not recorded: {error}")
        store = None
    try:
        yield store
    finally:
        if store:
            store.close()


def sync_logs(
    attempt: AttemptHandle, store: LogStore | None, console: Console
) -> dict[str, DdpctlError]:
    """Copy the log lines that `store` lacks from every node. Return the errors by host.

    If `store` is None, copies nothing, but returns the errors of the hosts that do not answer.
    """
    if store is None:  # another process that copies the lines does not reach those hosts either
        return ask_each(attempt.connections, lambda connection: connection.connect())[1]

    def copy(connection: HostConnection) -> None:
        place = attempt.by_connection[connection].place
        try:
            log = store.node(place.node_rank)
            start = offset_in(place.attempt, log.mark)
            reader = JournalReader(connection.name, place.node_rank, start)
            argv = ["tail", "-c", f"+{reader.offset + 1}", place.journal]
            budget = Budget("`tail` of its journal", connection.name, LONGEST_SYNC, SYNC_TIMEOUT)
            with connection.open(argv, stdin=False) as stream:
                for data in budget.chunks(stream):
                    if entries := reader.feed(data):
                        log.append(entries, place.attempt)
        except TooMuch:
            raise CommandFailed(
                f"its log continues after {decimal(LONGEST_SYNC)}, the most that one command copies",
                "run the command again to copy the rest",
                host=connection.name,
            ) from None
        except OSError as error:
            name = error.filename or store.folder
            raise StateError(
                f"its log was not copied: cannot write {name}: {error.strerror or error}",
                "on this machine, free up space or fix the file's permissions; the host still has "
                "the log",
                host=connection.name,
            ) from None

    with console.step(f"copying new log lines of {counted(len(attempt.members), 'node')}"):
        return ask_each(attempt.connections, copy)[1]
