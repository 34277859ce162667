"""`Images`, the protocol that every dataset follows, however its images are stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import torch


class Batch(NamedTuple):
    """A micro-batch on the training device."""

    indices: torch.Tensor  # (B,) int64, numbers of the samples in their split
    x: torch.Tensor  # (B, C, H, W) normalized floats
    y: torch.Tensor  # (B,) int64


class Images(Protocol):
    """A dataset, as training and evaluation use it."""

    name: str
    num_classes: int
    shape: torch.Size  # channels, height and width of an image in evaluation
    fingerprint: str  # detects different images on resume or on another node

    def size(self, split: str) -> int:
        """Return the number of images in "train", "val" or "test"."""

    def train_batches(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> Iterator[Batch]:
        """Yield the images order[part] for each of `parts`, augmented according to the settings."""

    def eval_batches(self, split: str, blocks: Iterable[slice]) -> Iterator[Batch]:
        """Yield the images of each block of a split, in order and without augmentation."""

    def close(self) -> None:
        """Release what the dataset holds, such as worker processes."""
