"""Tickets: what a run leaves on each of its hosts while it waits in line for GPUs, or may restart.

A ticket stops later launches, and `ps` shows it. It expires unless it is renewed, so it does not
outlive its launch for long. Removing the tickets, as `kill` does, ends the wait. A run that may
restart has tickets besides its nodes, so that no GPU is free when a node ends.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence

from ..engines.choose import engines_on
from ..engines.claims import goes_first, rivals, undecided
from ..engines.running import RunningAttempt
from ..engines.status import LEASE, NodeStatus
from ..errors import DdpctlError, NodesFailed, RunKilled, lines
from ..follow.interrupts import Interrupts
from ..outcomes import RunState
from ..plan.plan import Plan
from ..runs.record import RunFolder
from ..ssh.many import ask_each, try_each
from ..ssh.node import Node
from ..terminal.console import Console
from .claim_gpus import refusal, taken_by_rivals
from .restart_rule import why_not

POLL = 5.0  # seconds between checks of the hosts
RENEW = LEASE / 3  # age in seconds at which a ticket is renewed
KEEP = LEASE / 6  # seconds between looks at tickets that nothing waits for
TICK = 0.2  # seconds between checks for signals


class Tickets:
    """The tickets of one run on the hosts that it may use."""

    def __init__(self, attempt: RunningAttempt, plan: Plan, *, ignored_port: bool) -> None:
        """plan: for a start on all these hosts. ignored_port: do not wait for the master port."""
        self.plan, self._members = plan, attempt.by_node
        self._plans = dict(zip(attempt.nodes, plan.nodes, strict=True))
        port = {f"port {plan.master_port}"} if ignored_port else set()
        self._wanted = {node: plan.resources(each) - port for node, each in self._plans.items()}
        self._seen: dict[Node, float] = {}  # when a ticket was last seen
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self._killed = False
        self.unseen: dict[Node, DdpctlError] = {}

    def join(self) -> None:
        """Take a place in line, and keep it until `close`. Does nothing if it has one already."""
        if self._keeper:
            return
        put, failures = ask_each([*self._members], self._put)
        if not put:
            raise NodesFailed(failures)
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="tickets")
        self._keeper.start()

    def close(self) -> None:
        """Remove the tickets, including those of an earlier waiting process, unless abandoned."""
        if not self._closed.is_set():
            self._closed.set()
            with self._lock:
                # those of earlier attempts, too, whose node ranks may differ
                remove_tickets([*self._members], self.plan)

    def abandon(self) -> None:
        """Leave the tickets for another process, which must renew them before they expire."""
        self._closed.set()

    def ahead(self) -> dict[Node, list[NodeStatus]]:
        """Return the rivals that are ahead or undecided, for each host that answered.

        Raises RunKilled if the run was killed.
        """

        def ahead_on(node: Node, listed: Sequence[NodeStatus]) -> list[NodeStatus]:
            there = rivals(self.plan.run_id, self._wanted[node], listed)
            return [r for r in there if goes_first(r, self.plan.key) or undecided(r)]

        return {node: ahead_on(node, listed) for node, listed in self._look().items()}

    def reasons(self, ahead: dict[Node, list[NodeStatus]]) -> list[DdpctlError]:
        """Return what the run waits for: what rivals have, and hosts that do not answer."""
        return [*taken_by_rivals(ahead, self._wanted, self._plans), *self.unseen.values()]

    def wait(
        self,
        needed: int,
        deadline: float | None,
        printed: Sequence[str],
        interrupts: Interrupts,
        console: Console,
    ) -> int | None:
        """Wait until no rival is ahead on `needed` hosts. Return None, or a signal that arrived.

        deadline: time.time() after which Several is raised. printed: lines already printed.
        """
        with interrupts.held():
            while True:
                ahead = self.ahead()
                if sum(not listed for listed in ahead.values()) >= needed:
                    return None
                reasons = self.reasons(ahead)
                if deadline is not None and time.time() >= deadline:
                    remedy = "gave up waiting; raise --wait-limit or choose other GPUs"
                    raise refusal(reasons, remedy)
                for line in lines(reasons):
                    if line not in printed:
                        console.say(f"run {self.plan.run_id} waits: {line}")
                printed = lines(reasons)
                for _ in range(round(POLL / TICK)):
                    time.sleep(TICK)
                    if (number := interrupts.take()) is not None:
                        return number

    def _keep(self) -> None:
        """Renew the tickets while the launch is busy with other work."""
        while not self._closed.wait(KEEP):
            try:
                self._look()
            except RunKilled:
                return

    def _look(self) -> dict[Node, list[NodeStatus]]:
        """List all nodes on each host, and renew this run's tickets there. Raises RunKilled."""
        with self._lock:
            listed, self.unseen = try_each([*self._members], self._list)
            own = {node: self._own(node, listed[node]) for node in listed}
            recent = {n for n in listed if now() - self._seen.get(n, -LEASE) < LEASE}
            self._killed |= bool(recent) and not any(own.values())
            if self._killed:
                raise RunKilled(f"run {self.plan.run_id} was killed while it waited in line")
            if self._keeper and not self._closed.is_set():
                self._seen |= {node: now() for node in listed if own[node]}
                # a ticket that has just vanished is not renewed: `kill` may be removing them all
                due = [n for n in listed if own[n] or n not in recent]
                old = [n for n in due if all(ticket.age > RENEW for ticket in own[n])]
                try_each(old, lambda node: self._replace(node, own[node]))
            return listed

    def _list(self, node: Node) -> list[NodeStatus]:
        return [s for e in engines_on(node, self.plan.engine.name) for s in e.claims()]

    def _own(self, node: Node, listed: Sequence[NodeStatus]) -> list[NodeStatus]:
        mine = (self.plan.run_id, self._plans[node].node_rank)
        return [s for s in listed if s.is_ticket and (s.run_id, s.node_rank) == mine]

    def _put(self, node: Node) -> None:
        member = self._members[node]
        name = f"{member.place.container}-{secrets.token_hex(3)}"
        member.engine.wait_in_line(name, self._plans[node].container.labels)
        self._seen[node] = now()

    def _replace(self, node: Node, own: Sequence[NodeStatus]) -> None:
        if self._closed.is_set():  # abandoned meanwhile
            return
        self._put(node)
        before = {ticket.handle for ticket in own}
        listed = self._own(node, self._list(node))
        if before and before.isdisjoint(ticket.handle for ticket in listed):
            self._killed = True  # `kill` has removed the old ticket, and may not see the new one
            before = {ticket.handle for ticket in listed}
        for ticket in listed:
            if ticket.handle in before:
                self._members[node].engine.withdraw(ticket)


def remove_tickets(nodes: Sequence[Node], plan: Plan) -> None:
    """Remove the run's tickets on these hosts. On a host that does not answer, they expire."""

    def remove(node: Node) -> None:
        for engine in engines_on(node, plan.engine.name):
            for status in engine.claims():
                if status.is_ticket and status.run_id == plan.run_id:
                    engine.withdraw(status)

    try_each(nodes, remove)


@contextlib.contextmanager
def kept_for_restart(tickets: Tickets, folder: RunFolder, console: Console) -> Iterator[None]:
    """Keep tickets besides the nodes of a run that somebody follows, if the launcher may restart it.

    They stay if it goes on or restarts, because then others renew them.
    """
    most = tickets.plan.job.max_restarts
    if most == 0:
        yield
        return
    with contextlib.suppress(NodesFailed):
        tickets.join()
    try:
        yield
    finally:
        record = folder.load_if_readable(console)
        failed = record is not None and record.state is RunState.FAILED
        if record and (record.state.is_live or (failed and not why_not(record, most, saved=True))):
            tickets.abandon()
        else:
            tickets.close()


def now() -> float:
    """Return the seconds of a clock that keeps running while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
