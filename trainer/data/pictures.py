"""Decode, crop and augment single pictures with PIL, in pure functions.

The geometry and the operations are those of torchvision. torchvision's transforms draw from torch's
global random state; these functions draw from a seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from ..errors import DataError

CROP_MARGIN = 256 / 224  # evaluation resizes the short side to this multiple of the crop
LARGEST = 1 << 27  # pixels of the largest picture to decode: 400 MB
TRIES = 10  # random boxes to try before taking a centered one
BILINEAR = Image.Resampling.BILINEAR


def read(source: Path | BinaryIO, name: object, edge: int) -> Any:
    """Return an RGB picture, decoded at a lower resolution if the format allows that and `edge`
    needs no more.

    Raises DataError with the picture's name.
    """
    try:
        with Image.open(source) as image:
            image.draft("RGB", (round(edge * CROP_MARGIN), round(edge * CROP_MARGIN)))
            if image.width * image.height > LARGEST:
                raise ValueError(f"{image.width} x {image.height} pixels")
            if image.mode.startswith("I"):  # 16 bits of gray, which convert() would clip
                return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
            return image.convert("RGB")
    except Exception as error:  # a damaged or hostile file can fail in any way
        raise DataError(f"{name}: not a readable image ({error}); replace or remove it") from None


def random_crop(image: Any, edge: int, seed: int) -> Any:
    """Return a random part of the picture, resized to `edge` x `edge` pixels. The part has 8% to 100%
    of the picture's area and an aspect ratio of 3/4 to 4/3."""
    return image.crop(random_box(image.width, image.height, seed)).resize((edge, edge), BILINEAR)


def random_box(width: int, height: int, seed: int) -> tuple[int, int, int, int]:
    """Return the left, top, right and bottom of a random part of a picture."""
    draw = random.Random(seed)
    for _ in range(TRIES):
        area = width * height * draw.uniform(0.08, 1)
        aspect = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = draw.randint(0, width - wide), draw.randint(0, height - high)
            return left, top, left + wide, top + high
    wide, high = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def center_crop(image: Any, edge: int) -> Any:
    """Scale the picture so that its short side is 8/7 of `edge`, and return its center square."""
    short, least = round(edge * CROP_MARGIN), min(image.size)
    sizes = [short * side // least for side in image.size]
    scales = [side / size for side, size in zip(image.size, sizes, strict=True)]
    left, top = (round((size - edge) / 2) for size in sizes)
    corners = (left, top, left + edge, top + edge)
    box = tuple(corner * scale for corner, scale in zip(corners, scales * 2, strict=True))
    return image.resize((edge, edge), BILINEAR, box=box)


def shrunk(image: Any, short: int) -> Any:
    """Return the whole picture, scaled down so that its short side is at most `short` pixels."""
    least = min(image.size)
    if least <= short:
        return image
    return image.resize([side * short // least for side in image.size], BILINEAR)


def randaugment(image: Any, magnitude: int, seed: int) -> Any:
    """Return the picture after two random operations of RandAugment (Cubuk et al. 2020).

    image: an RGB picture. magnitude: from 1 to 30.
    """
    draw = random.Random(seed)
    for operation, strongest, _ in draw.choices(OPERATIONS, k=2):
        image = operation(image, draw.choice((-1, 1)) * strongest(image) * magnitude / 30)
    return image


def trivialaugment(image: Any, seed: int) -> Any:
    """Return the picture after one random operation of random strength (Müller and Hutter 2021)."""
    draw = random.Random(seed)
    operation, _, strongest = draw.choice(OPERATIONS)
    return operation(image, draw.choice((-1, 1)) * strongest * draw.randrange(31) / 30)


def _affine(image: Any, *matrix: float) -> Any:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


def _constant(strongest: float) -> Callable[[Any], float]:
    return lambda image: strongest


# Each entry: (picture, strength) -> picture, the greatest strength in RandAugment, and the greatest
# in TrivialAugment. Strengths have either sign; an operation for which the sign makes no sense
# ignores it.
OPERATIONS: list[tuple[Callable[[Any, float], Any], Callable[[Any], float], float]] = [
    (lambda image, v: image, _constant(0), 0),
    (lambda image, v: _affine(image, 1, v, 0, 0, 1, 0), _constant(0.3), 0.99),
    (lambda image, v: _affine(image, 1, 0, 0, v, 1, 0), _constant(0.3), 0.99),
    (
        lambda image, v: _affine(image, 1, 0, int(v), 0, 1, 0),
        lambda image: 150 / 331 * image.width,
        32,
    ),
    (
        lambda image, v: _affine(image, 1, 0, 0, 0, 1, int(v)),
        lambda image: 150 / 331 * image.height,
        32,
    ),
    (lambda image, v: image.rotate(v), _constant(30), 135),
    (lambda image, v: ImageEnhance.Brightness(image).enhance(1 + v), _constant(0.9), 0.99),
    (lambda image, v: ImageEnhance.Color(image).enhance(1 + v), _constant(0.9), 0.99),
    (lambda image, v: ImageEnhance.Contrast(image).enhance(1 + v), _constant(0.9), 0.99),
    (lambda image, v: ImageEnhance.Sharpness(image).enhance(1 + v), _constant(0.9), 0.99),
    (lambda image, v: ImageOps.posterize(image, 8 - round(abs(v))), _constant(4), 6),
    (lambda image, v: ImageOps.solarize(image, math.ceil(255 - abs(v))), _constant(255), 255),
    (lambda image, v: ImageOps.autocontrast(image), _constant(0), 0),
    (lambda image, v: ImageOps.equalize(image), _constant(0), 0),
]
