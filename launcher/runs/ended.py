"""Runs that have ended, from their folders on the hosts: `kill` removes containers, not folders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..engines.labels import read_status
from ..engines.status import NodeStatus
from ..facts.shared_homes import OWN
from ..logs.events import parsed
from ..logs.journal import Reader
from ..run_id import is_run_id
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node
from ..supervisor.events import End

# For the newest attempt of each node of this host, three lines: `RUN NODE ATTEMPT MARKED ENDED`,
# run.json, and the last record of the journal. MARKED is 1 if the user has cancelled it, ENDED unix
# seconds.
LIST = (
    OWN
    + r"""
for node in "$HOME"/.ddpctl/runs/*/nodes/*; do
  cd "$node" 2>/dev/null || continue
  attempt=$(ls -d attempt-* 2>/dev/null | sort -t - -k 2n | tail -n 1)
  cd "$attempt" 2>/dev/null && own . || continue
  run=${node%/nodes/*}
  [ -e cancelled ] && marked=1 || marked=0
  printf '%s %s %s %s %s\n' "${run##*/}" "${node##*/}" "${attempt#attempt-}" "$marked" \
    "$(stat -c %Y journal 2>/dev/null || echo 0)"
  head -c 65536 run.json 2>/dev/null | tr -d '\n'; echo
  tail -n 1 journal 2>/dev/null | head -c 65536 | tr -d '\n'; echo
done
"""
)
HEAD = re.compile(r"(\S{1,64}) (\d{1,7}) (\d{1,7}) ([01]) (\d{1,10})")


@dataclass(frozen=True)
class _Described:
    """What run.json of a host may say of a run here."""

    name: str = ""
    owner: str = ""
    hosts: list[str] = field(default_factory=list)


def ended_nodes(nodes: Sequence[Node]) -> list[NodeStatus]:
    """The nodes that have ended on these hosts, each once although it may have moved."""

    def ask(node: Node) -> list[NodeStatus]:
        done = node.script(LIST, timeout=60.0)
        return list(parse_ended(done.stdout.decode(errors="replace"), node.name))

    found, _ = try_each(one_per_account(nodes), ask)
    by_node: dict[tuple[str, int], NodeStatus] = {}
    for status in (status for each in found.values() for status in each):
        known = by_node.setdefault((status.run_id, status.node_rank), status)
        if status.attempt > known.attempt:
            by_node[status.run_id, status.node_rank] = status
    newest: dict[str, int] = {}
    for status in by_node.values():
        newest[status.run_id] = max(newest.get(status.run_id, 0), status.attempt)
    return [status for status in by_node.values() if status.attempt == newest[status.run_id]]


def parse_ended(text: str, host: str) -> Iterator[NodeStatus]:
    """What LIST printed; anything that is not as expected is left out."""
    rows = text.split("\n")
    for head, document, record in zip(rows[::3], rows[1::3], rows[2::3], strict=False):
        match = HEAD.fullmatch(head)
        end = _end(record)
        marked = bool(match and match[4] == "1")
        if not match or not is_run_id(match[1]) or not (end or marked):
            continue
        run_id, rank, attempt, _, ended = match.groups()
        cancelled = end.state == "cancelled" if end else marked
        about = _described(document)
        labels = {
            "run-id": run_id,
            "name": about.name,
            "owner": about.owner,
            "attempt": attempt,
            "node-rank": rank,
            "nnodes": str(len(about.hosts) or int(rank) + 1),
        }
        status = read_status(
            host,
            f".ddpctl/runs/{run_id}/nodes/{rank}/attempt-{attempt}",
            labels,
            {
                "state": "cancelled" if cancelled else "exited",
                "exit_code": end.exit_code if end else None,
                "ended": float(ended),
            },
        )
        if status:
            yield status


def _end(line: str) -> End | None:
    events = [record.event for record in Reader().feed(line.encode() + b"\n")]
    return next((event for event in events if isinstance(event, End)), None)


def _described(document: str) -> _Described:
    try:
        return parsed(_Described, json.loads(document))
    except (ValueError, RecursionError):
        return _Described()
