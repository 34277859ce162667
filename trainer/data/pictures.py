"""Decoding, cropping and changing single pictures with PIL, each a pure function of its arguments."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image, ImageEnhance, ImageOps, UnidentifiedImageError

from ..errors import DataError

CROP_MARGIN = 256 / 224  # evaluation resizes the short side to this multiple of the crop


def read(source: Path | BinaryIO, name: object, edge: int) -> Any:
    """An RGB picture, decoded at a lower resolution where the format allows and `edge` suffices.

    Raises DataError with the picture's name.
    """
    try:
        with Image.open(source) as image:
            image.draft("RGB", (round(edge * CROP_MARGIN), round(edge * CROP_MARGIN)))
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{name}: not a readable image ({error}): replace or remove it") from None


def random_crop(image: Any, edge: int, seed: int) -> Any:
    """Random resized crop and flip: 8 to 100 % of the area, aspect 3/4 to 4/3."""
    draw = random.Random(seed)
    scale, ratio, down, right, flip = (draw.random() for _ in range(5))
    area = image.width * image.height * (0.08 + 0.92 * scale)
    aspect = (3 / 4) * (16 / 9) ** ratio  # log-uniform
    wide = min(image.width, max(1, round((area * aspect) ** 0.5)))
    high = min(image.height, max(1, round((area / aspect) ** 0.5)))
    top, left = round(down * (image.height - high)), round(right * (image.width - wide))
    box = (left, top, left + wide, top + high)
    crop = image.resize((edge, edge), Image.Resampling.BILINEAR, box=box)
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip < 0.5 else crop


def centre_crop(image: Any, edge: int) -> Any:
    """The middle of the picture, its short side resized to 8/7 of the crop."""
    side = min(image.width, image.height) / CROP_MARGIN
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((edge, edge), Image.Resampling.BILINEAR, box=box)


def shrunk(image: Any, short: int) -> Any:
    """The whole picture, its short side at most `short` pixels long."""
    scale = min(1.0, short / min(image.size))
    return image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)


def randaugment(image: Any, magnitude: int, seed: int) -> Any:
    """RandAugment (Cubuk et al. 2020): two random operations, with torchvision's ranges. Torchvision
    draws from torch's global random state, which decoding threads would share.

    image: RGB; magnitude: 1 to 30.
    """
    draw = random.Random(seed)
    for operation in draw.choices(OPERATIONS, k=2):
        image = operation(image, draw.choice((-1, 1)) * magnitude / 30)
    return image


def _affine(image: Any, *matrix: float) -> Any:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


# (picture, strength from -1 to 1) -> picture
OPERATIONS: list[Callable[[Any, float], Any]] = [
    lambda image, s: image,
    lambda image, s: _affine(image, 1, 0.3 * s, 0, 0, 1, 0),
    lambda image, s: _affine(image, 1, 0, 0, 0.3 * s, 1, 0),
    lambda image, s: _affine(image, 1, 0, 0.45 * s * image.width, 0, 1, 0),
    lambda image, s: _affine(image, 1, 0, 0, 0, 1, 0.45 * s * image.height),
    lambda image, s: image.rotate(30 * s),
    lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * s),
    lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    lambda image, s: ImageOps.solarize(image, round(255 * (1 - abs(s)))),
    lambda image, s: ImageOps.autocontrast(image),
    lambda image, s: ImageOps.equalize(image),
]
