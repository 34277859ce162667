"""Stop a run on all its hosts and prove it: mark, SIGTERM, wait, SIGKILL, inspect."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

from ..engines.choose import engines_on
from ..engines.status import NodeStatus
from ..errors import CommandFailed, DdpctlError
from ..facts.shared_homes import OWN
from ..hosts import Cluster, fold
from ..run_id import is_run_id
from ..runs.record import UnreadableRecord, run_folders, timestamp
from ..ssh.many import ask_each
from ..ssh.node import Node
from ..terminal.console import Console

# Marks run $1 as cancelled for this host's supervisors, so that SIGTERM does not count as a
# failure. Each host writes its own mark, because an NFS client may see another host's too late.
MARK_CANCELLED = f"""{OWN}
for folder in "$HOME/.ddpctl/runs/$1"/nodes/*/attempt-*; do
  if own "$folder"; then : > "$folder/cancelled" || exit 1; fi
done
"""

# Prints pid, run id and name of every process that carries a run id in an environment that this
# user may read: run $1, or any. Root may read all environments, so without $1 it gets only runs
# with a folder in its own home. Processes of --on-exit do not count.
CARRIERS = r"""
for e in $(grep -lz "^DDPCTL_RUN_ID=$1" /proc/[0-9]*/environ 2>/dev/null |
    xargs -r grep -LzxF DDPCTL_HOOK=1 2>/dev/null); do
  p=${e#/proc/}; p=${p%/environ}
  r=$(tr '\0' '\n' 2>/dev/null < "$e" | sed -n 's/^DDPCTL_RUN_ID=//p')
  [ -n "$1" ] || [ "$(id -u)" != 0 ] || [ -d "$HOME/.ddpctl/runs/$r" ] || continue
  printf '%s %s %s\n' "$p" "$r" "$(cat "/proc/$p/comm" 2>/dev/null)"
done
"""
CARRIER = re.compile(r"([1-9][0-9]{0,8}) (\S+) (.*)")

ORPHAN_TIMEOUT = 5.0  # seconds for a killed supervisor's processes to end
POLL = 0.3  # seconds


@dataclass(frozen=True)
class Stopped:
    """What a stop found on one host, and what is left."""

    found: tuple[NodeStatus, ...]
    left: tuple[NodeStatus, ...]
    processes: tuple[int, ...]  # pids of remaining processes with the run id

    @property
    def clean(self) -> bool:
        return not self.left and not self.processes

    def describe(self) -> str:
        count = len(self.found)
        stopped = f"stopped and removed {count}" if count else "was not running"
        if self.clean:
            return f"{stopped}, nothing left" if count else stopped
        left = [*(status.handle for status in self.left), *(f"pid {pid}" for pid in self.processes)]
        return f"{stopped}, STILL THERE: {', '.join(left)}"


def stop_run(
    nodes: Sequence[Node],
    engine: str,
    run_id: str,
    timeout: float,
    *,
    remove: bool = True,
    cancel: bool = True,
) -> tuple[dict[str, Stopped], dict[str, DdpctlError]]:
    """Stop the run on every host. Return the result by host, and the errors of silent hosts.

    engine: the job's. timeout: seconds between SIGTERM and SIGKILL. remove: also remove the
    containers. cancel: record a cancellation instead of a failure.
    """

    def stop(node: Node) -> Stopped:
        if cancel and (done := node.script(MARK_CANCELLED, run_id)).code != 0:
            raise CommandFailed(f"{node.name}: could not mark {run_id} as cancelled: {done.reason}")
        found: list[NodeStatus] = []
        left: list[NodeStatus] = []
        for each in engines_on(node, engine):
            statuses = each.list(run_id)
            # concurrently, so that nodes on one machine do not wait for each other's timeout
            with ThreadPoolExecutor(len(statuses) or 1) as pool:
                list(pool.map(each.stop, statuses, repeat(timeout)))
            for status in statuses if remove else ():
                each.remove(status)
            found += statuses
            left += [status for status in each.list(run_id) if status.alive or remove]
        deadline = time.monotonic() + ORPHAN_TIMEOUT
        while (processes := carriers(node, run_id)) and time.monotonic() < deadline:
            time.sleep(POLL)
        return Stopped(tuple(found), tuple(left), tuple(pid for pid, _, _ in processes))

    return ask_each(nodes, stop)


def carriers(node: Node, run_id: str = "") -> list[tuple[int, str, str]]:
    """Return pid, run id and name of each process that carries this run id, or any."""
    output = node.script(CARRIERS, run_id).stdout.decode(errors="replace")
    rows = [match for line in output.splitlines() if (match := CARRIER.fullmatch(line))]
    found = [(int(row[1]), row[2], row[3]) for row in rows if is_run_id(row[2])]
    return [row for row in found if run_id in ("", row[1])]


def finish_pending(nodes: Sequence[Node], cluster: Cluster, console: Console) -> None:
    """Complete stops that run.json lists as unconfirmed here; silent hosts stay on the list."""
    by_name = {node.name: node for node in nodes}
    for folder in run_folders():
        try:
            record = folder.load()
        except UnreadableRecord:
            continue  # the command that needs this record reports it
        here = [by_name[host] for host in record.pending_stop if host in by_name]
        if not here:
            continue
        names = fold.names(node.name for node in here)
        with console.step(f"finishing the stop of {record.run_id} on {names}"):
            stopped, _ = stop_run(here, cluster.job.engine, record.run_id, record.stop_timeout)
        done = {host for host, result in stopped.items() if result.clean}
        for host in sorted(done):
            console.say(f"{host}: finished the pending stop of {record.run_id}")
        record.pending_stop = [host for host in record.pending_stop if host not in done]
        if record.state == "UNKNOWN" and not record.pending_stop:
            record.attempt.state, record.attempt.ended = "CANCELLED", timestamp()
        folder.try_save(record, console)


def not_confirmed(failures: Mapping[str, DdpctlError]) -> list[str]:
    return fold.errors({host: f"{host}: stop not confirmed: {e}" for host, e in failures.items()})
