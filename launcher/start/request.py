"""The request for an attempt: a run's first, or the one after an earlier attempt."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ..engines.choose import engine_traits
from ..hosts import Cluster, Host, user_environment
from ..plan.build import PlanInputs, make_plan
from ..plan.plan import LaunchOptions, Plan
from ..runs.record import RunFolder, RunRecord, run_folder
from ..ssh.local import account_name
from ..ssh.node import Node
from ..supervisor.restarts import PastRestart


def past_restarts(record: RunRecord | None) -> list[PastRestart]:
    return [PastRestart(each.cause, each.saved) for each in record.restarts] if record else []


@dataclass(frozen=True)
class Request:
    """An attempt that somebody wants to start."""

    cluster: Cluster
    options: LaunchOptions
    run_id: str
    earlier: RunRecord | None = None  # the record of the attempts so far
    attempt: int = 1
    former: tuple[Host, ...] = ()  # no longer used, but may have the run's checkpoints
    since: float | None = None  # when it asked for its GPUs, if it has waited; see Plan.since
    until: float | None = None  # when it stops waiting, by this machine's clock

    @property
    def folder(self) -> RunFolder:
        return run_folder(self.run_id)

    def plan(self, inputs: PlanInputs | None = None) -> Plan:
        """Return the plan of this attempt, as far as `inputs` determine it."""
        return make_plan(
            self.cluster,
            engine_traits(self.cluster.job.engine),
            self.options,
            run_id=self.run_id,
            owner=f"{account_name()}@{socket.gethostname()}",
            attempt=self.attempt,
            inputs=inputs,
            env_names=list(user_environment(self.cluster.job)),
            past_restarts=past_restarts(self.earlier) if self.options.by == "restart" else (),
        )

    def on(self, nodes: Sequence[Node]) -> Request:
        """Return this request for the hosts of `nodes` only."""
        hosts = tuple(node.host for node in nodes)
        return dataclasses.replace(self, cluster=dataclasses.replace(self.cluster, hosts=hosts))
