"""Stop one run on a host, and verify that it has stopped: mark, SIGTERM, SIGKILL, remove, list, wait."""

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

from ..engines.base import Engine, NodeListing
from ..engines.choose import engines_on, nodes_on
from ..engines.claims import without_idle_tickets
from ..engines.status import UNSTARTED, ContainerState, NodeStatus, user_of
from ..errors import DdpctlError, StopUnconfirmed
from ..outcomes import NodeState
from ..runs.record import RunRecord
from ..runs.reported import reports_of
from ..ssh.host_connection import HostConnection
from ..ssh.local import account_name
from ..ssh.script_files import load_script
from .inventory import processes_on

MARK_CANCELLED = load_script(__file__, "mark_cancelled.sh")
PROCESS_TIMEOUT = 5.0  # seconds for the processes of a killed supervisor to end
POLL = 0.3  # seconds between checks for these processes
MARK_REMEDY = "check the free space (`df -h`) and the permissions of ~/.ddpctl on that host"


@dataclass(frozen=True)
class HostResult:
    """What the stop of a run found and left on one host.

    nodes: the run's nodes when the stop began, in any state; see also `with_cancelled`. The nodes
    include tickets (places in line), except those of live nodes and those that the stop keeps (see
    Stop.cancel). left_nodes: the names of the nodes and tickets that are still on the host.
    left_pids: the run's processes that are still there. untouched: nodes with the run's id that belong
    to another user.
    """

    nodes: Sequence[NodeStatus]
    left_nodes: Sequence[str] = ()
    left_pids: Sequence[int] = ()
    untouched: Sequence[NodeStatus] = ()

    @property
    def left(self) -> list[str]:
        return [*self.left_nodes, *map(str, self.left_pids)]

    def describe(self) -> str:
        """Return what is left or, if nothing is left, what was done."""
        if self.left:
            pids = (f"pid {pid}" for pid in self.left_pids)
            return f"STILL THERE: {', '.join([*self.left_nodes, *pids])}"
        return what_was_done(self.nodes)


def what_was_done(nodes: Sequence[NodeStatus]) -> str:
    """Describe a stop that left nothing. nodes: those that it found, on one host or on several."""
    if not nodes:
        return "nothing to stop"
    if any(status.alive or status.waits for status in nodes):
        return "stopped, nothing left"
    started = any(status.state is not ContainerState.CREATED for status in nodes)
    return f"had {'already ended' if started else 'not started'}; removed, nothing left"


