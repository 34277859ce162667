"""Check the master port, and look for leftovers of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..engines.status import NodeStatus
from ..terminal.sanitize import plain
from .findings import Finding, failure, warning
from .inventory import Inventory, Machine

LONGEST_COMMAND = 80  # characters shown; a command line may contain anything, including passwords


def check_master_port(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Check that the port is free on node 0 and open to the container's user."""
    port, user = seen.cluster.job.master_port, seen.cluster.job.user
    if 0 not in machine.ranks or port == "auto":
        return
    run = next((n for n in _nodes(machine) if n.alive and _holds(n, port)), None)
    if port < 1024 and user != "root" and (user != "host" or machine.facts.uid != 0):
        what = f"port {port} is for root only, and the container's user is {user}"
        yield failure(
            machine.name, "ports", what, "set job.master_port to 1024 or higher, or to auto"
        )
    elif run and seen.waits:
        return
    elif run:
        what = f"port {port} is taken by run {run.run_id} of {run.owner}"
        remedy = f"set job.master_port: auto, or run `ddpctl kill {run.run_id}`"
        yield failure(machine.name, "ports", what, remedy)
    elif port in machine.facts.listening:
        what = f"port {port} is taken by {_holder(machine)}"
        yield failure(machine.name, "ports", what, "set job.master_port: auto, or stop the process")


def check_leftovers(machine: Machine, seen: Inventory) -> Iterator[Finding]:
    """Find nodes that are paused, or that run although another node of their run has ended."""
    ended = {
        (n.run_id, n.attempt)
        for m in seen.machines
        for n in _nodes(m)
        if n.state in ("exited", "dead")
    }
    for node in _nodes(machine):
        paused = node.state == "paused"
        if paused or (node.alive and (node.run_id, node.attempt) in ended):
            state = "is paused" if paused else "is still running, but other nodes have ended"
            what = f"node {node.node_rank} of run {node.run_id} ({node.owner}) {state}"
            yield warning(machine.name, "runs", what, f"run `ddpctl kill {node.run_id}`")


def _nodes(machine: Machine) -> tuple[NodeStatus, ...]:
    return machine.engine.nodes if machine.engine else ()


def _holds(node: NodeStatus, port: int) -> bool:
    return node.node_rank == 0 and node.master_port == str(port)


def _holder(machine: Machine) -> str:
    holder = machine.details.holder
    if holder is None:
        return "a process"
    pid = f", pid {holder.pid}" if holder.pid else ""
    command = plain(holder.command) or "a process"
    if len(command) > LONGEST_COMMAND:
        command = f"{command[:LONGEST_COMMAND]}..."
    return f"{command} (user {holder.user}{pid})"


CHECKS = (check_master_port, check_leftovers)
