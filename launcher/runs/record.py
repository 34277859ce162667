"""The record of a run: what run.json says about the run and its attempts."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Self

from ..failure import FirstFailure
from ..logs.event_reader import parsed
from ..outcomes import NodeState, RunState
from ..plan.launch_options import RunOptions
from ..plan.plan import Plan
from ..supervisor.events import Reason, RestartInPlace
from ..supervisor.restart_rule import PastRestart, refusal
from ..text import rfc3339

VERSION = 1
FINAL = "|".join(state for state in RunState if state.is_final)
# The beginning of the run.json of a run that has ended, and whose stops are all confirmed.
SETTLED = re.compile(rf'\{{\s*"version": {VERSION},\s*"state": "({FINAL})",\s*"pending_stop": \[\]')
IN_PLACE, BY_LAUNCHER = "in-place", "launcher"  # kinds of restarts
MOST_RESTARTS = 1000  # in place, recorded per attempt; a host's reports must not fill the disk


def timestamp(seconds: float | None = None) -> str:
    """Format a time, by default now, as RFC 3339 in UTC with milliseconds."""
    return rfc3339(time.time() if seconds is None else seconds)


def parse_timestamp(text: str | None) -> float | None:
    """Convert the output of `timestamp` to unix seconds. Return None if `text` is not valid."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


@dataclass
class NodeRecord:
    node_rank: int
    host: str
    run_dir: str  # on the host
    state: NodeState = NodeState.PENDING
    exit_code: int | None = None


@dataclass(frozen=True)
class RestartRecord:
    """An automatic restart, recorded in the attempt that failed.

    cause, host, node_rank, rank, message: of the failure. saved: whether a new checkpoint was
    saved between the previous start and the failure.
    """

    time: str
    kind: str  # in-place: by the supervisors, in the same attempt; launcher: by a new attempt
    cause: str  # a kind listed in failure_kinds.txt
    host: str
    node_rank: int
    rank: int | None
    message: str
    saved: bool

    @classmethod
    def after(cls, failure: FirstFailure | Reason, *, kind: str, time: str, saved: bool) -> Self:
        place = (failure.host, failure.node_rank, failure.rank)
        return cls(time, kind, failure.kind, *place, failure.message, saved)


@dataclass
class AttemptRecord:
    """One start of a run, including its restarts in place."""

    attempt: int
    state: RunState
    created: str
    nodes: list[NodeRecord]
    world_size: int
    master_addr: str
    master_port: int
    started: str | None = None
    ended: str | None = None
    first_failure: FirstFailure | None = None
    restarts: list[RestartRecord] = field(default_factory=list)
    waiting_since: float | None = None  # when it asked for its GPUs: unix seconds, node 0's clock
    waiting_until: float | None = None  # unix seconds, this machine's clock; None: no limit
    by: str = "launch"  # launch, resume, or restart (automatic, after a failure)
    token: str = ""  # of its reservation on the hosts
    digests: dict[str, str] = field(default_factory=dict)  # of its image, dataset and code

    @property
    def number(self) -> int:
        """The attempt's number within the run, starting at 1. Named `attempt` in run.json."""
        return self.attempt

    @property
    def is_reported(self) -> bool:
        """Whether another machine started it.

        If so, the master is unknown, and perhaps the start time.
        """
        return not self.master_addr

    def add_restart(self, event: RestartInPlace, time: str) -> bool:
        """Record a restart in place, up to MOST_RESTARTS of them.

        Return False if it is already recorded, out of order or one too many.
        """
        recorded = sum(restart.kind == IN_PLACE for restart in self.restarts)
        if event.number != recorded + 1 or recorded == MOST_RESTARTS:
            return False
        restart = RestartRecord.after(event.cause, kind=IN_PLACE, time=time, saved=event.saved)
        self.restarts.append(restart)
        return True

    def settle_nodes(self) -> None:
        """Set the final states of the failed nodes once the attempt has ended.

        One failure stops all nodes. So only the node that failed first stays FAILED, and the others
        become STOPPED. If the attempt was cancelled, all of them become CANCELLED.
        """
        first = self.first_failure.node_rank if self.first_failure else None
        for node in self.nodes:
            if node.state is not NodeState.FAILED:
                continue
            if self.state is RunState.CANCELLED:
                node.state = NodeState.CANCELLED
            elif first not in (None, node.node_rank):
                node.state = NodeState.STOPPED


