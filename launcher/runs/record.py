"""A run's folder on this machine: run.json, and the hosts file that the run used.

No run depends on this folder: the labels on the hosts are authoritative.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..errors import StateError, UsageError
from ..failure import FirstFailure
from ..hosts import Cluster, Host, dump, load
from ..logs.event_reader import parsed
from ..outcomes import NodeState, RunState
from ..own_folders import (
    is_locked,
    make_folder,
    read_record,
    state_home,
    write_atomically,
)
from ..plan.launch_options import RunOptions
from ..plan.plan import Plan
from ..run_id import is_run_id
from ..supervisor.events import Reason, RestartInPlace
from ..supervisor.restart_rule import PastRestart, refusal
from ..terminal.console import Console
from ..text import rfc3339

VERSION = 1
IN_PLACE, BY_LAUNCHER = "in-place", "launcher"  # kinds of restarts
FINAL = "|".join(state for state in RunState if state.is_final)
SETTLED = re.compile(rf'\{{\s*"version": {VERSION},\s*"state": "({FINAL})",\s*"pending_stop": \[\]')
MOST_RESTARTS = 1000  # in place, recorded per attempt; a host's reports must not fill the disk
_unsaved: dict[Path, RunRecord] = {}  # by folder: records that could not be saved
_warned: set[Path] = set()  # the folders whose run.json could not be read or written


class UnreadableRecord(UsageError):
    """Raised if run.json is missing, damaged, or written by a newer ddpctl."""


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
    digests: dict[str, str] = field(default_factory=dict)  # of its image, dataset and code

    @property
    def number(self) -> int:
        """Its number within the run, starting at 1. Named `attempt` in run.json."""
        return self.attempt

    @property
    def is_reported(self) -> bool:
        """Whether another machine started it. Then its master is unknown, and its start may be too."""
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
    first = {"version": VERSION, "state": record.state, "pending_stop": []}  # see `is_settled`
    return {**first, **dataclasses.asdict(record)}


def for_hosts(record: RunRecord) -> dict[str, Any]:
    """Return the copy of run.json for the hosts. It omits the nodes: hosts know their own."""
    attempts = [dataclasses.replace(attempt, nodes=[]) for attempt in record.attempts]
    return dataclasses.asdict(dataclasses.replace(record, attempts=attempts))


class RunFolder:
    """The folder `runs/<run id>/` in the state folder: run.json, hosts.yaml, env.json and logs/.

    former-hosts.yaml keeps how to reach hosts that only earlier attempts used.

    Values of `job.env` may be secret, so they are in a separate file, env.json, which has mode 0600
    and is never copied. Only a resume or a restart needs them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run_id = path.name
        self.hosts_file = path / "hosts.yaml"
        self.former_hosts_file = path / "former-hosts.yaml"
        self.env_file = path / "env.json"
        self.record_file = path / "run.json"
        self.logs = path / "logs"

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record, which may be unreadable."""
        return os.path.lexists(self.record_file)

    def attempt_lock(self, attempt: int) -> Path:
        """Return the path of the lock that the process holds which takes care of the attempt."""
        return self.path / f".attempt-{attempt}.lock"

    def evidence_file(self, attempt: int, restart: int | None = None) -> Path:
        """Return the path for the evidence of an attempt's failure.

        restart: the number of a restart in place, for the failure that led to it.
        """
        name = f"attempt-{attempt}" if restart is None else f"attempt-{attempt}-restart-{restart}"
        return make_folder(self.logs) / f"failure-{name}.txt"

    def keep_cluster(self, cluster: Cluster) -> None:
        make_folder(self.logs)
        self._keep_former(cluster)
        without = dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env={}))
        write_atomically(self.env_file, json.dumps(dict(cluster.job.env)), mode=0o600)
        write_atomically(self.hosts_file, dump(without))

    def _keep_former(self, cluster: Cluster) -> None:
        """Record how to reach the run's earlier hosts that are not in `cluster`."""
        with contextlib.suppress(UsageError):  # a damaged file must not prevent a start
            here = {host.name for host in (*cluster.hosts, *cluster.spares)}
            # without what may conflict with another host, such as the address of a replaced machine
            former = [
                dataclasses.replace(host, gpus=0, internal_ip=None)
                for name, host in self.all_hosts().items()
                if name not in here
            ]
            if former:
                write_atomically(self.former_hosts_file, dump(Cluster(tuple(former))))

    def all_hosts(self) -> dict[str, Host]:
        """Return all hosts that the run has used or could have used, by name."""
        hosts: dict[str, Host] = {}
        for file in (self.former_hosts_file, self.hosts_file):
            if file.exists():
                cluster = load(file, job_files=False)
                hosts |= {host.name: host for host in (*cluster.hosts, *cluster.spares)}
        return hosts

    def kept_cluster(self, *, job_files: bool = False) -> Cluster:
        """Return the hosts and the job with which this machine last started the run.

        job_files: also check the job's files. Raises UsageError if env.json is unreadable.
        """
        # a resume may have excluded so many hosts that fewer than min_nodes are left
        cluster = load(self.hosts_file, job_files=job_files, overridden=["min_nodes"])
        try:
            env = json.loads(read_record(self.env_file))
            given = {str(name): str(value) for name, value in env.items()}
        except FileNotFoundError:
            return cluster
        except (OSError, ValueError, AttributeError) as error:
            what = f"{self.env_file}: cannot read the values of job.env: {error}"
            remedy = (
                "make the file readable, or pass --hosts with a hosts file that has these values"
            )
            raise UsageError(what, remedy) from None
        return dataclasses.replace(cluster, job=dataclasses.replace(cluster.job, env=given))

    def goes_on(self, record: RunRecord) -> bool:
        """Return `record.goes_on` with the run's own max_restarts."""
        with contextlib.suppress(UsageError, OSError):  # then the run cannot restart
            return record.goes_on(self.kept_cluster().job.max_restarts)
        return False

    def save(self, record: RunRecord) -> None:
        make_folder(self.path)
        write_atomically(self.record_file, json.dumps(document(record), indent=2) + "\n")
        _unsaved.pop(self.path, None)

    def try_save(self, record: RunRecord, console: Console) -> None:
        """Save the record. If that fails, report it once and keep the record in memory."""
        try:
            self.save(record)
        except StateError as error:
            _unsaved[self.path] = record
            if self.path not in _warned:
                console.error(f"not recorded: {error}")
            _warned.add(self.path)

    def is_settled(self) -> bool:
        """Return whether the run has ended and all its stops are confirmed.

        Judges by the head of run.json, without parsing the rest.
        """
        try:
            text = read_record(self.record_file)
        except (OSError, ValueError):
            return False
        return self.path not in _unsaved and SETTLED.match(text) is not None

    def load(self) -> RunRecord:
        """Return the record, from memory if it could not be saved. Raises UnreadableRecord."""
        if self.path in _unsaved:
            return _unsaved[self.path]
        try:
            saved = json.loads(read_record(self.record_file))
            if isinstance(saved, dict) and saved.get("version") != VERSION:
                raise ValueError(f"its version is {saved.get('version')}, not {VERSION}")
            record = parsed(RunRecord, saved)
            if record.run_id != self.run_id:
                raise ValueError(f"run_id is not {self.run_id}")
            if not record.attempts:
                raise ValueError("attempts is empty")
            for attempt in record.attempts:
                if [node.node_rank for node in attempt.nodes] != list(range(len(attempt.nodes))):
                    raise ValueError("nodes are not in rank order")
        except (OSError, ValueError, RecursionError) as error:
            what = f"{self.record_file}: cannot be read ({error})"
            remedy = (
                "run `ddpctl ps HOSTS` to see the run, or remove the file and pass --hosts to make "
                "a new record"
            )
            raise UnreadableRecord(what, remedy) from None
        return record

    def load_if_readable(self, console: Console) -> RunRecord | None:
        """Return the record, or None if it is missing or (after one warning) unreadable."""
        try:
            return self.load() if self.is_recorded else None
        except UnreadableRecord as error:
            if self.path not in _warned:
                console.say(f"warning: {error}")
            _warned.add(self.path)
            return None


