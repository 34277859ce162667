"""Stops a run on all its hosts at once and proves it: mark, SIGTERM, wait, SIGKILL, inspect."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..engines.base import Engine
from ..engines.status import NodeStatus
from ..errors import CommandFailed, DdpctlError
from ..facts.shared_homes import OWN
from ..hosts import fold
from ..ssh.many import ask_each
from ..ssh.node import Node

# Tells this host's supervisors of run $1 that the user wants it to end, so that SIGTERM is no failure.
# Each host marks its own: what another one writes, an NFS client may see too late.
MARK_CANCELLED = f"""{OWN}
for folder in "$HOME/.ddpctl/runs/$1"/nodes/*/attempt-*; do
  if own "$folder"; then : > "$folder/cancelled" || exit 1; fi
done
"""

# The visible processes of run $1 on this host, whoever their parent is now; not those of --on-exit.
PROCESSES = r"""
grep -lzxF "DDPCTL_RUN_ID=$1" /proc/[0-9]*/environ 2>/dev/null |
  xargs -r grep -LzxF DDPCTL_HOOK=1 2>/dev/null | tr -cd '0-9\n'
"""

ORPHAN_TIMEOUT = 5.0  # seconds for the processes of a killed supervisor to end
POLL = 0.3  # seconds


@dataclass(frozen=True)
class Stopped:
    """What a stop found on one host, and what was left at the end."""

    host: str
    found: tuple[NodeStatus, ...]
    left: tuple[NodeStatus, ...]
    processes: tuple[int, ...]  # pids on the host that still carry the run id

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
    """Stops the run on every host. Returns what each host showed, and an error for each silent one.

    timeout: seconds between SIGTERM and SIGKILL. remove: remove the containers too.
    cancel: record the end as a cancellation instead of a failure.
    """

    def stop(node: Node) -> Stopped:
        if cancel:
            _mark_cancelled(node, run_id)
        return _stop_on(node, engines[node], run_id, timeout, remove=remove)

    return ask_each(nodes, stop)


def not_confirmed(failures: Mapping[str, DdpctlError]) -> list[str]:
    return fold.errors({host: f"{host}: stop not confirmed: {e}" for host, e in failures.items()})


def _mark_cancelled(node: Node, run_id: str) -> None:
    done = node.script(MARK_CANCELLED, run_id)
    if done.code != 0:
        reason = done.stderr.decode(errors="replace").strip()
        raise CommandFailed(f"{node.name}: could not mark {run_id} as cancelled: {reason}")


def _stop_on(
    node: Node, engines: Sequence[Engine], run_id: str, timeout: float, *, remove: bool
) -> Stopped:
    found: list[NodeStatus] = []
    left: list[NodeStatus] = []
    for engine in engines:
        statuses = engine.list(run_id)
        found += statuses
        _stop_all(engine, statuses, timeout)
        if remove:
            for status in statuses:
                engine.remove(status)
        left += [status for status in engine.list(run_id) if status.alive or remove]
    return Stopped(node.name, tuple(found), tuple(left), _remaining_processes(node, run_id))


def _stop_all(engine: Engine, statuses: Sequence[NodeStatus], timeout: float) -> None:
    """Concurrently: two nodes on one machine must not wait for each other's timeout."""
    with ThreadPoolExecutor(max(1, len(statuses))) as pool:
        list(pool.map(lambda status: engine.stop(status, timeout), statuses))


def pids_in(text: bytes) -> tuple[int, ...]:
    """Process ids, one per line; other lines are skipped."""
    return tuple(int(word) for word in text.split() if re.fullmatch(rb"[1-9][0-9]{0,8}", word))


def _remaining_processes(node: Node, run_id: str) -> tuple[int, ...]:
    """Pids that carry the run id, after ORPHAN_TIMEOUT at the latest."""
    deadline = time.monotonic() + ORPHAN_TIMEOUT
    while True:
        done = node.script(PROCESSES, run_id)
        pids = pids_in(done.stdout)
        if not pids or time.monotonic() > deadline:
            return pids
        time.sleep(POLL)
