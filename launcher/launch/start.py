"""Starting a run: ask the hosts, make the plan, create on all nodes, start on all or on none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.engines.base import Engine
from launcher.engines.choose import engine_of
from launcher.errors import PreflightError
from launcher.facts.script import Facts
from launcher.launch.run_folders import prepare
from launcher.plan.plan import NodePlan, Plan
from launcher.plan.supervisor_spec import supervisor_spec
from launcher.ssh.many import each_node, try_each
from launcher.ssh.node import Node


@dataclass(frozen=True)
class Member:
    """One node of a run with the means to act on it."""

    node: Node
    engine: Engine
    plan: NodePlan


def members(nodes: Sequence[Node], plan: Plan) -> list[Member]:
    return [
        Member(node, engine_of(node, plan.engine), node_plan)
        for node, node_plan in zip(nodes, plan.nodes, strict=True)
    ]


def start(
    crew: Sequence[Member],
    plan: Plan,
    facts: Sequence[Facts],
    *,
    token: str,
    secrets: Mapping[str, str],
    hang_timeout: float | None,
    record: Mapping[str, Any],
) -> None:
    """Folders and containers on all nodes, then the start. Any failure undoes all of it."""
    by_node = {member.node: member for member in crew}
    nodes = list(by_node)

    def make(node: Node) -> None:
        member = by_node[node]
        spec = supervisor_spec(plan, member.plan, token=token, hang_timeout=hang_timeout)
        clear_earlier_attempts(member, plan)
        uid = facts[member.plan.node_rank].uid
        prepare(node, plan, member.plan, {"spec.json": spec, "run.json": record}, uid)
        member.engine.create(member.plan, secrets)

    try:
        each_node(nodes, make)
        claim_port(crew[0], plan)
        each_node(nodes, lambda node: by_node[node].engine.start(by_node[node].plan))
    except BaseException:
        roll_back(crew, plan)
        raise


def clear_earlier_attempts(member: Member, plan: Plan) -> None:
    """A resume takes the place of what the attempt before it left."""
    for status in member.engine.list(plan.run_id) if plan.attempt > 1 else ():
        if status.node_rank == member.plan.node_rank:
            member.engine.stop(status, plan.stop_timeout)
            member.engine.remove(status)


def claim_port(first: Member, plan: Plan) -> None:
    """Two launches at once may have found the same port free: the one created first keeps it.

    The container's label is the claim; node 0's engine decides, so both launches see the same.
    """
    mine = [s for s in first.engine.list() if s.master_port == str(plan.master_port)]
    others = [s for s in mine if s.run_id != plan.run_id and s.state != "exited"]
    for other in others:
        if other.alive or other.run_id < plan.run_id:
            raise PreflightError(
                f"{first.node.name}: port {plan.master_port} belongs to the run {other.run_id} "
                f"of {other.owner}; wait for it, kill it, or set job.master_port (auto finds one)"
            )


def roll_back(crew: Sequence[Member], plan: Plan) -> None:
    """Ends and removes what this start made."""

    def undo(member: Member) -> None:
        for status in member.engine.list(plan.run_id):
            if status.attempt == plan.attempt:
                member.engine.stop(status, 2.0)
                member.engine.remove(status)

    by_node = {member.node: member for member in crew}
    # the failure that led here is the one to tell; `kill` finds the labels of what is left
    try_each(list(by_node), lambda node: undo(by_node[node]))
