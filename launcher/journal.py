"""The journal of one node's attempt: what its supervisor writes and everybody else reads. Pure.

A record is one line, `TIME<TAB>WHO<TAB>TEXT`: unix seconds on the node's own clock; a global rank, `-`
for torchrun and the supervisor itself, or `!` for an event, whose text is one JSON object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    time: float  # unix seconds, the node's clock
    rank: int | None  # global rank; None for torchrun, the supervisor and events
    event: dict[str, Any] | None  # always with "kind"; None for a line of output
    text: bytes  # the line without its newline, as it was written


class Reader:
    """Bytes in, records out: whole records only, whatever pieces the bytes come in."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []
        self.pending = 0  # bytes of the record that is not whole yet

    def feed(self, data: bytes) -> list[Record]:
        head, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(data)
            return []
        whole = b"".join([*self._partial, head])
        self._partial, self.pending = [], 0
        self._keep(rest)
        return [_record(line) for line in whole.split(b"\n")]

    def _keep(self, data: bytes) -> None:
        if data:
            self._partial.append(data)
            self.pending += len(data)


def _record(line: bytes) -> Record:
    """A line that is no record, as a full disk may leave it, is kept as a line of nobody's."""
    try:
        stamp, who, text = line.split(b"\t", 2)
        time = float(stamp)
        if who == b"!":
            return Record(time, None, _event(text), text)
        return Record(time, None if who == b"-" else int(who), None, text)
    except ValueError:
        return Record(0.0, None, None, line)


def _event(text: bytes) -> dict[str, Any]:
    event = json.loads(text)
    if not isinstance(event, dict) or "kind" not in event:
        raise ValueError("an event is an object with a kind")
    return event
