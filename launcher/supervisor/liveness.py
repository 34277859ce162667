"""Signs of life: whether the ranks get anywhere."""

from __future__ import annotations

import os
import time

from .proc import usage
from .ranks import Rank


class Activity:
    """Whether the ranks of this node get anywhere: by their output, their I/O, the trainer's files."""

    LITTLE = 65536  # bytes a second of reading and writing that say nothing
    BUSY = 0.5  # cores; a rank that waits in NCCL is busy too, so being busy only earns patience
    BUSY_PATIENCE = 6.0

    def __init__(self, output_dir: str | None) -> None:
        self._files = [
            os.path.join(output_dir or "/nonexistent", name)
            for name in ("metrics.jsonl", "status.json")
        ]
        self._began = time.time()
        self._output_at = self._looked_at = time.monotonic()
        self._before: dict[int, tuple[int, float]] = {}  # pid -> (bytes, CPU seconds)
        self.begun = False  # a rank has said something
        self.stuck = 0.0  # seconds for which no rank did anything that can be seen from outside

    def output(self) -> None:
        self.begun = True
        self.stir()

    def stir(self) -> None:
        """Something happened, be it only that the ranks were started."""
        self._output_at, self.stuck = time.monotonic(), 0.0

    def look(self, ranks: list[Rank]) -> None:
        """Once a second is enough."""
        now = time.monotonic()
        past = now - self._looked_at
        if past < 1.0:
            return
        self._looked_at = now
        moved, cores = 0, 0.0
        for rank in ranks:
            used = usage(rank.pid)
            before = self._before.get(rank.pid, used)
            self._before[rank.pid] = used
            moved += used[0] - before[0]
            cores = max(cores, (used[1] - before[1]) / past)
        if moved > self.LITTLE * past:
            self.stuck = 0.0
        else:
            self.stuck += past / (self.BUSY_PATIENCE if cores > self.BUSY else 1.0)

    def log_age(self) -> float:
        return time.monotonic() - self._output_at

    def progress_age(self) -> float | None:
        """Seconds since the trainer wrote down progress; None if it has not, in this attempt."""
        times = [os.stat(path).st_mtime for path in self._files if os.path.exists(path)]
        newest = max(times, default=0.0)
        return max(0.0, time.time() - newest) if newest >= self._began else None
