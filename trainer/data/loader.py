"""Datasets whose samples worker processes load one by one, ahead of training.

A request names its samples and everything that their random numbers depend on. So the result
depends neither on the process that loads it nor on what that process loaded before. Images travel
as bytes to the device (to a GPU from pinned memory), and are flipped and normalized there.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ..config import Config
from ..errors import TrainerError
from ..parent import die_with_parent
from .augment import flipped, normalized
from .images import Batch, Images
from .order import held_out

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, in 0..1
AHEAD = 3  # batches that each process loads ahead of training
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Request(NamedTuple):
    """The samples to load, and how to augment them."""

    split: str  # "train" or "test"; the samples of "val" are in "train"
    numbers: np.ndarray[Any, Any]  # (B,) int64
    width: int  # of the images, in pixels
    seed: int = 0
    epoch: int = -1  # -1: evaluation, where nothing is random


class Source(Protocol):
    """What a dataset provides so that worker processes can load its samples."""

    name: str
    num_classes: int
    shape: torch.Size  # channels, height and width of an image in evaluation
    fingerprint: str
    sizes: dict[str, int]  # number of samples in "train" and "test"

    def load(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels. Images are (B, H, W, 3) uint8 or (B, C, H, W) normalized
        floats. Raises DataError, which names the sample."""


class Loaded(Images):
    """Adapts a source to the `Images` protocol."""

    def __init__(self, source: Source, config: Config, device: torch.device) -> None:
        self.name, self.num_classes = source.name, source.num_classes
        self.fingerprint, self.shape = source.fingerprint, source.shape
        self._config, self._device = config, device
        train, val = held_out(source.sizes["train"], config.val_split)
        self._numbers = {"train": train, "val": val, "test": torch.arange(source.sizes["test"])}
        self._mean = torch.tensor(MEAN, device=device) * 255
        self._scale = 1 / (torch.tensor(STD, device=device) * 255)
        self._queue = Queue()
        self._loader = make_loader(source, self._queue, config.workers, device.type == "cuda")

    def size(self, split: str) -> int:
        return len(self._numbers[split])

    def train_batches(
        self, order: torch.Tensor, parts: Iterable[slice], *, seed: int, epoch: int
    ) -> Iterator[Batch]:
        c, numbers = self._config, self._numbers["train"]
        width = train_width(c, epoch)
        for indices, x, y in self._batches(
            Request("train", numbers[order[part]].numpy(), width, seed, epoch) for part in parts
        ):
            if x.dtype == torch.uint8:
                x = flipped(x, indices, c.parsed_augment, seed=seed, epoch=epoch)
            yield Batch(indices, self._normalized(x), y)

    def eval_batches(self, split: str, blocks: Iterable[slice]) -> Iterator[Batch]:
        numbers, source = self._numbers[split], "test" if split == "test" else "train"
        for indices, x, y in self._batches(
            Request(source, numbers[block].numpy(), self.shape[-1]) for block in blocks
        ):
            yield Batch(indices, self._normalized(x), y)

    def close(self) -> None:
        if self._loader._iterator is not None:
            self._loader._iterator._shutdown_workers()  # type: ignore[attr-defined]

    def _batches(self, requests: Iterable[Request]) -> Iterator[Batch]:
        self._queue.requests = requests
        for loaded in self._loader:
            if isinstance(loaded, TrainerError):
                raise loaded
            yield Batch(*(tensor.to(self._device, non_blocking=True) for tensor in loaded))

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.uint8:
            return x
        return normalized(x, self._mean, self._scale, self._config.channels_last)


class Queue:
    """The requests that a DataLoader's processes load next. Every epoch and every evaluation
    replaces them."""

    requests: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


class Samples(Dataset[Any]):
    """Adapts a source to torch's DataLoader, which asks for a whole batch at once."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitems__(self, request: Request) -> Batch | TrainerError:
        try:
            return Batch(torch.from_numpy(request.numbers), *self._source.load(request))
        except TrainerError as error:
            return error  # if it were raised, DataLoader would add a traceback to its message


def make_loader(source: Source, queue: Queue, workers: int, pinned: bool) -> DataLoader[Any]:
    """Return a DataLoader that starts its processes once. With 0 workers, this process loads the
    samples."""
    parent = os.getpid()

    def start(worker: int) -> None:
        die_with_parent(parent)
        for number in STOPS:  # a signal to the whole process group is meant for the ranks
            signal.signal(number, signal.SIG_IGN)

    several: dict[str, Any] = {}
    if workers:
        several = {"worker_init_fn": start, "multiprocessing_context": "fork"}
        several |= {"persistent_workers": True, "prefetch_factor": AHEAD}
    # torch's warning that there are more processes than cores
    warnings.filterwarnings("ignore", "This DataLoader will create")
    return DataLoader(
        Samples(source),
        batch_sampler=queue,  # type: ignore[arg-type]
        collate_fn=lambda loaded: loaded,
        num_workers=workers,
        pin_memory=pinned,
        generator=torch.Generator(),  # otherwise, each epoch would draw from the global generator
        **several,
    )


def train_width(config: Config, epoch: int) -> int:
    """Return the width of training images in an epoch. With --train-size A:B, it goes from A toward B
    by multiples of 32 pixels, and is B in the last epoch."""
    first, last = config.parsed_train_size
    if epoch >= config.epochs - 1:
        return last
    return first + round((last - first) * epoch / (config.epochs - 1) / 32) * 32
