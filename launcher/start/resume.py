"""The `resume` command: start the next attempt of a run, on the same hosts or on others."""

import contextlib
import dataclasses
from collections.abc import Sequence
from shlex import join

from ..engines.status import NodeStatus
from ..errors import DdpctlError, UsageError, lines
from ..hosts import Cluster, Host, Job, load, select, user_env
from ..outcomes import NodeState, Outcome, RunState, run_state
from ..plan.launch_options import LaunchOptions
from ..runs.adopt import MOST_AHEAD, caught_up
from ..runs.attempt_lock import is_taken_care_of
from ..runs.find import find, find_recorded, list_nodes, names_hosts
from ..runs.newest_attempt import newest_attempt
from ..runs.record import AttemptRecord, RunRecord, timestamp
from ..runs.reported import reported_nodes
from ..runs.run_folder import RunFolder
from ..runs.sync_logs import sync_logs
from ..ssh.host_connection import connected
from ..terminal.console import Console
from ..text import counted, names
from .launch import run_with_restarts
from .request import Request
from .reservation import newest_cancelled


def resume(
    target: str | None,
    hosts: str | None,
    exclude: str | None,
    console: Console,
    *,
    detach: bool,
    on_exit: str | None = None,
    on_event: str | None = None,
    force: bool = False,
) -> Outcome:
    """Resume a run, and return its outcome.

    Raises UsageError if the run is live or, without `force`, has succeeded.
    """
    folder = the_run(target, hosts, console)
    record, before = folder.load(), folder.kept_cluster(job_files=hosts is None)
    if record.state is RunState.SUCCEEDED and not force:
        raise has_succeeded(record.run_id)
    if record.state is RunState.PENDING and is_taken_care_of(folder):
        what = f"another command is starting attempt {record.attempt.number} of {record.run_id}"
        raise UsageError(what, f"follow it with `ddpctl attach {record.run_id}`")
    if record.adopted:
        named = target if names_hosts(target) else None
        cluster = own_hosts_file(record, hosts or named, console)
    else:
        cluster = before if hosts is None else on_other_hosts(before, load(hosts), console)
    cluster = select(cluster, None, exclude)
    require_environment(record, cluster)
    former = tuple(host for host in before.hosts if host not in cluster.hosts)
    record, number = next_attempt(folder, record, cluster, former, console, force=force)
    complete_log(folder, record, console)
    if (hosts or exclude) and not record.adopted:
        console.say(f"attempt {number} {changes(before, cluster)}")
    kept = {**dataclasses.asdict(record.options), "push": True, "check": True}
    if hosts is not None or (record.options.nodes or 0) > cluster.nnodes:
        kept["nodes"] = None  # use all hosts of the new file, or all that are left
    options = LaunchOptions(**kept, detach=detach, on_exit=on_exit, on_event=on_event)
    request = Request(cluster, options, record.run_id, record, number, "resume", former)
    return run_with_restarts(request, console)


def the_run(target: str | None, hosts: str | None, console: Console) -> RunFolder:
    """Return the run's folder.

    If this machine has no record of it, make one from the hosts' reports. hosts: the hosts to
    resume on. If the run is not recorded here, they are asked about it, unless `target` names other
    hosts to ask.
    """
    if names_hosts(target):
        return find(target, None, console)
    if hosts is not None:
        with contextlib.suppress(UsageError):  # not recorded here, but perhaps on the hosts
            return find_recorded(target)
    return find(target, hosts, console)


def own_hosts_file(record: RunRecord, file: str | None, console: Console) -> Cluster:
    """Return the cluster in the user's `file`, for a run that another machine started.

    The command comes from `file` too, because hosts do not report it. Raises UsageError if `file`
    is None.
    """
    if file is None:
        raise UsageError(
            f"{record.run_id} was started on another machine, so its command is not recorded here",
            f"run `ddpctl resume {record.run_id} --hosts HOSTS`, which uses the command in HOSTS",
        )
    cluster = load(file)
    console.say(f"{record.run_id} resumes with the command of {file}: {join(cluster.job.command)}")
    return cluster


def require_environment(record: RunRecord, cluster: Cluster) -> None:
    """Raise UsageError if this machine has no value for a variable that the run was launched with."""
    if missing := set(record.env_names) - set(user_env(cluster.job)):
        what = f"this machine does not have the values of {', '.join(sorted(missing))}"
        remedy = "set them under job.env in a hosts file, and pass it with --hosts"
        raise UsageError(f"{record.run_id}: {what}", remedy)


def has_succeeded(run_id: str) -> UsageError:
    remedy = f"to start another attempt anyway, run `ddpctl resume {run_id} --force`"
    return UsageError(f"{run_id} has already succeeded", remedy)


