"""Lines for people, from rank 0: plain text, one an interval, whether or not it is a terminal."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from trainer.optim import lr_at
from trainer.state import Training

LONGEST_SILENCE = 60.0  # seconds between lines where steps are slow: whoever watches sees it move


def say(text: str) -> None:
    sys.stdout.write(text + "\n")  # one write: print's two may be torn apart by another rank's
    sys.stdout.flush()


class Progress:
    """Averages since the last line."""

    def __init__(self, t: Training) -> None:
        self.t = t
        self.loss_sum = self.images = 0.0
        self.by_rank: list[float] = []
        self._restart()

    def add(self, loss_sum: float, images: float, by_rank: Sequence[float]) -> None:
        """Sums over all ranks, and each rank's own: its loss, its images, the next rank's loss ..."""
        self.loss_sum += loss_sum
        self.images += images
        self.by_rank = [a + b for a, b in zip(self.by_rank, by_rank, strict=True)]

    @property
    def due(self) -> bool:
        slow = time.perf_counter() - self.since >= LONGEST_SILENCE
        return slow or self.t.step - self.step >= self.t.config.print_every

    def fields(self) -> dict[str, Any]:
        """A `train` line of metrics.jsonl, and begin the next interval."""
        t, steps = self.t, max(1, self.t.step - self.step)
        seconds = max(1e-9, time.perf_counter() - self.since - self.paused)
        fields: dict[str, Any] = {
            "step": t.step,
            "epoch": t.epoch,
            "samples": t.plan.samples_by(t.step),
            "loss": self.loss_sum / max(1.0, self.images),
            "lr": lr_at(t.step - 1, t.config, t.plan),
            "img_s": round(self.images / seconds, 1),
            "step_ms": round(1000 * seconds / steps, 2),
            "data_ms": round(1000 * t.data_seconds / steps, 3),
            "mem_mb": memory_mb(t.ranks.device),
            "eta_s": round(seconds / steps * (t.plan.total_steps - t.step)),
        }
        if t.ranks.world_size > 1:
            own = list(zip(self.by_rank[::2], self.by_rank[1::2], strict=True))
            fields["ranks"] = {
                "loss": [round(loss / max(1.0, images), 6) for loss, images in own],
                "img_s": [round(images / seconds, 1) for _, images in own],
            }
        self._restart()
        return fields

    def pause(self, seconds: float) -> None:
        """Evaluating and saving are not training."""
        self.paused += seconds

    def _restart(self) -> None:
        self.loss_sum = self.images = self.paused = self.t.data_seconds = 0.0
        self.by_rank = [0.0] * (2 * self.t.ranks.world_size)
        self.step = self.t.step
        self.since = time.perf_counter()


def train_line(f: dict[str, Any], t: Training) -> str:
    share = 100 * f["data_ms"] / f["step_ms"] if f["step_ms"] else 0
    return (
        f"epoch {f['epoch']}/{t.plan.epochs}  step {f['step']}/{t.plan.total_steps}  "
        f"loss {f['loss']:.4f}  lr {f['lr']:.4g}  {f['img_s']:.0f} img/s "
        f"({f['img_s'] / t.ranks.world_size:.0f} a rank)  data {share:.0f} %  "
        f"mem {f['mem_mb']} MB  eta {clock(f['eta_s'])}"
    )


def eval_line(f: dict[str, Any]) -> str:
    return (
        f"epoch {f['epoch']}  {f['split']}: top-1 {100 * f['top1']:.2f} % "
        f"({f['correct1']} of {f['n']})  top-5 {100 * f['top5']:.2f} %  loss {f['loss']:.4f}"
    )


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def memory_mb(device: torch.device) -> int:
    """Peak of this process: of the GPU, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
