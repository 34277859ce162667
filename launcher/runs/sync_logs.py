"""Bring this machine's copy of a run's logs up to date, for the newest attempt."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.filesize import decimal

from ..budget import Budget, TooMuch
from ..engines.node_handle import AttemptHandle
from ..errors import CommandFailed, DdpctlError, StateError
from ..logs.journal_reader import JournalReader
from ..logs.store import LogStore, offset_in
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each
from ..terminal.console import Console
from ..text import counted
from .attempt_lock import is_taken_care_of
from .run_folder import RunFolder

PATIENCE = 10.0  # seconds; without the store, a run's lines are not recorded until its end
LONGEST_SYNC = 10**9  # bytes of a journal that one command copies; the next command continues
SYNC_TIMEOUT = 300.0  # seconds
POLL = 0.2  # seconds between attempts to lock the log store


@contextlib.contextmanager
def log_store(
    folder: RunFolder,
    console: Console,
    *,
    records: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
) -> Iterator[LogStore | None]:
    """Yield the run's log store; None if another process is writing to it or if it is unwritable.

    Prints an error if it is unwritable. records: whether this process takes care of the run. If so, it
    waits for the other process until `interrupted` returns True, or for PATIENCE. If not, this yields
    None while a process takes care of the run, even before that process has opened the store.
    """
    store, deadline = None, time.monotonic() + (PATIENCE if records else 0.0)
    try:
        while records or not is_taken_care_of(folder):
            store = LogStore.acquire(folder.logs, console.say)
            if store or time.monotonic() >= deadline or interrupted():
                break
            time.sleep(POLL)
    except StateError as error:
        console.error(f"not recorded: {error}")
    try:
        yield store
    finally:
        if store:
            store.close()


def sync_logs(
    folder: RunFolder, attempt: AttemptHandle, console: Console, *, records: bool = False
) -> dict[str, DdpctlError]:
    """Copy the log lines that this machine lacks from every node. Return the errors by host.

    If another process records them, copies nothing, but returns the errors of the hosts that do not
    answer. records: see `log_store`.
    """
    with log_store(folder, console, records=records) as store:
        return _sync(store, attempt, console)


def _sync(
    store: LogStore | None, attempt: AttemptHandle, console: Console
) -> dict[str, DdpctlError]:
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
            store.failed = True
            name = error.filename or store.folder
            raise StateError(
                f"its log was not copied: cannot write {name}: {error.strerror or error}",
                "on this machine, free up space or fix the file's permissions; the host still has "
                "the log",
                host=connection.name,
            ) from None

    with console.step(f"copying new log lines of {counted(len(attempt.members), 'node')}"):
        return ask_each(attempt.connections, copy)[1]
