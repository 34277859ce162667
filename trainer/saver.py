"""`Saver`: writes checkpoints and exports in a thread, while training continues."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import checkpoint
from .checkpoint import Written
from .distributed import Ranks
from .errors import CheckpointError
from .logs import say
from .restore import Disks


class Writer:
    """Runs jobs in a thread, in order."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "writer")
        self._jobs: deque[tuple[Future[Any], Callable[[Any], None]]] = deque()

    def submit(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run `job` in the thread; `collect` calls `then` with its result."""
        self._jobs.append((self._pool.submit(job), then))

    @property
    def failed(self) -> bool:
        return any(job.done() and job.exception() for job, _ in self._jobs)

    def collect(self, *, wait: bool) -> None:
        """Call `then` with the results of finished jobs or, with `wait`, of all jobs. Raises the first
        error of a job."""
        while self._jobs and (wait or self._jobs[0][0].done()):
            job, then = self._jobs.popleft()
            then(job.result())


class Saver:
    """Saves checkpoints and exports, and knows what this run has saved."""

    def __init__(self, disks: Disks, ranks: Ranks, keep: int) -> None:
        self.disks, self.ranks, self.keep = disks, ranks, keep
        self.writer = Writer()
        self.newest: str | None = None  # on rank 0: the newest checkpoint, as ckpt/step-00001234
        self.step = -1  # of the newest snapshot
        self.eval_pending = False  # in the newest snapshot
        self.at = time.monotonic()  # when the newest snapshot was taken
        self._copy_problems: list[str] = []

    def due(self, step: int, every: tuple[int, str]) -> bool:
        """Return whether --save-every asks for a checkpoint at this step. Returns False if --save-every
        counts epochs."""
        count, unit = every
        since = {"st": step - max(0, self.step), "s": time.monotonic() - self.at, "ep": 0}
        return 0 < count <= since[unit]

    def save(
        self, state: Mapping[str, Any], meta: Mapping[str, Any], then: Callable[[Written], None]
    ) -> None:
        """Start writing a snapshot. `collect` calls `then` once rank 0 has written it."""
        self.step, self.eval_pending, self.at = meta["step"], meta["eval_pending"], time.monotonic()
        write = partial(checkpoint.save, self.disks.root, state, meta, self.keep)
        if self.ranks.first:
            self.writer.submit(write, partial(self._written, then))
        elif self.ranks.rank == self.disks.copy_on:
            self.writer.submit(partial(second_copy, write), self._copy_problems.append)

    def export(self, out: Path, names: Sequence[str], weights: Mapping[str, torch.Tensor]) -> None:
        """Start writing the weights under these names, on rank 0."""
        if self.ranks.first:
            write = partial(checkpoint.write_exports, out, names, weights)
            self.writer.submit(write, then=lambda _: None)

    def collect(self) -> None:
        """Record which writes have finished. If one failed, the next `finish` raises its error on
        all ranks."""
        if not self.writer.failed:
            self.writer.collect(wait=False)

    def finish(self) -> None:
        """Wait until everything is on disk. A collective. Raises CheckpointError."""
        with self.ranks.agreeing():
            self.writer.collect(wait=True)
        if self.disks.copy_on is not None:
            problems = [problem for problem in self._copy_problems if problem]
            problems = self.ranks.broadcast(problems, self.disks.copy_on)
            self._copy_problems.clear()
            if self.ranks.first:
                for problem in problems:
                    say(f"WARNING: no second copy of a checkpoint: {problem}")

    def _written(self, then: Callable[[Written], None], written: Written) -> None:
        self.newest = f"ckpt/{written[0].path.name}"
        then(written)


def second_copy(write: Callable[[], Written]) -> str:
    """Write the second copy. Return what went wrong, or "". This is only a warning, because the run
    has the first copy."""
    try:
        write()
    except CheckpointError as error:
        return str(error)
    return ""
