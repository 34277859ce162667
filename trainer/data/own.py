"""`--data package.module:function`: the user's own datasets.

The function takes no arguments and returns (train, test): map-style datasets like torch's, where
`len(d)` is the number of samples and `d[i]` is an (image, label) pair. An image is a float tensor or
array of shape (C, H, W), normalized. The function may also return an object with the methods of
`trainer.data.Images`.

torch's, numpy's and Python's random numbers are seeded anew for each sample, from (seed, epoch,
sample), so that a resumed run gets the same random transforms.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch

from ..config import Config, named_function
from ..errors import DataError
from .images import Images
from .loader import Loaded, Request
from .order import mixed_seed


def load_own(config: Config, device: torch.device) -> Images:
    """Return the images from the function that --data names. Raises DataError."""
    given = named_function("--data", config.data)()
    if not isinstance(given, tuple):
        images: Images = given
        return images
    if len(given) != 2 or not all(hasattr(d, "__len__") and len(d) for d in given):
        raise DataError(
            f"--data {config.data}: the function must return two non-empty datasets of "
            "(image, label) pairs"
        )
    return Loaded(MapStyle(config, *given), config, device)


class MapStyle:
    """A source made of two map-style datasets."""

    def __init__(self, config: Config, train: Any, test: Any) -> None:
        self.name = config.data
        self._splits = {"train": train, "test": test}
        self.sizes = {split: len(data) for split, data in self._splits.items()}
        if config.num_classes is None and not hasattr(train, "classes"):
            raise DataError(
                f"--data {config.data}: unknown number of classes; pass --num-classes, or give the "
                "training dataset a `classes` list"
            )
        self.num_classes = config.num_classes or len(train.classes)
        digest = hashlib.sha256(f"{config.data} {self.sizes}".encode())
        for split, count in self.sizes.items():
            few = np.arange(0, count, max(1, count // 10))
            for number in few.tolist():
                image, label = self._sample(Request(split, few, 0), number)
                digest.update(image.numpy().tobytes() + str(label).encode())
        self.fingerprint = digest.hexdigest()
        self.shape = image.shape

    def load(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        samples = [self._sample(request, number) for number in request.numbers.tolist()]
        shapes = {image.shape for image, _ in samples}
        if len(shapes) > 1:
            listed = ", ".join(str(tuple(shape)) for shape in sorted(shapes))
            raise DataError(f"--data {self.name}: different shapes: {listed}; resize the images")
        images, labels = zip(*samples, strict=True)
        return torch.stack(images), torch.tensor(labels)

    def _sample(self, request: Request, number: int) -> tuple[torch.Tensor, int]:
        split, epoch = request.split, request.epoch
        seed = mixed_seed(f"sample/{request.seed}/{epoch}/{split}/{number}")
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        where = f"--data {self.name}: sample {number} of the {split} split"
        sample = self._splits[split][number]
        try:
            image, label = sample
            image, label = torch.as_tensor(image), int(label)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"{where}: {error}; a sample must be an (image, label) pair") from error
        if not image.is_floating_point() or image.ndim != 3:
            raise DataError(
                f"{where}: the image has dtype {image.dtype} and shape {tuple(image.shape)}; it "
                "must be a normalized float tensor of shape (C, H, W)"
            )
        if not 0 <= label < self.num_classes:
            raise DataError(
                f"{where}: label {label}, but there are {self.num_classes} classes; correct the label "
                "or pass --num-classes"
            )
        return image.float().cpu(), label
