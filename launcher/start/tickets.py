"""A run's tickets on its hosts, which keep its place in line for GPUs.

A ticket holds back later launches, and `ps` shows it. It expires unless it is renewed, so a launch
that has died does not hold back others for long. `kill` removes the tickets and cancels the run's
reservation.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence

from ..engines.choose import engines_on
from ..engines.status import LEASE, NodeStatus
from ..errors import NodesFailed, RunKilled
from ..runs.run_folder import RunFolder
from ..ssh.background import LONGEST_WAIT
from ..ssh.host_connection import HostConnection
from ..ssh.many import ask_each, try_each
from ..terminal.console import Console
from .planned_attempt import PlannedAttempt
from .reservation import raise_if_cancelled
from .settle_with_rivals import Claims, list_claims

RENEW = LEASE / 3  # the age in seconds at which a ticket is renewed
KEEP = LEASE / 6  # seconds between renewals in the background


class Tickets:
    """One run's tickets on the hosts that it may use."""

    def __init__(self, planned: PlannedAttempt) -> None:
        """planned: the attempt that the tickets are for; it determines their hosts and labels."""
        self.planned = planned
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._killed = threading.Event()
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
            self._raise_if_killed(self.planned.connections)
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
        """Leave the tickets to another process or to the restart, which will renew them in time."""
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
                self._killed.set()
                return

    def sleep(self, seconds: float) -> None:
        """Sleep. Raises RunKilled as soon as a renewal has found that the run was killed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._killed.wait(min(left, LONGEST_WAIT)):
                run_id = self.planned.plan.run_id
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
            if due and not self._closed.is_set():
                try_each(due, lambda connection: self._replace(connection, own[connection]))
                self._raise_if_killed(due)
            return listed, failures

    def _raise_if_killed(self, connections: Sequence[HostConnection]) -> None:
        raise_if_cancelled(self.planned.plan.run_id, self.planned.plan.attempt, connections)

    def _remove(self) -> None:
        plan = self.planned.plan
        remove_tickets(self.planned.connections, plan.engine.name, plan.run_id)

    def _own(self, connection: HostConnection, listed: Sequence[NodeStatus]) -> list[NodeStatus]:
        mine = (self.planned.plan.run_id, self.planned.node_plans[connection].node_rank)
        return [s for s in listed if s.is_ticket and (s.run_id, s.node_rank) == mine]

    def _put(self, connection: HostConnection) -> None:
        node_plan = self.planned.node_plans[connection]
        name = f"{node_plan.place.container}-{secrets.token_hex(3)}"
        self.planned.engine(connection).create_ticket(name, node_plan.container.labels)

    def _replace(self, connection: HostConnection, own: Sequence[NodeStatus]) -> None:
        self._put(connection)
        for ticket in own:
            self.planned.engine(connection).withdraw(ticket)


def remove_tickets(connections: Sequence[HostConnection], engine_name: str, run_id: str) -> None:
    """Remove the run's tickets from these hosts. On a host that does not answer, they expire."""

    def remove(connection: HostConnection) -> None:
        for engine in engines_on(connection, engine_name):
            for status in engine.claims():
                if status.is_ticket and status.run_id == run_id:
                    engine.withdraw(status)

    try_each(connections, remove)
