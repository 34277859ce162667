"""Node 0's decisions for all nodes, based on their reports. Pure except for reading the clock."""

from __future__ import annotations

import time

from .channel import Decision, Status
from .events import Reason
from .spec import Spec

SILENT_START = 600.0  # seconds for ranks to import, load and compile before their first output
STACKS_TIMEOUT = 5.0  # seconds for all nodes to write their ranks' stacks
JOIN_GRACE = 10.0  # seconds after the start during which node 0 stays to inform late nodes
RECONNECT = 1.0  # seconds for a broken connection to be restored
SETTLE = 3.0  # seconds for a stopped node to learn the state of the others


class PeerContact:
    """Contact with a peer that has joined. Times are time.monotonic()."""

    def __init__(self, now: float) -> None:
        self.heard = now
        self.closed: float | None = None  # when its connection closed

    def lost(self, now: float, timeout: float) -> str:
        """Return why the peer counts as lost; "" if it does not."""
        if self.closed is None:
            late = now - self.heard > timeout
            return "no heartbeat from its supervisor for %d s" % timeout if late else ""
        late = now - self.closed > RECONNECT
        return "its supervisor closed the connection and did not reconnect" if late else ""

    def forgive(self, now: float) -> None:
        """Reset the timers after this process itself was suspended."""
        self.heard = now
        self.closed = self.closed and now


class Coordinator:
    """Collects all nodes' statuses and decides. `now` is always time.monotonic()."""

    def __init__(self, spec: Spec, now: float) -> None:
        self.spec = spec
        self.began = now
        self.statuses: dict[int, Status] = {}  # by node rank
        self.contacts: dict[int, PeerContact] = {}  # with the other nodes, by node rank
        self.port_error: OSError | None = None  # why no node can connect to this one
        self.decision = Decision()
        self._early_since: float | None = None
        self._stacks_since: float | None = None

    def report(self, status: Status, now: float) -> None:
        self.statuses[status.node_rank] = status
        if status.node_rank != self.spec.node_rank:
            self.contacts[status.node_rank] = PeerContact(now)

    def decide(self, now: float) -> None:
        verdict, over = self.decision.verdict or self._verdict(now), self.decision.over
        missing = set(range(self.spec.nnodes)) - self.statuses.keys()
        gone = {s.node_rank for s in self.statuses.values() if s.phase != "running"}
        if verdict:
            timeout, contacts = self.spec.peer_timeout, self.contacts.items()
            gone |= missing
            gone |= {rank for rank, c in contacts if c.closed is not None or c.lost(now, timeout)}
        if len(gone) == self.spec.nnodes:
            over = not missing or now - self.began >= JOIN_GRACE
        self.decision = Decision(verdict, over, self._stacks_since is not None)

    def _verdict(self, now: float) -> Reason | None:
        reasons = [status.reason for status in self.statuses.values() if status.reason]
        return (
            min(reasons, key=lambda reason: reason.time, default=None)
            or self._time_limit(now)
            or self._not_joined(now)
            or self._lost(now)
            or self._early_exit(now)
            or self._hung(now)
        )

    def _time_limit(self, now: float) -> Reason | None:
        limit = self.spec.time_limit
        if not limit or now - self.began <= limit:
            return None
        message = "the run reached its time limit of %d s" % limit
        return self._reason("time-limit", message, self.spec.node_rank)

    def _not_joined(self, now: float) -> Reason | None:
        waited = now - self.began
        if self.port_error and waited > SETTLE:
            message = "could not listen on the supervisors' port %d: %s" % (
                self.spec.control_port,
                self.port_error,
            )
            return self._reason("control-port", message, self.spec.node_rank)
        late = sorted(set(range(self.spec.nnodes)) - self.statuses.keys())
        if not late or waited < self.spec.start_timeout:
            return None
        names = ", ".join("node %d (%s)" % (rank, self.spec.hosts[rank]) for rank in late)
        message = "%s did not join within %d s" % (names, self.spec.start_timeout)
        return self._reason("never-joined", message, late[0])

    def _lost(self, now: float) -> Reason | None:
        """Return the reason if a node is lost. Only a stopped node may disconnect."""
        for rank, contact in self.contacts.items():
            why = contact.lost(now, self.spec.peer_timeout)
            if why and self.statuses[rank].phase != "stopped":
                return self._reason("peer-lost", why, rank)
        return None

    def _early_exit(self, now: float) -> Reason | None:
        """Return the reason if a rank exited with 0 and the others stand still, as if waiting for it."""
        timeout = self.spec.early_exit_timeout
        exits = [status.early for status in self.statuses.values() if status.early]
        running = [status for status in self.statuses.values() if status.alive]
        if not exits or not running:
            self._early_since = None
            return None
        self._early_since = self._early_since or now
        if now - self._early_since < timeout or min(s.stuck for s in running) < timeout:
            return None
        return min(exits, key=lambda reason: reason.time)

    def _hung(self, now: float) -> Reason | None:
        timeout, statuses = self.spec.hang_timeout, self.statuses.values()
        if not timeout or not any(status.alive for status in statuses):
            return None
        ages = [s.progress_age for s in statuses if s.progress_age is not None]
        age = min(ages or [s.log_age for s in statuses])
        if not ages and not any(s.begun for s in statuses):
            timeout = max(timeout, SILENT_START)
        if age < timeout:
            self._stacks_since = None
            return None
        self._stacks_since = self._stacks_since or now
        missing = any(s.alive and not s.stacks for s in statuses)
        if missing and now - self._stacks_since < STACKS_TIMEOUT:
            return None
        return self._reason("hung", "no progress for %d s" % age, self.spec.node_rank)

    def _reason(self, kind: str, message: str, node_rank: int) -> Reason:
        return Reason(kind, message, node_rank, self.spec.hosts[node_rank], time.time())
