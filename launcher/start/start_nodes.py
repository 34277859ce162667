"""Start an attempt: create it on all nodes, then start it on all of them or on none."""

import dataclasses
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..engines.choose import engine_of, engines_on
from ..engines.claims import goes_first, rivals, taken, undecided
from ..engines.running import RunningAttempt, RunningNode
from ..engines.status import LEASE, NodeStatus
from ..errors import PreflightError
from ..plan.plan import NodePlan, Plan
from ..plan.supervisor_spec import supervisor_spec
from ..ssh.many import each_node, try_each
from ..ssh.node import Node
from ..text import names
from .node_folders import prepare

LOOK_AGAIN = 0.2  # seconds until the next check of an undecided rival
UNDO_TIMEOUT = 2.0  # seconds between SIGTERM and SIGKILL; there is no training to lose yet


class GpusTaken(PreflightError):
    """Other runs use what the plan needs, or asked for it earlier."""

    def __init__(self, lines: Sequence[str], attempt: RunningAttempt, plan: Plan) -> None:
        """lines: which resource is taken where, and by whom."""
        remedy = "launch with --wait to wait in line, or choose other GPUs"
        super().__init__("\n".join(f"{line}; {remedy}" for line in lines))
        self.lines, self.attempt, self.plan = lines, attempt, plan


def attempt_of(plan: Plan, nodes: Sequence[Node]) -> RunningAttempt:
    """Return the plan's attempt on `nodes`, which are in rank order."""
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
    """Create folders and nodes on all hosts, then start the nodes. A failure removes all nodes again.

    uids: of the SSH users, by node rank. environment: the user's variables. record: run.json and
    the hosts file, for the hosts to keep.
    """
    token = secrets.token_hex(32)
    members, plans = attempt.by_node, dict(zip(attempt.nodes, plan.nodes, strict=True))

    def create(node: Node) -> None:
        member, node_plan = members[node], plans[node]
        if plan.attempt > 1:  # a container name can be used only once
            remove(member, plan, earlier=True)
        documents = {"spec.json": supervisor_spec(plan, node_plan, token), "run.json": record}
        prepare(node, plan, node_plan, documents, uids[node_plan.node_rank])
        member.engine.create(node_plan, environment)

    try:
        each_node(attempt.nodes, create)
        check_claims(attempt, plan)
        each_node(attempt.nodes, lambda node: members[node].engine.start(plans[node]))
    except BaseException:
        # Raise the original failure. If a node cannot be removed now, `kill` finds it by its labels.
        try_each(attempt.nodes, lambda node: remove(members[node], plan, earlier=False))
        raise


def remove(member: RunningNode, plan: Plan, *, earlier: bool) -> None:
    """Stop and remove the node of this attempt on its host. earlier: also those of earlier attempts.

    Tickets stay, because the run may go on waiting.
    """
    for status in member.engine.list(plan.run_id):
        own = status.node_rank == member.place.node_rank and status.state != "waiting"
        if own and (earlier or status.attempt == plan.attempt):
            member.engine.stop(status, plan.stop_timeout if earlier else UNDO_TIMEOUT)
            member.engine.remove(status)


def check_claims(attempt: RunningAttempt, plan: Plan) -> None:
    """Wait until this start may go ahead, by the rules in engines.claims.

    All nodes must have been created. Raises GpusTaken if another run comes first.
    """
    plans = dict(zip(attempt.nodes, plan.nodes, strict=True))
    wanted = {node: plan.resources(each) for node, each in plans.items()}
    sharing = [node for node in wanted if wanted[node]]
    deadline = time.monotonic() + LEASE

    def look(node: Node) -> list[NodeStatus]:
        """List the rivals on a host. Removes leftovers of launches that have died."""
        found = []
        for engine in engines_on(node, plan.engine.name):
            for rival in rivals(plan.run_id, wanted[node], engine.claims()):
                if not rival.expired:
                    found.append(rival)
                elif not engine.withdraw(rival):
                    # it has just started, or another launch is removing it
                    found.append(dataclasses.replace(rival, state="removing"))
        return found

    while True:
        found = each_node(sharing, look)
        late = time.monotonic() > deadline
        ahead = {
            node: [r for r in listed if goes_first(r, plan.key) or (late and undecided(r))]
            for node, listed in found.items()
        }
        if any(ahead.values()):
            raise GpusTaken(rival_lines(ahead, wanted, plans), attempt, plan)
        if not any(undecided(rival) for listed in found.values() for rival in listed):
            return
        time.sleep(LOOK_AGAIN)


def rival_lines(
    ahead: Mapping[Node, Sequence[NodeStatus]],
    wanted: Mapping[Node, Collection[str]],
    plans: Mapping[Node, NodePlan],
) -> list[str]:
    """Return a line per rival: the hosts, and which of `wanted` it has or waits for there."""
    hosts: dict[str, list[str]] = {}
    for node, listed in ahead.items():
        for rival in listed:
            what = taken(wanted[node], plans[node].gpu_ids, rival)
            hosts.setdefault(what, []).append(node.name)
    return [f"{names(where)}: {what}" for what, where in hosts.items()]
