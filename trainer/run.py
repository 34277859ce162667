"""`Run`: a Training with its files, its clock and its stop signal; evaluating and saving."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainer import checkpoint, replicas
from trainer.checkpoint import Saved
from trainer.console import Progress, eval_line, say
from trainer.disks import Disks, write_copy
from trainer.errors import CheckpointError
from trainer.evaluate import evaluate, evaluated
from trainer.logs import Metrics
from trainer.signals import StopRequest
from trainer.state import Training, to_checkpoint


class Stopped(Exception):
    """All ranks agreed to save and end: a signal came to one of them."""


@dataclass
class Run:
    t: Training
    metrics: Metrics
    stop: StopRequest
    progress: Progress
    disks: Disks
    began: float = field(default_factory=time.monotonic)
    saved: str | None = None  # newest checkpoint, e.g. ckpt/step-00001234
    saved_step: int = -1
    saved_at: float = field(default_factory=time.monotonic)
    last: dict[str, Any] = field(default_factory=dict)  # newest evaluation

    @property
    def out(self) -> Path:
        return Path(self.t.config.out)


def stop_agreed(run: Run) -> bool:
    """Has any rank been asked to stop? The same answer on all of them."""
    flag = torch.tensor(float(bool(run.stop)), device=run.t.ranks.device)
    return bool(run.t.ranks.sum_(flag))


def record_evaluation(run: Run, split: str) -> None:
    """Evaluate and write it down; the best one so far is remembered and kept as best.pth.

    Raises Stopped when a stop was agreed on before all images were seen.
    """
    t = run.t
    began = time.perf_counter()
    result = evaluate(t, split, lambda: stop_agreed(run))
    if result is None:
        raise Stopped
    run.last = {"step": t.step, "epoch": t.epoch, **result}
    if split == selecting_split(t) and result["top1"] > t.best.get("top1", -1.0):
        t.best = {k: run.last[k] for k in ("step", "epoch", "top1")} | {"selected_on": split}
    run.metrics.write(
        "eval", **run.last, best_top1=t.best.get("top1"), selected_on=t.best.get("selected_on")
    )
    if t.ranks.first:
        say(eval_line(run.last))
    run.progress.pause(time.perf_counter() - began)


def selecting_split(t: Training) -> str:
    """The images that choose the best epoch. Chosen on "test", it is no estimate of new images."""
    return "val" if t.config.val_split else "test"


def save(run: Run) -> None:
    """Write a checkpoint, after making sure that all ranks hold the same weights."""
    t, began = run.t, time.perf_counter()
    replicas.check_equal(t)
    state, meta = to_checkpoint(t)
    saved: Saved | None = None
    trouble = ""
    with t.ranks.agreeing():  # also: nobody goes on, or leaves, before it is on the disk
        if t.ranks.first:
            saved = checkpoint.save(run.disks.root, state, meta, t.config.keep)
        elif t.ranks.rank == run.disks.copy_on:
            trouble = write_copy(run.disks, state, meta, t.config.keep)
    if run.disks.copy_on is not None:
        trouble = t.ranks.broadcast(trouble, run.disks.copy_on)
        if trouble and t.ranks.first:
            say(f"WARNING: no second copy of this checkpoint: {trouble}")
    seconds = time.perf_counter() - began
    run.saved, run.saved_step, run.saved_at = f"ckpt/step-{t.step:08d}", t.step, time.monotonic()
    if saved:
        run.metrics.write(
            "checkpoint",
            step=t.step,
            epoch=t.epoch,
            path=run.saved,
            bytes=(saved.path / "state.pt").stat().st_size,
            sha256=saved.identity,
            seconds=round(seconds, 4),
        )
    run.progress.pause(seconds)


def export(run: Run) -> None:
    """epoch_N.pth and, after the best evaluation so far, best.pth: the evaluated network's plain
    state_dict. Load with `build_model(...).load_state_dict(torch.load(path))`."""
    t, began = run.t, time.perf_counter()
    wanted = bool(t.config.export_every) and t.epoch % t.config.export_every == 0
    best = t.best.get("step") == t.step
    if not (wanted or best):
        return
    with evaluated(t), t.ranks.agreeing():
        if t.ranks.first:
            _export(run.out, f"epoch_{t.epoch}.pth" if wanted else "best.pth", t.model)
            if wanted and best:
                _link(run.out / f"epoch_{t.epoch}.pth", run.out / "best.pth")
    run.progress.pause(time.perf_counter() - began)


def _export(out: Path, name: str, model: torch.nn.Module) -> None:
    temporary = out / f".{name}.{os.getpid()}"
    try:
        torch.save({key: value.cpu() for key, value in model.state_dict().items()}, temporary)
        temporary.replace(out / name)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {out / name}: {error}".splitlines()[0]) from error


def _link(source: Path, target: Path) -> None:
    """The same file under a second name: no second copy of the weights."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        temporary.write_bytes(source.read_bytes())
    temporary.replace(target)
