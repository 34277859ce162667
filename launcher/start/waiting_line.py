"""A run's place in line for GPUs, with `launch --wait` or between the attempts of a run.

A run leaves a ticket on each of its hosts while it waits in line. The ticket holds back later
launches, and `ps` shows it. It expires unless it is renewed, so a launch that has died does not
hold back others for long. A run that may restart also holds tickets, so that its GPUs do not become
free when a node ends. `kill` removes the tickets and cancels the run's reservation.
"""

import contextlib
import dataclasses
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ..engines.choose import engines_on
from ..engines.status import LEASE, NodeStatus
from ..errors import DdpctlError, NodesFailed, PreflightError, RunKilled, Several, lines
from ..follow import detach
from ..follow.ctrl_c import LEAVING, Interrupts
from ..outcomes import Outcome, RunState
from ..own_folders import locked, make_folder
from ..runs.record import RunFolder
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each, try_each
from ..terminal.console import Console
from .claim_gpus import Claims, Refused, in_the_way, list_claims
from .request import Request
from .reservation import raise_if_cancelled
from .start_nodes import PlannedAttempt

RENEW = LEASE / 3  # the age in seconds at which a ticket is renewed
KEEP = LEASE / 6  # seconds between renewals in the background
POLL = 5.0  # seconds between checks of the hosts
TICK = 0.2  # seconds between checks for signals
WAITING_LOCK = "waiting.lock"  # locked by the process that waits in line for the run


class Tickets:
    """One run's tickets on the hosts that it may use."""

    def __init__(self, planned: PlannedAttempt) -> None:
        """planned: the attempt that has the tickets. It determines their hosts and labels."""
        self.planned = planned
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def join(self) -> None:
        """Take a place in line, and keep it until `close`. Does nothing if the run has one already.

        Raises NodesFailed if no host takes a ticket, and RunKilled if the run was killed.
        """
        if self._keeper:
            return
        put, failures = ask_each(self.planned.connections, self._put)
        if not put:
            raise NodesFailed(failures)
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="tickets")
        self._keeper.start()
        try:
            raise_if_cancelled(self.planned.plan, self.planned.connections)
        except RunKilled:
            self.close()
            raise

    def close(self) -> None:
        """Remove the run's tickets, unless they were abandoned."""
        if not self._closed.is_set():
            self._closed.set()
            with self._lock:
                # also those of an earlier process or attempt, whose node ranks may differ
                self._remove()

    def abandon(self) -> None:
        """Leave the tickets to another process or to the restart, which renews them in time."""
        self._closed.set()

    @contextlib.contextmanager
    def abandoned_if_run_goes_on(self, folder: RunFolder, console: Console) -> Iterator[None]:
        """Context manager: at the end of the block, abandon the tickets if the run lives or restarts."""
        try:
            yield
        finally:
            record = folder.load_if_readable(console)
            if record and record.goes_on(self.planned.plan.job.max_restarts):
                self.abandon()

    def _keep(self) -> None:
        """Renew the tickets while the launch is busy with other work."""
        while not self._closed.wait(KEEP):
            try:
                self.renew()
            except RunKilled:
                self._remove()
                return

    def renew(self) -> Claims:
        """Replace the run's tickets that are old or gone. Return what `list_claims` returns.

        Raises RunKilled if a ticket was replaced although the run was killed.
        """
        with self._lock:
            listed, failures = list_claims(self.planned)
            own = {connection: self._own(connection, listed[connection]) for connection in listed}
            due = [
                connection
                for connection in own
                if all(ticket.age > RENEW for ticket in own[connection])
            ]
            if due and not self._closed.is_set():
                try_each(due, lambda connection: self._replace(connection, own[connection]))
                raise_if_cancelled(self.planned.plan, due)
            return listed, failures

    def _remove(self) -> None:
        plan = self.planned.plan
        remove_tickets(self.planned.connections, plan.engine.name, plan.run_id)

    def _own(self, connection: HostConnection, listed: Sequence[NodeStatus]) -> list[NodeStatus]:
        mine = (self.planned.plan.run_id, self.planned.node_plans[connection].node_rank)
        return [s for s in listed if s.is_ticket and (s.run_id, s.node_rank) == mine]

    def _put(self, connection: HostConnection) -> None:
        node_plan = self.planned.node_plans[connection]
        name = f"{node_plan.place.container}-{secrets.token_hex(3)}"
        self.planned.engine(connection).wait_in_line(name, node_plan.container.labels)

    def _replace(self, connection: HostConnection, own: Sequence[NodeStatus]) -> None:
        self._put(connection)
        for ticket in own:
            self.planned.engine(connection).withdraw(ticket)


