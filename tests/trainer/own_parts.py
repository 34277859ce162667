"""A network, a data set and a loss of the user's own, as the flags name them: own_parts:network."""

from __future__ import annotations

import random

import torch
from torch import nn
from torch.nn import functional as F


def network(num_classes: int) -> nn.Module:
    """Without batch norm, and with dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.Linear(200, num_classes),
    )  # fmt: skip


class Stripes(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    classes = ("horizontal", "vertical")

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.randn(3, 12, 12) * random.uniform(0.5, 1.0)
        image[:, :: 2 if index % 2 else 12, :: 12 if index % 2 else 2] += 1.0
        return image, index % 2


def stripes() -> tuple[Stripes, Stripes]:
    return Stripes(60), Stripes(20)


def squared(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    target = F.one_hot(labels, logits.shape[1]).float()
    return (logits.float().softmax(1) - target).square().sum(1)
