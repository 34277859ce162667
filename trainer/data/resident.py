"""Images that stay on the device as uint8; batches are made there, without workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch

from ..config import Config
from .augment import PAD, cropped, flipped, normalized, pad
from .images import Batch, Images
from .order import held_out
from .synthetic import Arrays

MEAN_STD = {  # of the training images, in 0..1
    "CIFAR-10's layout": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "CIFAR-100's layout": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


class Resident(Images):
    """Images held on the device as uint8. The training images are padded in advance, for random
    crops."""

    def __init__(self, arrays: Arrays, config: Config, device: torch.device) -> None:
        self.name, self.num_classes = arrays.name, arrays.num_classes
        height, width, channels = arrays.train_x.shape[1:]
        self.shape = torch.Size((channels, height, width))
        self.fingerprint = fingerprint(arrays)
        self._device, self._config = device, config
        train, val = held_out(len(arrays.train_y), config.val_split)
        border = pad(arrays.train_x)
        self._train_x = (border[train] if len(val) else border).to(device)
        labels = {"train": arrays.train_y[train], "val": arrays.train_y[val], "test": arrays.test_y}
        self._y = {split: y.to(device) for split, y in labels.items()}
        self._eval_x = {"val": arrays.train_x[val].to(device), "test": arrays.test_x.to(device)}
        mean, std = mean_std(arrays)
        self._mean, self._scale = mean.to(device), (1 / std).to(device)

    def size(self, split: str) -> int:
        return len(self._y[split])

    def train_batches(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> Iterator[Batch]:
        order, names = order.to(self._device), self._config.parsed_augment
        for part in parts:
            indices = order[part]
            if "crop" in names:
                x = cropped(self._train_x, indices, seed=seed, epoch=epoch)
            else:
                x = self._train_x[indices, PAD:-PAD, PAD:-PAD]
            x = flipped(x, indices, names, seed=seed, epoch=epoch)
            yield Batch(indices, self._normalized(x), self._y["train"][indices])

    def eval_batches(self, split: str, blocks: Iterable[slice]) -> Iterator[Batch]:
        numbers = torch.arange(self.size(split), device=self._device)
        for block in blocks:
            x = self._normalized(self._eval_x[split][block])
            yield Batch(numbers[block], x, self._y[split][block])

    def close(self) -> None:
        pass

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        return normalized(x, self._mean, self._scale, self._config.channels_last)


def mean_std(arrays: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the standard deviation, (C,) each, for pixels 0..255: CIFAR's published
    ones for images in its layout, otherwise those of the first 5000 training images."""
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
