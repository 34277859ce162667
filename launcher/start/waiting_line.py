"""A run's place in line for GPUs that other runs have: `launch --wait`."""

from __future__ import annotations

import contextlib
import signal
import time

from ..errors import lines
from ..follow import detach
from ..follow.interrupts import LEAVING, Interrupts
from ..outcomes import Outcome, RunState
from ..state import locked, make_folder
from ..terminal.console import Console
from .claim_gpus import Claim, Refused, refusal
from .request import Request
from .reservation import Reservation
from .tickets import POLL, Tickets

WAITING = "waiting.lock"  # locked by the process that waits in line for the run


class PlaceInLine:
    """A run's place in line, from the first refusal until the run starts or this command ends.

    Use it in a `with` statement: at its end, the run leaves the line, unless another process has
    taken over its place.
    """

    def __init__(
        self, request: Request, interrupts: Interrupts, console: Console, kept: Tickets | None
    ) -> None:
        """kept: the tickets of a run that restarts. They stay if it does not start."""
        self._kept = kept
        self._request, self._interrupts, self._console = request, interrupts, console
        self._tickets: Tickets | None = None
        self._lock = contextlib.ExitStack()
        self.since, self.until = request.since, request.until

    def __enter__(self) -> PlaceInLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tickets:
            self._tickets.close()
        self._lock.close()

    def wait(
        self, refused: Refused, reservation: Reservation, *, choose_again: bool = False
    ) -> Outcome | None:
        """Wait until it is this run's turn; then return None. If this command leaves, return how.

        choose_again: another launch was faster on the chosen hosts, but other hosts may be free.
        Raises PreflightError without --wait or after its limit, and RunKilled after a `kill`.
        """
        request, limit = self._request, self._request.options.wait
        if limit is None:
            remedy = "launch with --wait to wait in line, or choose other GPUs"
            raise refusal(refused.reasons, remedy)
        self.since = refused.plan.since
        self.until = self.until or (time.time() + limit if limit else None)
        if choose_again:
            time.sleep(POLL)
            return None
        if self._tickets is None:
            self._lock.enter_context(locked(make_folder(request.folder.path) / WAITING))
            any_port = request.cluster.job.master_port == "auto"
            self._tickets = Tickets(refused.attempt, refused.plan, ignored_port=any_port)
        self._record(refused)
        self._tickets.join()
        reservation.confirm(refused.attempt.nodes)
        if request.options.detach:
            self._tickets.abandon()
            return detach.detach(request.folder, RunState.WAITING, self._console)
        needed = request.options.nodes or request.cluster.nnodes
        number = self._tickets.wait(
            needed, self.until, lines(refused.reasons), self._interrupts, self._console
        )
        if number is None:
            return None
        if number not in LEAVING:
            raise KeyboardInterrupt
        self._tickets.abandon()
        detach.start_recorder(request.folder)
        return Outcome(RunState.WAITING, interrupted=number != signal.SIGQUIT)

    def confirm(self) -> None:
        """Raise RunKilled if the run was killed while it waited or restarted."""
        if tickets := self._tickets or self._kept:
            tickets.ahead()

    def leave(self, claim: Claim) -> None:
        """Leave the line, because the run has started."""
        if self._kept:
            self._kept.close()
        elif self._tickets is None and self.since is not None:  # an earlier process waited
            self._tickets = Tickets(claim.attempt, claim.plan, ignored_port=True)
        if self._tickets:
            self._tickets.close()

    def _record(self, refused: Refused) -> None:
        folder, record = self._request.folder, self._request.remember(refused.plan)
        record.attempt.state = RunState.WAITING
        record.attempt.waiting_since, record.attempt.waiting_until = self.since, self.until
        folder.try_save(record, self._console)
        for line in lines(refused.reasons):
            self._console.say(f"run {folder.run_id} waits: {line}")
