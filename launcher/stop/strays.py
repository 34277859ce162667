"""Leftovers of dead runs: found by label and by run id, listed, and ended only when asked to.

A run is dead when one of its nodes has ended or is gone and every host of the file was seen; what is
still alive of it, or was created and never started, is a stray. A process that carries a run id on
a host where no node of that run is alive is one too. Nothing without a run id is ever looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.engines.base import NodeStatus
from launcher.engines.choose import engines_on
from launcher.errors import DdpctlError
from launcher.hosts import Cluster, load
from launcher.ssh.account import account_name
from launcher.ssh.many import ask_each, one_per_account, try_each
from launcher.ssh.node import Node, connected
from launcher.terminal.console import Console

STOP_TIMEOUT = 10.0  # seconds between SIGTERM and SIGKILL for a stray

# pid, run id and name of every process that carries a run id and that this user may look at
CARRIERS = r"""
for e in $(grep -lz '^DDPCTL_RUN_ID=' /proc/[0-9]*/environ 2>/dev/null |
    xargs -r grep -LzxF DDPCTL_ON_EXIT=1 2>/dev/null); do
  p=${e#/proc/}; p=${p%/environ}
  r=$(tr '\0' '\n' 2>/dev/null < "$e" | sed -n 's/^DDPCTL_RUN_ID=//p')
  if [ -n "$r" ]; then printf '%s %s %s\n' "$p" "$r" "$(cat "/proc/$p/comm" 2>/dev/null)"; fi
done
"""

# GPU memory in MiB by pid, where there are GPUs
GPU_MEMORY = "nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits"

# SIGTERM, then SIGKILL, to process $1 as long as it still carries run id $2
END = r"""
mine() { grep -qzxF "DDPCTL_RUN_ID=$2" "/proc/$1/environ" 2>/dev/null; }
mine "$@" || exit 0
kill -TERM "$1"
n=0; while mine "$@" && [ $n -lt 20 ]; do sleep 0.25; n=$((n+1)); done
mine "$@" || exit 0
kill -KILL "$1"
n=0; while mine "$@" && [ $n -lt 20 ]; do sleep 0.25; n=$((n+1)); done
! mine "$@"
"""


@dataclass(frozen=True)
class Stray:
    host: str
    run_id: str
    kind: str  # container or process
    handle: str  # name or pid
    what: str

    def line(self) -> str:
        return f"{self.host}  {self.kind}  {self.handle}  {self.run_id}  {self.what}"


@dataclass(frozen=True)
class Seen:
    """One host's nodes of runs, and its processes that carry a run id."""

    statuses: tuple[NodeStatus, ...]
    carriers: tuple[tuple[int, str, str], ...]  # pid, run id, name
    gpu_mib: Mapping[int, int]


def kill_strays(hosts: str, console: Console, *, yes: bool, as_json: bool) -> int:
    """Lists the strays on the hosts; with `yes` ends them. 0, or 6 when some are not seen to be gone."""
    cluster = load(hosts, job_files=False)
    with connected(cluster.hosts) as nodes:
        machines = one_per_account(nodes)
        found, failures = find(machines, cluster)
        left = found
        if yes and found:
            with console.step(f"ending {len(found)} leftovers"):
                end(machines, cluster, found)
            left, failures = find(machines, cluster)
    report(console, found, left, failures, ended=yes, as_json=as_json)
    return 6 if failures or (yes and left) else 0


def find(machines: Sequence[Node], cluster: Cluster) -> tuple[list[Stray], dict[str, DdpctlError]]:
    """The strays of this user's runs, and the hosts that could not be seen."""
    by_host, failures = ask_each(machines, lambda node: look(node, cluster))
    return strays_of(by_host, account_name(), complete=not failures), failures


def look(node: Node, cluster: Cluster) -> Seen:
    statuses = [
        status for engine in engines_on(node, cluster.job.engine) for status in engine.list()
    ]
    rows = node.script(CARRIERS).stdout.decode(errors="replace").splitlines()
    carriers = [(int(pid), run_id, name) for pid, run_id, name in (r.split(" ", 2) for r in rows)]
    memory: dict[int, int] = {}
    if node.host.gpus != 0:
        for row in node.script(GPU_MEMORY).stdout.decode(errors="replace").splitlines():
            pid, _, mib = row.partition(",")
            if pid.strip().isdigit() and mib.strip().isdigit():
                memory[int(pid)] = int(mib)
    return Seen(tuple(statuses), tuple(carriers), memory)


def strays_of(seen: Mapping[str, Seen], user: str, *, complete: bool) -> list[Stray]:
    """complete: every host was seen, so that a node which is nowhere is gone."""
    runs: dict[str, list[NodeStatus]] = {}
    for host in seen.values():
        for status in host.statuses:
            runs.setdefault(status.run_id, []).append(status)
    dead = {run_id for run_id, nodes in runs.items() if _is_dead(nodes, complete)}
    found = []
    for name, host in seen.items():
        alive_here = {s.run_id for s in host.statuses if s.alive}
        for status in host.statuses:
            mine = status.owner.split("@")[0] == user
            if mine and status.run_id in dead and (status.alive or status.state == "created"):
                what = f"{status.state}, node {status.node_rank} of a run that has ended"
                found.append(Stray(name, status.run_id, "container", status.handle, what))
        for pid, run_id, command in host.carriers:
            if run_id not in alive_here:
                holds = f", holds {host.gpu_mib[pid]} MiB of a GPU" if pid in host.gpu_mib else ""
                found.append(Stray(name, run_id, "process", str(pid), f"{command}{holds}"))
    return found


def _is_dead(nodes: Sequence[NodeStatus], complete: bool) -> bool:
    ended = any(status.state in ("exited", "dead") for status in nodes)
    missing = len({status.node_rank for status in nodes}) < nodes[0].nnodes
    return ended or (complete and missing)


def end(machines: Sequence[Node], cluster: Cluster, strays: Sequence[Stray]) -> None:
    def act(node: Node) -> None:
        mine = [stray for stray in strays if stray.host == node.name]
        names = {stray.handle for stray in mine if stray.kind == "container"}
        for engine in engines_on(node, cluster.job.engine):
            for status in engine.list():
                if status.handle in names:
                    engine.stop(status, STOP_TIMEOUT)
                    engine.remove(status)
        for stray in mine:
            if stray.kind == "process":
                node.script(END, stray.handle, stray.run_id)

    try_each(machines, act)  # what is left is found again by the look that follows


def report(
    console: Console,
    found: Sequence[Stray],
    left: Sequence[Stray],
    failures: Mapping[str, DdpctlError],
    *,
    ended: bool,
    as_json: bool,
) -> None:
    for error in failures.values():
        console.error(f"cannot see {error}")
    if as_json:
        console.json(document(found, left, failures, ended=ended))
        return
    for stray in left if ended else found:
        console.print(stray.line())
    if not found:
        console.say("no leftovers of dead runs")
    elif not ended:
        console.say(f"{len(found)} leftovers; `ddpctl kill HOSTS --strays -y` ends them")
    else:
        console.say(f"{len(found) - len(left)} ended, {len(left)} still there")


def document(
    found: Sequence[Stray],
    left: Sequence[Stray],
    failures: Mapping[str, DdpctlError],
    *,
    ended: bool,
) -> dict[str, Any]:
    def rows(strays: Sequence[Stray]) -> list[dict[str, str]]:
        return [vars(stray) for stray in strays]

    unseen = [{"host": host, "error": str(error)} for host, error in failures.items()]
    return {
        "version": 1,
        "found": rows(found),
        "ended": ended,
        "left": rows(left if ended else found),
        "unseen": unseen,
    }
