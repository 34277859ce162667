"""ImageFolder trees (PATH/train/CLASS/*.jpg, PATH/val/CLASS/*.jpg): decoded as they are needed.

torchvision decodes, resizes and crops; threads do it, since PIL lets go of the interpreter while it
decodes. A sample's crop and flip come from (seed, epoch, sample number) alone, as for resident sets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from trainer.config import Config
from trainer.data.order import held_out, mixed_seed
from trainer.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, in 0..1
SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp")
TEST_FOLDERS = ("val", "test")
CROP_MARGIN = 256 / 224  # evaluation resizes to this times the crop


def is_image_tree(path: Path) -> bool:
    return (path / "train").is_dir()


class ImageTree:
    """Satisfies trainer.data.Images."""

    def __init__(self, path: Path, config: Config, device: torch.device) -> None:
        test = next((path / name for name in TEST_FOLDERS if (path / name).is_dir()), None)
        if test is None:
            raise DataError(f"{path}: has train/ but neither val/ nor test/ beside it: add one")
        classes = _classes(path / "train")
        if config.num_classes is not None and len(classes) > config.num_classes:
            raise DataError(
                f"{path / 'train'}: {len(classes)} classes, but --num-classes "
                f"{config.num_classes}: leave it out"
            )
        if extra := sorted(set(_classes(test)) - set(classes)):
            raise DataError(f"{test}: class {extra[0]!r} is not in train/: rename or remove it")
        self.name, self.num_classes = f"images in {path.name}/", len(classes)
        everything = _samples(path / "train", classes)
        train, val = held_out(len(everything), config.val_split)
        self._samples = {
            "train": [everything[i] for i in train.tolist()],
            "val": [everything[i] for i in val.tolist()],
            "test": _samples(test, classes),
        }
        self.fingerprint = _fingerprint(path, everything + self._samples["test"])
        self._augment, self._size, self._device = config.augment, config.image_size, device
        self._pool = ThreadPoolExecutor(max(1, config.workers))
        self._evaluation = _evaluation(config.image_size)

    def size(self, split: str) -> int:
        return len(self._samples[split])

    def train_batch(
        self, indices: torch.Tensor, *, seed: int, epoch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = indices.tolist()

        def one(index: int) -> torch.Tensor:
            image = _open(self._samples["train"][index][0])
            if not self._augment:
                return self._evaluation(image)
            return _cropped(image, self._size, mixed_seed(f"tree/{seed}/{epoch}/{index}"))

        return self._batch(one, chosen), self._labels("train", chosen)

    def eval_batch(self, split: str, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = list(range(start, end))

        def one(index: int) -> torch.Tensor:
            return self._evaluation(_open(self._samples[split][index][0]))

        return self._batch(one, chosen), self._labels(split, chosen)

    def _batch(self, make: Callable[[int], torch.Tensor], chosen: Sequence[int]) -> torch.Tensor:
        images = torch.stack(list(self._pool.map(make, chosen)))
        return images.to(self._device, memory_format=torch.channels_last, non_blocking=True)

    def _labels(self, split: str, chosen: Sequence[int]) -> torch.Tensor:
        labels = [self._samples[split][index][1] for index in chosen]
        return torch.tensor(labels, device=self._device)


def _classes(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    if not names:
        raise DataError(f"{folder}: no class folders in it: one folder a class, images inside")
    return names


def _samples(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    found = []
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        files = sorted((folder / name).rglob("*"))
        found += [(file, label) for file in files if file.suffix.lower() in SUFFIXES]
    if not found:
        raise DataError(f"{folder}: no images ({', '.join(SUFFIXES)}) in its class folders")
    return found


def _fingerprint(path: Path, samples: Sequence[tuple[Path, int]]) -> str:
    """Of names, sizes and labels: reading all of a large tree at each start would cost minutes."""
    digest = hashlib.sha256()
    for file, label in samples:
        digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0{label}\n".encode())
    return digest.hexdigest()


def _open(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{path}: not a readable image ({error}): replace or remove it") from None


def _evaluation(size: int) -> Callable[[Any], torch.Tensor]:
    from torchvision.transforms import v2

    steps = [
        v2.Resize(round(size * CROP_MARGIN), antialias=True),
        v2.CenterCrop(size),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]
    transform: Callable[[Any], torch.Tensor] = v2.Compose(steps)
    return transform


def _cropped(image: Any, size: int, seed: int) -> torch.Tensor:
    """Random resized crop and flip. The box is drawn here: torchvision draws from global state,
    which threads would share."""
    from torchvision.transforms.v2 import functional as tv

    generator = torch.Generator().manual_seed(seed)
    scale, ratio, down, right, flip = torch.rand(5, generator=generator).tolist()
    area = image.width * image.height * (0.08 + 0.92 * scale)
    aspect = (3 / 4) * (16 / 9) ** ratio  # log-uniform between 3/4 and 4/3
    wide = min(image.width, max(1, round((area * aspect) ** 0.5)))
    high = min(image.height, max(1, round((area / aspect) ** 0.5)))
    top, left = round(down * (image.height - high)), round(right * (image.width - wide))
    crop = tv.resized_crop(tv.to_image(image), top, left, high, wide, [size, size], antialias=True)
    pixels = tv.to_dtype(crop, torch.float32, scale=True)
    normal: torch.Tensor = tv.normalize(pixels, list(MEAN), list(STD))
    return normal.flip(2) if flip < 0.5 else normal
