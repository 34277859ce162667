"""The master port, and what other runs have left."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.engines.base import NodeStatus
from launcher.hosts import Cluster
from launcher.preflight.findings import Finding, failure, warning
from launcher.preflight.machine import Machine


def check_master_port(machines: Sequence[Machine], cluster: Cluster) -> list[Finding]:
    """Free on node 0, else by whom it is held; and a port that the container's user may open."""
    port = cluster.job.master_port
    machine = next((m for m in machines if 0 in m.ranks), None)
    if machine is None or machine.facts is None or port == "auto":
        return []
    user = cluster.job.user
    if port < 1024 and user != "root" and (user != "host" or machine.facts.uid != 0):
        what = f"port {port} is for root only, and the container's user is {user}"
        remedy = "set job.master_port to 1024 or more, or auto"
        return [failure(machine.name, "ports", what, remedy)]
    run = _run_with_port(machine, int(port))
    if run is not None:
        what = f"port {port} is taken by run {run.run_id} of {run.owner}"
        remedy = f"set job.master_port: auto, or `ddpctl kill {run.run_id}`"
        return [failure(machine.name, "ports", what, remedy)]
    if port not in machine.facts.listening:
        return []
    holder = machine.details.holder if machine.details else None
    who = "a process"
    if holder is not None:
        who = f"{holder.command or 'a process'} (user {holder.user}"
        who += f", pid {holder.pid})" if holder.pid else ")"
    what = f"port {port} is taken by {who}"
    return [failure(machine.name, "ports", what, "set job.master_port: auto, or end it")]


def _run_with_port(machine: Machine, port: int) -> NodeStatus | None:
    nodes = machine.docker.nodes if machine.docker else ()
    return next(
        (n for n in nodes if n.alive and n.node_rank == 0 and n.master_port == str(port)), None
    )


def check_leftovers(machines: Sequence[Machine]) -> list[Finding]:
    """Parts of runs that go on although another part of the same attempt has ended."""
    nodes = [(m, node) for m in machines if m.docker for node in m.docker.nodes]
    attempts: dict[tuple[str, int], list[NodeStatus]] = {}
    for _, node in nodes:
        attempts.setdefault((node.run_id, node.attempt), []).append(node)
    found = []
    for machine, node in nodes:
        ended = [n for n in attempts[node.run_id, node.attempt] if n.state in ("exited", "dead")]
        if node.state == "paused" or (node.alive and ended):
            why = "is paused" if node.state == "paused" else "still runs and others have ended"
            what = f"node {node.node_rank} of run {node.run_id} ({node.owner}) {why}"
            found.append(warning(machine.name, "runs", what, f"`ddpctl kill {node.run_id}`"))
    return found
