"""Settle with the other runs that claim an attempt's GPUs, by the rules in engines/claims.py."""

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable

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
    the hosts. After LEASE, undecided rivals count as ahead, because our own nodes have expired too.
    """
    plan = planned.plan
    sharing = [connection for connection in planned.connections if planned.resources(connection)]
    deadline = time.monotonic() + LEASE

    def rivals_after_cleanup(connection: HostConnection) -> list[NodeStatus]:
        """Remove what dead launches left on the host. Return the remaining rivals."""
        listed = []
        for engine in engines_on(connection, plan.engine.name):
            for rival in rivals(plan.run_id, planned.resources(connection), engine.claims()):
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
            reasons = [
                error
                for connection, here in rivals_there.items()
                for error in errors_ahead(
                    planned, connection, planned.resources(connection), here, or_undecided=late
                )
            ]
            if reasons:
                return reasons
            if not any(undecided(rival) for here in rivals_there.values() for rival in here):
                return []
            sleep(LOOK_AGAIN)


def list_claims(planned: PlannedAttempt) -> Claims:
    """Return all runs' nodes and tickets by host, and the errors of hosts that did not answer."""
    name = planned.plan.engine.name
    return try_each(planned.connections, lambda connection: claims_on(connection, name))


def free_hosts(
    planned: PlannedAttempt, claims: Claims
) -> tuple[list[HostConnection], list[DdpctlError]]:
    """Return the hosts without a rival that is ahead or undecided, and an error for each such rival.

    The errors in `claims` follow. A master port that the plan chose itself does not count, because the
    next plan chooses another.
    """
    plan, (listed, failures) = planned.plan, claims
    port = {f"port {plan.master_port}"} if plan.job.master_port == "auto" else set()
    free, reasons = [], []
    for connection, here in listed.items():
        needed = planned.resources(connection) - port
        rivals_here = rivals(plan.run_id, needed, here)
        ahead = errors_ahead(planned, connection, needed, rivals_here, or_undecided=True)
        reasons += ahead
        if not ahead:
            free.append(connection)
    return free, [*reasons, *failures.values()]


def errors_ahead(
    planned: PlannedAttempt,
    connection: HostConnection,
    needed: Collection[str],
    rivals_here: Iterable[NodeStatus],
    *,
    or_undecided: bool,
) -> list[DdpctlError]:
    """Return an error for each rival on one host that is ahead of this run.

    needed: the resources that this run needs there; each error says which of them a rival has taken.
    or_undecided: count undecided rivals as ahead.
    """
    gpu_ids = planned.node_plans[connection].gpu_ids
    return [
        PreflightError(taken(needed, gpu_ids, rival), host=connection.name)
        for rival in rivals_here
        if goes_first(rival, planned.plan.key) or (or_undecided and undecided(rival))
    ]
