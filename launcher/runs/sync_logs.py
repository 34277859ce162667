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
from .run_folder import RunFolder

LONGEST_SYNC = 10**9  # bytes of a journal that one command copies; the next command continues
SYNC_TIMEOUT = 300.0  # seconds
POLL = 0.2  # seconds between attempts to lock the log store


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
