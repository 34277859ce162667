"""The loss. Training and evaluation both use it; to change the loss, change this file, or name a
function of your own: `--loss package.module:function`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional as F

from .config import Config, is_function_name, named_function
from .errors import Diverged, UsageError

# (logits (B, C), labels (B,)) -> the loss of each sample, (B,)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Losses(NamedTuple):
    """The losses of training and of evaluation. They differ only in label smoothing."""

    training: Loss
    evaluation: Loss


def make_losses(config: Config) -> Losses:
    if is_function_name(config.loss):
        own = per_sample(config.loss)
        return Losses(own, own)
    if config.loss != "cross-entropy":
        raise UsageError(
            f"--loss {config.loss}: unknown loss; use cross-entropy, or package.module:function"
        )
    return Losses(cross_entropy(config.label_smoothing), cross_entropy(0.0))


def cross_entropy(smoothing: float) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)

    return loss


def per_sample(name: str) -> Loss:
    """Return the user's loss function. Calling it raises UsageError unless it returns one loss per
    sample, because a mean would count as a sum and train at a fraction of the learning rate."""
    own = named_function("--loss", name)

    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = own(logits, labels)
        if losses.shape != labels.shape:
            raise UsageError(
                f"--loss {name}: returned shape {tuple(losses.shape)} for {len(labels)} samples; "
                'it must return one loss per sample (reduction="none")'
            )
        return losses

    return loss


def check_finite(loss: float, step: int) -> None:
    """Raise Diverged if the loss, summed over all ranks, is not finite."""
    if not math.isfinite(loss):
        raise Diverged(f"step {step}: the loss is {loss}; lower --lr or raise --warmup-epochs")
