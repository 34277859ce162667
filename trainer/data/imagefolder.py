"""ImageFolder trees (PATH/train/CLASS/*.jpg, PATH/val/CLASS/*.jpg), decoded ahead of training.

Threads decode, crop and flip the next batches while the device trains on the current one; PIL
releases the interpreter while it decodes. Batches travel as uint8, from pinned memory to a GPU, and
are normalised there. A sample's crop and flip depend on (seed, epoch, sample number) alone.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..errors import DataError
from .augment import normalised
from .order import held_out, mixed_seed
from .pictures import centre_crop, randaugment, random_crop, read

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, in 0..1
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp")
TEST_FOLDERS = ("val", "test")
AHEAD = 3  # batches that are being decoded while one is trained on


class ImageTree:
    """Satisfies trainer.data.Images."""

    def __init__(self, path: Path, config: Config, device: torch.device) -> None:
        test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
        if test is None:
            raise DataError(f"{path}: has train/ but neither val/ nor test/: add one")
        classes = _classes(path / "train")
        if config.num_classes is not None and len(classes) > config.num_classes:
            raise DataError(
                f"{path / 'train'}: {len(classes)} classes, but --num-classes "
                f"{config.num_classes}: leave it out"
            )
        if extra := sorted(set(_classes(test)) - set(classes)):
            raise DataError(f"{test}: class {extra[0]!r} is not in train/: rename or remove it")
        self.name, self.num_classes = f"images in {path.name}/", len(classes)
        self.image_size = config.image_size
        digest = hashlib.sha256()
        training, testing = Files(path / "train", classes, digest), Files(test, classes, digest)
        self.fingerprint = digest.hexdigest()
        train, val = held_out(len(training.labels), config.val_split)
        self._splits = {
            "train": (training, train.numpy()),
            "val": (training, val.numpy()),
            "test": (testing, np.arange(len(testing.labels))),
        }
        self._augment, self._magnitude, self._device = config.augment, config.randaugment, device
        self._mean, self._scale = (
            torch.tensor(MEAN, device=device) * 255,
            1 / (torch.tensor(STD, device=device) * 255),
        )
        self._pool = ThreadPoolExecutor(max(1, config.workers))
        self._ahead: deque[Batch] = deque()
        self._coming: Iterator[Batch] = iter(())

    def size(self, split: str) -> int:
        return len(self._splits[split][1])

    def start_epoch(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> torch.Tensor:
        while self._ahead:
            self._ahead.popleft().cancel()
        self._coming = (self._training_batch(order[part], seed, epoch) for part in parts)
        self._look_ahead()
        return order

    def train_batch(
        self, indices: torch.Tensor, *, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._ahead and torch.equal(self._ahead[0].indices, indices):
            batch = self._ahead.popleft()
        else:
            batch = self._training_batch(indices, seed, epoch)
        self._look_ahead()
        return self._on_device(batch)

    def eval_batch(self, split: str, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
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
        files, numbers = self._splits[split]
        pinned = self._device.type == "cuda"
        edge = self.image_size
        pixels = torch.empty(len(indices), edge, edge, 3, dtype=torch.uint8, pin_memory=pinned)

        def decode(row: int, number: int) -> None:
            image = crop(read(files.path(int(numbers[number])), edge), number)
            pixels[row] = torch.from_numpy(np.array(image))

        jobs = [self._pool.submit(decode, row, n) for row, n in enumerate(indices.tolist())]
        labels = torch.from_numpy(files.labels[numbers[indices.numpy()]])
        return Batch(indices, pixels, labels, jobs)

    def _on_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        batch.wait()
        pixels = batch.pixels.to(self._device, non_blocking=True)
        labels = batch.labels.to(self._device, non_blocking=True)
        return normalised(pixels, self._mean, self._scale), labels


class Batch:
    """Images being decoded into `pixels`, (B, H, W, 3) uint8."""

    def __init__(
        self,
        indices: torch.Tensor,
        pixels: torch.Tensor,
        labels: torch.Tensor,
        jobs: Sequence[Future[None]],
    ) -> None:
        self.indices, self.pixels, self.labels, self._jobs = indices, pixels, labels, jobs

    def wait(self) -> None:
        """Raises DataError if an image cannot be read."""
        for job in self._jobs:
            job.result()

    def cancel(self) -> None:
        for job in self._jobs:
            job.cancel()


class Files:
    """The files under one folder per class, sorted. Compact: 1.28 million take some 40 MB."""

    def __init__(self, folder: Path, classes: Sequence[str], digest: Any) -> None:
        """digest: receives names, sizes and labels; hashing all pixels would take minutes."""
        self._folder, self._classes = folder, classes
        names, labels = [], []
        for label, name in enumerate(classes):
            found = sorted(_images(folder / name))
            names.append(np.array([file for file, _ in found], dtype=np.bytes_))
            labels.append(np.full(len(found), label, dtype=np.int64))
            for file, size in found:
                digest.update(b"%s\0%d\0%d\n" % (file, size, label))
        self._names, self.labels = np.concatenate(names), np.concatenate(labels)
        if not len(self.labels):
            raise DataError(f"{folder}: no images ({', '.join(SUFFIXES)}) in its class folders")

    def path(self, index: int) -> Path:
        name = os.fsdecode(self._names[index])
        return self._folder / self._classes[int(self.labels[index])] / name


def _images(folder: Path) -> Iterator[tuple[bytes, int]]:
    """(path below the folder, size in bytes) of each image in it, in any order."""
    if not folder.is_dir():
        return
    waiting = [os.fsencode(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(entry.path)
                elif os.fsdecode(entry.name).lower().endswith(SUFFIXES):
                    below = os.path.relpath(entry.path, os.fsencode(folder))
                    yield below, entry.stat().st_size


def _classes(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise DataError(f"{folder}: no class folders: make one folder per class")
    return names
