"""What a run writes for programs: metrics.jsonl and status.json, from rank 0 only.

metrics.jsonl has one JSON object a line, of kind start, train, eval, checkpoint or end, flushed as
it is written. A resumed run continues the file from the step it resumes at, so no step is there
twice. status.json is replaced in one act, and only exists once a run has ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

from trainer.checkpoint import replace_file, set_aside

VERSION = 1
TENSORBOARD_TAGS = {
    "train": ("loss", "lr", "img_s"),
    "eval": ("top1", "top5", "loss"),
}


class Metrics:
    """`out` None: a rank that writes nothing."""

    def __init__(self, out: Path | None, resumed_step: int | None, tensorboard: bool) -> None:
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
            self.writer = _tensorboard(out, resumed_step)

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


def truncate(path: Path, step: int) -> None:
    """Drop the lines after `step`, the end of an earlier attempt, and a torn last line."""
    with contextlib.suppress(FileNotFoundError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _belongs(line, step)]
        if kept != lines:
            replace_file(path, "".join(kept).encode())


def has_checkpoints(out: Path) -> bool:
    """Does metrics.jsonl tell of a checkpoint that was written?"""
    try:
        lines = (out / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any((_parsed(line) or {}).get("kind") == "checkpoint" for line in lines)


def write_status(
    out: Path, state: str, step: int, checkpoint: str | None, reason: str, **more: Any
) -> None:
    """state: completed, preempted, failed or diverged. checkpoint: the newest whole one's folder."""
    out.mkdir(parents=True, exist_ok=True)
    status = {
        "v": VERSION,
        "state": state,
        "step": step,
        "checkpoint": checkpoint,
        "reason": reason,
        "ts": round(time.time(), 3),
        **more,
    }
    replace_file(out / "status.json", (json.dumps(_finite(status), indent=2) + "\n").encode())


def _belongs(line: str, step: int) -> bool:
    entry = _parsed(line)
    if entry is None or not line.endswith("\n") or entry.get("kind") == "end":
        return False
    return entry.get("kind") == "start" or int(entry.get("step", 0)) <= step


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _finite(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _tensorboard(out: Path, resumed_step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None  # the caller's start line says that it is not installed
    return SummaryWriter(
        str(out / "tb"), purge_step=None if resumed_step is None else resumed_step + 1
    )
