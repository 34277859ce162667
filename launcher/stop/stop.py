"""Stopping a run, and proving it: mark, stop, wait, kill, inspect, on all its hosts at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from launcher.engines.base import Engine, NodeStatus
from launcher.errors import CommandFailed, DdpctlError
from launcher.ssh.many import ask_each
from launcher.ssh.node import Node

# Tells every supervisor of run $1 that its end was asked for; then the SIGTERM is no failure.
MARK_CANCELLED = r"""
for folder in "$HOME/.ddpctl/runs/$1"/nodes/*/attempt-*; do
  if [ -d "$folder" ]; then : > "$folder/cancelled" || exit 1; fi
done
"""

# The processes of run $1 on this host that can be seen, whoever their parent is now; what the
# user has told to run at its end is none of them.
PROCESSES = r"""
grep -lzxF "DDPCTL_RUN_ID=$1" /proc/[0-9]*/environ 2>/dev/null |
  xargs -r grep -LzxF DDPCTL_ON_EXIT=1 2>/dev/null | tr -cd '0-9\n'
"""


ORPHAN_TIMEOUT = 5.0  # seconds that a killed supervisor's processes may take to go


@dataclass(frozen=True)
class Stopped:
    """What a stop found on one host, and what it saw at the end."""

    host: str
    found: tuple[NodeStatus, ...]
    left: tuple[NodeStatus, ...]
    processes: tuple[int, ...]  # pids on the host that carry the run id still

    @property
    def clean(self) -> bool:
        return not self.left and not self.processes


def stop_run(
    nodes: Sequence[Node],
    engines: Mapping[Node, Sequence[Engine]],
    run_id: str,
    timeout: float,
    *,
    remove: bool = True,
    cancel: bool = True,
) -> tuple[dict[str, Stopped], dict[str, DdpctlError]]:
    """Stops the run on every host. Returns what was seen, and the hosts that could not be seen.

    cancel: the supervisors are told that this end was asked for. remove: containers go too.
    """

    def act(node: Node) -> Stopped:
        if cancel:
            mark_cancelled(node, run_id)
        return _stop_on(node, engines[node], run_id, timeout, remove=remove)

    return ask_each(nodes, act)


def mark_cancelled(node: Node, run_id: str) -> None:
    done = node.script(MARK_CANCELLED, run_id)
    if done.code != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise CommandFailed(f"{node.name}: could not mark {run_id} as cancelled: {said}")


def _stop_on(
    node: Node, engines: Sequence[Engine], run_id: str, timeout: float, *, remove: bool
) -> Stopped:
    found: list[NodeStatus] = []
    left: list[NodeStatus] = []
    for engine in engines:
        mine = engine.list(run_id)
        found += mine
        _stop_all(engine, mine, timeout)
        if remove:
            for status in mine:
                engine.remove(status)
        left += [status for status in engine.list(run_id) if status.alive or remove]
    return Stopped(node.name, tuple(found), tuple(left), _last_processes(node, run_id))


def _stop_all(engine: Engine, statuses: Sequence[NodeStatus], timeout: float) -> None:
    """At once: two nodes on one machine must not wait for each other's stop timeout."""
    with ThreadPoolExecutor(max(1, len(statuses))) as pool:
        list(pool.map(lambda status: engine.stop(status, timeout), statuses))


def _last_processes(node: Node, run_id: str) -> tuple[int, ...]:
    """Processes of the run on the host; those that are just going get a moment to be gone."""
    deadline = time.monotonic() + ORPHAN_TIMEOUT
    while True:
        done = node.script(PROCESSES, run_id)
        pids = tuple(int(word) for word in done.stdout.split() if word.isdigit())
        if not pids or time.monotonic() > deadline:
            return pids
        time.sleep(0.3)