def next_attempt(
    folder: RunFolder,
    own: RunRecord,
    cluster: Cluster,
    former: Sequence[Host],
    console: Console,
    *,
    force: bool,
) -> tuple[RunRecord, int]:
    """Return the record of the attempts so far, and the number of the next one.

    Asks the hosts too, because another machine may have resumed the run. Raises UsageError if the
    run is live or, without `force`, if its newest attempt succeeded.
    """
    hosts, run_id = (*cluster.hosts, *former), own.run_id
    step = f"asking {counted(len(hosts), 'host')} about the run"
    with connected(hosts) as connections, console.step(step):
        reports, _ = reported_nodes(connections, run_id)
        record = caught_up(folder, own, connections, cluster, console)
        # last, so that an attempt that has just begun elsewhere is seen as live, not only as newest
        statuses, _ = list_nodes(connections, cluster, run_id)
        cancelled = newest_cancelled(connections, run_id, own.attempt.number + MOST_AHEAD)
    if live := sorted({status.host for status in statuses if status.alive or status.may_start}):
        what = f"{run_id} is still running or waiting on {names(live)}"
        remedy = f"follow it with `ddpctl attach {run_id}`, or end it with `ddpctl kill {run_id}`"
        raise UsageError(what, remedy)
    reported = [status for rows in reports.values() for status, _ in rows]
    others = [s for s in (*statuses, *reported) if s.attempt <= own.attempt.number + MOST_AHEAD]
    if record.state.is_live:
        conclude(record.attempt, others)
        if record.state.is_final:  # if UNKNOWN, the saved record stays live until the next attempt
            folder.try_save(record, console)
    newest = max([record.attempt.number, *(status.attempt for status in others)])
    state = record.state
    if newest > record.attempt.number:  # on one host only, so `caught_up` has not recorded it
        ends = {(s.host, s.node_rank): s for s in others if s.attempt == newest}.values()
        state = run_state([s.node_state for s in ends], max(s.nnodes for s in ends))
    if state is RunState.SUCCEEDED and not force:
        raise has_succeeded(run_id)
    return record, max(newest, cancelled) + 1


def conclude(attempt: AttemptRecord, statuses: Sequence[NodeStatus]) -> None:
    """Set the final states of an attempt and its nodes, if no command followed the attempt to its end.

    A host is believed only about its own nodes. States that no host reports are UNKNOWN.
    """
    known = (s for s in statuses if s.attempt == attempt.number and s.node_state.is_final)
    ends = {(status.host, status.node_rank): status for status in known}
    for node in attempt.nodes:
        if status := ends.get((node.host, node.node_rank)):
            node.state, node.exit_code = status.node_state, status.exit_code
        elif not node.state.is_final:
            node.state = NodeState.UNKNOWN
    attempt.state = run_state([node.state for node in attempt.nodes], len(attempt.nodes))
    if attempt.state is not RunState.UNKNOWN:
        attempt.ended = timestamp(max((s.ended for s in ends.values() if s.ended), default=None))
    attempt.settle_nodes()


def complete_log(folder: RunFolder, record: RunRecord, console: Console) -> None:
    """Copy the rest of the newest attempt's log. Once there is a newer attempt, no command does so.

    Lines are missing here if this machine was off, or its recorder had died, when the attempt ended.
    """
    try:
        with newest_attempt(folder, console, record) as handle:
            missing = lines(sync_logs(folder, handle, console).values())
    except DdpctlError as error:
        missing = [str(error)]
    for why in missing:
        console.say(f"warning: the log of attempt {record.attempt.number} may be incomplete: {why}")


def on_other_hosts(before: Cluster, now: Cluster, console: Console) -> Cluster:
    """Return the hosts of `now` with the job of `before`, updated with the job of `now`.

    Values of `now` replace earlier ones unless they are defaults. The command stays, because a
    different command would be a different run.
    """
    default = vars(Job())
    given = {key: value for key, value in vars(now.job).items() if value != default[key]}
    command = before.job.command
    if given.get("command", command) != command:
        remedy = "set job.resume_args to add arguments to it, or launch a new run"
        what = "a run keeps its command, so job.command in the --hosts file is ignored"
        console.say(f"{what}; {remedy}")
    job = dataclasses.replace(before.job, **{**given, "command": command})
    return dataclasses.replace(now, job=job)


def changes(before: Cluster, now: Cluster) -> str:
    """Return the differences as text: `adds gpu5, leaves out gpu[2-3], changes job.image`. Pure."""
    old, new = ([host.name for host in each.hosts] for each in (before, now))
    added, removed = ([n for n in a if n not in b] for a, b in ((new, old), (old, new)))
    kept = [[name for name in each if name in old and name in new] for each in (old, new)]
    altered = [h.name for h in now.hosts if h.name in old and h not in before.hosts]
    jobs = [vars(each.job) for each in (before, now)]
    keys = [f"job.{key}" for key, value in jobs[0].items() if value != jobs[1][key]]
    parts = (
        added and f"adds {names(added)}",
        removed and f"leaves out {names(removed)}",
        altered and f"changes the settings of {names(altered)}",
        kept[0] != kept[1] and "reorders the nodes",
        keys and f"changes {', '.join(keys)}",
    )
    return ", ".join(part for part in parts if part) or "has the same hosts and the same job"
