"""Catching up: what the hosts' journals hold beyond this machine's copy, fetched once."""

from __future__ import annotations

from launcher.engines.attempt import RunningAttempt
from launcher.errors import DdpctlError
from launcher.logs.journal import Reader
from launcher.logs.store import LogStore, offset_in
from launcher.plan.plan import Place
from launcher.ssh.many import ask_each
from launcher.ssh.node import Node
from launcher.ssh.stream import READ_SIZE


def catch_up(party: RunningAttempt, store: LogStore) -> dict[str, DdpctlError]:
    """Brings every node's log up to date. Returns the hosts that could not be seen."""
    places: dict[Node, list[Place]] = {}
    for node, place in zip(party.nodes, party.places, strict=True):
        places.setdefault(node, []).append(place)

    def fetch(node: Node) -> None:
        for place in places[node]:
            _fetch(node, place, store)

    _, failures = ask_each(list(places), fetch)
    return failures


def _fetch(node: Node, place: Place, store: LogStore) -> None:
    log = store.node(place.node_rank)
    reader = Reader()
    consumed = offset_in({place.node_rank: log.mark}, place)
    stream = node.open(["tail", "-c", f"+{consumed + 1}", place.journal], stdin=False)
    try:
        while data := stream.read(READ_SIZE):
            consumed += len(data)
            records = reader.feed(data)
            if records:
                log.record(
                    records,
                    host=node.name,
                    attempt=place.attempt,
                    offset=consumed - reader.pending,
                )
    finally:
        stream.close()
