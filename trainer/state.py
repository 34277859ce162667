"""`Training`: everything that one run holds, and how it is saved and loaded."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from . import checkpoint
from .config import Config
from .data import Images
from .distributed import Ranks
from .logs import Log
from .loss import Losses
from .net import Net
from .optim import load_optimizer
from .plan import Plan
from .poll import Poll
from .saver import Saver

PLACES = ("out", "checkpoint_dir", "data", "resume")  # settings that do not affect training


@dataclass
class Training:
    config: Config
    plan: Plan
    ranks: Ranks
    data: Images
    net: Net
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None  # fp16 only
    losses: Losses
    poll: Poll
    saver: Saver
    log: Log
    step: int = 0  # optimizer steps done
    eval_pending: bool = False  # the epoch that just ended is not evaluated yet
    best: dict[str, Any] = field(default_factory=dict)  # step, epoch, top1 of the best evaluation

    @property
    def epoch(self) -> int:
        """The number of epochs started, at least 1."""
        return max(1, -(-self.step // self.plan.steps_per_epoch))


def to_checkpoint(t: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the (state, meta) of a checkpoint."""
    averaged = None
    if t.net.ema:
        with t.net.evaluated():
            averaged = checkpoint.snapshot(t.net.model.state_dict())
    state = {
        "model": checkpoint.snapshot(t.net.model.state_dict()),
        "optimizer": checkpoint.snapshot(t.optimizer.state_dict()),
        "ema": averaged,
        "scaler": t.scaler.state_dict() if t.scaler else None,
    }
    checkpoint.synchronize(t.ranks.device)
    meta = {
        "v": 1,
        "step": t.step,
        "epoch": t.epoch,
        "eval_pending": t.eval_pending,
        "best": t.best,
        "last": t.log.last,
        "identity": identity(t),
        "plan": asdict(t.plan),
        "config": {k: v for k, v in asdict(t.config).items() if k not in PLACES},
        "versions": versions(),
    }
    return state, meta


def from_checkpoint(t: Training, state: dict[str, Any], meta: dict[str, Any]) -> None:
    """Continue from a checkpoint that fits (see restore.check_fits)."""
    t.net.model.load_state_dict(state["model"])
    if t.net.ema:
        t.net.ema.load(state["ema"] or state["model"])
    if not t.config.test_only:
        load_optimizer(t.optimizer, state["optimizer"])
    if t.scaler and state["scaler"]:
        t.scaler.load_state_dict(state["scaler"])
    t.step = meta["step"]
    t.eval_pending = meta["eval_pending"]
    t.best, t.log.last = meta["best"], meta["last"]


def identity(t: Training) -> dict[str, Any]:
    """Return the properties that must not change when a run resumes from a checkpoint, unless
    --resume-override allows it (see restore.check_fits)."""
    c = t.config
    classes = c.num_classes or t.data.num_classes
    network = f"{c.model} width {c.width or 'default'} stem {c.stem}, {classes} classes"
    return {
        "network": network,
        "optimizer": c.opt,
        "data": t.data.fingerprint,
        "images": t.plan.samples,
        "global batch": t.plan.global_batch,
        "seed": c.seed,
        "drop last": c.drop_last,
        "canonical shards": c.canonical_shards,
    }


def versions() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
