"""Node 0's decisions for all nodes, based on their reports. Pure except for reading the clock."""

from __future__ import annotations

import time
from dataclasses import replace

from .channel import Decision, Status
from .events import Phase, Reason, RestartInPlace
from .restart_rule import PastRestart, refusal, without_progress
from .spec import Spec

STACKS_TIMEOUT = 5.0  # seconds for all nodes to write their ranks' stacks
RECONNECT = 1.0  # seconds for a broken connection to be restored
SETTLE = 3.0  # seconds for a stopped node to learn the state of the others
SILENT_START = 600.0  # seconds for ranks to import, load and compile before their first output
ON_REQUEST = ("cancelled", "terminated", "time-limit")  # reasons that are not failures


class PeerContact:
    """Contact with a peer that has joined. Times are from time.monotonic()."""

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
    """Collects all nodes' statuses and decides what they do. `now` is always time.monotonic()."""

    def __init__(self, spec: Spec, now: float) -> None:
        self.spec = spec
        self.began = now
        self.statuses: dict[int, Status] = {}  # by node rank
        self.contacts: dict[int, PeerContact] = {}  # contacts with the other nodes, by node rank
        self.port_error: OSError | None = None  # why no node can connect to this one
        self.decision = Decision()
        self.restarts = [PastRestart(*each) for each in spec.past_restarts]
        self._round = 0
        self._ended_at: float | None = None  # when all nodes had ended
        self._early_since: float | None = None
        self._stacks_since: float | None = None

    def report(self, status: Status, now: float) -> None:
        if status.round < self._round:  # the node has not started again yet
            status = Status(status.node_rank, self._round, sent=status.sent)
        self.statuses[status.node_rank] = status
        if status.node_rank != self.spec.node_rank:
            self.contacts[status.node_rank] = PeerContact(now)

    def decide(self, now: float) -> None:
        if self.decision.over:
            return
        verdict = self.decision.verdict or self._verdict(now)
        stacks = self._stacks_since is not None
        self.decision = replace(self.decision, verdict=verdict, stacks=stacks)
        if not self._all_have_ended(verdict, now):
            return
        if verdict is None or not self._may_restart(verdict):
            self.decision = replace(self.decision, over=True)
        elif why_not := self._refusal(verdict, now):
            self.decision = replace(self.decision, over=True, refusal=why_not)
        else:
            self._ended_at = self._ended_at or now
            pauses = self.spec.restart_pauses
            idle = without_progress(self._saved, self.restarts)
            due = now - self._ended_at >= pauses[min(idle, len(pauses) - 1)]
            if due and all(contact.closed is None for contact in self.contacts.values()):
                self._restart(self._cause(verdict))

    def _all_have_ended(self, verdict: Reason | None, now: float) -> bool:
        missing = set(range(self.spec.nnodes)) - self.statuses.keys()
        ended = {s.node_rank for s in self.statuses.values() if s.phase is not Phase.RUNNING}
        if verdict:
            final = not self._may_restart(verdict)  # a closed connection will not be restored
            ended |= missing | self._lost_nodes(now).keys()
            ended |= {rank for rank, c in self.contacts.items() if final and c.closed is not None}
        too_late = now - self.began >= self.spec.start_timeout
        return len(ended) == self.spec.nnodes and (not missing or too_late)

    def _lost_nodes(self, now: float) -> dict[int, str]:
        """Return why each lost node counts as lost, by node rank."""
        lost = {rank: c.lost(now, self.spec.peer_timeout) for rank, c in self.contacts.items()}
        return {rank: why for rank, why in lost.items() if why}

    # --- restarts in place ---

    def _may_restart(self, verdict: Reason) -> bool:
        """Return whether the user wants restarts and has not ended the run."""
        leaving = any(status.leaving for status in self.statuses.values())
        return self.spec.max_restarts > 0 and verdict.kind not in ON_REQUEST and not leaving

    def _refusal(self, verdict: Reason, now: float) -> str:
        """Return why the run is not restarted now that all nodes have ended; "" if it is."""
        away = set(range(self.spec.nnodes)) - self.statuses.keys() | self._lost_nodes(now).keys()
        if away:
            return "no contact with %s" % self.spec.names(away)
        cause = self._cause(verdict).kind
        return refusal(cause, self._saved, self.restarts, self.spec.max_restarts)

    def _cause(self, verdict: Reason) -> Reason:
        """Return the first failure.

        A node that saw only the effects of a failure counts only if no node saw its cause.
        """
        causes = [(s.weight, s.cause.time, s.cause) for s in self.statuses.values() if s.cause]
        return min(causes, key=lambda cause: cause[:2], default=(0, 0.0, verdict))[2]

    @property
    def _saved(self) -> bool:
        return any(status.saved for status in self.statuses.values())

    def _restart(self, cause: Reason) -> None:
        self.restarts.append(PastRestart(cause.kind, self._saved))
        left = self.spec.max_restarts - len(self.restarts)
        self._round += 1
        self.decision = Decision(RestartInPlace(self._round, left, self._saved, cause))
        self.statuses = {rank: Status(rank, self._round) for rank in self.statuses}
        self._ended_at = self._early_since = self._stacks_since = None

    # --- why all nodes must stop ---

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
            what = (self.spec.control_port, self.port_error)
            message = "could not listen on the supervisors' port %d: %s" % what
            return self._reason("port-in-use", message, self.spec.node_rank)
        late = sorted(set(range(self.spec.nnodes)) - self.statuses.keys())
        if not late or waited < self.spec.start_timeout:
            return None
        names = self.spec.names(late)
        message = "%s did not join within %d s" % (names, self.spec.start_timeout)
        return self._reason("never-joined", message, late[0])

    def _lost(self, now: float) -> Reason | None:
        """Return the reason to stop if a node is lost. Only a stopped node may disconnect."""
        for rank, why in self._lost_nodes(now).items():
            if self.statuses[rank].phase is not Phase.STOPPED:
                return self._reason("host-lost", why, rank)
        return None

    def _early_exit(self, now: float) -> Reason | None:
        """Return the reason to stop if a rank exited with 0 and the others seem to wait for it."""
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
        """Return the reason to stop if the run hangs. First waits for all stacks, up to STACKS_TIMEOUT."""
        age = self._seconds_hung()
        if age is None:
            self._stacks_since = None
            return None
        self._stacks_since = self._stacks_since or now
        missing = any(s.alive and not s.stacks for s in self.statuses.values())
        if missing and now - self._stacks_since < STACKS_TIMEOUT:
            return None
        return self._reason("hung", "no progress for %d s" % age, self.spec.node_rank)

    def _seconds_hung(self) -> float | None:
        """Return the seconds since the last progress if the run hangs, or None if it does not.

        Progress is what the trainer reports or, if it has reported nothing, any output of a rank.
        """
        statuses, timeout = self.statuses.values(), self.spec.hang_timeout
        if not timeout or not any(status.alive for status in statuses):
            return None
        reported = [s.progress_age for s in statuses if s.progress_age is not None]
        age = min(reported or [s.log_age for s in statuses])
        if not reported and not any(s.begun for s in statuses):
            timeout = max(timeout, SILENT_START)
        return None if age < timeout else age

    def _reason(self, kind: str, message: str, node_rank: int) -> Reason:
        return Reason(kind, message, node_rank, self.spec.hosts[node_rank], time.time())
