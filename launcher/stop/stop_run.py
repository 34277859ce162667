"""Stop one run on its hosts and verify it: mark, SIGTERM, wait, SIGKILL, look again."""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat

from ..engines.choose import engines_on, nodes_on
from ..engines.claims import without_idle_tickets
from ..engines.status import ContainerState, NodeStatus
from ..errors import CommandFailed, DdpctlError
from ..ssh.local import account_name
from ..ssh.many import try_each
from ..ssh.node import Node
from ..ssh.script_files import load_script
from ..text import counted
from .inventory import processes_on

MARK_CANCELLED = load_script(__file__, "mark_cancelled.sh")
ORPHAN_TIMEOUT = 5.0  # seconds for a killed supervisor's processes to end
POLL = 0.3  # seconds


@dataclass(frozen=True)
class Stopped:
    """What a stop met on one host: the nodes that it stopped, what remains, and others' nodes.

    remaining: nodes, and pids of the run's processes. others: nodes that carry the run's id, but
    belong to someone else and were left alone.
    """

    nodes: Sequence[NodeStatus]
    remaining: Sequence[str]
    others: Sequence[NodeStatus] = ()

    @property
    def clean(self) -> bool:
        return not self.remaining

    def describe(self) -> str:
        count = len(self.nodes)
        stopped = f"stopped and removed {counted(count, 'node')}" if count else "was not running"
        if self.clean:
            return f"{stopped}, nothing left" if count else stopped
        return f"{stopped}, STILL THERE: {', '.join(self.remaining)}"


def stop_run(
    nodes: Sequence[Node],
    engine: str,
    run_id: str,
    timeout: float,
    *,
    owners: Collection[str] = (),
    remove: bool = True,
    cancel: bool = True,
) -> tuple[dict[Node, Stopped], dict[Node, DdpctlError]]:
    """Stop the run on all hosts at once. Return the result of each, and the errors of silent hosts.

    On each host, only nodes count whose labels there name this run and this user or one of `owners`
    (USER@MACHINE): what another host reports about a run gives no right to stop it here.

    engine: the job's. timeout: seconds between SIGTERM and SIGKILL. remove: also remove the
    containers. cancel: record a cancellation instead of a failure, and remove the run's tickets, so
    that it does not restart.
    """
    users = {account_name(), *(owner.split("@")[0] for owner in owners if owner)}

    def mine(statuses: Sequence[NodeStatus]) -> list[NodeStatus]:
        own = [s for s in statuses if s.run_id == run_id and s.user in users]
        return own if cancel else [status for status in own if not status.is_ticket]

    def stop(node: Node) -> Stopped:
        listed = [s for s in nodes_on(node, engine, run_id) if s.run_id == run_id]
        others = [status for status in listed if status.user not in users]
        if others and others == listed:
            return Stopped([], [], others)
        if cancel and (done := node.script(MARK_CANCELLED, run_id)).code != 0:
            raise CommandFailed(
                f"could not mark {run_id} as cancelled: {done.reason}",
                "look at `df -h` and the permissions of ~/.ddpctl there",
                host=node.name,
            )
        statuses: list[NodeStatus] = []
        remaining: list[str] = []
        for each in engines_on(node, engine):
            own = mine(each.list(run_id))
            # concurrently, so that nodes on one machine do not wait for each other's timeout
            with ThreadPoolExecutor(len(own) or 1) as pool:
                list(pool.map(each.stop, own, repeat(timeout)))
            for status in own if remove else ():
                each.remove(status)
            statuses += without_idle_tickets(own)
            again, unreadable = each.list_all(run_id)
            for ticket in mine(again):  # one that its launch has renewed meanwhile
                if ticket.state is ContainerState.WAITING and each.withdraw(ticket):
                    again = each.list(run_id)
            remaining += [status.handle for status in mine(again) if status.alive or remove]
            remaining += [f"{name} (its labels are unreadable)" for name in unreadable]
        deadline = time.monotonic() + ORPHAN_TIMEOUT
        while (orphans := processes_on(node, run_id)) and time.monotonic() < deadline:
            time.sleep(POLL)
        remaining += [f"pid {orphan.pid}" for orphan in orphans]
        return Stopped(statuses, remaining, others)

    return try_each(nodes, stop)
