"""The trainer's progress for the live panel.

Polled at long intervals on a separate thread, so that a slow host delays nothing else.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ..engines.attempt import RunningAttempt
from ..errors import DdpctlError
from ..logs.metrics import entries, number

PROGRESS_INTERVAL = 3.0  # seconds
TIMEOUT = 10.0  # seconds for a host to answer
BACKOFF = 60.0  # seconds until a host that did not answer is polled again

# Prints the newest start line, which has the run's length, and the last lines. $1: the output
# folder
PROGRESS = (
    'cd "$1" 2>/dev/null && [ -f metrics.jsonl ] && '
    "{ grep -a total_steps metrics.jsonl | tail -n 1; tail -n 20 metrics.jsonl; }"
)


@dataclass(frozen=True)
class Progress:
    """The trainer's newest numbers; None if unknown."""

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
        """Format the position: `epoch 3/10  step 120/400`."""
        words = []
        if self.epoch is not None:
            words.append(f"epoch {self.epoch}" + (f"/{self.epochs}" if self.epochs else ""))
        if self.step is not None:
            words.append(f"step {self.step}" + (f"/{self.steps}" if self.steps else ""))
        return "  ".join(words)


class ProgressPoller:
    """Polls node 0 until closed. The poller's thread updates `progress`."""

    def __init__(self, attempt: RunningAttempt) -> None:
        self.progress: Progress | None = None
        self._member = attempt.members[0]
        self._closed = threading.Event()
        threading.Thread(target=self._work, daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _work(self) -> None:
        while not self._closed.is_set():
            wait = PROGRESS_INTERVAL
            try:
                self._poll()
            except DdpctlError:
                wait = BACKOFF  # the monitor reports lost contact
            self._closed.wait(wait)

    def _poll(self) -> None:
        place = self._member.place
        done = self._member.node.script(PROGRESS, f"{place.run_dir}/output", timeout=TIMEOUT)
        self.progress = parse_progress(done.stdout, place.attempt) or self.progress


def parse_progress(text: bytes, attempt: int) -> Progress | None:
    """Parse lines of metrics.jsonl. Return None if this attempt has not written any numbers yet."""
    start: dict[str, Any] = {}
    train: dict[str, Any] = {}
    top1 = None
    for entry in entries(text):
        if entry.get("kind") == "start":
            start, train = entry, {}
        elif entry.get("kind") == "train":
            train = entry
        elif entry.get("kind") == "eval":
            top1 = number(entry.get("top1"))
    if not train or start.get("attempt", attempt) != attempt:
        return None
    steps, per_epoch = _whole(start.get("total_steps")), _whole(start.get("steps_per_epoch"))
    return Progress(
        epoch=_whole(train.get("epoch")),
        epochs=-(-steps // per_epoch) if steps and per_epoch else None,
        step=_whole(train.get("step")),
        steps=steps,
        loss=number(train.get("loss")),
        img_s=number(train.get("img_s")),
        eta=number(train.get("eta_s")),
        top1=top1,
    )


def _whole(value: object) -> int | None:
    found = number(value)
    return None if found is None else int(found)
