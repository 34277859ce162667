"""The loss. Training and evaluation both use it; to change the loss, change this file, or name a
function of your own: `--loss package.module:function`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from .config import Config, is_function_name, named_function
from .errors import UsageError

# (logits (B, C), labels (B,)) -> the loss of each sample, (B,)
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_losses(config: Config) -> tuple[Loss, Loss]:
    """The losses of training and of evaluation; they differ by label smoothing only."""
    if is_function_name(config.loss):
        own = named_function("--loss", config.loss)
        return own, own
    if config.loss != "cross-entropy":
        raise UsageError(f"--loss {config.loss}: cross-entropy, or package.module:function")
    return cross_entropy(config.label_smoothing), cross_entropy(0.0)


def cross_entropy(smoothing: float) -> Loss:
    def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), labels, reduction="none", label_smoothing=smoothing)

    return loss