@dataclass
class RunRecord:
    run_id: str
    name: str
    owner: str
    engine: str
    hosts: list[str]
    image: str
    image_digest: str | None
    dataset_digest: str | None
    workdir_digest: str | None
    command: list[str]
    stop_timeout: int
    attempts: list[AttemptRecord] = field(default_factory=list)
    pending_stop: list[str] = field(default_factory=list)  # hosts with an unconfirmed stop
    options: RunOptions = field(default_factory=RunOptions)
    env_names: list[str] = field(default_factory=list)  # names of the variables that the user sets
    adopted: bool = False  # started on another machine; `command` is from the local hosts file

    @property
    def state(self) -> RunState:
        return self.attempt.state

    @property
    def attempt(self) -> AttemptRecord:
        """The newest attempt."""
        return self.attempts[-1]

    @property
    def last_started(self) -> AttemptRecord:
        """The newest attempt that has started; the newest of all if none has."""
        started = [attempt for attempt in self.attempts if attempt.started or attempt.is_reported]
        return (started or self.attempts)[-1]

    @property
    def restarts(self) -> list[RestartRecord]:
        """The automatic restarts since the user last launched or resumed the run."""
        recent = self.attempts[self.attempts.index(self.by_hand) :]
        return [restart for attempt in recent for restart in attempt.restarts]

    @property
    def past_restarts(self) -> list[PastRestart]:
        return [PastRestart(each.cause, each.saved) for each in self.restarts]

    def why_not_restarted(self, max_restarts: int, *, saved: bool) -> str:
        """Return why the launcher does not restart the failed run, or "" if it does.

        saved: whether the run saved a checkpoint after its last start. See supervisor/restart_rule.py.
        """
        failure = self.attempt.first_failure
        cause = failure.kind if failure else "unknown"
        return refusal(cause, saved, self.past_restarts, max_restarts, other_hosts=True)

    def goes_on(self, max_restarts: int) -> bool:
        """Return whether the run is live or, as far as its record shows, will be restarted."""
        if self.state is RunState.FAILED:
            # a restart that could not start is tried on other hosts
            trying = self.attempt.by == "restart" and not self.attempt.started
            return trying or not self.why_not_restarted(max_restarts, saved=True)
        return self.state.is_live

    @property
    def by_hand(self) -> AttemptRecord:
        """The newest attempt that the user started, as opposed to an automatic restart."""
        started = [attempt for attempt in self.attempts if attempt.by != "restart"]
        return (started or self.attempts)[-1]


def document(record: RunRecord) -> dict[str, Any]:
    """Return the content of run.json."""
    first = {"version": VERSION, "state": record.state, "pending_stop": []}  # see SETTLED
    return {**first, **dataclasses.asdict(record)}


def record_in(text: str, run_id: str) -> RunRecord:
    """Return the record in the text of a run's run.json. Raises ValueError if it is not valid."""
    saved = json.loads(text)
    if isinstance(saved, dict) and saved.get("version") != VERSION:
        raise ValueError(f"its version is {saved.get('version', 'missing')}, not {VERSION}")
    record = parsed(RunRecord, saved)
    if record.run_id != run_id:
        raise ValueError(f"run_id is not {run_id}")
    if not record.attempts:
        raise ValueError("attempts is empty")
    for attempt in record.attempts:
        if [node.node_rank for node in attempt.nodes] != list(range(len(attempt.nodes))):
            raise ValueError("nodes are not in rank order")
    return record


def for_hosts(record: RunRecord) -> dict[str, Any]:
    """Return the copy of run.json for the hosts. It omits the nodes: each host has its own."""
    attempts = [dataclasses.replace(attempt, nodes=[]) for attempt in record.attempts]
    return dataclasses.asdict(dataclasses.replace(record, attempts=attempts))


def new_record(
    plan: Plan, earlier: RunRecord | None = None, *, by: str = "launch", token: str = ""
) -> RunRecord:
    """Return a record with a new PENDING attempt after those of `earlier`.

    by, token: see AttemptRecord.
    """
    hosts = [node.host.name for node in plan.nodes]
    image, dataset, workdir = plan.image_digest, plan.dataset_digest, plan.workdir_digest
    inputs = {"image": image, "dataset": dataset, "code": workdir}
    attempt = AttemptRecord(
        attempt=plan.attempt,
        state=RunState.PENDING,
        created=timestamp(),
        nodes=[NodeRecord(n.node_rank, n.host.name, n.place.run_dir) for n in plan.nodes],
        world_size=plan.world_size or 0,
        master_addr=plan.master_addr or "",
        master_port=plan.master_port or 0,
        by=by,
        token=token,
        waiting_since=plan.since,
        digests={what: digest for what, digest in inputs.items() if digest},
    )
    return RunRecord(
        run_id=plan.run_id,
        name=plan.options.name,
        owner=plan.owner,
        engine=plan.engine.name,
        hosts=hosts,
        image=plan.job.image,
        image_digest=image,
        dataset_digest=dataset,
        workdir_digest=workdir,
        command=list(plan.command),
        stop_timeout=plan.job.stop_timeout,
        options=plan.options.of_run(),
        env_names=list(plan.nodes[0].container.env_names),
        attempts=[*(earlier.attempts if earlier else ()), attempt],
        # a stop may still be unconfirmed on a lost host that the run no longer uses
        pending_stop=[h for h in earlier.pending_stop if h not in hosts] if earlier else [],
    )