@dataclass
class PlaceInLine(AbstractContextManager["PlaceInLine"]):
    """A run's place in line: for its GPUs until it starts, and then for a restart.

    Use it in a `with` statement. At the end of the block, the run leaves the line, unless another
    process or the restart takes over its place.
    """

    hosts: Sequence[HostConnection]  # all that may have tickets of the run
    request: Request  # each refusal updates `since` and `until`
    previous: Tickets | None  # of the attempt that this one restarts; kept until this one starts
    interrupts: Interrupts
    console: Console
    _own: Tickets | None = None  # of this attempt: from the first refusal to its start, or after it
    _waiting_lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __exit__(self, error: object, *_: object) -> None:
        if self._own:
            self._own.close()
        elif error and self.request.handed_over:
            self._remove_earlier()
        self._waiting_lock.close()

    def wait(self, refused: Refused) -> Outcome | None:
        """Wait for this run's turn. Return None, or an Outcome if this command stops waiting first.

        Raises Several without --wait or after --wait-limit, RunKilled if the run was killed, and
        KeyboardInterrupt after Ctrl-C or SIGTERM.
        """
        limit = self.request.options.wait
        if limit is None:
            remedy = "launch with --wait to wait in line, or choose other GPUs"
            raise refusal(refused.reasons, remedy)
        since = refused.planned.plan.since  # of the first refusal, because `request` keeps it
        until = self.request.until or (time.time() + limit if limit else None)
        request = self.request = dataclasses.replace(self.request, since=since, until=until)
        if refused.choose_again:
            self._raise_if_too_late(refused.reasons)
            time.sleep(POLL)
            return None
        if self._own is None:
            if not request.handed_over:
                lock = make_folder(request.folder.path) / WAITING_LOCK
                self._waiting_lock.enter_context(locked(lock))
            self._own = Tickets(refused.planned)
        self._record(refused)
        self._own.join()
        # once a recorder has taken over the run, a signal must not record the run as cancelled
        with self.interrupts.held():
            if request.options.detach:
                outcome = detach.detach(request.folder, RunState.WAITING, self.console)
                outcome = dataclasses.replace(outcome, interrupted=bool(self.interrupts.take()))
            else:
                number = self._await_turn(self._own, lines(refused.reasons))
                if number is None:
                    return None
                if number not in LEAVING:
                    raise KeyboardInterrupt
                detach.start_recorder(request.folder, RunState.WAITING)
                outcome = Outcome(RunState.WAITING, interrupted=number != signal.SIGQUIT)
            for tickets in self._all_tickets():
                tickets.abandon()
            self.interrupts.forget()
            return outcome

    def leave(self) -> None:
        """Remove all tickets of the run, because it has started."""
        for tickets in self._all_tickets():
            tickets.close()
        if self.request.handed_over or self.request.by == "restart":
            self._remove_earlier()

    def kept_for_restart(self, planned: PlannedAttempt) -> AbstractContextManager[None]:
        """Context manager: if the started run may restart, hold tickets for that in the block."""
        if planned.plan.job.max_restarts == 0:
            return contextlib.nullcontext()
        self._own = Tickets(planned)
        with contextlib.suppress(NodesFailed, RunKilled):
            self._own.join()
        return self._own.abandoned_if_run_goes_on(self.request.folder, self.console)

    def _all_tickets(self) -> list[Tickets]:
        return [tickets for tickets in (self.previous, self._own) if tickets]

    def _remove_earlier(self) -> None:
        """Remove the tickets that another process or attempt has left."""
        remove_tickets(self.hosts, self.request.cluster.job.engine, self.request.run_id)

    def _await_turn(self, tickets: Tickets, printed: Sequence[str]) -> int | None:
        """Wait until enough hosts have no rival ahead or a signal arrives. Return the signal, or None.

        printed: the reasons that were already printed. Raises Several after --wait-limit.
        """
        needed = self.request.options.nodes or self.request.cluster.nnodes
        while True:
            ahead, reasons = in_the_way(tickets.planned, *tickets.renew())
            if sum(not listed for listed in ahead.values()) >= needed:
                return None
            self._raise_if_too_late(reasons)
            for line in lines(reasons):
                if line not in printed:
                    self.console.say(f"run {self.request.run_id} is waiting: {line}")
            printed = lines(reasons)
            for _ in range(round(POLL / TICK)):
                time.sleep(TICK)
                if (number := self.interrupts.take()) is not None:
                    return number

    def _raise_if_too_late(self, reasons: Sequence[DdpctlError]) -> None:
        """If --wait-limit has passed, raise Several with the reasons."""
        if self.request.until is not None and time.time() >= self.request.until:
            remedy = "gave up waiting; raise --wait-limit or choose other GPUs"
            raise refusal(reasons, remedy)

    def _record(self, refused: Refused) -> None:
        folder, record = self.request.folder, self.request.remember(refused.planned.plan)
        record.attempt.state = RunState.WAITING
        record.attempt.waiting_until = self.request.until
        folder.try_save(record, self.console)
        for line in lines(refused.reasons):
            self.console.say(f"run {folder.run_id} is waiting: {line}")


def refusal(reasons: Sequence[DdpctlError], remedy: str) -> Several:
    return Several(PreflightError(each.what, remedy, host=each.host) for each in reasons)


def remove_tickets(connections: Sequence[HostConnection], engine_name: str, run_id: str) -> None:
    """Remove the run's tickets from these hosts. On a host that does not answer, they expire."""

    def remove(connection: HostConnection) -> None:
        for engine in engines_on(connection, engine_name):
            for status in engine.claims():
                if status.is_ticket and status.run_id == run_id:
                    engine.withdraw(status)

    try_each(connections, remove)
