"""Copies what the hosts' journals hold beyond this machine's copy."""

from __future__ import annotations

from launcher.engines.attempt import RunningAttempt
from launcher.errors import DdpctlError
from launcher.logs.journal import Reader
from launcher.logs.store import LogStore, offset_in
from launcher.plan.plan import Place
from launcher.ssh.many import ask_each
from launcher.ssh.node import Node
from launcher.ssh.stream import READ_SIZE


def sync_logs(attempt: RunningAttempt, store: LogStore) -> dict[str, DdpctlError]:
    """Brings every node's log up to date. Returns an error for each host that did not answer."""
    places = dict(zip(attempt.nodes, attempt.places, strict=True))
    _, failures = ask_each(attempt.nodes, lambda node: _copy(node, places[node], store))
    return failures


def _copy(node: Node, place: Place, store: LogStore) -> None:
    log = store.node(place.node_rank)
    reader = Reader()
    consumed = offset_in({place.node_rank: log.mark}, place)
    stream = node.open(["tail", "-c", f"+{consumed + 1}", place.journal], stdin=False)
    try:
        while data := stream.read(READ_SIZE):
            consumed += len(data)
            if records := reader.feed(data):
                offset = consumed - reader.pending
                log.record(records, host=node.name, attempt=place.attempt, offset=offset)
    finally:
        stream.close()
