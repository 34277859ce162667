"""Starting an attempt: create it on all nodes, then start it on all of them or on none."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ..engines.attempt import RunningAttempt, RunningNode
from ..engines.choose import engine_of
from ..errors import PreflightError
from ..plan.plan import Plan
from ..plan.supervisor_spec import supervisor_spec
from ..ssh.many import each_node, try_each
from ..ssh.node import Node
from .run_folders import prepare

UNDO_TIMEOUT = 2.0  # seconds between SIGTERM and SIGKILL; nothing has been trained yet


def attempt_of(plan: Plan, nodes: Sequence[Node]) -> RunningAttempt:
    """The attempt that the plan describes, on `nodes` in rank order."""
    return RunningAttempt(
        tuple(
            RunningNode(node, engine_of(node, plan.engine.name), node_plan.place)
            for node, node_plan in zip(nodes, plan.nodes, strict=True)
        )
    )


def start(
    attempt: RunningAttempt,
    plan: Plan,
    uids: Sequence[int],
    environment: Mapping[str, str],
    record: Mapping[str, Any],
) -> None:
    """Creates folders and nodes everywhere, then starts them. Any failure undoes all of it.

    uids: of the SSH users, by node rank. environment: the user's variables.
    record: run.json and the hosts file, for the hosts to keep.
    """
    token = secrets.token_hex(32)
    members = {member.node: member for member in attempt.members}

    def create(node: Node) -> None:
        member = members[node]
        node_plan = plan.nodes[member.place.node_rank]
        remove_earlier_attempts(member, plan)
        documents = {"spec.json": supervisor_spec(plan, node_plan, token), "run.json": record}
        prepare(node, plan, node_plan, documents, uids[node_plan.node_rank])
        member.engine.create(node_plan, environment)

    try:
        each_node(attempt.nodes, create)
        check_port(attempt.members[0], plan)
        each_node(
            attempt.nodes,
            lambda node: members[node].engine.start(plan.nodes[members[node].place.node_rank]),
        )
    except BaseException:
        # Report the failure that led here; `kill` finds by its labels what cannot be undone now.
        try_each(attempt.nodes, lambda node: undo(members[node], plan))
        raise


def remove_earlier_attempts(member: RunningNode, plan: Plan) -> None:
    """Removes what the attempt before left of this node: its container's name is needed."""
    for status in member.engine.list(plan.run_id) if plan.attempt > 1 else ():
        if status.node_rank == member.place.node_rank:
            member.engine.stop(status, plan.stop_timeout)
            member.engine.remove(status)


def check_port(first: RunningNode, plan: Plan) -> None:
    """Raises PreflightError if another run holds the master port.

    Two launches at once may have found the same port free. The labels on node 0 are the claim: both
    launches see both, and the run whose id sorts first keeps the port.
    """
    for other in first.engine.list():
        if other.master_port != str(plan.master_port) or other.run_id == plan.run_id:
            continue
        if other.alive or (other.state != "exited" and other.run_id < plan.run_id):
            raise PreflightError(
                f"{first.node.name}: port {plan.master_port} belongs to the run {other.run_id} "
                f"of {other.owner}; wait for it, kill it, or set job.master_port (auto finds one)"
            )


def undo(member: RunningNode, plan: Plan) -> None:
    """Stops and removes what this start created."""
    for status in member.engine.list(plan.run_id):
        if status.attempt == plan.attempt and status.node_rank == member.place.node_rank:
            member.engine.stop(status, UNDO_TIMEOUT)
            member.engine.remove(status)
