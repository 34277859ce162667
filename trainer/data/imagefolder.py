"""The pictures of an ImageFolder tree or of a pack, as a source for `Loaded`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..errors import DataError
from .loader import Request
from .order import mixed_seed
from .packed import open_pack
from .pictures import center_crop, randaugment, random_crop, trivialaugment
from .tree import open_tree


class Pictures:
    def __init__(self, path: Path, config: Config) -> None:
        """Open a tree or a pack. Raises DataError."""
        packed = (path / "pack.json").is_file()
        classes, training, testing = open_pack(path) if packed else open_tree(path)
        if config.num_classes is not None and len(classes) > config.num_classes:
            raise DataError(
                f"{path}: {len(classes)} classes, but --num-classes {config.num_classes}; "
                "leave out --num-classes"
            )
        self._config = config
        self._splits = {"train": training, "test": testing}
        self.name, self.num_classes = f"images in {path.name}/", len(classes)
        self.shape = torch.Size((3, config.image_size, config.image_size))
        self.sizes = {split: len(images.labels) for split, images in self._splits.items()}
        both = training.fingerprint + testing.fingerprint
        self.fingerprint = hashlib.sha256(both.encode()).hexdigest()

    def load(self, request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pictures, (B, H, W, 3) uint8, and their labels."""
        images = self._splits[request.split]
        pixels = np.empty((len(request.numbers), request.width, request.width, 3), np.uint8)
        for row, number in enumerate(request.numbers.tolist()):
            picture = images.picture(number, request.width)
            pixels[row] = self._cropped(picture, number, request)
        labels = np.asarray(images.labels[request.numbers], np.int64)
        return torch.from_numpy(pixels), torch.from_numpy(labels)

    def _cropped(self, image: Any, number: int, request: Request) -> Any:
        c, sample = self._config, f"{request.seed}/{request.epoch}/{number}"
        if request.epoch < 0 or "crop" not in c.parsed_augment:
            image = center_crop(image, request.width)
        else:
            image = random_crop(image, request.width, mixed_seed(f"tree/{sample}"))
        if request.epoch >= 0 and c.trivialaugment:
            image = trivialaugment(image, mixed_seed(f"trivialaugment/{sample}"))
        if request.epoch >= 0 and c.randaugment:
            image = randaugment(image, c.randaugment, mixed_seed(f"randaugment/{sample}"))
        return image
