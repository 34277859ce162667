"""Record runs and attempts that other machines started, from what the hosts report.

The hosts, users, identities, engine and command of such a record come from the user's own hosts file.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import DdpctlError, NodesFailed, UsageError
from ..hosts import Cluster
from ..outcomes import NodeState, RunState
from ..plan.plan import STORE, run_dir_in
from ..run_id import name_of
from ..ssh.host_connection import HostConnection
from ..ssh.many import by_name, one_per_account
from ..terminal.console import Console
from ..text import counted, ranges
from .record import AttemptRecord, NodeRecord, RunRecord
from .reported import Report, ReportedAttempt, ReportedRun, agreed_attempt, reported_nodes
from .run_folder import RunFolder

STATE = re.compile("|".join(state for state in RunState if state is not RunState.WAITING))
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
DIGEST = re.compile(r"([a-z0-9]{1,16}:)?[a-z0-9]{1,100}")
MOST_AHEAD = 100  # how many attempts a host may be ahead of this machine's record


@dataclass(frozen=True)
class RunReports:
    """The hosts' reports on one run. failures: the errors of hosts that did not answer."""

    run_id: str
    by_host: Mapping[HostConnection, Sequence[Report]]
    failures: Mapping[HostConnection, DdpctlError]

    @property
    def newest(self) -> dict[HostConnection, int]:
        """The newest attempt on each host that has files of the run."""
        return {n: max(s.attempt for s, _ in rows) for n, rows in self.by_host.items() if rows}

    def ahead_of(self, agreed: int) -> list[HostConnection]:
        """Return the hosts that report an attempt after `agreed` (see `agreed_attempt`)."""
        return [connection for connection, number in self.newest.items() if number > agreed]

    def of_attempt(self, number: int) -> dict[HostConnection, list[Report]]:
        """Return the hosts' reports on one attempt."""
        return {
            connection: [row for row in rows if row[0].attempt == number]
            for connection, rows in self.by_host.items()
        }


def adopt(
    folder: RunFolder, connections: Sequence[HostConnection], cluster: Cluster, console: Console
) -> None:
    """Write run.json and hosts.yaml from the hosts' reports.

    Raises UsageError if the user's hosts do not match the run.
    """
    record, ranks = ask_for_record(folder.run_id, connections, cluster, console)
    # values of env may be secret; a resume reads them from the user's file again
    job = replace(cluster.job, env={})
    hosts = tuple(connection.host for connection in ranks)
    folder.keep_cluster(replace(cluster, hosts=hosts, job=job))
    folder.save(record)


def ask_for_record(
    run_id: str, connections: Sequence[HostConnection], cluster: Cluster, console: Console
) -> tuple[RunRecord, list[HostConnection]]:
    """Return a record built from the hosts' reports, and the hosts of its nodes in rank order."""
    reports = RunReports(run_id, *reported_nodes(connections, run_id))
    if not reports.newest:
        if reports.failures:
            raise NodesFailed(by_name(connections, reports.failures))
        others = "if another account started it, only that account can read them"
        clean = f"otherwise, run `ddpctl kill {run_id} --hosts HOSTS` to remove what is left of it"
        raise UsageError(f"no host has the files of {run_id}", f"{others}; {clean}")
    agreed = agreed_attempt(reports.newest.values())
    say_unconfirmed(reports, agreed, console)
    record, ranks = build_record(reports, agreed, connections, cluster)
    console.say(f"{run_id}: no record on this machine; {source_of(reports, record)}")
    return record, ranks


def caught_up(
    folder: RunFolder,
    own: RunRecord,
    connections: Sequence[HostConnection],
    cluster: Cluster,
    console: Console,
) -> RunRecord:
    """Return this machine's record, with any attempts that other machines have since started.

    If there are several hosts, an attempt that only one of them reports is not added. Returns `own`
    if this machine has started another attempt in the meantime or, after a warning, if the attempts
    cannot be recorded.
    """
    reports = RunReports(own.run_id, *reported_nodes(connections, own.run_id))
    known = own.attempt.number
    numbers = [number for number in reports.newest.values() if number <= known + MOST_AHEAD]
    if len(one_per_account(connections)) > 1:
        numbers.append(known)
    agreed = max(known, agreed_attempt(numbers or [known]))
    say_unconfirmed(reports, agreed, console)
    if agreed == known:
        return own
    now = folder.load_if_readable(console)
    if now and now.attempt.number > known:
        return own
    try:
        theirs, ranks = build_record(reports, agreed, connections, cluster)
        why = "this machine's record is out of date"
        console.say(f"{own.run_id}: {why}; {source_of(reports, theirs)}")
        ended = [ended_as(*each) for each in zip(own.attempts, theirs.attempts, strict=False)]
        attempts = [*ended, *theirs.attempts[known:]]
        record = replace(own, hosts=theirs.hosts, attempts=attempts)
        hosts = tuple(connection.host for connection in ranks)
        job = folder.kept_cluster().job
        folder.keep_cluster(replace(cluster, hosts=hosts, job=job))
        folder.save(record)
    except DdpctlError as error:
        console.say(f"warning: cannot record attempt {agreed}, started on another machine: {error}")
        return own
    return record


def ended_as(own: AttemptRecord, reported: AttemptRecord) -> AttemptRecord:
    """Return `own`, marked as ended if it is recorded as live: a later attempt has started since.

    own: the attempt as this machine recorded it. reported: the same attempt as the hosts report it.
    """
    if not own.state.is_live:
        return own
    state = reported.state if reported.state.is_final else RunState.UNKNOWN
    nodes = [replace(n, state=NodeState.UNKNOWN) if n.exit_code is None else n for n in own.nodes]
    return replace(own, state=state, ended=reported.ended, nodes=nodes)


