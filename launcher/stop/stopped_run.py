"""Stop runs on all their hosts at once. The results are printed, recorded and returned as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..engines.status import UNSTARTED
from ..errors import DdpctlError, StopUnconfirmed
from ..outcomes import NodeState, RunState, run_state
from ..runs.record import AttemptRecord, RunRecord, timestamp
from ..runs.run_folder import run_folder
from ..ssh.background import in_background
from ..ssh.many import by_name, one_per_account, try_each
from ..terminal.console import Console
from ..terminal.host_errors import unseen
from ..text import names
from .choose_runs import HostedRun
from .stop_on_host import Errors, HostResult, Results, Stop, what_was_done, why_unconfirmed

REMEDY = "end what is left there (a process in state D ends once its disk or driver answers)"


def stop_all(stops: Sequence[tuple[HostedRun, Stop]], console: Console) -> list[StoppedRun]:
    """Stop all runs concurrently, each on all its hosts at once, and return the results."""
    if not stops:
        return []
    run_ids = ", ".join(run.run_id for run, _ in stops)
    hosts = names(
        dict.fromkeys(connection.name for run, _ in stops for connection in run.connections)
    )
    with console.step(f"stopping {run_ids} on {hosts}"):
        futures = [
            in_background(try_each, one_per_account(run.connections), stop.on_host)
            for run, stop in stops
        ]
        by_run = [(run, future.result()) for (run, _), future in zip(stops, futures, strict=True)]
    # load the records only now, because a run may have ended or have a new attempt since the start
    return [
        StoppedRun(run, *results, run_folder(run.run_id).load_if_readable(console))
        for run, results in by_run
    ]


@dataclass(frozen=True)
class StoppedRun:
    """The results of a stop of one run, by host, and the errors of hosts on which it failed.

    Of several connections to one account, only the first is used. record: this machine's.
    """

    run: HostedRun
    results: Results
    errors: Errors
    record: RunRecord | None = None

    @property
    def pending(self) -> list[str]:
        """The hosts that were not asked and have not confirmed an earlier stop, as recorded."""
        return sorted({*self.record.pending_stop} - self.run.asked) if self.record else []

    @cached_property
    def results_by_name(self) -> dict[str, HostResult]:
        return by_name(self.run.connections, self.results)

    @property
    def errors_by_name(self) -> dict[str, DdpctlError]:
        record = run_folder(self.run.run_id).record_file
        error = StopUnconfirmed(
            "it did not confirm an earlier stop, and was not asked this time",
            "to ask it, pass your hosts file with --hosts; if that host is gone for good, remove it "
            f"from pending_stop in {record}",
        )
        return by_name(self.run.connections, self.errors) | dict.fromkeys(self.pending, error)

    @property
    def may_have_been_alive(self) -> bool:
        """Whether any node was alive or waiting, or a host has not answered."""
        nodes = [status for result in self.results.values() for status in result.nodes]
        return any(status.alive or status.waits for status in nodes) or bool(self.errors)

    @property
    def unconfirmed(self) -> list[str]:
        """The names of the hosts on which something may be left."""
        unconfirmed = why_unconfirmed(self.results, self.errors)
        return sorted({*self.pending, *(connection.name for connection in unconfirmed)})

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
        if parts:
            parts.append(f"{REMEDY}, then repeat `ddpctl kill {self.run.run_id}`")
        else:
            nodes = [status for result in results.values() for status in result.nodes]
            parts = [f"{what_was_done(nodes)} on {names(results)}"]
        if untouched := {h: r.untouched for h, r in results.items() if r.untouched}:
            owners = {status.owner for statuses in untouched.values() for status in statuses}
            theirs = ", ".join(sorted(owners)) or "an unknown user"
            parts.append(f"did not touch nodes on {names(untouched)} that belong to {theirs}")
        return f"run {self.run.run_id}: {'; '.join(parts)}"

    def record_end(self, console: Console) -> None:
        """Record the end of the run, and the hosts on which its stop is unconfirmed.

        A run that has not ended, or is UNKNOWN, gets its end state once all its hosts have been asked,
        even if some did not answer. Nothing restarts it, and the next `ps` or `launch` that reaches the
        other hosts stops it there (see pending_stops.py). A run that is UNKNOWN because some hosts had
        not confirmed its stop also gets its end state once the last of them confirms it.
        """
        record = self.record
        if record is None:
            return
        before, record.pending_stop = record.pending_stop, self.unconfirmed
        last_confirmed = record.state is RunState.UNKNOWN and before and not record.pending_stop
        asked_all = {*record.hosts} <= self.run.asked
        if not record.state.is_final and (asked_all or last_confirmed):
            self.conclude(record.attempt)
        run_folder(record.run_id).try_save(record, console)

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
            elif node.state.is_live:
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
