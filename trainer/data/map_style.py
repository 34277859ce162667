"""`--data package.module:function`: the user's own data sets.

The function takes no arguments and returns (train, test): map-style data sets like torch's, where
`len(d)` is the number of samples and `d[i]` is an (image, label) pair. An image is a float tensor of
shape (C, H, W), normalised. It may also return an object with the methods of `trainer.data.Images`.

torch's and Python's random numbers are seeded anew for each sample, from (seed, epoch, sample), so
that random transforms resume bitwise. Samples are loaded by the training thread, one by one.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from typing import Any

import torch

from ..config import Config, named_function
from ..errors import DataError
from .images import Images, Pair
from .order import held_out, mixed_seed


def load_map_style(config: Config, device: torch.device) -> Images:
    found = named_function("--data", config.data)()
    if not isinstance(found, tuple):
        images: Images = found
        return images
    try:
        train, test = found
        return MapStyle(config, train, test, device)
    except (TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"--data {config.data}: {error}: return two data sets of (image, label)"
        ) from error


class MapStyle(Images):
    def __init__(self, config: Config, train: Any, test: Any, device: torch.device) -> None:
        self.name, self._device = config.data, device
        kept, val = held_out(len(train), config.val_split)
        self._splits: dict[str, tuple[Any, list[int]]] = {
            "train": (train, kept.tolist()),
            "val": (train, val.tolist()),
            "test": (test, list(range(len(test)))),
        }
        image, _ = self._sample("test", 0, "size")
        self.image_size = image.shape[-1]
        if config.num_classes is None and not hasattr(train, "classes"):
            raise DataError(
                f"--data {config.data}: unknown number of classes: pass --num-classes, or give the data "
                "set a list `classes`"
            )
        self.num_classes = config.num_classes or len(train.classes)
        digest = hashlib.sha256(f"{config.data} {len(train)} {len(test)}".encode())
        for number in range(0, len(test), max(1, len(test) // 10)):
            image, label = self._sample("test", number, "fingerprint")
            digest.update(image.float().cpu().numpy().tobytes() + str(label).encode())
        self.fingerprint = digest.hexdigest()

    def size(self, split: str) -> int:
        return len(self._splits[split][1])

    def train_batch(self, indices: torch.Tensor, *, seed: int, epoch: int) -> Pair:
        return self._batch("train", indices.tolist(), f"{seed}/{epoch}")

    def eval_batch(self, split: str, start: int, end: int) -> Pair:
        return self._batch(split, range(start, end), "evaluation")

    def _batch(self, split: str, numbers: Iterable[int], key: str) -> Pair:
        with torch.random.fork_rng(devices=[]):
            samples = [self._sample(split, number, key) for number in numbers]
        x = torch.stack([image for image, _ in samples]).to(self._device, non_blocking=True)
        return x, torch.tensor([int(label) for _, label in samples], device=self._device)

    def _sample(self, split: str, number: int, key: str) -> tuple[torch.Tensor, int]:
        data, numbers = self._splits[split]
        seed = mixed_seed(f"sample/{key}/{split}/{number}")
        torch.manual_seed(seed)
        random.seed(seed)
        image, label = data[numbers[number]]
        return image, label
