"""The tickets that a process holds for a run, from its first refusal to the end of its attempt."""

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..errors import NodesFailed, RunKilled
from ..ssh.background import in_background
from ..ssh.host_connection import HostConnection
from ..terminal.console import Console
from .planned_attempt import PlannedAttempt
from .request import Request
from .tickets import Tickets, remove_tickets

CLOSE_TIMEOUT = 2.0  # seconds to remove the tickets after Ctrl-C; one that is left expires


@dataclass
class TicketHolder(AbstractContextManager["TicketHolder"]):
    """The tickets of one attempt, by the stage that they are for.

    The end of a `with` block removes them, unless `hand_over` or `kept_for_restart` has left them to
    another process or to the restart.
    """

    request: Request
    hosts: Sequence[HostConnection]  # all that may have tickets of the run
    inherited: Tickets | None  # from the attempt that this one restarts; kept until this one starts
    waiting: Tickets | None = None  # kept from the first refusal until the attempt starts
    for_restart: Tickets | None = None  # kept from the start to the end, if the run may restart

    def __exit__(self, _: object, error: object, __: object) -> None:
        if own := self.for_restart or self.waiting:
            closing = in_background(own.close)
            with contextlib.suppress(TimeoutError):
                closing.result(CLOSE_TIMEOUT if isinstance(error, KeyboardInterrupt) else None)
        elif error and self.request.handed_over:
            self._remove_earlier()

    def wait_with(self, planned: PlannedAttempt) -> Tickets:
        """Return the tickets to wait with. The first call takes a place in line on these hosts."""
        self.waiting = self.waiting or Tickets(planned)
        self.waiting.join()
        return self.waiting

    def hand_over(self) -> None:
        """Leave the tickets to the recorder of the waiting run."""
        for tickets in self._until_start():
            tickets.abandon()

    def remove_all(self) -> None:
        """Remove all tickets of the run, because the attempt has started."""
        for tickets in self._until_start():
            tickets.close()
        if self.request.handed_over or self.request.by == "restart":
            self._remove_earlier()

    @contextlib.contextmanager
    def kept_for_restart(self, planned: PlannedAttempt, console: Console) -> Iterator[None]:
        """Context manager: if the started run may restart, hold tickets for the restart in the block."""
        if planned.plan.job.max_restarts == 0:
            yield
            return
        self.for_restart = Tickets(planned)
        with contextlib.suppress(NodesFailed, RunKilled):
            self.for_restart.join()
        with self.for_restart.abandoned_if_run_goes_on(self.request.folder, console):
            yield

    def _until_start(self) -> list[Tickets]:
        return [tickets for tickets in (self.inherited, self.waiting) if tickets]

    def _remove_earlier(self) -> None:
        """Remove the tickets that another process or an earlier attempt left behind."""
        remove_tickets(self.hosts, self.request.cluster.job.engine, self.request.run_id)
