"""`Poll`: the values that ranks exchange every few steps, in one small all-reduce."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from types import FrameType

import torch

from .distributed import Ranks
from .errors import KILLED
from .logs import Progress
from .loss import check_finite
from .slow_ranks import OwnWork

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
ECHO = 2.0  # seconds within which a second signal counts as the same request
LOSS, IMAGES, WORK, STOP, SAVE, NORM = range(6)  # positions in the exchanged values


class Stopped(Exception):
    """All ranks agreed to save and end: one of them received a signal, or the time is up."""


class StopRequest:
    """Truthy once a signal has arrived or the time is up; `name` says which.

    SIGTERM, SIGINT and SIGUSR1 on any rank ask the run to save and stop. The handler only notes the
    signal; the ranks agree at the next poll. A second signal ends this process at once, without
    saving, unless it follows within two seconds: a terminal or `docker stop` signals a whole
    process group, and torchrun then passes the signal on to its ranks once more.
    """

    def __init__(self, seconds: float = 0) -> None:
        """seconds: how long to run before stopping (0: no limit)."""
        self.name = ""
        self.since = 0.0
        self.deadline = time.monotonic() + (seconds or math.inf)

    def __bool__(self) -> bool:
        if not self.name and time.monotonic() > self.deadline:
            self.name = "--max-time"
        return bool(self.name)

    def listen(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def ignore(self) -> None:
        """Ignore further signals, because the run is over."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.since:
            self.name = signal.Signals(number).name
            self.since = time.monotonic()
        elif time.monotonic() - self.since > ECHO:
            os._exit(KILLED)  # no cleanup, because this process may be inside a collective


class Poll:
    """Exchanges values among the ranks: on a CPU after every step, on a GPU after every few steps.
    On a GPU, they are read one poll later, when they have arrived, so that no step waits for them."""

    def __init__(self, ranks: Ranks, progress: Progress, stop: StopRequest, work: OwnWork) -> None:
        self.ranks, self.progress, self.stop, self.work = ranks, progress, stop, work
        on_gpu = ranks.device.type == "cuda"
        self.every = 10 if on_gpu else 1  # steps
        self.lag = 1 if on_gpu else 0  # polls that may remain unread
        # this rank's values since the last poll: loss sum, images, seconds of own work, stop flag,
        # save flag, gradient norm
        self.totals = torch.zeros(6, dtype=torch.float64, device=ranks.device)
        self.save_due = False
        self._stopping = False
        self._unread: deque[tuple[int, Callable[[], list[float]]]] = deque()

    def exchange(self, step: int, *, save_due: bool) -> None:
        """Send this rank's totals and flags to all ranks. A collective."""
        totals = self.totals
        totals[WORK] = self.work.take()
        totals[STOP], totals[SAVE] = float(bool(self.stop)), float(save_due)
        by_rank = totals.new_zeros(self.ranks.world_size, WORK + 1)
        by_rank[self.ranks.rank] = totals[: WORK + 1]
        values = self.ranks.sum_(torch.cat([totals, by_rank.flatten()]))
        self._unread.append((step, to_host(values)))
        totals.zero_()

    def read(self, *, everything: bool) -> bool:
        """Read the values that have arrived; with `everything`, wait for the rest. Return whether the
        ranks agree to stop; `save_due` says whether they want a checkpoint. Raises Diverged if the
        loss is not finite."""
        while len(self._unread) > (0 if everything else self.lag):
            step, numbers = self._unread.popleft()
            values = numbers()
            totals, by_rank = values[: NORM + 1], values[NORM + 1 :]
            check_finite(totals[LOSS], step)
            norm = totals[NORM] / self.ranks.world_size
            self.progress.add(totals[LOSS], totals[IMAGES], by_rank, norm)
            self._stopping |= bool(totals[STOP])
            self.save_due |= bool(totals[SAVE])
        return self._stopping


def to_host(values: torch.Tensor) -> Callable[[], list[float]]:
    """Start copying values to the CPU. Return a function that waits for them and returns them."""
    if not values.is_cuda:
        return values.tolist
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    target.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()

    def numbers() -> list[float]:
        arrived.synchronize()
        return target.tolist()

    return numbers
