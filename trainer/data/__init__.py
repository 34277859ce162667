"""The images of a run, however they are stored, behind one protocol: `Images`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch

from ..config import Config, is_function_name
from ..errors import DataError
from . import cifar, fetch
from .imagefolder import ImageTree, is_image_tree
from .map_style import load_map_style
from .resident import Resident, mean_std
from .synthetic import synthetic

__all__ = ["Images", "Resident", "load_dataset", "mean_std"]


class Images(Protocol):
    """What training and evaluation need from a data set."""

    name: str
    num_classes: int
    image_size: int  # pixels on a side
    fingerprint: str  # to notice other images on resume or on another node

    def size(self, split: str) -> int:
        """Images in "train", "val" or "test"."""

    def start_epoch(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> torch.Tensor:
        """Get ready for an epoch whose batches will be order[part] for each of `parts`, in turn.
        Returns the order, where `train_batch` wants its indices."""

    def train_batch(
        self, indices: torch.Tensor, *, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, C, H, W) normalised floats, augmented if so configured, and (B,) labels."""

    def eval_batch(self, split: str, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images start..end-1 of a split, in order, not augmented."""


def load_dataset(config: Config, device: torch.device) -> Images:
    """The images that --data names. Raises DataError."""
    if is_function_name(config.data):
        return load_map_style(config, device)
    if config.data == "synthetic":
        classes, size = config.num_classes or 10, config.synthetic_size
        arrays = synthetic(config.synthetic_train, config.synthetic_test, classes, size)
        return Resident(arrays, config, device)
    path = Path(config.data) if config.data != "download" else downloaded()
    if not path.is_dir():
        raise DataError(
            f"--data {path}: no such folder: give one, or `--data synthetic`, or `--data download`"
        )
    if folder := cifar.find(path):
        arrays = cifar.load(folder)
        if config.num_classes is not None and arrays.num_classes > config.num_classes:
            raise DataError(
                f"{folder}: {arrays.num_classes} classes, but --num-classes {config.num_classes}: "
                "leave it out"
            )
        return Resident(arrays, config, device)
    if is_image_tree(path):
        return ImageTree(path, config, device)
    raise DataError(
        f"--data {path}: neither cifar-10-batches-py, nor cifar-100-python, nor train/ and val/ "
        "with one folder per class"
    )


def downloaded() -> Path:
    """The cache folder with CIFAR-10, fetched by whichever process of this machine comes first."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "ddpctl-trainer"
    fetch.fetch("cifar10", folder)
    return folder
