"""Stop runs on all their hosts, print what was stopped, and record it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..engines.status import UNSTARTED
from ..errors import DdpctlError, NodesFailed, StopUnconfirmed
from ..outcomes import Exit, NodeState, RunState, run_state
from ..runs.record import AttemptRecord, timestamp
from ..runs.run_folder import live_runs, run_folder
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection, connected
from ..ssh.many import by_name, one_per_account, try_each
from ..terminal.console import Console
from ..terminal.host_errors import report_errors, report_unconfirmed, unseen
from ..text import names
from .choose_runs import AllRuns, HostedRun, Target
from .remove_finished import remove_finished
from .stop_run import Stop, Stopped

LIVE = (NodeState.WAITING, NodeState.PENDING, NodeState.RUNNING)
STOP_TIMEOUT = 60  # seconds between SIGTERM and SIGKILL for a run without a record


def kill_target(target: Target, console: Console, *, yes: bool, as_json: bool) -> Exit:
    """Stop the target's runs on all their hosts. Return UNCONFIRMED if something may be left there.

    yes: do not ask; if the user is asked and declines, return INTERRUPTED.
    """
    if not target.confirmed(yes=yes):
        return Exit.INTERRUPTED
    cluster = target.cluster
    with connected(cluster.hosts) as connections:
        try:
            runs, unlisted = target.runs(connections, console)
        except NodesFailed as error:
            if as_json:
                console.json({"version": 1, "runs": [], "unseen": unseen(error.failures)})
            raise
        if not all(run.confirmed(yes=yes) for run in runs):
            return Exit.INTERRUPTED
        killed = kill_runs(runs, connections, cluster.job.engine, console)
        known = {host for each in killed for host in each.errors_by_name}
        errors = report_unlisted({h: unlisted[h] for h in unlisted if h not in known}, console)
        if isinstance(target, AllRuns):
            errors = {**remove_finished(connections, cluster, console), **errors}
    if as_json:
        rows = [each.document() for each in killed]
        console.json({"version": 1, "runs": rows, "unseen": unseen(errors)})
    elif not killed and (sure := [h.name for h in cluster.hosts if h.name not in errors]):
        console.say(f"you have no live run on {names(sure)}")
    found_none = target.typed is None and not any(each.was_alive for each in killed)
    if found_none and (live := live_runs(console)):
        console.say(f"recorded as live: {', '.join(live)}; to stop one, run `ddpctl kill RUN`")
    unconfirmed = errors or any(each.unconfirmed for each in killed)
    return Exit.UNCONFIRMED if unconfirmed else Exit.DONE


def report_unlisted(
    failures: Mapping[str, DdpctlError], console: Console
) -> dict[str, DdpctlError]:
    """Report hosts that did not list their runs, even if they have confirmed other stops since."""
    what, remedy = "other live runs may be left there", "repeat `ddpctl kill HOSTS --all`"
    errors: dict[str, DdpctlError] = {
        host: StopUnconfirmed(f"{what}: {error.what}", remedy) for host, error in failures.items()
    }
    report_errors(errors, console)
    return errors


def kill_runs(
    runs: Sequence[HostedRun], asked: Collection[HostConnection], engine: str, console: Console
) -> list[Killed]:
    """Stop runs, print what was stopped, and record it.

    asked: all hosts that were asked about the runs. engine: for runs without a record.
    """
    killed = []
    for each in stop_all([(run, make_stop(run, engine, console)) for run in runs], console):
        each.report(console)
        killed.append(each.save(asked, console))
        report_unconfirmed(killed[-1].errors_by_name, console)
    return killed


def make_stop(run: HostedRun, engine: str, console: Console) -> Stop:
    """Return the stop of a run. engine: the one to use if this machine has no record of the run."""
    if record := run_folder(run.run_id).load_if_readable(console):
        return Stop.of(record, run.owners)
    return Stop(run.run_id, engine, STOP_TIMEOUT, run.owners)


def stop_all(stops: Sequence[tuple[HostedRun, Stop]], console: Console) -> list[Killed]:
    """Stop all runs concurrently, each on all its hosts at once, and return the results."""

    def stop_one(run: HostedRun, stop: Stop) -> Killed:
        return Killed(run, *try_each(one_per_account(run.connections), stop.on_host))

    if not stops:
        return []
    run_ids = ", ".join(run.run_id for run, _ in stops)
    hosts = names(
        dict.fromkeys(connection.name for run, _ in stops for connection in run.connections)
    )
    with console.step(f"stopping {run_ids} on {hosts}"):
        futures = [in_background(stop_one, run, stop) for run, stop in stops]
        return [future.result() for future in futures]


@dataclass(frozen=True)
class Killed:
    """The results of stopping one run, by host, and the errors of hosts on which that failed.

    Of several connections to one account, only the first is used. pending: hosts that were not
    asked and, according to the record, have not confirmed an earlier stop of the run.
    """

    run: HostedRun
    results: Mapping[HostConnection, Stopped]
    errors: Mapping[HostConnection, DdpctlError]
    pending: Sequence[str] = ()

    @cached_property
    def results_by_name(self) -> dict[str, Stopped]:
        return by_name(self.run.connections, self.results)

    @property
    def errors_by_name(self) -> dict[str, DdpctlError]:
        record = run_folder(self.run.run_id).record_file
        error = StopUnconfirmed(
            "it did not confirm an earlier stop, and was not asked this time",
            "to ask it, pass your hosts file with --hosts; if it is gone for good, remove it from "
            f"pending_stop in {record}",
        )
        return by_name(self.run.connections, self.errors) | dict.fromkeys(self.pending, error)

    @property
    def was_alive(self) -> bool:
        """Whether any node was alive or waiting, or may have been."""
        nodes = [status for result in self.results.values() for status in result.nodes]
        return any(status.alive or status.waits for status in nodes) or bool(self.errors)

    @property
    def unconfirmed(self) -> list[str]:
        """The names of the hosts on which something may be left."""
        left = [connection for connection, result in self.results.items() if result.left]
        return sorted({*self.pending, *(connection.name for connection in (*self.errors, *left))})

    def report(self, console: Console) -> None:
        """Print what was stopped and, with --verbose, where. Leftovers are printed as an error."""
        for host, result in self.results_by_name.items():
            if result.nodes or result.left:
                console.detail(f"{host}: {result.describe()}")
        if self.results:
            left = any(result.left for result in self.results.values())
            say = console.error if left else console.say
            say(self.summary())

    def summary(self) -> str:
        results = self.results_by_name
        parts = [f"{host}: {result.describe()}" for host, result in results.items() if result.left]
        if not parts:
            whole = Stopped([status for result in results.values() for status in result.nodes])
            parts = [f"{whole.describe()} on {names(results)}"]
        if untouched := {h: r.untouched for h, r in results.items() if r.untouched}:
            owners = {status.owner for statuses in untouched.values() for status in statuses}
            theirs = ", ".join(sorted(owners)) or "an unknown user"
            parts.append(f"did not touch nodes on {names(untouched)} that belong to {theirs}")
        return f"run {self.run.run_id}: {'; '.join(parts)}"

    def save(self, asked: Collection[HostConnection], console: Console) -> Killed:
        """Record the end of the run, and the hosts on which its stop is unconfirmed.

        Return this with the `pending` hosts from the record.

        A run that has not ended, or is UNKNOWN, gets its end state once all its hosts have been
        asked, even if some did not answer: nothing restarts it, and the next command that reaches
        these hosts stops it there (see `finish_pending_stops`). A run that is UNKNOWN because some hosts
        had not confirmed its stop also gets its end state once the last of them confirms it.
        """
        folder = run_folder(self.run.run_id)
        record = folder.load_if_readable(console)  # loaded again: it may have a new attempt
        if record is None:
            return self
        asked_names = {connection.name for connection in asked}
        before = {*record.pending_stop}
        complete = replace(self, pending=sorted(before - asked_names))
        record.pending_stop = complete.unconfirmed
        asked_all = {*record.hosts} <= asked_names
        last_confirmed = record.state is RunState.UNKNOWN and before and not record.pending_stop
        if not record.state.is_final and (asked_all or last_confirmed):
            self.conclude(record.attempt)
        folder.try_save(record, console)
        return complete

    def conclude(self, attempt: AttemptRecord) -> None:
        """Record how the attempt had ended before this stop, or that it was cancelled.

        A run has failed once one of its nodes has, even if others were still running. But if the
        run is UNKNOWN, an earlier stop may have made that node fail.
        """
        ended = {
            (status.node_rank, status.host): status
            for result in self.results.values()
            for status in result.nodes
            if status.attempt == attempt.number and not (status.alive or status.state in UNSTARTED)
        }
        found = [(node, ended.get((node.node_rank, node.host))) for node in attempt.nodes]
        states = [status.node_state for _, status in found if status]
        state = run_state(states, len(found))
        stopped_before = attempt.state is RunState.UNKNOWN
        if not state.is_final or (state is RunState.FAILED and stopped_before):
            state = RunState.CANCELLED
        attempt.state, attempt.ended = state, timestamp()
        for node, status in found:
            if status:
                node.state, node.exit_code = status.node_state, status.exit_code
            elif node.state in LIVE:
                node.state = NodeState.CANCELLED
        attempt.settle_nodes()

    def document(self) -> dict[str, Any]:
        return {
            "run_id": self.run.run_id,
            "confirmed": not self.unconfirmed,
            "hosts": [
                {
                    "host": host,
                    "stopped": len(result.nodes),
                    "left": result.left,
                    "clean": not result.left,
                    "left_alone": sorted({status.owner for status in result.untouched}),
                }
                for host, result in self.results_by_name.items()
            ],
            "unseen": unseen(self.errors_by_name),
        }