def run_folder(run_id: str) -> RunFolder:
    """Return the folder of a run, whether or not it exists. run_id: must be valid."""
    return RunFolder(state_home() / "runs" / run_id)


def new_record(plan: Plan, earlier: RunRecord | None = None, *, by: str = "launch") -> RunRecord:
    """Return a record with a new PENDING attempt after those of `earlier`. by: see AttemptRecord."""
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


def run_folders() -> list[RunFolder]:
    """Return the folders of all recorded runs, newest first."""

    def started(folder: RunFolder) -> float:
        try:
            return folder.hosts_file.stat().st_mtime  # it is written once per attempt
        except OSError:
            return 0.0

    return sorted((f for f in _folders() if f.is_recorded), key=started, reverse=True)


def live_runs(console: Console) -> list[str]:
    """Return the ids of the runs that are live according to their records, newest first."""
    records = [f.load_if_readable(console) for f in run_folders() if not f.is_settled()]
    return [record.run_id for record in records if record and record.state.is_live]


def unrecorded_launches() -> list[str]:
    """Return the ids of the runs whose launches on this machine are still checking or pushing."""
    return [f.run_id for f in _folders() if not f.is_recorded and is_locked(f.attempt_lock(1))]


def _folders() -> list[RunFolder]:
    paths = (state_home() / "runs").glob("*")
    return [RunFolder(path) for path in paths if is_run_id(path.name)]
