"""`Training`: everything that changes while a run trains, and how it is saved and loaded."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from trainer import checkpoint
from trainer.checkpoint import Saved
from trainer.config import Config
from trainer.data import Images
from trainer.distributed import (
    Ranks,
    averaged_statistics,
    check_replicas,
    statistics,
    statistics_of_every_rank,
    unflatten,
)
from trainer.errors import CheckpointError
from trainer.logs import Metrics, Progress, say
from trainer.optim import Plan
from trainer.restore import Disks

if TYPE_CHECKING:
    from trainer.ending import StopRequest

PLACES = ("out", "checkpoint_dir", "data", "resume")  # not part of what was trained


@dataclass
class Training:
    config: Config
    plan: Plan
    ranks: Ranks
    data: Images
    model: nn.Module  # the plain network: evaluated and saved; its state_dict has no "module."
    net: nn.Module  # what training calls: compiled, inside DDP
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None  # fp16 only
    averages: list[torch.Tensor] | None  # of the parameters (--ema)
    totals: torch.Tensor  # of this rank since the last poll: loss sum, images; then two flags
    stop: StopRequest
    progress: Progress
    disks: Disks
    metrics: Metrics = field(default_factory=lambda: Metrics(None))
    step: int = 0  # optimizer steps done
    eval_pending: bool = False  # the epoch just finished is not evaluated yet
    best: dict[str, Any] = field(default_factory=dict)  # step, epoch, top1 of the best evaluation
    last: dict[str, Any] = field(default_factory=dict)  # the newest evaluation
    began: float = field(default_factory=time.monotonic)
    saved: str | None = None  # the newest checkpoint, e.g. ckpt/step-00001234
    saved_step: int = -1
    saved_at: float = field(default_factory=time.monotonic)

    @property
    def epoch(self) -> int:
        """Epochs started, counted from 1."""
        return max(1, -(-self.step // self.plan.steps_per_epoch))

    @property
    def own_statistics(self) -> bool:
        """Whether the ranks' batch-norm statistics differ."""
        c = self.config
        return c.bn == "local" and self.ranks.world_size > 1 and not c.canonical_shards

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.config.amp == "off":
            return contextlib.nullcontext()
        kind = torch.bfloat16 if self.config.amp == "bf16" else torch.float16
        return torch.autocast(self.ranks.device.type, dtype=kind)


def classes(config: Config, data: Images) -> int:
    return config.num_classes or data.num_classes


def save(t: Training) -> None:
    """Write a checkpoint, once all ranks are known to hold the same weights. A collective."""
    began = time.perf_counter()
    check_replicas(t.ranks, t.parameters, t.step)
    state, meta = to_checkpoint(t)
    saved: Saved | None = None
    trouble = ""
    with t.ranks.agreeing():  # no rank continues, or leaves, before the checkpoint is on disk
        if t.ranks.first:
            saved = checkpoint.save(t.disks.root, state, meta, t.config.keep)
        elif t.ranks.rank == t.disks.copy_on:
            trouble = write_copy(t.disks.root, state, meta, t.config.keep)
    if t.disks.copy_on is not None:
        trouble = t.ranks.broadcast(trouble, t.disks.copy_on)
        if trouble and t.ranks.first:
            say(f"WARNING: no second copy of this checkpoint: {trouble}")
    seconds = time.perf_counter() - began
    t.saved, t.saved_step, t.saved_at = f"ckpt/step-{t.step:08d}", t.step, time.monotonic()
    if saved:
        t.metrics.write(
            "checkpoint",
            step=t.step,
            epoch=t.epoch,
            path=t.saved,
            bytes=(saved.path / "state.pt").stat().st_size,
            sha256=saved.identity,
            seconds=round(seconds, 4),
        )
    t.progress.pause(seconds)


def write_copy(root: Path, state: dict[str, Any], meta: dict[str, Any], keep: int) -> str:
    """Write the second copy. Returns what went wrong, if anything: the run has the first copy, so a
    full second disk is only a warning."""
    try:
        checkpoint.save(root, state, meta, keep)
    except CheckpointError as error:
        return str(error)
    return ""


def to_checkpoint(t: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, meta) for rank 0 to write. A collective: all ranks call it."""
    own = statistics_of_every_rank(t.model, t.ranks) if t.own_statistics else None
    with averaged_statistics(t.model, t.ranks, when=t.own_statistics):
        model = {name: value.cpu().clone() for name, value in t.model.state_dict().items()}
    state = {
        "model": model,
        "optimizer": t.optimizer.state_dict(),
        "statistics_of_every_rank": own,
        "averages": t.averages,
        "scaler": t.scaler.state_dict() if t.scaler else None,
    }
    meta = {
        "v": 1,
        "step": t.step,
        "epoch": t.epoch,
        "eval_pending": t.eval_pending,
        "best": t.best,
        "identity": identity(t),
        "world_size": t.ranks.world_size,
        "parts": t.plan.parts,
        "steps_per_epoch": t.plan.steps_per_epoch,
        "total_steps": t.plan.total_steps,
        "config": {k: v for k, v in asdict(t.config).items() if k not in PLACES},
        "versions": versions(),
    }
    return state, meta


def from_checkpoint(t: Training, state: dict[str, Any], meta: dict[str, Any]) -> None:
    """Continue from a checkpoint that fits (see restore.check_fits)."""
    t.model.load_state_dict(state["model"])
    own = state["statistics_of_every_rank"]
    if own is not None and len(own) == t.ranks.world_size and t.own_statistics:
        unflatten(own[t.ranks.rank].to(t.ranks.device), statistics(t.model))
    # Momentum comes from the checkpoint; learning rate, decay and the like from this run's flags.
    groups = t.optimizer.state_dict()["param_groups"]
    t.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
    if t.averages is not None:
        saved = state["averages"] or list(t.model.parameters())
        with torch.no_grad():
            for average, value in zip(t.averages, saved, strict=True):
                average.copy_(value)
    if t.scaler and state["scaler"]:
        t.scaler.load_state_dict(state["scaler"])
    t.step = meta["step"]
    t.eval_pending = meta["eval_pending"]
    t.best = meta["best"]


def identity(t: Training) -> dict[str, Any]:
    """What must be the same for a run to resume from a checkpoint."""
    c = t.config
    network = f"{c.model} width {c.width or 'default'} stem {c.stem}, {classes(c, t.data)} classes"
    return {
        "network": network,
        "optimizer": c.opt,
        "data": t.data.fingerprint,
        "images": t.plan.samples,
        "global batch": t.plan.global_batch,
        "seed": c.seed,
        "augment": c.augment,
        "drop last": c.drop_last,
    }


def versions() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def write_weights(path: Path, model: nn.Module) -> None:
    """Write a network's plain state_dict atomically. Raises CheckpointError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        torch.save({key: value.cpu() for key, value in model.state_dict().items()}, temporary)
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as RuntimeError
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error}".splitlines()[0]) from error
