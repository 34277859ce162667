"""The ranks of this node, as the kernel shows them."""

from __future__ import annotations

import os
import signal
import time

from .proc import children, pidfd, proc_environ, proc_stat


class Rank:
    """One process of torchrun's."""

    def __init__(self, pid: int, rank: int, local_rank: int) -> None:
        self.pid, self.rank, self.local_rank = pid, rank, local_rank
        self.fd = pidfd(pid)
        self.exited: float | None = None
        self.exit_code: int | None = None  # negative: the signal; None: nobody read it
        self.was_stopping = False  # the gang was being stopped when it exited
        self.stopped_since: float | None = None

    @property
    def alive(self) -> bool:
        return self.exited is None

    def look(self) -> bool:
        """True when it has exited since the last look. The code is there until torchrun reaps it."""
        stat = proc_stat(self.pid)
        if stat and stat[0] not in "ZX":
            return False
        self.exited = time.time()
        if stat and len(stat) > 49:
            status = int(stat[49])
            self.exit_code = -(status & 127) if status & 127 else status >> 8
        return True

    def stopped_for(self, now: float) -> float:
        """Seconds that SIGSTOP has held it."""
        stat = proc_stat(self.pid)
        if not stat or stat[0] != "T":
            self.stopped_since = None
            return 0.0
        self.stopped_since = self.stopped_since or now
        return now - self.stopped_since


class Ranks:
    """The ranks of this node, found as torchrun's children with RANK in their environment."""

    def __init__(self, nproc: int) -> None:
        self._nproc = nproc
        self.by_local_rank: dict[int, Rank] = {}

    def find(self, torchrun_pid: int) -> list[Rank]:
        """Those that were not known yet."""
        if len(self.by_local_rank) == self._nproc:
            return []
        found = []
        known = {rank.pid for rank in self.by_local_rank.values()}
        for pid in children(torchrun_pid):
            if pid in known:
                continue
            env = proc_environ(pid)
            if "RANK" in env and "LOCAL_RANK" in env:
                rank = Rank(pid, int(env["RANK"]), int(env["LOCAL_RANK"]))
                self.by_local_rank[rank.local_rank] = rank
                found.append(rank)
        return found

    def alive(self) -> list[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.alive]

    def expected(self, log_folder: str) -> bool:
        """They are about to start: torchrun has made the place for their logs."""
        return not self.by_local_rank and bool(os.listdir(log_folder))

    @property
    def incomplete(self) -> bool:
        """Some have been found: the others are there any moment, and may be gone the next."""
        return 0 < len(self.by_local_rank) < self._nproc

    def failed(self) -> list[Rank]:
        return [rank for rank in self.by_local_rank.values() if rank.exit_code]

    def first_failed(self) -> Rank | None:
        """Several may be gone at one look. Once one has failed, torchrun reaps it, with its code, and
        ends the others with SIGTERM: so of those whose code can be read, SIGTERM counts least."""
        gone = [rank for rank in self.by_local_rank.values() if not rank.alive]
        ended = [rank for rank in gone if rank.exit_code == -signal.SIGTERM]
        failed = [rank for rank in gone if rank.exit_code and rank not in ended]
        unread = [rank for rank in gone if rank.exit_code is None] if ended else []
        return next(iter([*failed, *unread, *ended]), None)
