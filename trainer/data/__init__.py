"""The images of a run, whichever way they are stored, behind one protocol: `Images`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

import torch

from trainer.config import Config
from trainer.data import cifar
from trainer.data.fetch import fetch
from trainer.data.imagefolder import ImageTree, is_image_tree
from trainer.data.resident import Resident, mean_std
from trainer.data.synthetic import synthetic
from trainer.errors import DataError

__all__ = ["Images", "Resident", "load_dataset", "mean_std"]


class Images(Protocol):
    """What training and evaluation ask of a data set."""

    name: str
    num_classes: int
    fingerprint: str  # sha256 of the images, to notice other data on resume or on another node

    def size(self, split: str) -> int:
        """Images in "train", "val" or "test"."""

    def train_batch(
        self, indices: torch.Tensor, *, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, C, H, W) normalised floats, augmented if so configured, and (B,) labels."""

    def eval_batch(self, split: str, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Images start..end-1 of a split, in order, not augmented."""


def load_dataset(config: Config, device: torch.device) -> Images:
    """What --data names. Raises DataError with one line: where, what, remedy."""
    if config.data == "synthetic":
        classes = config.num_classes or 10
        size = config.synthetic_size
        return Resident(
            synthetic(config.synthetic_train, config.synthetic_test, classes, size), config, device
        )
    path = Path(config.data) if config.data != "download" else downloaded()
    if not path.is_dir():
        raise DataError(
            f"--data {path}: no such folder: give one, or `--data synthetic`, or `--data download`"
        )
    if folder := cifar.find(path):
        arrays = cifar.load(folder)
        check_classes(config, arrays.num_classes, str(folder))
        return Resident(arrays, config, device)
    if is_image_tree(path):
        return ImageTree(path, config, device)
    raise DataError(
        f"--data {path}: neither cifar-10-batches-py, nor cifar-100-python, nor train/ and val/ "
        "with a folder a class in it"
    )


def check_classes(config: Config, found: int, where: str) -> None:
    if config.num_classes is not None and found > config.num_classes:
        raise DataError(
            f"{where}: {found} classes, but --num-classes {config.num_classes}: leave it out"
        )


def downloaded() -> Path:
    """The cache folder with CIFAR-10 in it, fetched by whichever process of this machine is first."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "ddpctl-trainer"
    fetch("cifar10", folder)
    return folder
