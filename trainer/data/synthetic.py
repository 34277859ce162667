"""Learnable images, generated from a fixed seed: equal on every rank, with nothing to download.

Each class has a smooth prototype; a sample is its class's prototype plus noise. A network that
learns exceeds 95%; one without gradients stays at chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from .order import mixed_seed


@dataclass(frozen=True)
class Arrays:
    """Raw images. x: (N, H, W, C) uint8. y: (N,) int64."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor
    num_classes: int
    name: str


def synthetic(train: int, test: int, classes: int, size: int) -> Arrays:
    """Return `train` + `test` images of `size` x `size` pixels, in classes of nearly equal size."""
    generator = torch.Generator()
    generator.manual_seed(mixed_seed(f"synthetic/{classes}/{size}"))
    coarse = torch.randn(classes, 3, 4, 4, generator=generator)
    prototypes = F.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=False)
    train_x, train_y = _draw(prototypes, train, generator)
    test_x, test_y = _draw(prototypes, test, generator)
    return Arrays(train_x, train_y, test_x, test_y, classes, "synthetic images")


def _draw(
    prototypes: torch.Tensor, count: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.arange(count) % len(prototypes)
    y = y[torch.randperm(count, generator=generator)]
    x = torch.empty(count, *prototypes.shape[2:], 3, dtype=torch.uint8)
    for start in range(0, count, 1000):  # limits the memory for floats
        labels = y[start : start + 1000]
        noise = torch.randn(len(labels), *prototypes.shape[1:], generator=generator)
        pixels = (prototypes[labels] + noise) * 40 + 128
        x[start : start + 1000] = pixels.clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
    return x, y
