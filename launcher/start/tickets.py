"""A run's tickets on its hosts, which keep its turn for GPUs while it has no node there.

A ticket holds back later launches, and `ps` shows it. It expires unless it is renewed, so a launch
that has died does not hold back others for long. `kill` removes the tickets and cancels the run's
reservation.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from ..engines.choose import engines_on
from ..engines.status import LEASE, NodeStatus
from ..errors import NodesFailed, RunKilled
from ..ssh.background import LONGEST_WAIT, in_background
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each, try_each
from ..terminal.console import Console
from .planned_attempt import PlannedAttempt
from .request import Request
from .reservation import raise_if_cancelled
from .settle_with_rivals import Claims, list_claims

RENEW = LEASE / 3  # the age in seconds at which a ticket is renewed
KEEP = LEASE / 6  # seconds between renewals in the background
REMOVE_TIMEOUT = 2.0  # seconds for removing tickets after Ctrl-C; any that are left expire


class Tickets(AbstractContextManager["Tickets"]):
    """The tickets that this process holds for a run: while the run waits in line or may restart.

    The end of a `with` block removes them, unless `leave` has left them to another process.
    """

    planned: PlannedAttempt  # the attempt that the tickets are for; `hold` sets it

    def __init__(
        self, request: Request, hosts: Sequence[HostConnection], inherited: Tickets | None = None
    ) -> None:
        """hosts: all that may have tickets of the run.

        inherited: those of the attempt that this one restarts; held until this one has started.
        """
        self.request, self.hosts, self.inherited = request, hosts, inherited
        self._left_to_us = request.handed_over  # whether to remove another process's tickets
        self._lock = threading.Lock()
        self._killed = threading.Event()
        self._released = threading.Event()  # set while this process holds no tickets
        self._released.set()

    def __exit__(self, _: object, error: object, __: object) -> None:
        if self._left_to_us or not self._released.is_set():
            removing = in_background(self._remove)
            with contextlib.suppress(TimeoutError):
                removing.result(REMOVE_TIMEOUT if isinstance(error, KeyboardInterrupt) else None)

    def hold(self, planned: PlannedAttempt) -> None:
        """Put tickets on the attempt's hosts and renew them, unless this process holds some already.

        Raises NodesFailed if no host takes a ticket, and RunKilled if the run was killed.
        """
        if not self._released.is_set():
            return
        # first, so that after Ctrl-C the end of the `with` block removes what has been put
        self.planned, self._released = planned, threading.Event()
        put, failures = ask_each(planned.connections, self._put)
        if not put:
            self._released.set()
            raise NodesFailed(failures)
        threading.Thread(target=self._keep, args=[self._released], daemon=True).start()
        try:
            self._raise_if_killed(planned.connections)
        except RunKilled:
            self._remove()
            raise

    @contextlib.contextmanager
    def held_for_restart(self, planned: PlannedAttempt, console: Console) -> Iterator[None]:
        """Context manager: hold tickets during the block if the job allows restarts.

        If the run is alive or will restart at the end of the block, leave them to whoever continues it.
        """
        most = planned.plan.job.max_restarts
        if most:
            with contextlib.suppress(NodesFailed, RunKilled):
                self.hold(planned)
        try:
            yield
        finally:
            record = self.request.folder.load_if_readable(console) if most else None
            if record and record.goes_on(most):
                self.leave()

    def leave(self) -> None:
        """Leave the tickets to another process or to the restart, which will renew them in time."""
        self._left_to_us = False
        self._released.set()
        if self.inherited:
            self.inherited.leave()

    def remove_all(self) -> None:
        """Remove all tickets of the run, because the attempt has started."""
        if self.inherited:
            self.inherited.remove_all()
        # also those that another process or an earlier attempt has left
        if self._left_to_us or not self._released.is_set() or self.request.by == "restart":
            self._remove()

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises RunKilled as soon as a renewal has found that the run was killed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._killed.wait(min(left, LONGEST_WAIT)):
                run_id = self.request.run_id
                raise RunKilled(f"run {run_id} was killed while it was waiting for its hosts")

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
            if due and not self._released.is_set():
                try_each(due, lambda connection: self._replace(connection, own[connection]))
                self._raise_if_killed(due)
            return listed, failures

    def _keep(self, released: threading.Event) -> None:
        """Renew the tickets while this process is busy with other work."""
        while not released.wait(KEEP):
            try:
                self.renew()
            except RunKilled:
                self._remove_from_hosts()
                self._killed.set()
                return

    def _raise_if_killed(self, connections: Sequence[HostConnection]) -> None:
        raise_if_cancelled(self.request.run_id, self.request.attempt, connections)

    def _own(self, connection: HostConnection, listed: Sequence[NodeStatus]) -> list[NodeStatus]:
        mine = (self.request.run_id, self.planned.node_plans[connection].node_rank)
        return [s for s in listed if s.is_ticket and (s.run_id, s.node_rank) == mine]

    def _put(self, connection: HostConnection) -> None:
        node_plan = self.planned.node_plans[connection]
        name = f"{node_plan.place.container}-{secrets.token_hex(3)}"
        self.planned.engine(connection).create_ticket(name, node_plan.container.labels)

    def _replace(self, connection: HostConnection, own: Sequence[NodeStatus]) -> None:
        self._put(connection)
        for ticket in own:
            self.planned.engine(connection).withdraw(ticket)

    def _remove(self) -> None:
        """Stop renewing the tickets, and remove the run's tickets from all hosts."""
        self._left_to_us = False
        self._released.set()
        with self._lock:
            self._remove_from_hosts()

    def _remove_from_hosts(self) -> None:
        """Remove every ticket of the run. On a host that does not answer, they expire."""
        run_id, engine_name = self.request.run_id, self.request.cluster.job.engine

        def remove(connection: HostConnection) -> None:
            for engine in engines_on(connection, engine_name):
                for status in engine.claims():
                    if status.is_ticket and status.run_id == run_id:
                        engine.withdraw(status)

        try_each(self.hosts, remove)
