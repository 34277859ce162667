"""The loss of one micro-batch, as a sum: the caller knows how many images the whole batch has."""

from __future__ import annotations

import contextlib
import time

import torch
from torch import nn
from torch.nn import functional as F

from trainer import batchnorm
from trainer.state import Training


def micro_batch_loss(
    t: Training, net: nn.Module, batch: torch.Tensor, first: int, last: int
) -> torch.Tensor:
    """Summed loss of samples first..last of the batch. With none of them it is zero, but has all
    gradients, since every rank must take part in the exchange."""
    size = last - first
    indices = batch[first:last] if size else batch[:1]
    began = time.perf_counter()
    x, y = t.data.train_batch(indices, seed=t.config.seed, epoch=t.step // t.plan.steps_per_epoch)
    t.data_seconds += time.perf_counter() - began
    # One image has no statistics of its own.
    with batchnorm.fixed_statistics(t.model, when=size < 2 and t.config.bn == "local"):
        loss = loss_sum(t, net, x, y)
    if not size:
        return loss * 0
    t.totals[0] += loss.detach()
    t.totals[1] += size
    return loss


def loss_sum(t: Training, net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with autocast(t):
        logits = net(x)
    return F.cross_entropy(
        logits.float(), y, reduction="sum", label_smoothing=t.config.label_smoothing
    )


def autocast(t: Training) -> contextlib.AbstractContextManager[None]:
    if t.config.amp == "off":
        return contextlib.nullcontext()
    kind = torch.bfloat16 if t.config.amp == "bf16" else torch.float16
    return torch.autocast(t.ranks.device.type, dtype=kind)
