"""What a live display wants to know beyond the logs: the trainer's own numbers, the GPUs' use.

Asked seldom and on threads of their own, so that a host that answers slowly delays nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import DdpctlError
from launcher.plan.plan import Place
from launcher.ssh.node import Node

EVERY_PROGRESS = 3.0  # seconds
EVERY_GPUS = 10.0  # seconds; nvidia-smi takes up to a second of a core where persistence is off
TIMEOUT = 10.0  # seconds for a host to answer
BACKOFF = 60.0  # seconds until a host that did not answer is asked again

# The run's length from the newest start line, how far it is from the last lines. $1 output folder
PROGRESS = (
    'cd "$1" 2>/dev/null && [ -f metrics.jsonl ] && '
    "{ grep -a total_steps metrics.jsonl | tail -n 1; tail -n 20 metrics.jsonl; }"
)
GPUS = (
    "nvidia-smi --query-gpu=utilization.gpu,memory.used,memory.total "
    "--format=csv,noheader,nounits 2>/dev/null"
)


@dataclass(frozen=True)
class Progress:
    """Our trainer's newest numbers; None where a number is not known."""

    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    img_s: float | None = None
    eta: float | None = None  # seconds
    top1: float | None = None


@dataclass(frozen=True)
class Gpus:
    """All GPUs of one host together. use: percent, the mean; used and total: MiB."""

    count: int
    use: float
    used: int
    total: int


@dataclass
class Gauges:
    """The newest answers. Written by the askers, read by the display."""

    progress: Progress | None = None
    gpus: dict[int, Gpus] = field(default_factory=dict)  # by node rank


class Asking:
    """Asks node 0 for progress and each host with GPUs for their use, until closed."""

    def __init__(self, nodes: Sequence[Node], places: Sequence[Place]) -> None:
        self.gauges = Gauges()
        self._over = threading.Event()
        asked: set[str] = set()
        for node, place in zip(nodes, places, strict=True):
            if place.node_rank == 0:
                self._begin(EVERY_PROGRESS, self._ask_progress, node, place)
            if node.host.gpus != 0 and node.name not in asked:
                asked.add(node.name)
                self._begin(EVERY_GPUS, self._ask_gpus, node, place)

    def close(self) -> None:
        self._over.set()

    def _begin(self, every: float, ask: Any, node: Node, place: Place) -> None:
        def work() -> None:
            while not self._over.is_set():
                try:
                    going_on = ask(node, place)
                    wait = every
                except DdpctlError:
                    going_on, wait = True, BACKOFF  # following says that the host is out of sight
                if not going_on:
                    return
                self._over.wait(wait)

        threading.Thread(target=work, daemon=True).start()

    def _ask_progress(self, node: Node, place: Place) -> bool:
        done = node.script(PROGRESS, f"{place.run_dir}/output", timeout=TIMEOUT)
        found = progress_of(done.stdout, place.attempt)
        if found is not None:
            self.gauges.progress = found
        return True

    def _ask_gpus(self, node: Node, place: Place) -> bool:
        done = node.script(GPUS, timeout=TIMEOUT)
        if done.code == 127:
            return False  # no nvidia-smi there, and none will come
        found = gpus_of(done.stdout)
        if found is not None:
            self.gauges.gpus[place.node_rank] = found
        return True


def progress_of(text: bytes, attempt: int) -> Progress | None:
    """From lines of metrics.jsonl; None before this attempt has written numbers of its own.

    Lines that are torn or of another kind are passed over.
    """
    start: dict[str, Any] = {}
    train: dict[str, Any] = {}
    top1 = None
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if not isinstance(entry, dict):
            continue
        if entry.get("kind") == "start":
            start, train = entry, {}
        elif entry.get("kind") == "train":
            train = entry
        elif entry.get("kind") == "eval":
            top1 = _number(entry.get("top1"))
    if not train or start.get("attempt", attempt) != attempt:
        return None
    steps, each = _whole(start.get("total_steps")), _whole(start.get("steps_per_epoch"))
    return Progress(
        epoch=_whole(train.get("epoch")),
        epochs=-(-steps // each) if steps and each else None,
        step=_whole(train.get("step")),
        steps=steps,
        loss=_number(train.get("loss")),
        img_s=_number(train.get("img_s")),
        eta=_number(train.get("eta_s")),
        top1=top1,
    )


def gpus_of(text: bytes) -> Gpus | None:
    """From nvidia-smi's rows `use, used, total`; None when there is none that can be read."""
    rows = []
    for line in text.decode(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[1].isdigit() and cells[2].isdigit():
            rows.append((int(cells[0]) if cells[0].isdigit() else 0, int(cells[1]), int(cells[2])))
    if not rows:
        return None
    return Gpus(
        count=len(rows),
        use=sum(row[0] for row in rows) / len(rows),
        used=sum(row[1] for row in rows),
        total=sum(row[2] for row in rows),
    )


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | float) else None
