"""A run's place in line for GPUs, with `launch --wait` or between the attempts of a run.

A run leaves a ticket on each of its hosts while it waits in line. A run that may restart also holds
tickets, so that its GPUs do not become free when a node ends.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..errors import DdpctlError, NodesFailed, PreflightError, RunKilled, Several, lines
from ..follow import detach
from ..follow.ctrl_c import LEAVING, Interrupts
from ..outcomes import Outcome, RunState
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..terminal.console import Console
from .planned_attempt import PlannedAttempt, Refused
from .request import Request
from .settle_with_rivals import in_the_way
from .tickets import Tickets, remove_tickets

POLL = 5.0  # seconds between checks of the hosts
TICK = 0.2  # seconds between checks for signals
CLOSE_TIMEOUT = 2.0  # seconds to remove the tickets after Ctrl-C; one that is left expires


@dataclass
class PlaceInLine(AbstractContextManager["PlaceInLine"]):
    """A run's place in line: for its GPUs until it starts, and then for a restart.

    Use it in a `with` statement. When the block ends, the run leaves the line, unless another
    process or a restart takes over its place.
    """

    hosts: Sequence[HostConnection]  # all that may have tickets of the run
    request: Request
    inherited: Tickets | None  # of the attempt that this one restarts; kept until this one starts
    interrupts: Interrupts
    console: Console
    _own: Tickets | None = None  # of this attempt: from the first refusal to its start, or after it
    _until: float | None = None  # see Request.until; --wait-limit counts from the first refusal

    def __exit__(self, _: object, error: object, __: object) -> None:
        if self._own:
            closing = in_background(self._own.close)
            with contextlib.suppress(TimeoutError):
                closing.result(CLOSE_TIMEOUT if isinstance(error, KeyboardInterrupt) else None)
        elif error and self.request.handed_over:
            self._remove_earlier()

    def wait(self, refused: Refused) -> Outcome | None:
        """Wait for this run's turn. Return None, or an Outcome if this command stops waiting first.

        Raises Several without --wait or after --wait-limit, RunKilled if the run was killed, and
        KeyboardInterrupt after Ctrl-C or SIGTERM.
        """
        limit = self.request.options.wait
        if limit is None:
            remedy = "launch with --wait to wait in line, or choose other GPUs"
            raise with_remedy(refused.reasons, remedy)
        if self._until is None:
            self._until = self.request.until or (time.time() + limit if limit else None)
        if refused.choose_again:
            self._raise_if_too_late(refused.reasons)
            time.sleep(POLL)
            return None
        tickets = self._join(refused)
        # once a recorder has taken over the run, a signal must not record the run as cancelled
        with self.interrupts.held():
            if self.request.options.detach:
                outcome = detach.detach(self.request.folder, RunState.WAITING, self.console)
                outcome = dataclasses.replace(outcome, interrupted=bool(self.interrupts.take()))
            elif (number := self._await_turn(tickets, lines(refused.reasons))) is None:
                return None
            elif number in LEAVING:
                detach.ensure_recorder(self.request.folder, RunState.WAITING)
                again = f"ddpctl attach {self.request.run_id}"
                self.console.say(f"the run stays in line; follow it with `{again}`")
                outcome = Outcome(RunState.WAITING, interrupted=number != signal.SIGQUIT)
            else:
                raise KeyboardInterrupt
            for each in self._all_tickets():
                each.abandon()
            self.interrupts.forget()
            return outcome

    def leave(self) -> None:
        """Remove all tickets of the run, because the run has started."""
        for tickets in self._all_tickets():
            tickets.close()
        if self.request.handed_over or self.request.by == "restart":
            self._remove_earlier()

    @contextlib.contextmanager
    def kept_for_restart(self, planned: PlannedAttempt) -> Iterator[None]:
        """Context manager: if the started run may restart, hold tickets for the restart in the block."""
        if planned.plan.job.max_restarts == 0:
            yield
            return
        self._own = Tickets(planned)
        with contextlib.suppress(NodesFailed, RunKilled):
            self._own.join()
        with self._own.abandoned_if_run_goes_on(self.request.folder, self.console):
            yield

    def _join(self, refused: Refused) -> Tickets:
        """Record the run as waiting, and take a place in line unless it has one. Return its tickets."""
        folder = self.request.folder
        self.request.take_care()
        if self._own is None:
            self._own = Tickets(refused.planned)
        record = self.request.save_pending(refused.planned.plan)
        record.attempt.state = RunState.WAITING
        record.attempt.waiting_until = self._until
        folder.try_save(record, self.console)
        for line in lines(refused.reasons):
            self.console.say(f"run {folder.run_id} is waiting: {line}")
        self._own.join()
        return self._own

    def _await_turn(self, tickets: Tickets, printed: Sequence[str]) -> int | None:
        """Wait until enough hosts have no rival ahead or a signal arrives. Return the signal, or None.

        printed: the reasons that were already printed. Raises Several after --wait-limit.
        """
        needed = self.request.options.nodes or self.request.cluster.nnodes
        while True:
            # in the background, because a signal must not wait for a host that hangs
            renewing = in_background(tickets.renew)
            while not renewing.done():
                if (number := self._next_signal()) is not None:
                    return number
            ahead, reasons = in_the_way(tickets.planned, renewing.result())
            if sum(not listed for listed in ahead.values()) >= needed:
                return None
            self._raise_if_too_late(reasons)
            for line in lines(reasons):
                if line not in printed:
                    self.console.say(f"run {self.request.run_id} is waiting: {line}")
            printed = lines(reasons)
            for _ in range(round(POLL / TICK)):
                if (number := self._next_signal()) is not None:
                    return number

    def _next_signal(self) -> int | None:
        """Return the oldest queued signal after TICK, or None."""
        time.sleep(TICK)
        return self.interrupts.take()

    def _raise_if_too_late(self, reasons: Sequence[DdpctlError]) -> None:
        """If --wait-limit has passed, raise Several with the reasons."""
        if self._until is not None and time.time() >= self._until:
            remedy = "gave up waiting; raise --wait-limit or choose other GPUs"
            raise with_remedy(reasons, remedy)

    def _all_tickets(self) -> list[Tickets]:
        return [tickets for tickets in (self.inherited, self._own) if tickets]

    def _remove_earlier(self) -> None:
        """Remove the tickets that another process or an earlier attempt left behind."""
        remove_tickets(self.hosts, self.request.cluster.job.engine, self.request.run_id)


def with_remedy(reasons: Sequence[DdpctlError], remedy: str) -> Several:
    return Several(PreflightError(each.what, remedy, host=each.host) for each in reasons)
