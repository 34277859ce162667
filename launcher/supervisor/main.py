"""The supervisor of one node: starts torchrun, keeps its journal, and ends with its gang.

Everything happens in one loop of one thread, `Supervisor.run`.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import time
from typing import Any

from .coordinator import JOIN_GRACE, Hub
from .file_watch import Growth
from .journal import Journal
from .liveness import Activity
from .peers import SETTLE, Gang, Member
from .proc import adopt_orphans, descendants, doing, end_everything, send
from .ranklogs import RankLogs
from .ranks import Rank, Ranks
from .resources import Resources
from .signals import SIGNALS, listen_for_signals
from .stacks import Stacks
from .stop_reason import Reason, how_it_ended, reason, signal_name
from .torchrun import Torchrun, patience

TICK = 0.02  # seconds between looks at everything while the logs grow
IDLE_TICK = 0.08  # the same while they do not
QUIET_TICK = 0.2  # the same while nothing ends either, and what grows wakes us
LAST_WORDS = 1.0  # seconds for torchrun to tell of its ranks once they are gone
NO_WORDS = 0.3  # the same when it has nothing to tell, being stopped for another's sake


class Supervisor:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.journal = Journal(spec["dir"], spec["host"])
        first = spec["node_rank"] * spec["nproc_per_node"]
        ranks_folder = os.path.join(spec["dir"], "ranks")
        self.logs = RankLogs(ranks_folder, first, spec["nproc_per_node"], self.journal)
        self.stacks = Stacks(spec)
        self.torchrun = Torchrun(spec, self.journal, self.stacks)
        self.ranks = Ranks(spec["nproc_per_node"])
        self.growth = Growth()
        self.selector = selectors.DefaultSelector()
        self.signals = listen_for_signals()
        self.gang: Gang = (Member if spec["node_rank"] else Hub)(spec, self.journal, self.selector)
        self.activity = Activity(spec.get("output_dir"))
        self.resources = Resources(spec)
        self.phase = "running"  # then done: torchrun ended well; or stopped
        self.early: Reason | None = None  # the first rank that ended well, if one did
        self.ended_at = 0.0  # time.monotonic() of torchrun's end
        self.reason: Reason | None = None  # why this node stops
        self.kill_at: float | None = None  # time.monotonic() of SIGKILL
        self.alone_since: float | None = None  # since when torchrun has no rank left
        self.asked_to_stop = False
        self.cut_short = False  # torchrun was killed: its code would be ours
        self.left: list[int] = []  # processes that nothing could end

    def run(self) -> int:
        adopt_orphans()
        self.journal.event("start", pid=os.getpid(), argv=self.spec["argv"], host=self.spec["host"])
        try:
            self.start()
            while not self.finished():
                self.turn()
            return self.conclude()
        except Exception as error:  # a fault of ours must not leave a run that nobody watches
            import traceback

            self.journal.say("the supervisor failed: " + traceback.format_exc())
            end_everything(0)
            why = self.cause("supervisor", "the supervisor failed: %r" % error)
            self.journal.event("stopping", reason=why)
            self.journal.event("end", state="failed", exit_code=1, reason=why, left=[])
            return 1

    def turn(self) -> None:
        """One look at everything."""
        self.hear(self.next_look())
        self.meet_ranks()
        self.see_ranks()
        self.see_torchrun()
        self.gang.turn(self.status())
        self.show_stacks()
        self.heed_gang()
        self.press_on()

    # --- what happens ---

    def start(self) -> None:
        self.selector.register(self.signals, selectors.EVENT_READ, self.hear_signals)
        try:
            self.torchrun.start(self.logs.folder)
        except OSError as error:
            self.stop(self.cause("start", "could not start torchrun: %s" % error))
            self.phase, self.ended_at = "stopped", time.monotonic()
            return
        for pipe in self.torchrun.pipes():
            self.selector.register(pipe, selectors.EVENT_READ, self.hear_torchrun)
        if self.torchrun.exit_fd is not None:
            self.selector.register(self.torchrun.exit_fd, selectors.EVENT_READ, self.let_go)
        if self.growth.fd >= 0:
            self.selector.register(self.growth.fd, selectors.EVENT_READ, self.hear_growth)

    def next_look(self) -> float:
        """Seconds until the logs and all that tells of itself by no event are looked at again."""
        if self.read_logs() or self.ranks.expected(self.logs.folder):
            return TICK
        if self.growth.arm(self.logs.growing_paths()) and self.read_logs():
            return TICK
        calm = self.growth.armed and self.phase == "running" and not self.reason
        return QUIET_TICK if calm and not self.ranks.incomplete else IDLE_TICK

    def hear(self, timeout: float) -> None:
        for key, _ in self.selector.select(timeout):
            key.data(key.fileobj)

    def read_logs(self) -> int:
        size = self.logs.poll()
        if size:
            self.activity.output()
        return size

    def hear_torchrun(self, pipe: int) -> None:
        if not self.torchrun.read(pipe):
            self.selector.unregister(pipe)

    def hear_signals(self, source: socket.socket) -> None:
        for number in source.recv(64):
            if number in SIGNALS:
                self.asked_to_stop = True
                name = signal.Signals(number).name
                kind = "cancelled" if self.cancelled() else "signal"
                self.stop(self.cause(kind, "its supervisor was sent %s" % name), number)

    def hear_growth(self, _: int) -> None:
        self.growth.heard()

    def hear_exit(self, _: int) -> None:
        self.see_ranks()

    def let_go(self, pidfd: int) -> None:
        self.selector.unregister(pidfd)
        os.close(pidfd)

    def meet_ranks(self) -> None:
        found = self.ranks.find(self.torchrun.pid)
        for rank in found:
            if rank.fd is not None:
                self.selector.register(rank.fd, selectors.EVENT_READ, self.hear_exit)
        if found:
            self.activity.stir()
            known = self.ranks.by_local_rank.values()
            self.journal.event("ranks", pids={str(rank.rank): rank.pid for rank in known})

    def see_ranks(self) -> None:
        now = time.monotonic()
        for rank in self.ends():
            if rank.exit_code is not None:
                self.tell_exit(rank)
            if rank.exit_code == 0 and self.early is None:
                message = "exited with code 0 while other ranks still ran"
                self.early = self.cause("early-exit", message, rank)
        self.stop_for_a_rank()
        alive = self.ranks.alive()
        for rank in alive:
            if rank.stopped_for(now) > self.gang.silence:
                message = "has been stopped (SIGSTOP) for more than %d s" % self.gang.silence
                self.stop(self.cause("stopped", message, rank))
        self.activity.look(alive)

    def ends(self) -> list[Rank]:
        """The ranks that have exited since the last look."""
        ended = [rank for rank in self.ranks.alive() if rank.look()]
        for rank in ended:
            rank.was_stopping = self.reason is not None
            if rank.fd is not None:
                self.let_go(rank.fd)
                rank.fd = None
            self.logs.drain(rank.local_rank)
        return ended

    def stop_for_a_rank(self) -> None:
        if self.reason is None and (first := self.ranks.first_failed()):
            self.stop(self.cause("rank-failed", how_it_ended(first.exit_code), first))

    def see_torchrun(self) -> None:
        """The end of torchrun is the end of everything that it started."""
        code = self.torchrun.exit_code()
        if code is None or self.phase != "running":
            return
        self.left = end_everything(self.torchrun.pid)
        self.meet_ends(code)
        self.logs.finish()
        self.torchrun.finish()
        self.stop_for_a_rank()
        if code and self.reason is None:
            last = self.torchrun.last.decode(errors="replace").rstrip("\n").split("\n")
            why = self.cause("torchrun", "torchrun %s" % how_it_ended(code))
            self.stop(dict(why, exit_code=code, signal=signal_name(code), last_lines=last[-60:]))
        if self.reason and self.resources.oom_kills():
            self.journal.event("evidence", **self.resources.as_event())
        self.phase = "stopped" if self.reason else "done"
        self.ended_at = time.monotonic()

    def status(self) -> dict[str, Any]:
        alive = self.ranks.alive()
        watched = bool(self.spec.get("hang_timeout"))
        return {
            "phase": self.phase,
            "reason": self.reason,
            "alive": len(alive),
            "early": self.early,
            "stuck": self.activity.stuck,
            "begun": self.activity.begun,
            "stacks": self.stacks.told,
            "log_age": self.activity.log_age(),
            "progress_age": self.activity.progress_age() if watched else None,
            "doing": {str(rank.rank): doing(rank.pid) for rank in alive} if watched else {},
        }

    def show_stacks(self) -> None:
        ranks = self.ranks.by_local_rank.values()
        found = self.stacks.turn(ranks, self.phase, self.gang.stacks_wanted)
        if found is not None:
            self.journal.event("stacks", ranks=found)

    def heed_gang(self) -> None:
        if self.gang.verdict is None:
            return
        self.stop(self.gang.verdict)
        if self.phase == "done":
            self.phase = "stopped"

    def finished(self) -> bool:
        if self.phase == "running":
            return False
        settled = self.phase == "stopped" and time.monotonic() - self.ended_at > self.settle_time()
        return self.gang.over or settled

    def settle_time(self) -> float:
        """Node 0 stays a little, so that a node that starts late hears why all is over."""
        late = self.gang.began + JOIN_GRACE - self.ended_at if self.spec["node_rank"] == 0 else 0.0
        return max(SETTLE, late)

    def tell_exit(self, rank: Rank) -> None:
        error = self.logs.error(rank.local_rank)
        code = rank.exit_code
        self.journal.event(
            "rank_exit",
            rank=rank.rank,
            local_rank=rank.local_rank,
            pid=rank.pid,
            exit_code=code,
            signal=signal_name(code),
            time=rank.exited,
            stopping=rank.was_stopping,  # then it may be our own doing
            message=error["message"] if error else None,
            traceback=error["traceback"] if error else None,
            last_lines=self.logs.last_lines(rank.local_rank) if code else [],
        )

    # --- stopping ---

    def cause(self, kind: str, message: str, rank: Rank | None = None) -> Reason:
        """A reason that began on this node."""
        when = (rank.exited if rank else None) or time.time()
        host = self.spec["host"]
        return reason(kind, message, self.spec["node_rank"], host, when + self.gang.offset, rank)

    def stop(self, why: Reason, number: int = signal.SIGTERM) -> None:
        """SIGTERM now, SIGKILL after the time that is given for this kind of reason."""
        if self.reason is not None:
            return
        self.reason = why
        self.journal.event("stopping", reason=why)
        self.journal.event("evidence", **self.resources.as_event())
        stop_timeout = self.spec["stop_timeout"]
        grace = patience(stop_timeout)
        if why["kind"] not in ("cancelled", "signal"):
            grace = min(grace, self.spec.get("failure_grace", 3.0))
        self.kill_at = time.monotonic() + grace
        if not self.ranks.failed():  # else torchrun ends the others; a signal would cut its report
            send(self.torchrun.pid, number)

    def press_on(self) -> None:
        """The end of patience: with the ranks first, so that torchrun can still tell of them."""
        if self.kill_at is None or self.phase != "running":
            return
        now = time.monotonic()
        if self.ranks.alive() and now < self.kill_at:
            return
        self.alone_since = self.alone_since or now
        late = now - self.alone_since > (LAST_WORDS if self.ranks.failed() else NO_WORDS)
        self.cut_short = self.cut_short or late
        for pid in descendants(os.getpid()):
            if late or (pid != self.torchrun.pid and now > self.kill_at):
                send(pid, signal.SIGKILL)

    def cancelled(self) -> bool:
        path = self.spec.get("cancel_file") or os.path.join(self.spec["dir"], "cancelled")
        return os.path.exists(path)

    # --- the end ---

    def conclude(self) -> int:
        code = self.torchrun.exit_code() if self.torchrun.pid else 127
        if self.cut_short:
            code = 1  # as torchrun ends when its ranks have failed or it was told to stop
        final = self.gang.verdict or self.reason
        state = self.state(code, final)
        self.gang.close()
        if self.left:
            self.journal.say("these processes could not be ended: %s" % self.left)
        self.journal.event("end", state=state, exit_code=code, reason=final, left=self.left)
        self.journal.close()
        return {"succeeded": 0, "stopped": 143, "cancelled": 143}.get(state, status(code))

    def meet_ends(self, code: int) -> None:
        """Exits that went by too fast to be read from the kernel: torchrun's summary has them, and its
        own code 0 is all ranks'."""
        ended = self.ends()
        told = {f["local_rank"]: f["exit_code"] for f in self.torchrun.failures()}
        for rank in self.ranks.by_local_rank.values():
            if rank in ended or rank.exit_code is None:
                rank.exit_code = told.get(rank.local_rank, 0 if code == 0 else rank.exit_code)
                self.tell_exit(rank)

    def state(self, code: int | None, final: Reason | None) -> str:
        if self.cancelled() and (self.asked_to_stop or (final and final["kind"] == "cancelled")):
            return "cancelled"
        if final is None:
            return "succeeded" if code == 0 else "failed"
        if final["kind"] in ("cancelled", "hung"):
            return str(final["kind"])
        if self.reason and self.reason["node_rank"] == self.spec["node_rank"]:
            return "stopped" if self.reason["kind"] in ("signal", "peer-lost") else "failed"
        return "stopped"


def status(code: int | None) -> int:
    """As a shell has it: 128 and the signal's number."""
    return 128 - code if code is not None and code < 0 else code or 1


def main() -> int:
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    return Supervisor(spec).run()
