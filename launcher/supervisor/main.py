"""The supervisor of one node: starts torchrun, writes the journal, and stops when others stop.

One loop in one thread, `Supervisor.run`, does everything, except that peers.py connects to node 0
and rank_stacks.py takes stacks in threads of their own, because both may block. The loop itself may
wait for a slow file system; meanwhile, another thread of peers.py sends heartbeats.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time
from dataclasses import replace

from .channel import Status
from .coordinator import ON_REQUEST, SETTLE
from .events import End, EndState, Phase, RankStacks, Reason, RestartInPlace, Stopping, document
from .journal import Journal, publish
from .metrics_file import MetricsFile
from .peers import NodePeer, Peers, Server
from .proc import PR_SET_CHILD_SUBREAPER, kill_descendants, prctl
from .rank_stacks import StackTaker
from .round import Round
from .spec import Spec
from .torchrun import with_caches
from .usage import Sampler, environment

CANCELLED = "cancelled"  # the file that mark_cancelled.sh creates
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.journal = Journal(spec.dir, spec.host)
        self.selector = selectors.DefaultSelector()
        peers = NodePeer if spec.node_rank else Server
        self.peers: Peers = peers(spec, self.journal, self.selector)
        self.stacks = StackTaker(spec)
        self.sampler = Sampler()
        self.metrics = MetricsFile(spec, self.journal)
        self.round = Round(0, spec, self.journal, self.selector, self.peers)
        self.signals: list[int] = []  # received but not handled yet
        self.stop_request: Reason | None = None  # from the first signal

    def run(self) -> int:
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self.signals.append(number))
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # adopt ranks whose torchrun dies, to kill and reap them
        try:
            for note in self.spec.notes:
                self.journal.say(note)
            software = environment()
            self.journal.write_event(software)
            self.prepare_environment(software.versions.get("torch", ""))
            self.peers.keep_alive()
            self.round.start()
            while not self.finished():
                self.turn()
            return self.conclude()
        except Exception as error:  # a bug in the supervisor must not leave ranks running
            import traceback  # slow to import

            try:
                self.journal.say("the supervisor failed: " + traceback.format_exc())
            finally:  # even if it failed because it cannot write the journal
                kill_descendants()
            reason = self.round.why("supervisor", "the supervisor failed: %r" % error)
            self.journal.write_event(Stopping(reason))
            self.journal.write_event(End(EndState.FAILED, 1, reason))
            return 1

    def turn(self) -> None:
        self.round.copy_output()
        for key, _ in self.round.wait():
            key.data(key.fileobj)
        self.check_signals()
        self.round.look()
        self.peers.turn(self.status())
        self.take_stacks()
        self.take_sample()
        decision = self.peers.decision
        if decision.restart and decision.restart.number > self.round.number:
            self.restart(decision.restart)
        if decision.verdict:
            self.round.stop(decision.verdict)
        self.round.send_due_signals()

    def prepare_environment(self, torch: str) -> None:
        """Change this process's environment, which torchrun inherits. torch: torch's version."""
        env = self.round.flight_recorder.environment(with_caches(os.environ), torch)
        os.environ.update(self.stacks.environment(env))
        os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a crash prints its stack

    def restart(self, restart: RestartInPlace) -> None:
        """Start torchrun again, as node 0 has decided."""
        if self.spec.node_rank == 0:
            most, why = self.spec.max_restarts, restart.cause.headline
            count = "%d of %d" % (most - restart.left, most)
            self.journal.say("restarting in place (%s): %s" % (count, why))
        self.journal.write_event(restart)
        self.round.close()
        number, standby = restart.number, self.round.standby
        self.round = Round(number, self.spec, self.journal, self.selector, self.peers, standby)
        if self.stop_request:  # the request came after our last status
            self.round.refuse(self.stop_request)
        else:
            self.round.start()

    def check_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            kind = "cancelled" if self.cancelled() else "terminated"
            message = "its supervisor received %s" % signal.Signals(number).name
            self.stop_request = self.stop_request or self.round.why(kind, message)
            self.round.stop(self.stop_request, number)

    def cancelled(self) -> bool:
        """Return whether the launcher has created the file `cancelled` in the control folder.

        It may have created the file on another host that shares this home directory. Listing the
        folder makes the NFS client see the file, while a plain stat may be answered from a cache.
        """
        with contextlib.suppress(OSError):
            return CANCELLED in os.listdir(self.spec.dir)
        return False

    def take_stacks(self) -> None:
        ranks = self.round.ranks.by_local_rank.values()
        stacks = self.stacks.turn(ranks, self.round.phase, self.peers.decision.stacks)
        if stacks is not None:
            self.journal.write_event(RankStacks(tuple(stacks)))

    def take_sample(self) -> None:
        usage = self.sampler.turn() if self.round.phase is Phase.RUNNING else None
        if usage is not None:
            usage = replace(usage, ranks=tuple(rank.rank for rank in self.round.ranks.alive()))
            self.journal.try_write_event(usage)
            with contextlib.suppress(OSError):  # the disk may be full; `ps` reads this file
                publish(os.path.join(self.spec.dir, "usage.json"), json.dumps(document(usage)))
            self.metrics.write(usage, self.round.liveness.log_age())

    def status(self) -> Status:
        round, liveness = self.round, self.round.liveness
        weight, cause = round.cause or (0, None)
        return Status(
            self.spec.node_rank,
            round=round.number,
            phase=round.phase,
            reason=round.reason,
            alive=len(round.ranks.alive()),
            early=round.early,
            stuck=liveness.stuck,
            begun=liveness.begun,
            stacks=self.stacks.written,
            log_age=liveness.log_age(),
            progress_age=liveness.progress_age() if self.spec.hang_timeout else None,
            leaving=self.leaving,
            cause=cause,
            weight=weight,
            saved=round.saved,
        )

    @property
    def leaving(self) -> bool:
        """Whether this node must not start torchrun again."""
        return self.stop_request is not None or bool(self.round.survivors)

    # --- the end ---

    def finished(self) -> bool:
        if self.round.phase is Phase.RUNNING:
            return False
        if self.peers.decision.over:
            return True
        if self.may_restart() or self.round.phase is not Phase.STOPPED:
            return False
        if self.peers.all_joined or self.stop_request:
            return time.monotonic() > self.round.ended_at + SETTLE
        # a node that starts late must learn why it has to stop
        return time.monotonic() > self.peers.began + self.spec.start_timeout

    def may_restart(self) -> bool:
        """Return whether node 0 may still tell this node to start again."""
        reason = self.round.reason if self.round.phase is Phase.STOPPED else None
        if not self.spec.max_restarts or reason is None or reason.kind in ON_REQUEST:
            return False
        return not self.leaving and (self.spec.node_rank == 0 or 0 in self.peers.contacts)

    def conclude(self) -> int:
        code = self.round.exit_code
        reason = self.peers.decision.verdict or self.round.reason
        state = self.end_state(code, reason)
        if self.peers.decision.refusal and self.spec.node_rank == 0:
            self.journal.say("not restarting in place: %s" % self.peers.decision.refusal)
        self.peers.close()
        self.round.standby.close()
        if self.round.survivors:
            pids = ", ".join(map(str, self.round.survivors))
            self.journal.say("could not kill these processes: %s" % pids)
        self.metrics.remove()
        self.journal.write_event(End(state, code, reason))
        self.journal.close()
        failed = 128 - code if code and code < 0 else code or 1  # as a shell does
        codes = {EndState.SUCCEEDED: 0, EndState.STOPPED: 143, EndState.CANCELLED: 143}
        return codes.get(state, failed)

    def end_state(self, code: int | None, reason: Reason | None) -> EndState:
        if reason is None:
            return EndState.SUCCEEDED if code == 0 else EndState.FAILED
        if self.cancelled() or reason.kind in ("cancelled", "time-limit"):
            return EndState.CANCELLED
        if reason.kind == "hung":
            return EndState.HUNG
        own = self.round.reason
        if own and own.node_rank == self.spec.node_rank:
            from_outside = own.kind in ("terminated", "host-lost")
            return EndState.STOPPED if from_outside else EndState.FAILED
        return EndState.STOPPED


def main() -> int:
    with open(sys.argv[1]) as file:
        spec = Spec(**json.load(file))
    journal = os.path.join(spec.dir, "journal")
    if os.path.exists(journal) and os.path.getsize(journal):  # someone restarted the container
        sys.exit("ddpctl: this attempt has already run here; `ddpctl resume` starts another one")
    return Supervisor(spec).run()
