"""Numbers for the live panel beyond the logs: the trainer's progress and GPU utilization.

Polled seldom and on separate threads, so that a slow host delays nothing else.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..engines.attempt import RunningAttempt, RunningNode
from ..errors import DdpctlError
from ..ssh.many import one_per_account

PROGRESS_INTERVAL = 3.0  # seconds
GPU_INTERVAL = 10.0  # seconds; without persistence mode nvidia-smi takes up to a second of a core
TIMEOUT = 10.0  # seconds for a host to answer
BACKOFF = 60.0  # seconds until a host that did not answer is polled again

# The newest start line, which has the run's length, and the last lines. $1 output folder
PROGRESS = (
    'cd "$1" 2>/dev/null && [ -f metrics.jsonl ] && '
    "{ grep -a total_steps metrics.jsonl | tail -n 1; tail -n 20 metrics.jsonl; }"
)
GPUS = (
    "nvidia-smi --query-gpu=utilization.gpu,memory.used,memory.total "
    "--format=csv,noheader,nounits 2>/dev/null"
)
_NUMBER = re.compile("[0-9]{1,9}")


@dataclass(frozen=True)
class Progress:
    """The trainer's newest numbers; None where unknown."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    img_s: float | None = None
    eta: float | None = None  # seconds
    top1: float | None = None

    @property
    def brief(self) -> str:
        """epoch 3/10  step 120/400"""
        words = []
        if self.epoch is not None:
            words.append(f"epoch {self.epoch}" + (f"/{self.epochs}" if self.epochs else ""))
        if self.step is not None:
            words.append(f"step {self.step}" + (f"/{self.steps}" if self.steps else ""))
        return "  ".join(words)


@dataclass(frozen=True)
class Gpus:
    """All GPUs of one host. use: mean percent; used and total: MiB, 0 where not reported."""

    count: int
    use: float
    used: int
    total: int


@dataclass
class Metrics:
    """The newest numbers, written by the poller's threads and read by the display."""

    progress: Progress | None = None
    gpus: dict[int, Gpus] = field(default_factory=dict)  # by node rank


class MetricsPoller:
    """Polls node 0 for progress, and every host with GPUs for their use, until closed."""

    def __init__(self, attempt: RunningAttempt) -> None:
        self.metrics = Metrics()
        self._closed = threading.Event()
        self._start(PROGRESS_INTERVAL, self._poll_progress, attempt.members[0])
        machines = one_per_account(attempt.nodes)
        for member in attempt.members:
            if member.node in machines and member.node.host.gpus != 0:
                self._start(GPU_INTERVAL, self._poll_gpus, member)

    def close(self) -> None:
        self._closed.set()

    def _start(
        self, interval: float, poll: Callable[[RunningNode], bool], member: RunningNode
    ) -> None:
        """Polls on a thread until closed, or until `poll` returns False."""

        def work() -> None:
            while not self._closed.is_set():
                wait = interval
                try:
                    if not poll(member):
                        return
                except DdpctlError:
                    wait = BACKOFF  # the monitor reports that contact was lost
                self._closed.wait(wait)

        threading.Thread(target=work, daemon=True).start()

    def _poll_progress(self, member: RunningNode) -> bool:
        done = member.node.script(PROGRESS, f"{member.place.run_dir}/output", timeout=TIMEOUT)
        self.metrics.progress = (
            parse_progress(done.stdout, member.place.attempt) or self.metrics.progress
        )
        return True

    def _poll_gpus(self, member: RunningNode) -> bool:
        done = member.node.script(GPUS, timeout=TIMEOUT)
        if gpus := parse_gpus(done.stdout):
            self.metrics.gpus[member.place.node_rank] = gpus
        return done.code != 127  # without nvidia-smi there is nothing to poll


def parse_progress(text: bytes, attempt: int) -> Progress | None:
    """From lines of metrics.jsonl; None before this attempt has written numbers of its own."""
    start: dict[str, Any] = {}
    train: dict[str, Any] = {}
    top1 = None
    for entry in _entries(text):
        if entry.get("kind") == "start":
            start, train = entry, {}
        elif entry.get("kind") == "train":
            train = entry
        elif entry.get("kind") == "eval":
            top1 = _number(entry.get("top1"))
    if not train or start.get("attempt", attempt) != attempt:
        return None
    steps, per_epoch = _whole(start.get("total_steps")), _whole(start.get("steps_per_epoch"))
    return Progress(
        epoch=_whole(train.get("epoch")),
        epochs=-(-steps // per_epoch) if steps and per_epoch else None,
        step=_whole(train.get("step")),
        steps=steps,
        loss=_number(train.get("loss")),
        img_s=_number(train.get("img_s")),
        eta=_number(train.get("eta_s")),
        top1=top1,
    )


def _entries(text: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines; torn and foreign lines are skipped."""
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            yield entry


def parse_gpus(text: bytes) -> Gpus | None:
    """From nvidia-smi's rows `use, used, total`; None without a readable row."""
    rows = []
    for line in text.decode(errors="replace").splitlines():
        use, *memory = (cell.strip() for cell in line.split(","))
        if len(memory) == 2 and all(c == "[N/A]" or _NUMBER.fullmatch(c) for c in memory):
            rows.append([int(c) if _NUMBER.fullmatch(c) else 0 for c in (use, *memory)])
    if not rows:
        return None
    uses, used, total = zip(*rows, strict=True)
    return Gpus(count=len(rows), use=sum(uses) / len(rows), used=sum(used), total=sum(total))


def _number(value: object) -> float | None:
    """A number that a script wrote, if it is finite."""
    if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
