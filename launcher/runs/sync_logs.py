"""Open this machine's copy of a run's logs for writing, and bring it up to date."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..engines.attempt import RunningAttempt
from ..errors import DdpctlError, StateError
from ..logs.journal import Reader
from ..logs.store import LogStore, NodeLog, offset_in
from ..plan.plan import Place
from ..ssh.many import ask_each
from ..ssh.node import Node
from ..terminal.console import Console
from .record import RunFolder


@contextlib.contextmanager
def log_store(folder: RunFolder, console: Console) -> Iterator[LogStore | None]:
    """Yield the store; None if another local process writes it or, with an error, if it is unwritable."""
    try:
        store = LogStore.acquire(folder.logs, console.say)
    except (StateError, OSError) as error:
        console.error(f"not recorded: {error}")
        store = None
    try:
        yield store
    finally:
        if store:
            with contextlib.suppress(OSError):  # the disk is full, which was reported already
                store.close()


def sync_logs(attempt: RunningAttempt, store: LogStore, console: Console) -> dict[str, DdpctlError]:
    """Fetch the missing part of every node's log. Return the errors of silent hosts."""

    def copy(node: Node) -> None:
        place = attempt.by_node[node].place
        try:
            _copy(store.node(place.node_rank), node, place)
        except OSError as error:
            name = error.filename or store.folder
            raise StateError(f"{name}: cannot be written: {error.strerror or error}") from None

    with console.step(f"copying new log lines of {len(attempt.members)} nodes"):
        return ask_each(attempt.nodes, copy)[1]


def _copy(log: NodeLog, node: Node, place: Place) -> None:
    reader = Reader()
    consumed = offset_in({place.node_rank: log.mark}, place)
    argv = ["tail", "-c", f"+{consumed + 1}", place.journal]
    with node.open(argv, stdin=False) as stream:
        while data := stream.read():
            consumed += len(data)
            if records := reader.feed(data):
                offset = consumed - reader.pending
                log.record(records, host=node.name, attempt=place.attempt, offset=offset)
