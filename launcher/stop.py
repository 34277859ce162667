"""Stopping a run, and proving it: mark, stop, wait, kill, inspect, on all its hosts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.engine import Engine, NodeStatus
from launcher.errors import CommandFailed, DdpctlError, NodesFailed
from launcher.remote.node import Node, each_node

# Tells every supervisor of run $1 that its end was asked for; then the SIGTERM is no failure.
MARK_CANCELLED = r"""
for folder in "$HOME/.ddpctl/runs/$1"/nodes/*/attempt-*; do
  if [ -d "$folder" ]; then : > "$folder/cancelled" || exit 1; fi
done
"""

# The processes of run $1 on this host that can be seen, whoever their parent is now.
PROCESSES = r"""
for p in /proc/[0-9]*; do
  if tr '\0' '\n' 2>/dev/null < "$p/environ" | grep -qxF "DDPCTL_RUN_ID=$1"; then
    echo "${p#/proc/}"
  fi
done
"""


@dataclass(frozen=True)
class Stopped:
    """What a stop found on one host, and what it saw at the end."""

    host: str
    found: tuple[NodeStatus, ...]
    left: tuple[NodeStatus, ...]

    @property
    def clean(self) -> bool:
        return not self.left


def stop_run(
    nodes: Sequence[Node], engines: dict[Node, Engine], run_id: str, timeout: float, *, remove: bool
) -> tuple[dict[str, Stopped], dict[str, DdpctlError]]:
    """Stops the run on every host. Returns what was seen, and the hosts that could not be seen."""

    def act(node: Node) -> Stopped:
        return _stop_on(node, engines[node], run_id, timeout, remove=remove)

    try:
        return {node.name: stopped for node, stopped in each_node(nodes, act).items()}, {}
    except NodesFailed as error:
        return error.results, error.failures


def mark_cancelled(node: Node, run_id: str) -> None:
    done = node.run(["sh", "-c", MARK_CANCELLED, "sh", run_id])
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise CommandFailed(f"{node.name}: could not mark {run_id} as cancelled: {said}")


def _stop_on(node: Node, engine: Engine, run_id: str, timeout: float, *, remove: bool) -> Stopped:
    found = engine.list(run_id)
    if any(status.alive for status in found):
        mark_cancelled(node, run_id)
    for status in found:
        engine.stop(status, timeout)
    left = [status for status in engine.list(run_id) if status.alive]
    if remove:
        for status in found:
            engine.remove(status)
        left = engine.list(run_id)
    return Stopped(node.name, tuple(found), tuple(left))
