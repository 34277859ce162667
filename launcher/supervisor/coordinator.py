"""Node 0's decisions for all nodes, based on their reports. Pure except for reading the clock."""

from __future__ import annotations

import time

from .channel import Status
from .events import Reason
from .spec import Spec

SILENT_START = 600.0  # seconds for ranks to import, load and compile before their first output
STACKS_TIMEOUT = 5.0  # seconds for all nodes to write their ranks' stacks
JOIN_GRACE = 10.0  # seconds after the start during which node 0 stays to inform late nodes
RECONNECT = 1.0  # seconds for a broken connection to be restored
SETTLE = 3.0  # seconds for a stopped node to learn the state of the others


class Coordinator:
    """Collects all nodes' statuses and decides. `now` is always time.monotonic()."""

    def __init__(self, spec: Spec, now: float) -> None:
        self.spec = spec
        self.began = now
        self.statuses: dict[int, Status] = {}  # by node rank
        self.heard: dict[int, float] = {}  # time of each connected node's last message
        self.disconnected: dict[int, float] = {}  # time at which each joined node disconnected
        self.port_error: OSError | None = None  # why no node can connect to this one
        self.verdict: Reason | None = None  # why all nodes must stop
        self.over = False  # all nodes are done, have stopped or are lost
        self.stacks_wanted = False
        self._early_since: float | None = None
        self._stacks_since: float | None = None

    def report(self, status: Status, now: float) -> None:
        self.statuses[status.node_rank] = status
        if status.node_rank != self.spec.node_rank:
            self.heard[status.node_rank] = now
            self.disconnected.pop(status.node_rank, None)

    def disconnect(self, node_rank: int, now: float) -> None:
        self.heard.pop(node_rank, None)
        self.disconnected[node_rank] = now

    def forgive(self, now: float) -> None:
        """Reset all silence timers after this process itself was suspended."""
        self.heard = dict.fromkeys(self.heard, now)
        self.disconnected = dict.fromkeys(self.disconnected, now)

    def decide(self, now: float) -> None:
        if self.verdict is None:
            self.verdict = self._verdict(now)
        missing = set(range(self.spec.nnodes)) - self.statuses.keys()
        ended = {s.node_rank for s in self.statuses.values() if s.phase != "running"}
        lost = missing | self.disconnected.keys() if self.verdict else set()
        if ended | lost >= set(range(self.spec.nnodes)):
            self.over = not missing or now - self.began >= JOIN_GRACE

    def _verdict(self, now: float) -> Reason | None:
        reasons = [status.reason for status in self.statuses.values() if status.reason]
        limit = self.spec.time_limit
        return (
            min(reasons, key=lambda reason: reason.time, default=None)
            or (time_limit_reason(self.spec) if limit and now - self.began > limit else None)
            or self._not_joined(now)
            or self._lost(now)
            or self._early_exit(now)
            or self._hung(now)
        )

    def _not_joined(self, now: float) -> Reason | None:
        waited = now - self.began
        if self.port_error and waited > SETTLE:
            message = "the supervisors' port %d: %s" % (self.spec.control_port, self.port_error)
            return self._reason("control-port", message, self.spec.node_rank)
        late = sorted(set(range(self.spec.nnodes)) - self.statuses.keys())
        if not late or waited < self.spec.start_timeout:
            return None
        names = ", ".join("node %d (%s)" % (rank, self.spec.hosts[rank]) for rank in late)
        message = "%s did not join within %d s" % (names, self.spec.start_timeout)
        return self._reason("never-joined", message, late[0])

    def _lost(self, now: float) -> Reason | None:
        """Return the reason if a node is lost. A stopped node may disconnect, a running one may not."""
        gone = {rank for rank, status in self.statuses.items() if status.phase != "stopped"}
        for rank, since in self.disconnected.items():
            if rank in gone and now - since > RECONNECT:
                message = "its supervisor closed the connection and did not reconnect"
                return self._reason("peer-lost", message, rank)
        for rank, heard in list(self.heard.items()):
            if rank in gone and now - heard > self.spec.peer_timeout:
                self.disconnected[rank] = now
                message = "no heartbeat from its supervisor for %d s" % self.spec.peer_timeout
                return self._reason("peer-lost", message, rank)
        return None

    def _early_exit(self, now: float) -> Reason | None:
        """Return the reason if ranks exited with 0 while others wait for them in a collective."""
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
        self.stacks_wanted = age >= timeout
        if not self.stacks_wanted:
            self._stacks_since = None
            return None
        self._stacks_since = self._stacks_since or now
        missing = any(s.alive and not s.stacks for s in statuses)
        if missing and now - self._stacks_since < STACKS_TIMEOUT:
            return None
        message = "no progress for %d s" % age
        places = {
            (s.node_rank, int(rank) - s.first_rank, int(rank)): call
            for s in statuses
            for rank, call in (s.syscalls or {}).items()
        }
        straggler = odd_one_out(places)
        if straggler is None:
            return self._reason("hung", message, self.spec.node_rank)
        node_rank, local_rank, rank = straggler
        message += "; this rank is not where all the others are"
        host = self.spec.hosts[node_rank]
        return Reason("hung", message, node_rank, host, time.time(), rank, local_rank)

    def _reason(self, kind: str, message: str, node_rank: int) -> Reason:
        return Reason(kind, message, node_rank, self.spec.hosts[node_rank], time.time())


def time_limit_reason(spec: Spec) -> Reason:
    message = "the run reached its time limit of %d s" % (spec.time_limit or 0)
    return Reason("time-limit", message, spec.node_rank, spec.host, time.time())


def odd_one_out(places: dict[tuple[int, int, int], str]) -> tuple[int, int, int] | None:
    """Return the only rank whose position differs from all others, of which there are at least two."""
    everywhere = list(places.values())
    odd = [rank for rank, place in places.items() if everywhere.count(place) == 1]
    return odd[0] if len(odd) == 1 and len(set(everywhere)) == 2 and len(everywhere) > 2 else None
