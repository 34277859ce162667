"""The `kill` command: cancel runs on all their hosts, print what was stopped, and record it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import DdpctlError, NodesFailed, StopUnconfirmed
from ..hosts import Job
from ..outcomes import Exit
from ..runs.attempt_lock import cancel_start
from ..runs.run_folder import live_runs, run_folder
from ..ssh.host_connection import connected
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, report_unconfirmed, unseen
from ..text import names
from .choose_runs import HostedRun, Target, recorded_hosts
from .remove_finished import remove_finished
from .stop_on_host import Stop
from .stopped_run import StoppedRun, stop_all


def kill_target(target: Target, console: Console, *, yes: bool, as_json: bool) -> Exit:
    """Stop the target's runs on all their hosts. Return UNCONFIRMED if something may be left there.

    yes: do not ask; if the user is asked and declines, return INTERRUPTED.
    """
    if not target.user_agrees(yes=yes):
        return Exit.INTERRUPTED
    cluster = target.cluster
    with connected(cluster.hosts) as connections:
        try:
            runs, unlisted = target.runs(connections, console)
        except NodesFailed as error:
            if as_json:
                console.json(document([], error.failures))
            raise
        if not all(run.user_agrees(yes=yes) for run in runs):
            return Exit.INTERRUPTED
        cancel_starts(wholly_asked(runs, console), console)
        # from now on, the run cannot move; a restart may have moved it to other hosts until now
        if target.folder and (now := recorded_hosts(target.folder)).hosts != cluster.hosts:
            moved = replace(target, cluster=now)
            return kill_target(moved, console, yes=True, as_json=as_json)
        killed = kill_runs(runs, cluster.job, console)
        errors = report_unlisted(unlisted, killed, console)
        if target.everything:
            errors = {**remove_finished(connections, cluster, console), **errors}
    if as_json:
        console.json(document(killed, errors))
    if not any(each.may_have_been_alive for each in killed):
        report_none_alive(target, killed, errors, console)
    unconfirmed = errors or any(each.unconfirmed for each in killed)
    return Exit.UNCONFIRMED if unconfirmed else Exit.DONE


def document(killed: Sequence[StoppedRun], errors: Mapping[str, DdpctlError]) -> dict[str, Any]:
    rows = [each.document() for each in killed]
    return {"version": 1, "runs": rows, "unseen": unseen(errors)}


def report_unlisted(
    unlisted: Mapping[str, DdpctlError], killed: Sequence[StoppedRun], console: Console
) -> dict[str, DdpctlError]:
    """Print and return the errors of hosts that did not list their runs.

    Includes hosts that have since confirmed other stops, but not those that `killed` has reported.
    """
    reported = {host for each in killed for host in each.errors_by_name}
    what, remedy = "other live runs may be left there", "repeat `ddpctl kill HOSTS --all`"
    errors: dict[str, DdpctlError] = {
        host: StopUnconfirmed(f"{what}: {error.what}", remedy)
        for host, error in unlisted.items()
        if host not in reported
    }
    report_errors(errors, console)
    return errors


def report_none_alive(
    target: Target,
    killed: Sequence[StoppedRun],
    errors: Mapping[str, DdpctlError],
    console: Console,
) -> None:
    """Print which hosts have no run and, unless the user named one, which runs may be meant."""
    if not killed and (sure := [h.name for h in target.cluster.hosts if h.name not in errors]):
        console.say(f"you have no live run on {names(sure)}")
    if target.typed is None and (live := live_runs(console)):
        console.say(f"recorded as live: {', '.join(live)}; to stop one, run `ddpctl kill RUN`")


def kill_runs(runs: Sequence[HostedRun], job: Job, console: Console) -> list[StoppedRun]:
    """Stop runs; print, record and return what was stopped. job: see `make_stop`.

    Call `cancel_starts` first.
    """
    killed = stop_all([(run, make_stop(run, job, console)) for run in runs], console)
    for each in killed:
        each.report(console)
        each.record_end(console)
        report_unconfirmed(each.errors_by_name, console)
    return killed


def wholly_asked(runs: Sequence[HostedRun], console: Console) -> list[str]:
    """Return the ids of the runs whose recorded hosts are all asked.

    A kill on only some of them must not cancel an attempt that is being prepared for other hosts.
    """
    records = [(run, run_folder(run.run_id).load_if_readable(console)) for run in runs]
    return [run.run_id for run, record in records if record and {*record.hosts} <= run.asked]


def cancel_starts(run_ids: Sequence[str], console: Console) -> None:
    """Cancel what commands on this machine are about to start for these runs. Safe to repeat."""
    for run_id in run_ids:
        if cancel_start(run_folder(run_id)):
            what = "its next attempt, which is still being prepared, will not start"
            console.say(f"run {run_id}: {what}")


def make_stop(run: HostedRun, job: Job, console: Console) -> Stop:
    """Return the stop of a run. job: the job in the hosts file, used if the run has no record here."""
    if record := run_folder(run.run_id).load_if_readable(console):
        return Stop.of(record, run.owners)
    return Stop(run.run_id, job.engine, job.stop_timeout, run.owners)
