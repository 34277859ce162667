"""The ranks of this node, as the kernel sees them, and whether they make progress."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from .proc import children, proc_environ, proc_stat, usage

LOOK = 1.0  # seconds between checks of the ranks' I/O
SUSPENDED = 5.0  # seconds; a longer gap between two checks means that this process was suspended
IDLE_IO = 65536  # bytes read and written per second that still count as no activity
# busy cores above which `stuck` still grows, but slower, because ranks that wait in NCCL are busy too
BUSY = 0.5
BUSY_FACTOR = 6.0


class Rank:
    """A process that torchrun started."""

    def __init__(self, pid: int, rank: int, local_rank: int) -> None:
        self.pid, self.rank, self.local_rank = pid, rank, local_rank
        self.exited: float | None = None  # unix seconds
        self.exit_code: int | None = None  # negative: a signal; None: torchrun reaped it first
        self.was_stopping = False  # whether it had been told to stop before it exited
        self.stopped_since: float | None = None  # time.monotonic() of SIGSTOP

    @property
    def alive(self) -> bool:
        return self.exited is None

    @property
    def was_ended(self) -> bool:
        """Whether torchrun probably ended the rank.

        If LOGLEVEL silences torchrun, the only sign is that SIGTERM ended the rank.
        """
        return self.was_stopping or self.exit_code == -signal.SIGTERM

    def look(self, now: float) -> None:
        """Check whether the rank has exited or is stopped. A reaped rank's exit code is unknown."""
        try:
            stat = proc_stat(self.pid)
        except OSError:
            return  # unknown
        if not stat or stat[0] in "ZX":
            self.exited = time.time()
        if not self.alive and len(stat) > 49:
            status = int(stat[49])
            self.exit_code = -(status & 127) if status & 127 else status >> 8
        self.stopped_since = (self.stopped_since or now) if stat[:1] == ["T"] else None


class Ranks:
    """The ranks of this node: torchrun's children with RANK in their environment."""

    def __init__(self, nproc_per_node: int) -> None:
        self._nproc = nproc_per_node
        self.by_local_rank: dict[int, Rank] = {}

    @property
    def complete(self) -> bool:
        return len(self.by_local_rank) == self._nproc

    def find(self, torchrun_pid: int) -> list[Rank]:
        """Return the ranks that have started since the last call."""
        known = {rank.pid for rank in self.by_local_rank.values()}
        new_ranks = []
        for pid in [] if self.complete else children(torchrun_pid):
            env = proc_environ(pid) if pid not in known else {}
            if "RANK" in env and "LOCAL_RANK" in env:
                rank = Rank(pid, int(env["RANK"]), int(env["LOCAL_RANK"]))
                self.by_local_rank[rank.local_rank] = rank
                new_ranks.append(rank)
        return new_ranks

    def alive(self) -> list[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.alive]

    def failed(self) -> list[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.exit_code]

    def reaped(self) -> list[Rank]:
        """Return the ranks that exited on their own and whose exit code only torchrun received."""
        gone = [rank for rank in self.by_local_rank.values() if not rank.alive]
        return [rank for rank in gone if rank.exit_code is None and not rank.was_stopping]

    def first_failed(self) -> Rank | None:
        """Return the rank that probably failed first, or None. Prefers one that torchrun did not end.

        torchrun reaps the first failed rank, which hides its exit code, and SIGTERMs the others.
        """
        failed = self.failed()
        ended = [rank for rank in failed if rank.was_ended]
        others = [rank for rank in failed if not rank.was_ended]
        reaped = self.reaped() if ended else []
        return next(iter([*others, *reaped, *ended]), None)


class Liveness:
    """The ranks' progress, judged by their output, their I/O, and the trainer's progress files."""

    def __init__(self, output_dir: str) -> None:
        self._files = [os.path.join(output_dir, name) for name in ("metrics.jsonl", "status.json")]
        self._began = time.time()
        self._output_at = self._looked_at = self._reported_at = time.monotonic()
        self._reported: list[float] = []  # the files' times at the trainer's last report
        self._before: dict[int, tuple[int, float]] = {}  # pid -> (bytes, CPU seconds)
        self.begun = False  # whether a rank has written output
        self.stuck = 0.0  # seconds without visible activity of any rank

    def reset(self, output: bool) -> None:
        """Reset the timers, after ranks have started or printed something."""
        self.begun = self.begun or output
        self._output_at, self.stuck = time.monotonic(), 0.0

    def look(self, ranks: list[Rank]) -> None:
        now = time.monotonic()
        past = now - self._looked_at
        if past < LOOK:
            return
        self._looked_at = now
        if past > SUSPENDED:  # the ranks probably were too, so their silence proves nothing
            self._output_at = min(now, self._output_at + past)
            self._reported_at = min(now, self._reported_at + past)
            return
        moved, cores = 0, 0.0
        for rank in ranks:
            used = usage(rank.pid)
            before = self._before.get(rank.pid, used)
            self._before[rank.pid] = used
            moved += used[0] - before[0]
            cores = max(cores, (used[1] - before[1]) / past)
        if moved > IDLE_IO * past:
            self.stuck = 0.0
        else:
            self.stuck += past / (BUSY_FACTOR if cores > BUSY else 1.0)

    def log_age(self) -> float:
        return time.monotonic() - self._output_at

    def progress_age(self) -> float | None:
        """Return the seconds since the trainer last reported progress.

        Returns None if it has reported none since this start of torchrun.

        In a shared folder, another host may have written the files. NFS then shows their times a
        few seconds late and by the server's clock, which matters little for a hang timeout. The age
        is measured with the monotonic clock, because the wall clock can be set and keeps running
        while the machine sleeps.
        """
        times = []
        for path in self._files:
            with contextlib.suppress(OSError):  # not written, or just removed
                times.append(os.stat(path).st_mtime)
        if times != self._reported and (self._reported or max(times) >= self._began):
            self._reported, self._reported_at = times, time.monotonic()
        return time.monotonic() - self._reported_at if self._reported else None
