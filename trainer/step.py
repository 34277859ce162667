"""One optimizer step: forward and backward of this rank's micro-batches, then the update.

The loss is the mean over the *global* batch, however unevenly it is cut: each micro-batch adds its
sum divided by the global count, times the world size because DDP averages over ranks.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainer.loss import micro_batch_loss
from trainer.optim import lr_at, part_bounds
from trainer.state import Training
from trainer.tools import canonical_shards


def train_step(t: Training, order: torch.Tensor) -> None:
    """Advance by one step. `order`: the epoch's permutation of sample numbers, on the device."""
    rate = lr_at(t.step, t.config, t.plan)
    for group in t.optimizer.param_groups:
        group["lr"] = rate
    start, end = t.plan.batch_of(t.step)
    batch = order[start:end]
    if t.config.canonical_shards:
        canonical_shards.backward(t, batch)
    else:
        backward(t, batch)
    update(t)
    t.step += 1


def backward(t: Training, batch: torch.Tensor) -> None:
    """Leave the gradient of the global batch's mean loss in every rank's parameters."""
    count = t.plan.parts_per_rank
    for k in range(count):
        first, last = part_bounds(len(batch), t.plan.parts, t.ranks.rank * count + k)
        with contextlib.nullcontext() if k == count - 1 else unsynced(t.net):
            loss = micro_batch_loss(t, t.net, batch, first, last)
            loss = loss * (t.ranks.world_size / len(batch))
            (t.scaler.scale(loss) if t.scaler else loss).backward()


def unsynced(net: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Gradients add up locally; the last micro-batch's backward sends them all."""
    return net.no_sync() if isinstance(net, DistributedDataParallel) else contextlib.nullcontext()


def update(t: Training) -> None:
    if t.config.clip_grad_norm:
        if t.scaler:
            t.scaler.unscale_(t.optimizer)
        nn.utils.clip_grad_norm_(t.parameters, t.config.clip_grad_norm)
    if t.scaler:
        t.scaler.step(t.optimizer)
        t.scaler.update()
    else:
        t.optimizer.step()
    t.optimizer.zero_grad()
    if t.averages is not None:
        with torch.no_grad():
            torch._foreach_lerp_(t.averages, list(t.model.parameters()), 1 - t.config.ema)
