"""Claim the GPUs of an attempt on all hosts or on none, by the rules in engines.claims.

Its created nodes are the claim: they carry labels with their GPUs, which every other launch reads.
"""

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..engines.choose import engines_on
from ..engines.claims import goes_first, rivals, taken, undecided
from ..engines.running import RunningAttempt
from ..engines.status import LEASE, ContainerState, NodeStatus
from ..errors import DdpctlError, PreflightError, Several
from ..plan.plan import NodePlan, Plan
from ..ssh.many import each_node
from ..ssh.node import Node
from ..terminal.console import Console
from ..text import counted
from .start_nodes import NodeInputs, attempt_of, create_nodes, remove_nodes

LOOK_AGAIN = 0.2  # seconds until the next check of an undecided rival


@dataclass(frozen=True)
class Claim:
    """An attempt whose nodes are created on all hosts and may start."""

    plan: Plan
    attempt: RunningAttempt


@dataclass(frozen=True)
class Refused:
    """A request for GPUs that other runs use, or asked for earlier."""

    plan: Plan
    attempt: RunningAttempt
    reasons: Sequence[DdpctlError]  # what is taken on which host, and by whom


def claim_gpus(
    plan: Plan, nodes: Sequence[Node], inputs: NodeInputs, console: Console
) -> Claim | Refused:
    """Create the nodes on all hosts, then look for rivals. If one comes first, remove all nodes."""
    attempt = attempt_of(plan, nodes)
    with console.step(f"creating {counted(plan.nnodes, 'node')}"):
        try:
            create_nodes(plan, attempt, inputs)
            reasons = _rivals_ahead(attempt, plan)
        except BaseException:
            remove_nodes(plan, attempt)
            raise
        if reasons:
            remove_nodes(plan, attempt, folders=True)
            return Refused(plan, attempt, reasons)
    return Claim(plan, attempt)


def _rivals_ahead(attempt: RunningAttempt, plan: Plan) -> list[DdpctlError]:
    """Return what rivals that come first have. Wait while it is undecided whether one does."""
    plans = dict(zip(attempt.nodes, plan.nodes, strict=True))
    wanted = {node: plan.resources(each) for node, each in plans.items()}
    sharing = [node for node in wanted if wanted[node]]
    deadline = time.monotonic() + LEASE

    def look(node: Node) -> list[NodeStatus]:
        """List the rivals on a host. Removes leftovers of launches that have died."""
        listed = []
        for engine in engines_on(node, plan.engine.name):
            for rival in rivals(plan.run_id, wanted[node], engine.claims()):
                if not rival.expired:
                    listed.append(rival)
                elif not engine.withdraw(rival):
                    # it has just started, or another launch is removing it
                    listed.append(dataclasses.replace(rival, state=ContainerState.REMOVING))
        return listed

    while True:
        listed = each_node(sharing, look)
        late = time.monotonic() > deadline
        ahead = {
            node: [r for r in here if goes_first(r, plan.key) or (late and undecided(r))]
            for node, here in listed.items()
        }
        if any(ahead.values()):
            return taken_by_rivals(ahead, wanted, plans)
        if not any(undecided(rival) for here in listed.values() for rival in here):
            return []
        time.sleep(LOOK_AGAIN)


def taken_by_rivals(
    ahead: Mapping[Node, Sequence[NodeStatus]],
    wanted: Mapping[Node, Collection[str]],
    plans: Mapping[Node, NodePlan],
) -> list[DdpctlError]:
    """Return, for each host and rival, which of `wanted` the rival has or waits for there."""
    return [
        PreflightError(taken(wanted[node], plans[node].gpu_ids, rival), host=node.name)
        for node, listed in ahead.items()
        for rival in listed
    ]


def refusal(reasons: Sequence[DdpctlError], remedy: str) -> Several:
    return Several(PreflightError(each.what, remedy, host=each.host) for each in reasons)
