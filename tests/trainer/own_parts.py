"""A network, a dataset and a loss of the user's own, as the flags name them: own_parts:network."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

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


class Fading(torch.optim.SGD):
    """Counts its steps in its groups, as Prodigy does, and takes smaller and smaller ones."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] /= group["steps"]
        super().step(closure)


def frozen_backbone(num_classes: int) -> nn.Module:
    """As for fine-tuning: only the last layer and one norm are trained."""
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Conv2d(8, 8, 3))
    for parameter in backbone.parameters():
        parameter.requires_grad_(False)
    head = (nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))
    return nn.Sequential(backbone, *head)


def all_frozen(num_classes: int) -> nn.Module:
    return frozen_backbone(num_classes).requires_grad_(False)


class PartlyUsed(nn.Module):
    """One of its layers is never called."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head, self.spare = nn.Linear(3, num_classes), nn.Linear(3, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.mean((2, 3)))


def partly_used(num_classes: int) -> nn.Module:
    return PartlyUsed(num_classes)


class Dropping(nn.Module):
    """Remembers the random numbers that it drew."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)
        self.mask = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mask = torch.rand(4)
        return self.head(x.mean((2, 3)))


def dropping(num_classes: int) -> nn.Module:
    return Dropping(num_classes)


def peculiar(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Depends on the order of the images."""
    return {"first": float(logits[0].max()), "labels": float(labels[-1])}


def spread(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return labels.float().std()


def instance_norm(num_classes: int) -> nn.Module:
    """Keeps running statistics that are no batch norm's."""
    norm = nn.InstanceNorm2d(4, track_running_stats=True)
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), *end)


tracked: list[Path] = []


def tracker(line: dict[str, Any]) -> None:
    """Keep a line beside the run's folder. It fails at the end of the run."""
    if line["kind"] == "start":
        tracked.append(Path(line["config"]["out"]).parent / "tracked")
    with tracked[-1].open("a") as file:
        file.write(json.dumps(line) + "\n")
    if line["kind"] == "end":
        raise OSError("out of reach")


def steps_down(done: float, epoch: int) -> float:
    return (1 - done) * 0.5**epoch


def numbered(x: torch.Tensor, indices: torch.Tensor, seed: int, epoch: int) -> torch.Tensor:
    return x + indices[:, None, None, None] + 100 * seed + 1000 * epoch
