"""`Training`: all that changes while a run trains, and how it becomes a checkpoint and back."""

from __future__ import annotations

import inspect
import platform
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer import batchnorm
from trainer.config import Config
from trainer.data import Images
from trainer.distributed import Ranks
from trainer.model import build_model
from trainer.optim import Plan

PLACES = ("out", "checkpoint_dir", "data", "resume")  # not part of what was trained


@dataclass
class Training:
    config: Config
    plan: Plan
    ranks: Ranks
    data: Images
    model: nn.Module  # the plain network: evaluated, saved; its state_dict has no "module."
    net: nn.Module  # what training calls: compiled, inside DDP
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None  # fp16 only
    averages: list[torch.Tensor] | None  # of the parameters (--ema)
    totals: torch.Tensor  # this rank's since the last poll: loss sum, images; then two flags
    data_seconds: float = 0.0  # spent on making batches, as this process sees it
    step: int = 0  # optimizer steps done
    eval_pending: bool = False  # the epoch just finished is not evaluated yet
    best: dict[str, Any] = field(
        default_factory=dict
    )  # step, epoch and top1 of the best evaluation

    @property
    def epoch(self) -> int:
        """Epochs begun, counting from 1, as people count them."""
        return max(1, -(-self.step // self.plan.steps_per_epoch))

    @property
    def own_statistics(self) -> bool:
        """Do the ranks' batch-norm statistics differ?"""
        c = self.config
        return c.bn == "local" and self.ranks.world_size > 1 and not c.canonical_shards

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.model.parameters())


def build(config: Config, plan: Plan, ranks: Ranks, data: Images) -> Training:
    torch.manual_seed(config.seed)
    model = build_model(
        config.model, num_classes=classes(config, data), stem=config.stem, width=config.width
    ).to(ranks.device)
    # On a CPU the pictures' layout decides; the fused optimizer is twice as fast on plain weights.
    if config.channels_last and ranks.device.type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.bn == "sync" and ranks.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    averages = [p.detach().clone() for p in model.parameters()] if config.ema else None
    return Training(
        config=config,
        plan=plan,
        ranks=ranks,
        data=data,
        model=model,
        net=wrap(model, config, ranks),
        optimizer=make_optimizer(model, config),
        scaler=torch.amp.GradScaler(ranks.device.type) if config.amp == "fp16" else None,
        averages=averages,
        totals=torch.zeros(4, dtype=torch.float64, device=ranks.device),
    )


def wrap(model: nn.Module, config: Config, ranks: Ranks) -> nn.Module:
    """Compile inside DDP, so that DDP's hooks stay out of the compiled graph."""
    inner: nn.Module = torch.compile(model) if config.compile else model  # type: ignore[assignment]
    if ranks.world_size == 1 or config.canonical_shards:
        return inner
    return DistributedDataParallel(
        inner,
        device_ids=[ranks.device.index] if ranks.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        **_unsynced_buffers(),
    )


def _unsynced_buffers() -> dict[str, Any]:
    """Statistics are averaged once, before evaluating or saving, and not sent before each forward.
    DDP's word for that changed in torch 2.13."""
    words = inspect.signature(DistributedDataParallel).parameters
    new = "forward_sync_buffers" in words
    return {"forward_sync_buffers" if new else "broadcast_buffers": False}


def make_optimizer(model: nn.Module, config: Config) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]  # batch norm and biases
    decay = config.weight_decay
    other_decay = decay if config.norm_weight_decay is None else config.norm_weight_decay
    groups = [
        {"params": weights, "weight_decay": decay},
        {"params": others, "weight_decay": other_decay},
    ]
    if config.opt == "sgd":
        return torch.optim.SGD(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov and config.momentum > 0,
            fused=True,
        )
    if config.opt == "adam":
        return torch.optim.Adam(groups, lr=config.lr, fused=True)
    return torch.optim.AdamW(groups, lr=config.lr, fused=True)


def classes(config: Config, data: Images) -> int:
    return config.num_classes or data.num_classes


def identity(t: Training) -> dict[str, Any]:
    """What must be the same for a checkpoint to be gone on from."""
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


def to_checkpoint(t: Training) -> tuple[dict[str, Any], dict[str, Any]]:
    """(state, meta) to be written by rank 0. A collective: all ranks call it."""
    own = batchnorm.of_every_rank(t.model, t.ranks) if t.own_statistics else None
    with batchnorm.averaged(t.model, t.ranks, when=t.own_statistics):
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
    """Go on from a checkpoint that fits (see restore.check_fits)."""
    t.model.load_state_dict(state["model"])
    own = state["statistics_of_every_rank"]
    if own is not None and len(own) == t.ranks.world_size and t.own_statistics:
        tensors = batchnorm.statistics(t.model)
        batchnorm.unflatten(own[t.ranks.rank].to(t.ranks.device), tensors)
    # Momentum comes back; learning rate, decay and the like are this run's flags.
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


def versions() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
