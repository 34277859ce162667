"""The images of a run: resident on the device as uint8, batches made there, no workers.

`load_dataset` gives an `Images`; an ImageFolder tree, too big to reside, gives one of its own
with the same four methods (trainer/imagefolder.py).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Protocol

import torch

from trainer import cifar
from trainer.augment import PAD, pad, random_crop_flip
from trainer.config import Config
from trainer.errors import DataError
from trainer.order import epoch_order, held_out
from trainer.synthetic import Arrays, synthetic

__all__ = ["Images", "Resident", "epoch_order", "load_dataset"]

MEAN_STD = {  # of the training images, in 0..1
    "CIFAR-10's layout": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100's layout": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


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
    from trainer.imagefolder import ImageTree, is_image_tree

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
    from trainer.fetch import fetch

    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "ddpctl-trainer"
    fetch("cifar10", folder)
    return folder


class Resident:
    """All images in the device's memory. Kept with the crop's border, rows of pixels together."""

    def __init__(self, arrays: Arrays, config: Config, device: torch.device) -> None:
        self.name, self.num_classes = arrays.name, arrays.num_classes
        self.fingerprint = fingerprint(arrays)
        train, val = held_out(len(arrays.train_y), config.val_split)
        border = pad(arrays.train_x)
        self._augment, self._channels_last = config.augment, config.channels_last
        self._train_x = (border[train] if len(val) else border).to(device)
        self._y = {
            "train": arrays.train_y[train].to(device),
            "val": arrays.train_y[val].to(device),
            "test": arrays.test_y.to(device),
        }
        self._eval_x = {
            "val": arrays.train_x[val].to(device),
            "test": arrays.test_x.to(device),
        }
        mean, std = mean_std(arrays)
        self._mean, self._scale = mean.to(device), (1 / std).to(device)

    def size(self, split: str) -> int:
        return len(self._y[split])

    def train_batch(
        self, indices: torch.Tensor, *, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._augment:
            x = random_crop_flip(self._train_x, indices, seed=seed, epoch=epoch)
        else:
            x = self._train_x[indices, PAD:-PAD, PAD:-PAD]
        return self._normalised(x), self._y["train"][indices]

    def eval_batch(self, split: str, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._normalised(self._eval_x[split][start:end]), self._y[split][start:end]

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        """(B, H, W, C) uint8 -> (B, C, H, W) float; in NHWC memory that is no copy."""
        pixels = x.float().sub_(self._mean).mul_(self._scale).permute(0, 3, 1, 2)
        return pixels if self._channels_last else pixels.contiguous()


def mean_std(arrays: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """(C,) each, in pixel values 0..255: the published ones for CIFAR, else of a sample."""
    if arrays.name in MEAN_STD:
        mean, std = MEAN_STD[arrays.name]
        return torch.tensor(mean) * 255, torch.tensor(std) * 255
    pixels = arrays.train_x[:5000].float()
    return pixels.mean((0, 1, 2)), pixels.std((0, 1, 2)).clamp_min(1.0)


def fingerprint(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for tensor in (arrays.train_x, arrays.train_y, arrays.test_x, arrays.test_y):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()
