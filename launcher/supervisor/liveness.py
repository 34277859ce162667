"""Whether the ranks of this node make progress."""

from __future__ import annotations

import os
import time

from .proc import usage
from .ranks import Rank

LOOK = 1.0  # seconds between two looks at the ranks' I/O
IDLE_IO = 65536  # bytes a second of reading and writing that count as none
BUSY = 0.5  # cores; a rank that waits in NCCL is busy too, so that being busy only buys time
BUSY_FACTOR = 6.0


class Liveness:
    """By the ranks' output, their I/O and the files in which the trainer reports its progress."""

    def __init__(self, output_dir: str | None) -> None:
        folder = output_dir or "/nonexistent"
        self._files = [os.path.join(folder, name) for name in ("metrics.jsonl", "status.json")]
        self._began = time.time()
        self._output_at = self._looked_at = time.monotonic()
        self._before: dict[int, tuple[int, float]] = {}  # pid -> (bytes, CPU seconds)
        self.begun = False  # a rank has written something
        self.stuck = 0.0  # seconds for which no rank has done anything visible from outside

    def output(self) -> None:
        self.begun = True
        self.reset()

    def reset(self) -> None:
        """Something happened: output, or ranks were started."""
        self._output_at, self.stuck = time.monotonic(), 0.0

    def look(self, ranks: list[Rank]) -> None:
        now = time.monotonic()
        past = now - self._looked_at
        if past < LOOK:
            return
        self._looked_at = now
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
        """Seconds since the trainer reported progress; None if it has not, in this attempt.

        In a shared folder another host may have written the files: NFS then shows their times some
        seconds late, by the server's clock, which matters little against a hang timeout.
        """
        times = [os.stat(path).st_mtime for path in self._files if os.path.exists(path)]
        newest = max(times, default=0.0)
        return max(0.0, time.time() - newest) if newest >= self._began else None