def say_unconfirmed(reports: RunReports, agreed: int, console: Console) -> None:
    """Print a line for each host that reports a later attempt than the agreed one."""
    for connection in reports.ahead_of(agreed):
        number = reports.newest[connection]
        console.say(f"{connection.name} reports attempt {number}, which no other host confirms")


def source_of(reports: RunReports, record: RunRecord) -> str:
    """Return where a record comes from, such as `gpu0 reports attempt 2 on 4 nodes`."""
    rows = reports.of_attempt(record.attempt.number)
    source = next(connection.name for connection in rows if rows[connection])
    count = counted(len(record.attempt.nodes), "node")
    return f"{source} reports attempt {record.attempt.number} on {count}"


def build_record(
    reports: RunReports, agreed: int, connections: Sequence[HostConnection], cluster: Cluster
) -> tuple[RunRecord, list[HostConnection]]:
    """Return a record up to the agreed attempt, and the hosts of its nodes in rank order."""
    rows = reports.of_attempt(agreed)
    run = next(run for on_host in rows.values() for _, run in on_host)
    there = {
        connection: [status.node_rank for status, _ in on_host]
        for connection, on_host in rows.items()
    }
    others = [*reports.failures, *reports.ahead_of(agreed)]
    counts = [max(s.nnodes for s, _ in on_host) for on_host in rows.values() if on_host]
    # agreed on in the same way as the attempt, so that one host alone cannot add nodes
    ranks = by_rank(connections, there, others, agreed_attempt(counts), cluster.source)
    record = record_of(reports.run_id, cluster, run, agreed)
    record.hosts = [connection.name for connection in ranks]
    silent = {connection.host.account for connection in reports.failures}
    for rank, connection in enumerate(ranks):
        # a host that did not answer cannot name its home folder; a relative path works as well,
        # because commands start there
        home = "" if connection.host.account in silent else f"{connection.home()}/"
        run_dir = run_dir_in(home + STORE, reports.run_id)
        record.attempt.nodes.append(NodeRecord(rank, connection.name, run_dir))
    return record, ranks


def by_rank(
    connections: Sequence[HostConnection],
    there: Mapping[HostConnection, Sequence[int]],
    others: Collection[HostConnection],
    nnodes: int,
    file: str,
) -> list[HostConnection]:
    """Return the run's hosts in rank order. `others` fill the gaps, in the given order.

    there: for each host that answered, its node ranks in the agreed attempt. others: hosts that may
    also run nodes of that attempt, because they do not answer or report a later attempt. nnodes: how
    many nodes the hosts report. file: name of the hosts file, for error messages.

    Raises UsageError if a node has no host or two, because a record must not lack nodes.
    """
    spare: dict[object, list[HostConnection]] = {}  # by account
    for connection in connections:
        spare.setdefault(connection.host.account, []).append(connection)
    ranks: dict[int, HostConnection] = {}
    for connection, reported in there.items():
        for rank in sorted(reported):
            if rank in ranks:
                what = (
                    f"both {ranks[rank].name} and {connection.name} report node {rank} of the run"
                )
                raise UsageError(what, "list only the host that runs it")
            if not spare[connection.host.account]:
                what = f"{file}: the run has several nodes on {connection.name}"
                raise UsageError(what, "list the host once for each node")
            ranks[rank] = spare[connection.host.account].pop(0)
    fillers = [connection for other in others for connection in spare[other.host.account]]
    gaps = [rank for rank in range(max(nnodes, *ranks)) if rank not in ranks]
    ranks |= zip(gaps, fillers, strict=False)
    if missing := gaps[len(fillers) :]:
        which = f"node {missing[0]} of the run is"
        if len(missing) > 1:
            which = f"nodes {ranges(missing)} of the run are"
        raise UsageError(f"{file}: {which} on none of these hosts", "list all hosts of the run")
    return [ranks[rank] for rank in sorted(ranks)]


def record_of(run_id: str, cluster: Cluster, run: ReportedRun, newest: int) -> RunRecord:
    """Return a record with attempts 1 to `newest`. Attempts that `run` lacks are UNKNOWN."""
    reported = {entry.attempt: entry for entry in run.attempts}
    attempts = []
    for number in range(1, newest + 1):
        entry = reported.get(number, ReportedAttempt(number))
        state = RunState(_valid(entry.state, STATE) or RunState.UNKNOWN)
        created, ranks = _valid(entry.created, TIME) or "", max(0, entry.world_size)
        attempt = AttemptRecord(number, state, created, [], ranks, "", 0)
        attempt.started, attempt.ended = _valid(entry.started, TIME), _valid(entry.ended, TIME)
        attempts.append(attempt)
    return RunRecord(
        run_id=run_id,
        name=name_of(run_id),
        owner="",
        engine=cluster.job.engine,
        hosts=[],
        image=cluster.job.image,
        image_digest=_valid(run.image_digest, DIGEST),
        dataset_digest=_valid(run.dataset_digest, DIGEST),
        workdir_digest=_valid(run.workdir_digest, DIGEST),
        command=list(cluster.job.command),
        stop_timeout=cluster.job.stop_timeout,
        attempts=attempts,
        adopted=True,
    )


def _valid(text: str | None, form: re.Pattern[str]) -> str | None:
    return text if text and form.fullmatch(text) else None
