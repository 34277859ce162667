"""An attempt that may not have nodes yet: its plan and the connections to its hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..engines.base import Engine
from ..engines.choose import engine_of
from ..engines.node_handle import AttemptHandle, NodeHandle
from ..engines.status import NodeStatus
from ..errors import DdpctlError
from ..plan.plan import NodePlan, Plan
from ..ssh.host_connection import HostConnection


@dataclass(frozen=True)
class PlannedAttempt:
    """A plan with the connections to its hosts, in rank order."""

    plan: Plan
    connections: Sequence[HostConnection]

    @cached_property
    def node_plans(self) -> Mapping[HostConnection, NodePlan]:
        return dict(zip(self.connections, self.plan.nodes, strict=True))

    def resources(self, connection: HostConnection) -> frozenset[str]:
        """Return what no other run may use on the host: its GPUs and, on node 0, the master port."""
        return self.plan.resources(self.node_plans[connection])

    @cached_property
    def handle(self) -> AttemptHandle:
        """The handles of the attempt's nodes, for code that acts on the nodes."""
        name = self.plan.engine.name
        members = (
            NodeHandle(connection, engine_of(connection, name), node_plan.place)
            for connection, node_plan in self.node_plans.items()
        )
        return AttemptHandle(tuple(members))

    def engine(self, connection: HostConnection) -> Engine:
        return self.handle.by_connection[connection].engine

    def own_nodes(self, connection: HostConnection) -> list[NodeStatus]:
        """Return the status of the host's node in each attempt.

        Omits tickets, because callers stop and remove what this returns.
        """
        listed = self.engine(connection).nodes(self.plan.run_id)
        rank = self.node_plans[connection].node_rank
        return [status for status in listed if status.node_rank == rank and not status.is_ticket]


@dataclass(frozen=True)
class Refused:
    """An attempt whose GPUs other runs are using or asked for earlier."""

    planned: PlannedAttempt  # its hosts get its tickets, unless `choose_again`
    reasons: Sequence[DdpctlError]  # what is taken on which host, and by whom
    choose_again: bool = False  # with --nodes: other hosts in the hosts file may be free
