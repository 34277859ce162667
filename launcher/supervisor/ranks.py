"""The ranks of this node, as the kernel shows them."""

from __future__ import annotations

import os
import signal
import time

from .proc import children, pidfd, proc_environ, proc_stat


class Rank:
    """One process that torchrun started."""

    def __init__(self, pid: int, rank: int, local_rank: int, fd: int | None = None) -> None:
        self.pid, self.rank, self.local_rank = pid, rank, local_rank
        self.fd = fd  # readable once the process has exited
        self.exited: float | None = None  # unix seconds
        self.exit_code: int | None = None  # negative: a signal; None: torchrun reaped it first
        self.was_stopping = False  # this node was being stopped when it exited
        self.stopped_since: float | None = None

    @property
    def alive(self) -> bool:
        return self.exited is None

    def has_exited(self) -> bool:
        """Looks at the process. The kernel has its exit code until torchrun reaps it."""
        try:
            stat = proc_stat(self.pid)
        except OSError:
            return False  # we cannot tell
        if stat and stat[0] not in "ZX":
            return False
        self.exited = time.time()
        if len(stat) > 49:
            status = int(stat[49])
            self.exit_code = -(status & 127) if status & 127 else status >> 8
        return True

    def stopped_for(self, now: float) -> float:
        """Seconds that SIGSTOP has held it."""
        try:
            stopped = proc_stat(self.pid)[:1] == ["T"]
        except OSError:
            stopped = False
        self.stopped_since = (self.stopped_since or now) if stopped else None
        return now - self.stopped_since if self.stopped_since else 0.0


class Ranks:
    """The ranks of this node: torchrun's children that have RANK in their environment."""

    def __init__(self, nproc_per_node: int) -> None:
        self._nproc = nproc_per_node
        self.by_local_rank: dict[int, Rank] = {}

    @property
    def complete(self) -> bool:
        return len(self.by_local_rank) == self._nproc

    def find(self, torchrun_pid: int) -> list[Rank]:
        """The ranks that were not known yet."""
        found: list[Rank] = []
        if self.complete:
            return found
        known = {rank.pid for rank in self.by_local_rank.values()}
        for pid in children(torchrun_pid):
            env = proc_environ(pid) if pid not in known else {}
            if "RANK" in env and "LOCAL_RANK" in env:
                rank = Rank(pid, int(env["RANK"]), int(env["LOCAL_RANK"]), pidfd(pid))
                self.by_local_rank[rank.local_rank] = rank
                found.append(rank)
        return found

    def alive(self) -> list[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.alive]

    def failed(self) -> list[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.exit_code]

    def first_failed(self) -> Rank | None:
        """If several ranks exited since the last look, prefer one that was not SIGTERMed: torchrun reaps
        the first failed rank, which hides its exit code, and SIGTERMs the rest."""
        gone = [rank for rank in self.by_local_rank.values() if not rank.alive]
        terminated = [rank for rank in gone if rank.exit_code == -signal.SIGTERM]
        failed = [rank for rank in gone if rank.exit_code and rank not in terminated]
        reaped = [rank for rank in gone if rank.exit_code is None] if terminated else []
        return next(iter([*failed, *reaped, *terminated]), None)

    def close(self, rank: Rank) -> None:
        if rank.fd is not None:
            os.close(rank.fd)
            rank.fd = None
