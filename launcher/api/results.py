"""Results and exceptions of the ranks, read from the hosts.

Hosts are not trusted: the data is JSON of limited size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..engines.attempt import RunningAttempt
from ..errors import CommandFailed
from ..logs.events import parsed
from ..plan.plan import Place
from ..ssh.many import each_node
from ..ssh.node import Node
from .parcel import MAX_RESULTS

# Prints a line per rank of attempt $2 with a result in the run folder $1: the rank, the JSON text.
READ = r"""
cd "$1/output/results/attempt-$2" 2>/dev/null || exit 0
for file in rank-*; do
  case $file in *[!0-9a-z-]*) continue ;; esac
  printf '%s ' "${file#rank-}"
  cat "$file"
  echo
done
"""


@dataclass(frozen=True)
class Raised:
    type: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of one rank. result: a JSON value. pickle: base64, only for a user who trusts the hosts."""

    host: str
    result: Any = None
    error: Raised | None = None
    pickle: str | None = None


def read_outcomes(attempt: RunningAttempt) -> dict[int, Outcome]:
    """Return outcomes by rank, without ranks that wrote none. Raises CommandFailed or NodesFailed."""
    folders = {(m.node.name, m.place.run_dir): m.node for m in attempt.members}
    texts = each_node([*folders.values()], lambda node: _read(node, attempt.by_node[node].place))
    outcomes: dict[int, Outcome] = {}
    first: dict[int, tuple[str, bytes]] = {}
    for node, found in texts.items():
        for rank, text in found.items():
            host, before = first.setdefault(rank, (node.name, text))
            if before != text:  # equal results come from a home folder that hosts share
                raise CommandFailed(f"{host} and {node.name}: both have a result for rank {rank}")
            outcomes[rank] = parsed_outcome(host, text)
    return outcomes


def _read(node: Node, place: Place) -> Mapping[int, bytes]:
    data = bytearray()
    limit = 2 * MAX_RESULTS  # nodes on one machine share a folder
    with node.open_script(READ, place.run_dir, str(place.attempt), stdin=False) as stream:
        while chunk := stream.read():
            data += chunk
            if len(data) > limit:
                raise CommandFailed(f"{node.name}: its results exceed {limit} bytes")
    return split(bytes(data), node.name)


def split(data: bytes, host: str) -> dict[int, bytes]:
    """Split READ's output by rank. Raises CommandFailed if it is malformed."""
    texts = {}
    for line in data.split(b"\n")[:-1]:
        rank, _, text = line.partition(b" ")
        if not re.fullmatch(rb"\d{1,7}", rank):
            raise CommandFailed(f"{host}: cannot read its results")
        texts[int(rank)] = text
    return texts


def parsed_outcome(host: str, text: bytes) -> Outcome:
    try:
        document = json.loads(text)
        error, pickle = document.get("error"), document.get("pickle")
        if not isinstance(pickle, str | None):
            raise ValueError("the pickle is not text")
        raised = None if error is None else parsed(Raised, error)
        return Outcome(host, document.get("result"), raised, pickle)
    except (ValueError, AttributeError, RecursionError) as error:
        raise CommandFailed(f"{host}: cannot read a result: {error}") from None