@dataclass(frozen=True)
class Stop:
    """A stop of one run. On each host, it ends the nodes of this user and of `owners`.

    Only a node's labels on its own host count: what another host reports about a run does not
    justify stopping anything on this one.

    engine: the job's engine. timeout: seconds between SIGTERM and SIGKILL. owners: each as
    USER@MACHINE. remove: also remove the ended nodes, but not their folders. cancel: record a
    cancellation, not a failure, and remove the run's tickets, so that it does not restart.
    """

    run_id: str
    engine: str
    timeout: float
    owners: Collection[str]
    remove: bool = True
    cancel: bool = True

    @classmethod
    def of(cls, record: RunRecord, owners: Collection[str] = ()) -> Self:
        """Return the stop of a recorded run. owners: further owners besides the recorded one."""
        return cls(record.run_id, record.engine, record.stop_timeout, [*owners, record.owner])

    @property
    def users(self) -> set[str]:
        # an owner may be "": adopted records and some nodes have none
        return {account_name(), *map(user_of, filter(None, self.owners))}

    def on_host(self, connection: HostConnection) -> HostResult:
        """Stop the run on one host, and return what was found and what is left."""
        listed = nodes_on(connection, self.engine, self.run_id)
        untouched = [status for status in listed if status.user not in self.users]
        if untouched and untouched == listed:  # the run is not ours here, so do not even mark it
            return HostResult([], untouched=untouched)
        nodes = without_idle_tickets(self._ours(listed))
        marked = None
        if self.cancel:
            nodes = with_cancelled(nodes, connection)  # before this stop leaves its mark
            marked = connection.script(MARK_CANCELLED, self.run_id)
        engines = engines_on(connection, self.engine)
        left_nodes = [name for engine in engines for name in self._stop_on(engine)]
        left_pids = self._wait_for_processes(connection)
        if marked:  # only now, because a full disk must not keep the run alive
            what = f"could not mark {self.run_id} as cancelled"
            marked.expect(what, MARK_REMEDY, connection.name)
        return HostResult(nodes, left_nodes, left_pids, untouched)

    def _stop_on(self, engine: Engine) -> list[str]:
        """End the run's nodes on one engine. Return the names of what is left.

        Lists the nodes anew at each step, because a launch may create more of them until it sees the mark.
        """
        self._end(engine, self._ours(engine.nodes(self.run_id)))
        after = self._listing(engine)
        late = [status for status in after.nodes if status.state in UNSTARTED]
        if self.cancel and late:
            self._end(engine, late)
            after = self._listing(engine)
        left = [status.handle for status in after.nodes if self.remove or status.alive]
        unreadable = [f"{name} (its labels are unreadable)" for name in after.unreadable]
        return [*left, *unreadable]

    def _listing(self, engine: Engine) -> NodeListing:
        listing = engine.listing(self.run_id)
        return replace(listing, nodes=self._ours(listing.nodes))

    def _ours(self, statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
        """Return the nodes that this stop may end and, if the run is cancelled, its tickets.

        Checks the run id as well, because hosts are not trusted and one may list other runs.
        """
        ours = [s for s in statuses if s.run_id == self.run_id and s.user in self.users]
        return ours if self.cancel else [status for status in ours if not status.is_ticket]

    def _end(self, engine: Engine, statuses: Sequence[NodeStatus]) -> None:
        """End these nodes and, with `remove`, remove them.

        `Engine.stop` sends SIGTERM, and SIGKILL after the timeout.
        """

        def withdraw_or_stop(status: NodeStatus) -> None:
            is_withdrawn = status.state in UNSTARTED and engine.withdraw(status)
            if not is_withdrawn:  # it was running, or has started in the meantime
                engine.stop(status, self.timeout)

        # concurrently, so that one node does not wait for another's timeout
        with ThreadPoolExecutor(len(statuses) or 1) as pool:
            list(pool.map(withdraw_or_stop, statuses))
        if self.remove:
            for status in statuses:
                engine.remove(status)

    def _wait_for_processes(self, connection: HostConnection) -> list[int]:
        """Return the pids of the run's processes that are still there after PROCESS_TIMEOUT."""
        deadline = time.monotonic() + PROCESS_TIMEOUT
        while (left := processes_on(connection, self.run_id)) and time.monotonic() < deadline:
            time.sleep(POLL)
        return [process.pid for process in left]


Results = Mapping[HostConnection, HostResult]
Errors = Mapping[HostConnection, DdpctlError]  # of hosts on which the stop failed


def why_unconfirmed(results: Results, errors: Errors) -> Errors:
    """Return why hosts may still be running a part of the run: an error, or what is left there."""
    left = {host: StopUnconfirmed(each.describe()) for host, each in results.items() if each.left}
    return {**errors, **left}


def with_cancelled(nodes: list[NodeStatus], connection: HostConnection) -> list[NodeStatus]:
    """Return a run's nodes on one host. Those that an earlier stop has ended become CANCELLED.

    Engines report only that these have failed; their journals, or the marks of that stop, say why.
    """
    failed = [status for status in nodes if status.node_state is NodeState.FAILED]
    if not failed:
        return nodes
    try:
        reported = [status for status, _ in reports_of(connection, failed[0].run_id)]
    except DdpctlError:  # a timeout, for example, must not prevent the stop
        return nodes
    stopped = {(s.node_rank, s.attempt) for s in reported if s.state is ContainerState.CANCELLED}
    return [
        replace(status, state=ContainerState.CANCELLED)
        if status.has_ended and (status.node_rank, status.attempt) in stopped
        else status
        for status in nodes
    ]
