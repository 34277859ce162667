"""One start of torchrun on this node, from the first process to the end of the last.

`Round` also decides when and why this node stops; stopping.py sends the signals.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import tempfile
import time
from dataclasses import replace
from typing import Any, Sequence

from .classify import Weight, ended, own_cause
from .coordinator import ON_REQUEST
from .events import (
    Collectives,
    Phase,
    RankExit,
    RankPids,
    Reason,
    ResourceUsage,
    Stopping,
    signal_name,
)
from .flight_recorder import FlightRecorder
from .journal import Journal
from .peers import Peers
from .proc import kill_descendants, pidfd
from .rank_logs import RankLogs
from .ranks import Liveness, Rank, Ranks
from .spec import Spec
from .stopping import StopSequence
from .torchrun import Torchrun, ended_pids, failures
from .usage import oom_kills, resource_usage

# Seconds between polls, each of which takes half a millisecond. A rank's exit, a message from a peer
# or new output ends the wait early. While torchrun imports torch, all CPU time is for that.
POLL = 0.1
SOON = 0.02  # between looks for new output, which take microseconds, and between polls while ranks start
SETTLED = 10.0  # seconds after a start before a restart is prepared, which takes CPU time


class Round:
    """torchrun and its ranks. The supervisor's loop calls `copy_output`, `look` and `send_due_signals`.

    number: how many restarts in place came before. torchrun: the process that the last round
    prepared.
    """

    def __init__(
        self,
        number: int,
        spec: Spec,
        journal: Journal,
        selector: Any,
        peers: Peers,
        torchrun: Torchrun | None = None,
    ) -> None:
        self.number = number
        self.spec, self.journal, self.selector, self.peers = spec, journal, selector, peers
        self.torchrun = torchrun or Torchrun(spec, number)
        self.standby = Torchrun(spec, number + 1)  # for a restart
        self.logs = RankLogs(spec, journal, self.torchrun.log_folder)
        self.started_at = 0.0  # time.monotonic()
        self.ranks = Ranks(spec.nproc_per_node)
        self.liveness = Liveness(spec.output_dir)
        self.flight_recorder = FlightRecorder(spec.dir)
        self.kills_before = oom_kills()  # OOM kills before the start
        self.phase = Phase.RUNNING
        self.early: Reason | None = None  # the first exit with code 0 while others ran
        self.ended_pids: set[int] = set()  # of the ranks that torchrun has ended
        self.failed_by = 0.0  # unix seconds: ranks that torchrun did not end failed no later
        self.unseen_failed = False  # whether this node stops because of a rank that nobody saw
        self.ended_at = 0.0  # time.monotonic() of torchrun's end
        self.reason: Reason | None = None  # why this node is stopping
        self.stop_sequence = StopSequence(
            self.torchrun, self.standby, self.ranks, self.flight_recorder
        )
        self.survivors: list[int] = []  # pids that SIGKILL did not end
        self.exits: list[tuple[RankExit, Reason]] = []
        self.resources: list[ResourceUsage] = []  # at the time of the failure
        self.start_mark = 0  # file_clock() at the start
        # once stopped
        self.cause: tuple[Weight, Reason] | None = None  # our candidate for the first failure
        self.saved = False  # whether there is a new checkpoint

    def start(self) -> None:
        self.started_at = time.monotonic()
        if self.spec.max_restarts:
            self.start_mark = file_clock(self.spec.checkpoint_dir)
        try:
            self.torchrun.start()
            self.wake_up_at_exit(self.torchrun.pid)
        except OSError as error:
            self.refuse(self.why("start", "could not start torchrun: %s" % error))

    def refuse(self, reason: Reason) -> None:
        """End the round without starting torchrun."""
        self.stop(reason)
        self.has_stopped()

    def copy_output(self) -> None:
        """Copy new output of torchrun and its ranks to the journal."""
        if self.logs.copy_new() > 0:
            self.liveness.reset(output=True)

    def wait(self) -> Sequence[Any]:
        """Wait until the next poll is due. Return the selector's events."""
        due = time.monotonic() + POLL
        while True:
            events: Sequence[Any] = self.selector.select(SOON)
            if events or self.is_eventful() or time.monotonic() > due:
                return events

    def is_eventful(self) -> bool:
        """Return whether ranks are being started or there is new output."""
        starting = self.phase is Phase.RUNNING and not self.ranks.complete
        return (starting and self.logs.torchrun_is_ready()) or self.logs.have_grown()

    def look(self) -> None:
        """Find out which processes have started or ended."""
        self.find_ranks()
        self.check_ranks()
        self.check_torchrun()
        if self.phase is Phase.RUNNING and time.monotonic() > self.started_at + SETTLED:
            self.prepare_restart()

    @property
    def exit_code(self) -> int | None:
        """torchrun's exit code: None while it runs, 1 (as when ranks fail) if we killed it."""
        return 1 if self.stop_sequence.killed_torchrun else self.torchrun.exit_code()

    # --- observations ---

    def wake_up_at_exit(self, pid: int) -> None:
        """Wake the loop when the process exits, to look at a rank before torchrun reaps it."""
        fd = pidfd(pid)
        if fd is not None:
            self.selector.register(fd, selectors.EVENT_READ, self.forget)

    def forget(self, fd: int) -> None:
        self.selector.unregister(fd)
        os.close(fd)

    def find_ranks(self) -> None:
        new_ranks = self.ranks.find(self.torchrun.pid)
        for rank in new_ranks:
            self.wake_up_at_exit(rank.pid)
        if new_ranks:
            self.liveness.reset(output=False)
            known = self.ranks.by_local_rank.values()
            self.journal.write_event(RankPids({str(rank.rank): rank.pid for rank in known}))

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
        """Return the ranks that exited since the last check. Record those whose code is known."""
        began = time.time()
        exited = self.look_at_ranks()
        if exited:  # they may have ended because of a rank that failed just after it was looked at
            exited += self.look_at_ranks()
            self.find_ended_ranks(began)
        for rank in exited:
            self.place_in_time(rank)
            self.logs.drain(rank.local_rank)
            if rank.exit_code is not None:
                self.record_exit(rank)
        return exited

    def look_at_ranks(self) -> list[Rank]:
        alive = self.ranks.alive()
        for rank in alive:
            rank.look(time.monotonic())
        return [rank for rank in alive if not rank.alive]

    def find_ended_ranks(self, began: float) -> None:
        """Find out which ranks torchrun has ended. began: when the ranks were last examined."""
        self.logs.torchrun_tail.copy_new()
        if pids := ended_pids(self.logs.torchrun_tail.last_lines()):
            self.ended_pids |= pids
            self.failed_by = self.failed_by or began

    def place_in_time(self, rank: Rank) -> None:
        """Note whether torchrun had ended the rank. If not, the rank failed before those that it ended."""
        by_torchrun = rank.pid in self.ended_pids
        rank.was_stopping = by_torchrun or (self.reason is not None and not self.unseen_failed)
        if rank.exited and self.failed_by and not by_torchrun:
            rank.exited = min(rank.exited, self.failed_by)

    def stop_if_a_rank_failed(self) -> None:
        first = self.ranks.first_failed() if self.reason is None else None
        if first and first.was_ended and not self.ranks.complete:
            self.unseen_failed = True
            self.stop(self.why("rank-failed", "a rank failed, and torchrun ended the others"))
        elif first:
            self.stop(self.why("rank-failed", ended(first.exit_code), first))

    def check_torchrun(self) -> None:
        """If torchrun has ended, kill the processes that it left running and conclude the round."""
        code = self.torchrun.exit_code()
        if code is None or self.phase is not Phase.RUNNING:
            return
        # shorter, so that no peer takes this node for lost, even if no thread sends heartbeats
        timeout = 0.75 * self.spec.peer_timeout
        self.survivors = kill_descendants(self.torchrun.pid, self.standby.pid, timeout=timeout)
        self.logs.finish()
        self.complete_exits(code)
        self.stop_if_a_rank_failed()
        if code and self.reason is None:
            reason = self.why("torchrun", "torchrun %s" % ended(code))
            lines = tuple(self.logs.torchrun_tail.last_lines()[-60:])
            self.stop(replace(reason, exit_code=code, signal=signal_name(code), last_lines=lines))
        if self.reason and oom_kills() > self.kills_before:
            self.record_resources()
        self.ended_at = time.monotonic()
        if self.reason:
            self.has_stopped()
        else:
            self.phase = Phase.DONE

    def complete_exits(self, code: int) -> None:
        """Record exits that only torchrun saw.

        torchrun's summary lists the failed ranks. The others exited with 0 if torchrun did;
        otherwise their exit codes are unknown.
        """
        began = time.time()
        self.exited_ranks()
        self.find_ended_ranks(began)
        ranks, codes = self.ranks.by_local_rank, {}
        for number, local_rank, exit_code, pid in failures(self.logs.torchrun_tail.last_lines()):
            codes[local_rank] = exit_code
            if local_rank not in ranks:
                rank = ranks[local_rank] = Rank(pid, number, local_rank)
                rank.exited = time.time()
                self.place_in_time(rank)
        for rank in ranks.values():
            if rank.exit_code is None:
                rank.exit_code = codes.get(rank.local_rank, None if code else 0)
                self.record_exit(rank)

    def record_exit(self, rank: Rank) -> None:
        code = rank.exit_code
        message, call_stack = self.logs.error(rank.local_rank)
        lines = tuple(self.logs.last_lines(rank.local_rank) if code != 0 else ())
        end = (code, rank.pid, signal_name(code), rank.exited, rank.was_stopping)
        event = RankExit(rank.rank, rank.local_rank, *end, message, call_stack, lines)
        self.journal.write_event(event)
        self.exits.append((event, self.why("rank-failed", "", rank)))

    def record_resources(self) -> None:
        self.resources.append(resource_usage(self.spec, self.kills_before))
        self.journal.write_event(self.resources[-1])

    # --- stopping ---

    def why(self, kind: str, message: str, rank: Rank | None = None) -> Reason:
        when = ((rank and rank.exited) or time.time()) + self.peers.clock_offset
        reason = Reason(kind, message, self.spec.node_rank, self.spec.host, when)
        if rank is None:
            return reason
        code = rank.exit_code
        reason = replace(reason, rank=rank.rank, local_rank=rank.local_rank)
        return replace(reason, exit_code=code, signal=signal_name(code))

    def stop(self, reason: Reason, number: int = signal.SIGTERM) -> None:
        """Begin to stop for this reason, unless already stopping. number: the signal to send."""
        if self.reason is not None:
            return
        self.reason = reason
        self.journal.write_event(Stopping(reason))
        self.record_resources()
        if self.phase is Phase.DONE:
            self.has_stopped()
            return
        failed = reason.kind not in ON_REQUEST
        self.stop_sequence.begin(number, self.spec.time_to_save(failed=failed), failed=failed)
        if failed:
            self.prepare_restart()

    def send_due_signals(self) -> None:
        if self.phase is Phase.RUNNING:
            self.stop_sequence.send_due_signals()

    # --- before a restart ---

    def prepare_restart(self) -> None:
        restarts = self.number + len(self.spec.past_restarts)
        if restarts < self.spec.max_restarts:
            self.standby.prepare()

    def has_stopped(self) -> None:
        self.phase = Phase.STOPPED
        if newest := self.flight_recorder.read(self.number):
            self.journal.write_event(Collectives(tuple(newest)))
        self.ended_at = self.ended_at or time.monotonic()
        if self.reason and self.spec.max_restarts:
            self.cause = own_cause(self.reason, self.exits, self.resources)
            self.saved = has_newer_file(self.spec.checkpoint_dir, self.start_mark)

    def close(self) -> None:
        """Release the resources of this round. Call this only once all its processes have ended."""
        self.torchrun.close()
        self.logs.close()


def file_clock(folder: str) -> int:
    """Return the time in ns by the clock of the folder's file system, which may be a server's.

    If no file can be written there, return the time by this machine's clock.
    """
    with contextlib.suppress(OSError), tempfile.TemporaryFile(prefix=".", dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime_ns
    return time.time_ns()


def has_newer_file(folder: str, than: int) -> bool:
    """Return whether a file was written after `than`. Skips hidden files, which are incomplete."""
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            with contextlib.suppress(OSError):  # just removed
                written = os.stat(os.path.join(path, name)).st_mtime_ns
                if written > than and not name.startswith("."):
                    return True
    return False
