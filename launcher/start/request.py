"""The request for an attempt, whether it is the first attempt of a run or a later one."""

from __future__ import annotations

import dataclasses
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..engines.choose import engine_traits
from ..errors import StateError
from ..facts.gather import request_time
from ..follow import hooks
from ..hosts import Cluster, Host, user_env
from ..plan.build import PlanInputs, build_plan
from ..plan.launch_options import LaunchOptions
from ..plan.plan import Plan
from ..runs.attempt_lock import take_care
from ..runs.record import RunRecord, new_record
from ..runs.run_folder import RunFolder, run_folder
from ..ssh.host_connection import HostConnection
from ..ssh.local import account_name
from .planned_attempt import PlannedAttempt


@dataclass(frozen=True)
class Request:
    """An attempt that the user or a restart wants to start."""

    cluster: Cluster
    options: LaunchOptions
    run_id: str
    earlier: RunRecord | None = None  # the record of the attempts so far
    attempt: int = 1
    by: str = "launch"  # what starts it; see AttemptRecord
    former: tuple[Host, ...] = ()  # hosts no longer used that may have the run's checkpoints
    since: float | None = None  # when the run asked for its GPUs; None: it asks now. See Plan.since
    until: float | None = None  # when it stops waiting: unix seconds on this machine's clock
    token: str = field(default_factory=lambda: secrets.token_hex(8))  # of its reservation
    handed_over: bool = False  # whether another process has reserved and locked it for this one
    notes: tuple[str, ...] = ()  # the first lines of the run's log

    @property
    def folder(self) -> RunFolder:
        return run_folder(self.run_id)

    def plan(self, inputs: PlanInputs | None = None) -> Plan:
        """Return the plan of this attempt, as far as `inputs` determine it."""
        is_restart = self.by == "restart"
        asks_now = request_time(inputs.facts[0]) if inputs else None
        plan = build_plan(
            self.cluster,
            engine_traits(self.cluster.job.engine),
            self.options,
            run_id=self.run_id,
            owner=f"{account_name()}@{socket.gethostname()}",
            attempt=self.attempt,
            inputs=inputs,
            env_names=list(user_env(self.cluster.job)),
            past_restarts=self.earlier.past_restarts if is_restart and self.earlier else (),
            since=self.since or asks_now,
        )
        before = self.earlier.attempt.world_size if self.earlier else None
        notes = self.notes
        if before and plan.world_size and plan.world_size != before:
            notes += (f"WORLD_SIZE {before} -> {plan.world_size}",)
        return dataclasses.replace(plan, notes=notes)

    def planned(self, connections: Sequence[HostConnection], inputs: PlanInputs) -> PlannedAttempt:
        """Plan the attempt on these of its hosts. inputs: theirs, in the same order."""
        return PlannedAttempt(self.on(connections).plan(inputs), connections)

    def take_care(self, *, to_wait: bool = False) -> None:
        """Lock the attempt for this process; see `attempt_lock.take_care`.

        Some file systems have no locks. An attempt starts without one, but cannot wait in line,
        because no recorder could take it over: with to_wait, this raises StateError.
        """
        try:
            if not self.handed_over:
                take_care(self.folder, self.attempt)
        except StateError:
            if to_wait:
                raise

    def save_pending(self, plan: Plan) -> RunRecord:
        """Save a PENDING attempt, its hosts file and its hooks on this machine. Return the record."""
        record = new_record(plan, self.earlier, by=self.by, token=self.token)
        self.folder.keep_cluster(self.cluster)
        self.folder.save(record)
        hooks.keep(self.folder, self.options)
        return record

    def on(self, connections: Sequence[HostConnection]) -> Request:
        """Return this request for only the hosts of `connections`. Its other hosts become spares."""
        hosts = tuple(connection.host for connection in connections)
        spares = (*self.cluster.spares, *(h for h in self.cluster.hosts if h not in hosts))
        cluster = dataclasses.replace(self.cluster, hosts=hosts, spares=spares)
        return dataclasses.replace(self, cluster=cluster)
