"""Create the nodes of an attempt on all hosts, start them, and remove them again."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..diagnosis.error_texts import FAILURE_TABLE
from ..engines.choose import engine_of
from ..engines.running import RunningAttempt, RunningNode
from ..engines.status import NodeStatus
from ..plan.plan import Plan
from ..plan.supervisor_spec import supervisor_spec
from ..ssh.many import each_node, try_each
from ..ssh.node import Node
from ..terminal.console import Console
from ..text import counted
from .node_folders import fill_folders

UNDO_TIMEOUT = 2.0  # seconds between SIGTERM and SIGKILL; there is no training to lose yet


@dataclass(frozen=True)
class NodeInputs:
    """What the hosts get besides the plan."""

    uids: Sequence[int]  # of the SSH users, by node rank
    environment: Mapping[str, str]  # the user's variables; may be secret
    record: Mapping[str, Any]  # run.json, for the hosts to keep


def attempt_of(plan: Plan, nodes: Sequence[Node]) -> RunningAttempt:
    """Return the plan's attempt on `nodes`, which are in rank order."""
    engine, pairs = plan.engine.name, zip(nodes, plan.nodes, strict=True)
    members = (RunningNode(node, engine_of(node, engine), own.place) for node, own in pairs)
    return RunningAttempt(tuple(members))


def create_nodes(plan: Plan, attempt: RunningAttempt, inputs: NodeInputs) -> None:
    """Fill the folders and create the nodes on all hosts, without starting them."""
    token = secrets.token_hex(32)
    plans = dict(zip(attempt.nodes, plan.nodes, strict=True))

    def create(node: Node) -> None:
        member, node_plan = attempt.by_node[node], plans[node]
        if plan.attempt > 1:  # a container name can be used only once
            for status in _nodes_of(member, plan):
                member.engine.stop(status, plan.job.stop_timeout)
                member.engine.remove(status)
        spec = supervisor_spec(plan, node_plan, token, FAILURE_TABLE)
        documents = {"spec.json": spec, "run.json": inputs.record}
        fill_folders(node, plan, node_plan, documents, inputs.uids[node_plan.node_rank])
        member.engine.create(node_plan, inputs.environment)

    each_node(attempt.nodes, create)


def start_nodes(plan: Plan, attempt: RunningAttempt, console: Console) -> None:
    """Start the nodes that `create_nodes` has created."""
    plans = dict(zip(attempt.nodes, plan.nodes, strict=True))
    with console.step(f"starting {counted(plan.nnodes, 'node')}"):
        each_node(attempt.nodes, lambda node: attempt.by_node[node].engine.start(plans[node]))


def remove_nodes(plan: Plan, attempt: RunningAttempt, *, folders: bool = False) -> None:
    """Stop and remove the nodes of this attempt. folders: its folders too, as if it had never existed.

    If a node cannot be removed now, `kill` finds it by its labels.
    """

    def remove(node: Node) -> None:
        member = attempt.by_node[node]
        for status in _nodes_of(member, plan):
            if status.attempt == plan.attempt:
                member.engine.stop(status, UNDO_TIMEOUT)
                member.engine.remove(status)
        if folders:
            node.run(["rm", "-rf", "--", member.place.control_dir])

    try_each(attempt.nodes, remove)


def _nodes_of(member: RunningNode, plan: Plan) -> list[NodeStatus]:
    """Return this node of all attempts on its host. Tickets stay: the run may go on waiting."""
    listed = member.engine.list(plan.run_id)
    rank = member.place.node_rank
    return [status for status in listed if status.node_rank == rank and not status.is_ticket]
