"""Following one attempt to its end: show, record, stop what must stop, say why it failed."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.diagnosis.evidence import Evidence, NodeEvidence
from launcher.diagnosis.failure_kinds import FailureKind
from launcher.diagnosis.first_failure import FirstFailure, first_failure, headline
from launcher.engines.attempt import RunningAttempt
from launcher.errors import DdpctlError
from launcher.follow.metrics_poller import Asking
from launcher.follow.monitor import Follow, Lines, NodeOutcome
from launcher.follow.panel import panel_lines, view
from launcher.follow.signals import Interrupts
from launcher.logs.store import LogStore, Mark
from launcher.runs.record import AttemptRecord, RunFolder, RunRecord, parse_timestamp, timestamp
from launcher.stop.stop import stop_run
from launcher.terminal.console import Console
from launcher.terminal.live import Live, wanted

EXIT = {"SUCCEEDED": 0, "FAILED": 1, "CANCELLED": 7}
EXIT_UNCONFIRMED = 6
EXIT_INTERRUPTED = 130
GANG_GRACE = 8.0  # seconds the supervisors have to stop each other before the launcher does it


def follow(
    party: RunningAttempt,
    folder: RunFolder,
    record: RunRecord,
    skews: Sequence[float],
    console: Console,
    interrupts: Interrupts,
    leave_to: Callable[[RunFolder], None],
    *,
    owned: bool = True,
    known: Mapping[int, Mark] | None = None,
) -> int:
    """Shows and records the attempt until it has ended; returns its exit code.

    owned: the run is this command's own, so Ctrl-C can stop it. Otherwise Ctrl-C only leaves.
    known: what has been shown already.
    leave_to: starts what keeps the logs when this command leaves the run running.
    """
    with contextlib.ExitStack() as stack:
        store = LogStore.acquire(folder.logs, console.say)
        if store:
            stack.callback(store.close)
        stack.enter_context(interrupts.held())
        following = Following(
            party, Follow(party, store, known), folder, record, console, interrupts, leave_to
        )
        following.owned = owned
        if wanted(plain=console.plain, quiet=console.quiet):
            stack.enter_context(display(party, following.follow, record, console))
        return following.to_the_end(skews)


@contextlib.contextmanager
def display(
    party: RunningAttempt, follow: Follow, record: RunRecord, console: Console
) -> Iterator[None]:
    """A panel of nodes and progress below the lines, for as long as the attempt is followed."""
    asking = Asking(party.nodes, party.places)
    began = parse_timestamp(record.attempt.started) or time.time()

    def render(columns: int, rows: int) -> list[str]:
        up = time.time() - began
        attempt = record.attempt.attempt
        now = view(record.run_id, attempt, follow.outcomes, asking.gauges, up)
        return panel_lines(now, columns, rows)

    try:
        with console.live(Live(render)):
            yield
    finally:
        asking.close()


class Following:
    """One attempt being followed: what to do about each thing that is heard."""

    def __init__(
        self,
        party: RunningAttempt,
        follow: Follow,
        folder: RunFolder,
        record: RunRecord,
        console: Console,
        interrupts: Interrupts,
        leave_to: Callable[[RunFolder], None],
    ) -> None:
        self.party, self.follow, self.folder = party, follow, folder
        self.record, self.console, self.interrupts = record, console, interrupts
        self.leave_to = leave_to
        self.owned = True
        self.stopping: threading.Thread | None = None
        self.unconfirmed: dict[str, DdpctlError] = {}
        self.interrupted = False
        self.asked_at: float | None = None  # when the first Ctrl-C was answered with the choices
        self.failed_at: float | None = None

    def to_the_end(self, skews: Sequence[float]) -> int:
        for event in self.follow.events():
            if isinstance(event, Lines):
                self.console.lines(event.text)
                continue
            self.console.flush()
            if isinstance(event, NodeOutcome):
                self._node_ended(event)
            elif event is not None:
                self.console.say(event)
            if (signal := self.interrupts.take()) is not None and self._heard(signal):
                return self._detach()
            self._back_up_the_gang()
            if self._nobody_left_to_wait_for():
                self.follow.close()
                break
        self.console.settle()
        return self._conclude(skews)

    def _node_ended(self, outcome: NodeOutcome) -> None:
        node = self.record.attempt.nodes[outcome.node_rank]
        node.exit_code = outcome.exit_code
        node.state = "SUCCEEDED" if outcome.succeeded else "FAILED"
        self.folder.save(self.record)
        if outcome.failed and self.failed_at is None and not was_cancelled([outcome]):
            self.failed_at = time.monotonic()

    def _back_up_the_gang(self) -> None:
        """The supervisors stop each other. Where that did not happen, the launcher does it."""
        if self.failed_at is not None and time.monotonic() - self.failed_at > GANG_GRACE:
            self._stop(cancel=False)

    def _nobody_left_to_wait_for(self) -> bool:
        """A stop was asked for, and every node that has not ended is on a host out of reach."""
        if not self.interrupted or self.stopping is None or self.stopping.is_alive():
            return False
        waiting = [o for o in self.follow.outcomes.values() if not o.done]
        return bool(waiting) and all(o.host in self.unconfirmed for o in waiting)

    def _heard(self, number: int) -> bool:
        """Acts on a signal; True when the launcher is to leave and the run to go on."""
        if number == signal.SIGHUP or not self.owned:
            return True
        on_terminal = number == signal.SIGINT and sys.stdin.isatty() and sys.stderr.isatty()
        if on_terminal and self.asked_at is None:
            self.asked_at = time.monotonic()
            run_id = self.folder.run_id
            self.console.say(
                f"Ctrl-C again stops the run on all hosts. To leave it running, close this "
                f"terminal or `kill -HUP {os.getpid()}`; `ddpctl attach {run_id}` comes back to it"
            )
            return False
        self.interrupted = True
        self._stop(cancel=True)
        return False

    def _stop(self, *, cancel: bool) -> None:
        if self.stopping is not None:
            return
        hosts = len({node.name for node in self.party.nodes})
        self.console.say(f"stopping the run on {hosts} hosts")
        self.stopping = threading.Thread(target=self._stop_everywhere, args=(cancel,), daemon=True)
        self.stopping.start()

    def _stop_everywhere(self, cancel: bool) -> None:
        _, self.unconfirmed = stop_run(
            self.party.nodes,
            {node: [engine] for node, engine in self.party.engines.items()},
            self.folder.run_id,
            self.record.stop_timeout if cancel else min(self.record.stop_timeout, GANG_GRACE),
            remove=False,
            cancel=cancel,
        )

    def _detach(self) -> int:
        self.follow.close()
        self.console.settle()
        if self.follow.store:
            self.follow.store.close()
            self.leave_to(self.folder)
        self.console.say(f"the run goes on: `ddpctl attach {self.folder.run_id}`")
        return EXIT_INTERRUPTED

    def _conclude(self, skews: Sequence[float]) -> int:
        if self.stopping:
            self.stopping.join()
        outcomes = list(self.follow.outcomes.values())
        attempt = self.record.attempt
        attempt.ended = timestamp()
        failure = self._failure(outcomes, skews)
        if all(outcome.succeeded for outcome in outcomes):
            attempt.state = "SUCCEEDED"
        elif self.interrupted and self.unconfirmed:
            attempt.state, attempt.ended = "UNKNOWN", None  # asked to stop, not seen to have
        elif self.interrupted or was_cancelled(outcomes):
            attempt.state = "CANCELLED"
        else:
            attempt.state = "FAILED"
        timed_out = failure and failure.kind == FailureKind.TIME_LIMIT
        if failure and (attempt.state == "FAILED" or timed_out):
            attempt.first_failure = dataclasses.asdict(failure)
        unseen = {o.host for o in outcomes if o.end is None and o.status is None}
        self.record.pending_stop = sorted({*self.unconfirmed, *unseen})
        self.folder.save(self.record)
        for host, error in self.unconfirmed.items():
            self.console.error(f"{host}: the stop was not confirmed: {error}")
        tell(self.folder.run_id, attempt, self.console)
        if self.unconfirmed and self.interrupted:
            return EXIT_UNCONFIRMED  # of a run that failed, its failure is the news
        return EXIT_INTERRUPTED if self.interrupted else EXIT[attempt.state]

    def _failure(self, outcomes: list[NodeOutcome], skews: Sequence[float]) -> FirstFailure | None:
        if all(outcome.succeeded for outcome in outcomes):
            return None
        return first_failure(
            Evidence(
                world_size=self.record.attempt.world_size,
                nodes=tuple(node_evidence(o, skews[o.node_rank]) for o in outcomes),
            )
        )


def tell(run_id: str, attempt: AttemptRecord, console: Console) -> None:
    """The last words about an attempt: how it ended, and the first failure's story."""
    if attempt.state == "UNKNOWN":
        console.say(f"run {run_id} may still run there; the next contact stops it")
        return
    if attempt.first_failure is None:
        console.say(f"run {run_id} {attempt.state.lower()}")
        return
    failure = FirstFailure(**attempt.first_failure)
    console.error(f"run {run_id} {attempt.state.lower()}: {headline(failure)}")
    for line in (failure.excerpt or "").splitlines():
        console.error(f"  | {line}")
    if failure.remedy:
        console.error(f"remedy: {failure.remedy}")


def was_cancelled(outcomes: Sequence[NodeOutcome]) -> bool:
    return any(o.end is not None and o.end.state == "cancelled" for o in outcomes)


def node_evidence(outcome: NodeOutcome, clock_skew: float) -> NodeEvidence:
    """What is known of one node, for the search of the cause."""
    return NodeEvidence(
        node_rank=outcome.node_rank,
        host=outcome.host,
        clock_skew=clock_skew,
        events=tuple(outcome.events),
        tail=tuple((line.time, line.rank, line.text) for line in outcome.tail),
        exit_code=outcome.status.exit_code if outcome.status else None,
        oom_killed=outcome.status.oom_killed if outcome.status else False,
        unseen=outcome.unseen_reason if outcome.unseen_since is not None else None,
    )
