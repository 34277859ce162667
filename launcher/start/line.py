"""Waiting in line for GPUs: a launch with --wait leaves a ticket on each of its hosts.

A ticket stops later launches, and `ps` shows it. It is renewed before it expires, so it does not
outlive its launch for long. Whoever removes the tickets, as `kill` does, ends the wait.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence

from ..engines.attempt import RunningAttempt, RunningNode
from ..engines.choose import engines_on
from ..engines.claims import goes_first, rivals, taken, undecided
from ..engines.status import LEASE, NodeStatus
from ..errors import DdpctlError, NodesFailed, PreflightError, RunKilled
from ..follow.signals import Interrupts
from ..hosts.fold import names
from ..plan.plan import Plan
from ..ssh.many import try_each
from ..ssh.node import Node
from ..terminal.console import Console

POLL = 5.0  # seconds between looks at the hosts
RENEW = LEASE / 3  # seconds after which a ticket is replaced by a new one
TICK = 0.2  # seconds between looks at signals


class Line:
    """A launch's place in line on the hosts that it may use."""

    def __init__(self, attempt: RunningAttempt, plan: Plan, *, ignored_port: bool) -> None:
        """plan: of a start on all these hosts. ignored_port: the master port is not waited for."""
        self.plan = plan
        self.members = {member.node: member for member in attempt.members}
        port = {f"port {plan.master_port}"} if ignored_port else set()
        self._wanted = {
            member.node: plan.resources(plan.nodes[member.place.node_rank]) - port
            for member in attempt.members
        }
        self._seen: dict[Node, float] = {}  # when a ticket was last known to be there
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None
        self.unseen: dict[Node, DdpctlError] = {}

    def join(self) -> None:
        """Takes a place, and keeps it until `close`."""
        put, failures = try_each(list(self.members), lambda node: self._put(self.members[node]))
        if not put:
            raise NodesFailed({node.name: error for node, error in failures.items()})
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="line")
        self._keeper.start()

    def close(self) -> None:
        """Gives the place up."""
        self._closed.set()
        with self._lock:
            try_each(list(self._seen), lambda node: self._remove_all(self.members[node]))
            self._seen.clear()

    def abandon(self) -> None:
        """Leaves the tickets behind, for whoever takes over to put its own before they expire."""
        self._closed.set()
        with self._lock:
            self._seen.clear()

    def ahead(self) -> dict[Node, list[NodeStatus]]:
        """The rivals that go first or are undecided, on each host that answers.

        Raises RunKilled if the tickets have been removed.
        """
        listed = self._look()
        return {
            node: [
                rival
                for rival in rivals(self.plan.run_id, self._wanted[node], listed[node])
                if goes_first(rival, self.plan.key) or undecided(rival)
            ]
            for node in listed
        }

    def describe(self, ahead: dict[Node, list[NodeStatus]]) -> list[str]:
        """A line for each rival, and for each host that does not answer."""
        hosts: dict[str, list[str]] = {}
        for node, listed in ahead.items():
            gpu_ids = self.plan.nodes[self.members[node].place.node_rank].gpu_ids
            for rival in listed:
                what = taken(self._wanted[node], gpu_ids, rival)
                hosts.setdefault(what, []).append(node.name)
        lines = [f"{names(where)}: {what}" for what, where in hosts.items()]
        return [*lines, *map(str, self.unseen.values())]

    def wait(
        self,
        needed: int,
        deadline: float | None,
        said: Sequence[str],
        interrupts: Interrupts,
        console: Console,
    ) -> int | None:
        """Returns once no rival is ahead on `needed` hosts, or returns the signal that came.

        deadline: time.time() after which it raises PreflightError. said: lines not to be said again.
        """
        with interrupts.held():
            while True:
                ahead = self.ahead()
                if sum(not listed for listed in ahead.values()) >= needed:
                    return None
                lines = self.describe(ahead)
                if deadline is not None and time.time() >= deadline:
                    raise PreflightError("\n".join(f"{line}; gave up waiting" for line in lines))
                for line in lines:
                    if line not in said:
                        console.say(f"run {self.plan.run_id} waits: {line}")
                said = lines
                if (number := _signal_within(POLL, interrupts)) is not None:
                    return number

    def _keep(self) -> None:
        """Renews the tickets while the launch does something else than wait."""
        while not self._closed.wait(POLL):
            try:
                self._look()
            except RunKilled:
                return

    def _look(self) -> dict[Node, list[NodeStatus]]:
        """What each host lists, renewing the tickets there."""
        with self._lock:
            listed, self.unseen = try_each(list(self.members), self._list)
            own = {node: self._own(self.members[node], listed[node]) for node in listed}
            recent = {n for n in listed if now() - self._seen.get(n, -LEASE) < LEASE}
            if recent and not any(own.values()):
                raise RunKilled(f"run {self.plan.run_id} was killed while it waited in line")
            if self._keeper and not self._closed.is_set():
                self._seen |= {node: now() for node in listed if own[node]}
                # one that has just vanished may be the first that `kill` removes
                due = [n for n in listed if own[n] or n not in recent]
                old = [n for n in due if all(ticket.age > RENEW for ticket in own[n])]
                try_each(old, lambda node: self._replace(self.members[node], own[node]))
            return listed

    def _list(self, node: Node) -> list[NodeStatus]:
        return [s for e in engines_on(node, self.plan.engine.name) for s in e.claims()]

    def _own(self, member: RunningNode, listed: Sequence[NodeStatus]) -> list[NodeStatus]:
        mine = (self.plan.run_id, member.place.node_rank)
        return [s for s in listed if s.state == "waiting" and (s.run_id, s.node_rank) == mine]

    def _put(self, member: RunningNode) -> None:
        name = f"{member.place.container}-{secrets.token_hex(3)}"
        labels = self.plan.nodes[member.place.node_rank].container.labels
        member.engine.wait_in_line(name, labels)
        self._seen[member.node] = now()

    def _replace(self, member: RunningNode, own: Sequence[NodeStatus]) -> None:
        self._put(member)
        for ticket in own:
            member.engine.withdraw(ticket)

    def _remove_all(self, member: RunningNode) -> None:
        for ticket in self._own(member, member.engine.claims()):
            member.engine.withdraw(ticket)


def now() -> float:
    """Seconds; the time that this machine was suspended counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _signal_within(seconds: float, interrupts: Interrupts) -> int | None:
    for _ in range(round(seconds / TICK)):
        time.sleep(TICK)
        if (number := interrupts.take()) is not None:
            return number
    return None
