"""The supervisor of one node: starts torchrun, writes the journal, and stops with the other nodes.

Everything happens in one loop in one thread, `Supervisor.run`.
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
from .coordinator import JOIN_GRACE, SETTLE
from .events import End, RankExit, RankPids, RankStacks, Reason, Stopping, signal_name
from .journal import Journal
from .metrics_file import MetricsFile
from .peers import NodePeer, Peers, Server
from .proc import PR_SET_CHILD_SUBREAPER, descendants, kill_descendants, prctl, send
from .rank_logs import RankLogs
from .rank_stacks import StackTaker
from .ranks import Liveness, Rank, Ranks
from .spec import Spec
from .torchrun import Torchrun, stop_grace
from .usage import Sampler, environment, oom_kills, resource_usage

# Seconds between polls, each of which takes half a millisecond. The exit of a rank or a message
# from a peer ends the wait early.
LOGS_GROW = 0.02
RANKS_START = 0.05
POLL = 0.1
LAST_OUTPUT = 1.0  # seconds for torchrun to report its failed ranks after their end
ONLY_SOURCE = 5.0  # the same, if only torchrun knows how one of them ended
NO_OUTPUT = 0.3  # the same, if we stopped torchrun and it has nothing to report
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.journal = Journal(spec.dir, spec.host)
        self.logs = RankLogs(spec, self.journal)
        self.torchrun = Torchrun(spec, self.journal)
        self.ranks = Ranks(spec.nproc_per_node)
        self.stacks = StackTaker(spec)
        self.selector = selectors.DefaultSelector()
        peers = NodePeer if spec.node_rank else Server
        self.peers: Peers = peers(spec, self.journal, self.selector)
        self.liveness = Liveness(spec.output_dir)
        self.kills_before = oom_kills()  # before the start
        self.sampler = Sampler()
        self.metrics = MetricsFile(spec, self.journal)
        self.phase = "running"  # then done: torchrun succeeded; or stopped
        self.early: Reason | None = None  # the first rank that exited with 0
        self.ended_at = 0.0  # time.monotonic() of torchrun's end
        self.reason: Reason | None = None  # why this node stops
        self.kill_at: float | None = None  # time.monotonic() of SIGKILL
        self.alone_since: float | None = None  # since when no rank is left, or kill_at has passed
        self.signals: list[int] = []  # received, not handled yet
        self.signalled = False  # we received a signal to stop
        self.killed_torchrun = False  # if True, its exit code means nothing
        self.left: list[int] = []  # processes that survived SIGKILL

    def run(self) -> int:
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self.signals.append(number))
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # adopts ranks whose torchrun dies, to kill and reap them
        try:
            self.start()
            self.journal.event(environment())
            while not self.finished():
                self.turn()
            return self.conclude()
        except Exception as error:  # a bug of ours must not leave unsupervised ranks behind
            import traceback  # slow to import

            self.journal.say("the supervisor failed: " + traceback.format_exc())
            kill_descendants(0)
            reason = self.why("supervisor", "the supervisor failed: %r" % error)
            self.journal.event(Stopping(reason))
            self.journal.event(End("failed", 1, reason))
            return 1

    def start(self) -> None:
        try:
            env = self.stacks.environment(dict(os.environ))
            pipe = self.torchrun.start(self.logs.folder, env)
            self.selector.register(pipe, selectors.EVENT_READ, self.on_output)
        except OSError as error:
            self.stop(self.why("start", "could not start torchrun: %s" % error))
            self.phase, self.ended_at = "stopped", time.monotonic()

    def turn(self) -> None:
        starting = self.phase == "running" and not self.ranks.complete
        growing = self.logs.poll() > 0
        if growing:
            self.liveness.reset(output=True)
        wait = LOGS_GROW if growing else RANKS_START if starting else POLL
        for key, _ in self.selector.select(wait):
            key.data(key.fileobj)
        self.check_signals()
        self.find_ranks()
        self.check_ranks()
        self.check_torchrun()
        self.peers.turn(self.status())
        decision = self.peers.decision
        ranks = self.ranks.by_local_rank.values()
        stacks = self.stacks.turn(ranks, self.phase, decision.stacks)
        if stacks is not None:
            self.journal.event(RankStacks(tuple(stacks)))
        usage = self.sampler.turn() if self.phase == "running" else None
        if usage is not None:
            self.journal.sample(usage)
            self.metrics.write(usage, len(self.ranks.alive()), self.liveness.log_age())
        if decision.verdict is not None:
            self.stop(decision.verdict)
            if self.phase == "done":
                self.phase = "stopped"
        self.escalate()

    # --- observations ---

    def on_output(self, pipe: int) -> None:
        if not self.torchrun.read():
            self.selector.unregister(pipe)

    def check_signals(self) -> None:
        while self.signals:
            number, self.signalled = self.signals.pop(0), True
            kind = "cancelled" if self.cancelled() else "signal"
            message = "its supervisor received %s" % signal.Signals(number).name
            self.stop(self.why(kind, message), number)

    def find_ranks(self) -> None:
        found = self.ranks.find(self.torchrun.pid)
        for rank in found:
            if rank.fd is not None:  # wakes the loop up before torchrun reaps the rank
                self.selector.register(rank.fd, selectors.EVENT_READ, lambda _: self.check_ranks())
        if found:
            self.liveness.reset(output=False)
            known = self.ranks.by_local_rank.values()
            self.journal.event(RankPids({str(rank.rank): rank.pid for rank in known}))

    def check_ranks(self) -> None:
        for rank in self.exited_ranks():
            if rank.exit_code == 0 and self.early is None:
                message = "exited with code 0 while other ranks were still running"
                self.early = self.why("early-exit", message, rank)
        self.stop_if_a_rank_failed()
        now, timeout = time.monotonic(), self.spec.peer_timeout
        for rank in self.ranks.alive():
            if rank.stopped_since is not None and now - rank.stopped_since > timeout:
                message = "has been stopped (SIGSTOP) for more than %d s" % timeout
                self.stop(self.why("stopped", message, rank))
        self.liveness.look(self.ranks.alive())

    def exited_ranks(self) -> list[Rank]:
        """Return the ranks that have exited since the last check. Record those with a known code."""
        exited = []
        for rank in self.ranks.alive():
            rank.look(time.monotonic())
            if rank.alive:
                continue
            exited.append(rank)
            rank.was_stopping = self.reason is not None
            if rank.fd is not None:
                self.selector.unregister(rank.fd)
                os.close(rank.fd)
            self.logs.drain(rank.local_rank)
            if rank.exit_code is not None:
                self.record_exit(rank)
        return exited

    def stop_if_a_rank_failed(self) -> None:
        if self.reason is None and (first := self.ranks.first_failed()):
            self.stop(self.why("rank-failed", describe_exit(first.exit_code), first))

    def check_torchrun(self) -> None:
        """Once torchrun has ended, end everything that it started."""
        code = self.torchrun.exit_code()
        if code is None or self.phase != "running":
            return
        self.left = kill_descendants(self.torchrun.pid)
        self.logs.finish()
        self.torchrun.finish()
        self.complete_exits(code)
        self.stop_if_a_rank_failed()
        if code and self.reason is None:
            reason = self.why("torchrun", "torchrun %s" % describe_exit(code))
            lines = tuple(self.torchrun.last_lines()[-60:])
            self.stop(replace(reason, exit_code=code, signal=signal_name(code), last_lines=lines))
        if self.reason and oom_kills() > self.kills_before:
            self.journal.event(resource_usage(self.spec, self.kills_before))
        self.phase = "stopped" if self.reason else "done"
        self.ended_at = time.monotonic()

    def complete_exits(self, code: int) -> None:
        """Add exits that torchrun saw before us: failed ranks from its summary, or code 0 for all."""
        self.exited_ranks()
        ranks, codes = self.ranks.by_local_rank, {}
        for number, local_rank, exit_code, pid in self.torchrun.failures():
            codes[local_rank] = exit_code
            if local_rank not in ranks:
                rank = ranks[local_rank] = Rank(pid, number, local_rank)
                rank.exited, rank.was_stopping = time.time(), self.reason is not None
        for rank in ranks.values():
            if rank.exit_code is None:
                rank.exit_code = codes.get(rank.local_rank, None if code else 0)
                self.record_exit(rank)

    def status(self) -> Status:
        return Status(
            self.spec.node_rank,
            phase=self.phase,
            reason=self.reason,
            alive=len(self.ranks.alive()),
            early=self.early,
            stuck=self.liveness.stuck,
            begun=self.liveness.begun,
            stacks=self.stacks.written,
            log_age=self.liveness.log_age(),
            progress_age=self.liveness.progress_age() if self.spec.hang_timeout else None,
        )

    def record_exit(self, rank: Rank) -> None:
        code = rank.exit_code
        message, call_stack = self.logs.error(rank.local_rank)
        event = RankExit(
            rank.rank,
            rank.local_rank,
            code,
            rank.pid,
            signal_name(code),
            rank.exited,
            rank.was_stopping,
            message,
            call_stack,
            tuple(self.logs.last_lines(rank.local_rank) if code != 0 else ()),
        )
        self.journal.event(event)

    # --- stopping ---

    def why(self, kind: str, message: str, rank: Rank | None = None) -> Reason:
        when = (rank.exited if rank else None) or time.time()
        when += self.peers.clock_offset
        reason = Reason(kind, message, self.spec.node_rank, self.spec.host, when)
        if rank is None:
            return reason
        reason = replace(reason, rank=rank.rank, local_rank=rank.local_rank)
        return replace(reason, exit_code=rank.exit_code, signal=signal_name(rank.exit_code))

    def stop(self, reason: Reason, number: int = signal.SIGTERM) -> None:
        """Send SIGTERM now, and SIGKILL after the timeout for this kind of reason."""
        if self.reason is not None:
            return
        self.reason = reason
        self.journal.event(Stopping(reason))
        self.journal.event(resource_usage(self.spec, self.kills_before))
        self.kill_at = time.monotonic() + time_to_save(self.spec, reason.kind)
        # after a failure, torchrun ends the other ranks itself; a signal would cut off its report
        if self.torchrun.pid and not self.ranks.failed():
            send(self.torchrun.pid, number)

    def escalate(self) -> None:
        """Send SIGKILL to the ranks after the timeout.

        Send it to torchrun too if it does not end soon afterwards. Until then it can report them.
        """
        if self.kill_at is None or self.phase != "running":
            return
        now = time.monotonic()
        if self.ranks.alive() and now < self.kill_at:
            return
        self.alone_since = self.alone_since or now
        failed, reaped = self.ranks.failed(), self.ranks.reaped()
        timeout = ONLY_SOURCE if reaped else LAST_OUTPUT if failed else NO_OUTPUT
        late = now - self.alone_since > timeout
        self.killed_torchrun = self.killed_torchrun or late
        for pid in descendants(os.getpid()):
            if late or (pid != self.torchrun.pid and now > self.kill_at):
                send(pid, signal.SIGKILL)

    def cancelled(self) -> bool:
        """Return whether the launcher has created the cancel file.

        It may have done so on another host that shares this home. Listing the folder makes NFS ask
        its server, while a plain stat may be answered from a cache.
        """
        folder, name = os.path.split(self.spec.cancel_file)
        with contextlib.suppress(OSError):
            return name in os.listdir(folder)
        return False

    # --- the end ---

    def finished(self) -> bool:
        if self.phase == "running":
            return False
        until = self.ended_at + SETTLE
        if self.spec.node_rank == 0:  # so that a node that starts late learns the reason
            until = max(until, self.peers.began + JOIN_GRACE)
        return self.peers.decision.over or (self.phase == "stopped" and time.monotonic() > until)

    def conclude(self) -> int:
        # 1, like torchrun when its ranks failed or it was told to stop
        code = 1 if self.killed_torchrun else self.torchrun.exit_code()
        reason = self.peers.decision.verdict or self.reason
        state = self.end_state(code, reason)
        self.peers.close()
        if self.left:
            self.journal.say("could not kill these processes: %s" % ", ".join(map(str, self.left)))
        self.metrics.remove()
        self.journal.event(End(state, code, reason))
        self.journal.close()
        failed = 128 - code if code and code < 0 else code or 1  # as a shell does
        return {"succeeded": 0, "stopped": 143, "cancelled": 143}.get(state, failed)

    def end_state(self, code: int | None, reason: Reason | None) -> str:
        if self.signalled and self.cancelled():
            return "cancelled"
        if reason is None:
            return "succeeded" if code == 0 else "failed"
        if reason.kind in ("cancelled", "time-limit"):
            return "cancelled"
        if reason.kind == "hung":
            return "hung"
        if self.reason and self.reason.node_rank == self.spec.node_rank:
            return "stopped" if self.reason.kind in ("signal", "peer-lost") else "failed"
        return "stopped"


def time_to_save(spec: Spec, kind: str) -> float:
    """Return the seconds between SIGTERM and SIGKILL. Short if something has failed."""
    grace = stop_grace(spec.stop_timeout)
    if kind in ("cancelled", "signal", "time-limit"):
        return grace
    return min(grace, spec.failure_grace)


def describe_exit(code: int | None) -> str:
    if code is None:
        return "exited with an unknown code, and torchrun is stopping the other ranks"
    name = signal_name(code)
    return "was killed by %s" % name if name else "exited with code %s" % code


def main() -> int:
    with open(sys.argv[1]) as file:
        spec = Spec(**json.load(file))
    return Supervisor(spec).run()
