"""Settle with the other runs that claim an attempt's GPUs, by the rules in engines/claims.py."""

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from ..engines.choose import claims_on, engines_on
from ..engines.claims import goes_first, rivals, taken, undecided
from ..engines.status import LEASE, ContainerState, NodeStatus
from ..errors import DdpctlError, PreflightError
from ..ssh.host_connection import HostConnection
from ..ssh.many import each_node, try_each
from ..terminal.console import Console
from .planned_attempt import PlannedAttempt

Claims = tuple[dict[HostConnection, list[NodeStatus]], dict[HostConnection, DdpctlError]]
LOOK_AGAIN = 0.2  # seconds between looks at rivals that are undecided


def settle_with_rivals(
    planned: PlannedAttempt, console: Console, sleep: Callable[[float], None]
) -> list[DdpctlError]:
    """Wait until a rival is ahead of this run or none is undecided. Return an error for each one ahead.

    Call this after the nodes are created, and before they start. Removes what dead launches left on
    the hosts. After LEASE, undecided rivals count as ahead.
    """
    plan, resources = planned.plan, planned.resources
    sharing = [connection for connection in resources if resources[connection]]
    deadline = time.monotonic() + LEASE

    def rivals_after_cleanup(connection: HostConnection) -> list[NodeStatus]:
        """Remove what dead launches left on the host. Return the remaining rivals."""
        listed = []
        for engine in engines_on(connection, plan.engine.name):
            for rival in rivals(plan.run_id, resources[connection], engine.claims()):
                if not rival.expired:
                    listed.append(rival)
                elif not engine.withdraw(rival):
                    # it has just started, or another launch is removing it
                    listed.append(dataclasses.replace(rival, state=ContainerState.REMOVING))
        return listed

    with console.step("asking about other runs"):
        while True:
            rivals_there = each_node(sharing, rivals_after_cleanup)
            late = time.monotonic() > deadline
            _, reasons = _ahead(planned, rivals_there, resources, or_undecided=late)
            if reasons:
                return reasons
            if not any(undecided(rival) for here in rivals_there.values() for rival in here):
                return []
            sleep(LOOK_AGAIN)


def list_claims(planned: PlannedAttempt) -> Claims:
    """Return all runs' nodes and tickets by host, and the errors of hosts that did not answer."""
    name = planned.plan.engine.name
    return try_each(planned.connections, lambda connection: claims_on(connection, name))


def in_the_way(
    planned: PlannedAttempt, claims: Claims
) -> tuple[dict[HostConnection, list[NodeStatus]], list[DdpctlError]]:
    """Return the rivals that are ahead or undecided by host, and an error for each.

    The errors in `claims` follow. A master port that the plan chose itself does not count, because
    the next plan chooses another.
    """
    plan, (listed, failures) = planned.plan, claims
    port = {f"port {plan.master_port}"} if plan.job.master_port == "auto" else set()
    resources = {connection: here - port for connection, here in planned.resources.items()}
    rivals_there = {
        connection: rivals(plan.run_id, resources[connection], here)
        for connection, here in listed.items()
    }
    ahead, reasons = _ahead(planned, rivals_there, resources, or_undecided=True)
    return ahead, [*reasons, *failures.values()]


def _ahead(
    planned: PlannedAttempt,
    rivals_there: Mapping[HostConnection, Sequence[NodeStatus]],
    resources: Mapping[HostConnection, Collection[str]],
    *,
    or_undecided: bool,
) -> tuple[dict[HostConnection, list[NodeStatus]], list[DdpctlError]]:
    """Return the rivals that are ahead of this run, by host, and an error for each.

    rivals_there: all rivals on each host. resources: those that this run needs on each host; each error
    says which of them a rival has taken. or_undecided: count undecided rivals as ahead.
    """
    key = planned.plan.key
    ahead = {
        connection: [r for r in here if goes_first(r, key) or (or_undecided and undecided(r))]
        for connection, here in rivals_there.items()
    }
    reasons: list[DdpctlError] = [
        PreflightError(
            taken(resources[connection], planned.node_plans[connection].gpu_ids, rival),
            host=connection.name,
        )
        for connection, here in ahead.items()
        for rival in here
    ]
    return ahead, reasons
