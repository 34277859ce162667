"""ImageFolder trees (PATH/train/CLASS/*.jpg, PATH/val/CLASS/*.jpg) and packs of them, decoded ahead
of training.

Threads decode, crop and flip the next batches while the device trains on the current one; PIL
releases the interpreter while it decodes. Batches travel as uint8, from pinned memory to a GPU, and
are normalised there. A sample's crop and flip depend on (seed, epoch, sample number) alone.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..errors import DataError
from .augment import normalised
from .images import Images, Pair
from .order import held_out, mixed_seed
from .packed import Packed, open_pack
from .pictures import centre_crop, randaugment, random_crop
from .tree import Tree, class_names

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, in 0..1
TEST_FOLDERS = ("val", "test")
AHEAD = 3  # batches to decode ahead of the current one


def tree_sources(path: Path) -> tuple[list[str], Tree, Tree]:
    """The classes, the training and the test images of an ImageFolder tree. Raises DataError."""
    test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
    if test is None:
        raise DataError(f"{path}: has train/ but neither val/ nor test/: add one")
    classes = class_names(path / "train")
    if extra := sorted(set(class_names(test)) - set(classes)):
        raise DataError(f"{test}: class {extra[0]!r} is not in train/: rename or remove it")
    return classes, Tree(path / "train", classes), Tree(test, classes)


class ImageTree(Images):
    def __init__(self, path: Path, config: Config, device: torch.device) -> None:
        packed = (path / "pack.json").is_file()
        classes, training, testing = open_pack(path) if packed else tree_sources(path)
        if config.num_classes is not None and len(classes) > config.num_classes:
            raise DataError(
                f"{path}: {len(classes)} classes, but --num-classes {config.num_classes}: "
                "leave it out"
            )
        self.name, self.num_classes = f"images in {path.name}/", len(classes)
        self.image_size = config.image_size
        both = training.fingerprint + testing.fingerprint
        self.fingerprint = hashlib.sha256(both.encode()).hexdigest()
        train, val = held_out(len(training.labels), config.val_split)
        self._splits: dict[str, tuple[Tree | Packed, np.ndarray[Any, Any]]] = {
            "train": (training, train.numpy()),
            "val": (training, val.numpy()),
            "test": (testing, np.arange(len(testing.labels))),
        }
        self._augment, self._magnitude, self._device = config.augment, config.randaugment, device
        self._mean = torch.tensor(MEAN, device=device) * 255
        self._scale = 1 / (torch.tensor(STD, device=device) * 255)
        self._channels_last = config.channels_last
        self._pool = ThreadPoolExecutor(max(1, config.workers))
        self._ahead: deque[Batch] = deque()
        self._coming: Iterator[Batch] = iter(())

    def size(self, split: str) -> int:
        return len(self._splits[split][1])

    def start_epoch(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> torch.Tensor:
        for job in (job for batch in self._ahead for job in batch.jobs):
            job.cancel()
        self._ahead.clear()
        self._coming = (self._training_batch(order[part], seed, epoch) for part in parts)
        self._look_ahead()
        return order

    def train_batch(self, indices: torch.Tensor, *, seed: int, epoch: int) -> Pair:
        if self._ahead and torch.equal(self._ahead[0].indices, indices):
            batch = self._ahead.popleft()
        else:
            batch = self._training_batch(indices, seed, epoch)
        self._look_ahead()
        return self._on_device(batch)

    def eval_batch(self, split: str, start: int, end: int) -> Pair:
        return self._on_device(self._batch(split, torch.arange(start, end), self._centred))

    def _look_ahead(self) -> None:
        while len(self._ahead) < AHEAD and (batch := next(self._coming, None)):
            self._ahead.append(batch)

    def _training_batch(self, indices: torch.Tensor, seed: int, epoch: int) -> Batch:
        def cropped(image: Any, number: int) -> Any:
            sample = f"{seed}/{epoch}/{number}"
            image = random_crop(image, self.image_size, mixed_seed(f"tree/{sample}"))
            if self._magnitude:
                image = randaugment(image, self._magnitude, mixed_seed(f"randaugment/{sample}"))
            return image

        return self._batch("train", indices, cropped if self._augment else self._centred)

    def _centred(self, image: Any, number: int) -> Any:
        return centre_crop(image, self.image_size)

    def _batch(self, split: str, indices: torch.Tensor, crop: Callable[[Any, int], Any]) -> Batch:
        source, numbers = self._splits[split]
        pinned = self._device.type == "cuda"
        edge = self.image_size
        pixels = torch.empty(len(indices), edge, edge, 3, dtype=torch.uint8, pin_memory=pinned)

        def decode(row: int, number: int) -> None:
            image = crop(source.picture(int(numbers[number]), edge), number)
            pixels[row] = torch.from_numpy(np.array(image))

        jobs = [self._pool.submit(decode, row, n) for row, n in enumerate(indices.tolist())]
        labels = torch.from_numpy(source.labels[numbers[indices.numpy()]].astype(np.int64))
        return Batch(indices, pixels, labels, jobs)

    def _on_device(self, batch: Batch) -> Pair:
        for job in batch.jobs:
            job.result()  # raises DataError if an image cannot be read
        pixels = batch.pixels.to(self._device, non_blocking=True)
        labels = batch.labels.to(self._device, non_blocking=True)
        return normalised(pixels, self._mean, self._scale, self._channels_last), labels


@dataclass(frozen=True)
class Batch:
    """Images being decoded into `pixels`, (B, H, W, 3) uint8."""

    indices: torch.Tensor
    pixels: torch.Tensor
    labels: torch.Tensor
    jobs: Sequence[Future[None]]
