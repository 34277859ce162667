"""What rank 0 writes: metrics.jsonl and status.json for programs, lines of text for people.

metrics.jsonl has one JSON object per line, of kind start, train, eval, checkpoint or end, flushed as
it is written. A resumed run continues the file from the step it resumes at, so no step appears
twice. status.json is replaced atomically and exists only once a run has ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .checkpoint import replace_file, set_aside
from .config import Config
from .distributed import Ranks
from .optim import Plan

VERSION = 1
TENSORBOARD_TAGS = {"train": ("loss", "lr", "img_s"), "eval": ("top1", "top5", "loss")}
LONGEST_SILENCE = 60.0  # seconds between lines when steps are slow


class Metrics:
    """metrics.jsonl in `out`. With `out` None, a rank that writes nothing."""

    def __init__(
        self, out: Path | None, resumed_step: int | None = None, tensorboard: bool = False
    ) -> None:
        self.path = out / "metrics.jsonl" if out else None
        self.writer: Any = None
        if out is None or self.path is None:
            return
        out.mkdir(parents=True, exist_ok=True)
        (out / "status.json").unlink(missing_ok=True)
        if resumed_step is None:
            set_aside(self.path, "earlier")
        else:
            truncate(self.path, resumed_step)
        if tensorboard:
            with contextlib.suppress(ImportError):  # setup.introduce reports it
                from torch.utils.tensorboard import SummaryWriter

                purge = None if resumed_step is None else resumed_step + 1
                self.writer = SummaryWriter(str(out / "tb"), purge_step=purge)

    def write(self, kind: str, **fields: Any) -> None:
        if self.path is None:
            return
        line = {"v": VERSION, "kind": kind, "ts": round(time.time(), 3), **fields}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_finite(line)) + "\n")
        if self.writer is not None:
            for tag in TENSORBOARD_TAGS.get(kind, ()):
                if tag in fields:
                    self.writer.add_scalar(f"{kind}/{tag}", fields[tag], fields["step"])

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def write_status(
    out: Path, state: str, step: int, checkpoint: str | None, reason: str, **more: Any
) -> None:
    """state: completed, preempted, failed or diverged. checkpoint: folder of the newest one."""
    out.mkdir(parents=True, exist_ok=True)
    status = {"v": VERSION, "state": state, "step": step, "checkpoint": checkpoint}
    status |= {"reason": reason, "ts": round(time.time(), 3), **more}
    replace_file(out / "status.json", (json.dumps(_finite(status), indent=2) + "\n").encode())


def truncate(path: Path, step: int) -> None:
    """Drop lines after `step`, any earlier `end` line, and an incomplete last line."""

    def belongs(line: str) -> bool:
        try:
            entry = json.loads(line)
            kind, of_step = entry["kind"], int(entry.get("step", 0))
        except (ValueError, TypeError, KeyError):
            return False
        return line.endswith("\n") and kind != "end" and (kind == "start" or of_step <= step)

    with contextlib.suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if belongs(line)]
        if kept != lines:
            replace_file(path, "".join(kept).encode())


def mentions_checkpoints(out: Path) -> bool:
    """Whether metrics.jsonl has a line of kind checkpoint."""
    with contextlib.suppress(OSError):
        text = (out / "metrics.jsonl").read_text(encoding="utf-8", errors="replace")
        return '"kind": "checkpoint"' in text
    return False


def _finite(value: Any) -> Any:
    """JSON has no NaN; use null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


class Progress:
    """Loss and speed since the last line of progress."""

    def __init__(self, config: Config, plan: Plan, ranks: Ranks, step: int) -> None:
        self.config, self.plan, self.ranks = config, plan, ranks
        self.restart(step)

    def restart(self, step: int) -> None:
        self.step, self.since = step, time.perf_counter()
        self.loss_sum = self.images = self.paused = self.data_seconds = 0.0
        self.by_rank = [0.0] * (2 * self.ranks.world_size)

    def add(self, loss_sum: float, images: float, by_rank: Sequence[float]) -> None:
        """Sums over all ranks, and each rank's own: its loss, its images, the next rank's loss ..."""
        self.loss_sum += loss_sum
        self.images += images
        self.by_rank = [a + b for a, b in zip(self.by_rank, by_rank, strict=True)]

    def pause(self, seconds: float) -> None:
        """Do not count time spent on evaluating or saving."""
        self.paused += seconds

    def due(self, step: int) -> bool:
        slow = time.perf_counter() - self.since >= LONGEST_SILENCE
        return slow or step - self.step >= self.config.print_every

    def fields(self, step: int, epoch: int, lr: float) -> dict[str, Any]:
        """A `train` line of metrics.jsonl; starts the next interval."""
        steps = max(1, step - self.step)
        seconds = max(1e-9, time.perf_counter() - self.since - self.paused)
        fields: dict[str, Any] = {
            "step": step,
            "epoch": epoch,
            "samples": self.plan.samples_by(step),
            "loss": self.loss_sum / max(1.0, self.images),
            "lr": lr,
            "img_s": round(self.images / seconds, 1),
            "step_ms": round(1000 * seconds / steps, 2),
            "data_ms": round(1000 * self.data_seconds / steps, 3),
            "mem_mb": memory_mb(self.ranks.device),
            "eta_s": round(seconds / steps * (self.plan.total_steps - step)),
        }
        if self.ranks.world_size > 1:
            own = list(zip(self.by_rank[::2], self.by_rank[1::2], strict=True))
            fields["ranks"] = {
                "loss": [round(loss / max(1.0, images), 6) for loss, images in own],
                "img_s": [round(images / seconds, 1) for _, images in own],
            }
        self.restart(step)
        return fields


def say(text: str) -> None:
    sys.stdout.write(text + "\n")  # one write: another rank's line may come between print's two
    sys.stdout.flush()


def train_line(f: dict[str, Any], plan: Plan) -> str:
    share = 100 * f["data_ms"] / f["step_ms"] if f["step_ms"] else 0
    return (
        f"epoch {f['epoch']}/{plan.epochs}  step {f['step']}/{plan.total_steps}  "
        f"loss {f['loss']:.4f}  lr {f['lr']:.4g}  {f['img_s']:.0f} img/s "
        f"({f['img_s'] / plan.world_size:.0f} per rank)  data {share:.0f} %  "
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
    """Peak memory of this process: on the GPU, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) >> 20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
