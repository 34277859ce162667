"""The trainer's progress, from the metrics.jsonl that its rank 0 writes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engines.status import mapping
from ..logs.metrics import entries, number
from ..ssh.host_connection import HostConnection
from ..ssh.script_files import load_script

_RANK = re.compile("[0-9]{1,6}")
PROGRESS = load_script(__file__, "trainer_progress.sh")


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
    # each slow rank's step time divided by the median, by rank
    slow: Mapping[int, float] = field(default_factory=dict)

    @property
    def brief(self) -> str:
        """Format the position: `epoch 3/10  step 120/400`."""
        counts = {"epoch": (self.epoch, self.epochs), "step": (self.step, self.steps)}
        return "  ".join(
            f"{name} {done}/{total}" if total else f"{name} {done}"
            for name, (done, total) in counts.items()
            if done is not None
        )


def read_progress(
    connection: HostConnection, run_dir: str, attempt: int, timeout: float
) -> Progress | None:
    """Return the progress of an attempt, read on its node 0; None if it has no numbers yet."""
    done = connection.script(PROGRESS, f"{run_dir}/output", timeout=timeout)
    return parse_progress(done.stdout, attempt)


def parse_progress(text: bytes, attempt: int) -> Progress | None:
    """Return the progress in lines of metrics.jsonl; None if this attempt has no numbers yet."""
    newest: dict[str, dict[str, Any]] = {}  # by kind
    for entry in entries(text):
        kind = str(entry.get("kind"))
        newest[kind] = entry
        if kind == "start":
            newest.pop("train", None)
    start, train = newest.get("start", {}), newest.get("train")
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
        top1=number(newest.get("eval", {}).get("top1")),
        slow=_slow(train.get("ranks")),
    )


def _slow(ranks: object) -> dict[int, float]:
    slow = mapping(mapping(ranks).get("slow"))
    rows = ((rank, number(ratio)) for rank, ratio in slow.items())
    return {int(rank): ratio for rank, ratio in rows if _RANK.fullmatch(rank) and ratio is not None}


def _whole(value: object) -> int | None:
    real = number(value)
    return None if real is None else int(real)
