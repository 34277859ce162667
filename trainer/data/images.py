"""What training and evaluation need from a data set, however it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch

Pair = tuple[torch.Tensor, torch.Tensor]  # images (B, C, H, W), normalised floats, and labels (B,)


class Images(Protocol):
    """What training and evaluation need from a data set."""

    name: str
    num_classes: int
    image_size: int  # side length in pixels
    fingerprint: str  # detects different images on resume or on another node

    def size(self, split: str) -> int:
        """Images in "train", "val" or "test"."""

    def start_epoch(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> torch.Tensor:
        """Prepare an epoch whose batches are order[part] for each of `parts`, in turn.
        Returns the order, where `train_batch` wants its indices."""
        return order

    def train_batch(self, indices: torch.Tensor, *, seed: int, epoch: int) -> Pair:
        """Augmented if the config says so."""

    def eval_batch(self, split: str, start: int, end: int) -> Pair:
        """Images start..end-1 of a split, in order, not augmented."""
