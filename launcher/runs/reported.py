"""Read reports from run folders on the hosts, which remain when `kill` removes containers.

Hosts contribute only plain values. Malformed ones are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..engines.status import NodeStatus, read_status
from ..errors import DdpctlError
from ..facts.shared_homes import OWN
from ..logs.events import parsed
from ..logs.journal import Reader
from ..run_id import is_run_id
from ..ssh.many import one_per_account, try_each
from ..ssh.node import Node
from ..supervisor.events import End

# For the newest attempt of each node of this host, of run $1 or of all runs, prints three lines:
# `RUN NODE ATTEMPT MARKED WRITTEN`, run.json, and the journal's last record. MARKED is 1 if the
# user cancelled the attempt. WRITTEN is the journal's modification time in unix seconds.
LIST = (
    OWN
    + r"""
for node in "$HOME"/.ddpctl/runs/${1:-*}/nodes/*; do
  cd "$node" 2>/dev/null || continue
  attempt=$(ls -d attempt-* 2>/dev/null | sort -t - -k 2n | tail -n 1)
  cd "$attempt" 2>/dev/null && own . || continue
  run=${node%/nodes/*}
  [ -e cancelled ] && marked=1 || marked=0
  printf '%s %s %s %s %s\n' "${run##*/}" "${node##*/}" "${attempt#attempt-}" "$marked" \
    "$(stat -c %Y journal 2>/dev/null || echo 0)"
  head -c 1048576 run.json 2>/dev/null | tr -d '\n'; echo
  tail -n 1 journal 2>/dev/null | head -c 65536 | tr -d '\n'; echo
done
"""
)
HEAD = re.compile(r"(\S{1,64}) (\d{1,4}) ([1-9]\d{0,3}) ([01]) (\d{1,10})")


@dataclass(frozen=True)
class ReportedAttempt:
    """The fields of an attempt that are taken from a host's run.json."""

    attempt: int
    state: str = "UNKNOWN"
    created: str = ""
    started: str | None = None
    ended: str | None = None
    world_size: int = 0


@dataclass(frozen=True)
class ReportedRun:
    """The fields of a run that are taken from a host's run.json."""

    name: str = ""
    owner: str = ""
    hosts: list[str] = field(default_factory=list)
    image_digest: str | None = None
    dataset_digest: str | None = None
    workdir_digest: str | None = None
    attempts: list[ReportedAttempt] = field(default_factory=list)


@dataclass(frozen=True)
class ReportedNode:
    """A host's report about the newest attempt of one node."""

    run_id: str
    node_rank: int
    attempt: int
    marked: bool
    written: float
    run: ReportedRun
    end: End | None

    def status(self, host: str) -> NodeStatus | None:
        """Return the node's status if it has ended or was cancelled, else None."""
        if not (self.end or self.marked):
            return None
        cancelled = self.end.state == "cancelled" if self.end else self.marked
        return read_status(
            host,
            f".ddpctl/runs/{self.run_id}/nodes/{self.node_rank}/attempt-{self.attempt}",
            {
                "run-id": self.run_id,
                "name": self.run.name,
                "owner": self.run.owner,
                "attempt": str(self.attempt),
                "node-rank": str(self.node_rank),
                "nnodes": str(len(self.run.hosts) or self.node_rank + 1),
            },
            NodeStatus(
                state="cancelled" if cancelled else "exited",
                exit_code=self.end.exit_code if self.end else None,
                ended=self.written,
            ),
        )


def reported_nodes(
    nodes: Sequence[Node], run_id: str = ""
) -> tuple[dict[Node, list[ReportedNode]], dict[Node, DdpctlError]]:
    """Return the reports of one run or of all, by host, and the errors of silent hosts."""

    def ask(node: Node) -> list[ReportedNode]:
        rows = parse_reports(node.script(LIST, run_id, timeout=60.0).stdout)
        return [row for row in rows if run_id in ("", row.run_id)]

    return try_each(one_per_account(nodes), ask)


def parse_reports(text: bytes) -> Iterator[ReportedNode]:
    """Parse LIST's output."""
    rows = text.decode(errors="replace").split("\n")
    for head, document, record in zip(rows[::3], rows[1::3], rows[2::3], strict=False):
        if (match := HEAD.fullmatch(head)) and is_run_id(match[1]):
            run_id, rank, attempt, marked, written = match.groups()
            events = [each.event for each in Reader().feed(record.encode() + b"\n")]
            yield ReportedNode(
                run_id,
                int(rank),
                int(attempt),
                marked == "1",
                float(written),
                _run(document),
                next((event for event in events if isinstance(event, End)), None),
            )


def _run(document: str) -> ReportedRun:
    try:
        return parsed(ReportedRun, json.loads(document))
    except (ValueError, RecursionError):
        return ReportedRun()


def ended_nodes(nodes: Sequence[Node]) -> list[NodeStatus]:
    """Return the nodes that have ended, each once even if it moved between these hosts."""
    found, _ = reported_nodes(nodes)
    ended = [s for node, rows in found.items() for row in rows if (s := row.status(node.name))]
    newest: dict[str, int] = {}
    for status in ended:
        newest[status.run_id] = max(newest.get(status.run_id, 0), status.attempt)
    return [status for status in ended if status.attempt == newest[status.run_id]]
