"""Augmentation of whole batches, on the images' device. Crop, flip and erasing are pure functions
of (seed, epoch, sample), as the user's own function should be; mixup and CutMix are pure functions
of (seed, step, micro-batch).

The random numbers are a hash, not a stream, so there is no state to save, and a resumed run sees
the same pixels, even on a different number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional as F

from ..config import Config, is_function_name, named_function
from .images import Batch
from .order import mixed_seed

PAD = 4  # pixels by which a crop may shift to each side
MASK = 0xFFFFFFFF


def normalized(
    pixels: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, channels_last: bool
) -> torch.Tensor:
    """Normalize images: (B, H, W, C) uint8 -> (B, C, H, W) float. With channels_last, the result is
    a view of NHWC memory."""
    images = pixels.float().sub_(mean).mul_(scale).permute(0, 3, 1, 2)
    return images if channels_last else images.contiguous()


def pad(images: torch.Tensor) -> torch.Tensor:
    """Pad with zeros: (N, H, W, C) uint8 -> (N, H+8, W+8, C). A crop is then one copy."""
    return F.pad(images, (0, 0, PAD, PAD, PAD, PAD)).contiguous()


def cropped(padded: torch.Tensor, indices: torch.Tensor, *, seed: int, epoch: int) -> torch.Tensor:
    """Return a random crop of each sample in `indices`, (B, H, W, C) uint8.

    padded: the result of `pad`. indices: (B,) int64, on the same device.
    """
    shifts = 2 * PAD + 1
    down = (draw(indices, f"down/{seed}/{epoch}") * shifts).long()
    right = (draw(indices, f"right/{seed}/{epoch}") * shifts).long()
    n, high, wide, channels = padded.shape
    height, width = high - 2 * PAD, wide - 2 * PAD
    a, b, c, _ = padded.stride()
    # All crops of all images as one view, without a copy: [n, down, right] is one crop.
    windows = padded.as_strided((n, shifts, shifts, height, width * channels), (a, b, c, b, 1))
    return windows[indices, down, right].view(len(indices), height, width, channels)


def flipped(
    pixels: torch.Tensor, indices: torch.Tensor, names: Sequence[str], *, seed: int, epoch: int
) -> torch.Tensor:
    """Mirror some of the images, (B, H, W, C): a random half if `names` has "flip"; each image in
    every second epoch if it has "alternating-flip" (Jordan 2024)."""
    if "flip" in names:
        mirror = draw(indices, f"flip/{seed}/{epoch}") < 0.5
    elif "alternating-flip" in names:
        mirror = (draw(indices, f"flip/{seed}") < 0.5) == (epoch % 2 == 0)
    else:
        return pixels
    return torch.where(mirror[:, None, None, None], pixels.flip(2), pixels)


def changed(batch: Batch, config: Config, *, epoch: int) -> torch.Tensor:
    """Return the images of a batch after the augmentations that work on normalized images."""
    x = batch.x
    for name, erase in ERASERS.items():
        if value := getattr(config, name):
            x = erase(x, batch.indices, value, f"{name}/{config.seed}/{epoch}")
    for name in config.parsed_augment:
        if is_function_name(name):
            x = named_function("--augment", name)(x, batch.indices, config.seed, epoch)
    return x


def cutout(x: torch.Tensor, indices: torch.Tensor, edge: int, key: str) -> torch.Tensor:
    """Erase a square of `edge` pixels, centered anywhere, from each image."""
    height, width = x.shape[2:]
    top = (draw(indices, f"{key}/top") * height).long() - edge // 2
    left = (draw(indices, f"{key}/left") * width).long() - edge // 2
    return _erased(x, top, left, torch.full_like(top, edge), torch.full_like(left, edge))


def random_erase(x: torch.Tensor, indices: torch.Tensor, share: float, key: str) -> torch.Tensor:
    """Erase a box from a share of the images, as torchvision does (Zhong et al. 2017): 2% to 33% of
    the area, aspect ratio 0.3 to 3.3. A box that does not fit is cut to the image's size."""
    height, width = x.shape[2:]
    area = height * width * (0.02 + 0.31 * draw(indices, f"{key}/area"))
    low, high = math.log(0.3), math.log(3.3)
    aspect = torch.exp(low + (high - low) * draw(indices, f"{key}/aspect"))
    tall = (area * aspect).sqrt().round().clamp(max=height - 1)
    wide = (area / aspect).sqrt().round().clamp(max=width - 1)
    top = (draw(indices, f"{key}/top") * (height - tall + 1)).long()
    left = (draw(indices, f"{key}/left") * (width - wide + 1)).long()
    chosen = draw(indices, f"{key}/chosen") < share
    return _erased(x, top, left, tall.long() * chosen, wide.long())


# by setting: (images (B, C, H, W), sample numbers (B,), value of the setting, key) -> images
ERASERS: dict[str, Callable[[torch.Tensor, torch.Tensor, float, str], torch.Tensor]] = {
    "cutout": cutout,  # type: ignore[dict-item]
    "random_erase": random_erase,
}


def _erased(
    x: torch.Tensor, top: torch.Tensor, left: torch.Tensor, tall: torch.Tensor, wide: torch.Tensor
) -> torch.Tensor:
    """Set one box of each image to zero, the mean of normalized images."""
    rows = torch.arange(x.shape[2], device=x.device) - top[:, None]
    columns = torch.arange(x.shape[3], device=x.device) - left[:, None]
    high = (rows >= 0) & (rows < tall[:, None])
    across = (columns >= 0) & (columns < wide[:, None])
    return x.masked_fill((high[:, :, None] & across[:, None, :])[:, None], 0.0)


def mix(x: torch.Tensor, mixup: float, cutmix: float, *, seed: int) -> tuple[torch.Tensor, float]:
    """Mix each image of (B, C, H, W) with the one before it in the micro-batch, by mixup or CutMix
    with these alphas (0: off). Return the images and the share of each image's own label; the rest
    belongs to the label of the image before it."""
    random = np.random.default_rng(seed)
    cuts = bool(cutmix) and (not mixup or random.random() < 0.5)
    alpha = cutmix if cuts else mixup
    if not alpha:
        return x, 1.0
    share, other = float(random.beta(alpha, alpha)), x.roll(1, 0)
    if not cuts:
        return other.lerp(x, share), share
    height, width = x.shape[2:]
    down, right = random.integers(height), random.integers(width)  # center of the cut
    half = (1 - share) ** 0.5 / 2
    rows = slice(max(0, round(down - half * height)), round(down + half * height))
    columns = slice(max(0, round(right - half * width)), round(right + half * width))
    mixed = x.clone()
    mixed[:, :, rows, columns] = other[:, :, rows, columns]
    return mixed, 1 - other[0, 0, rows, columns].numel() / (height * width)


def draw(indices: torch.Tensor, key: str) -> torch.Tensor:
    """Return a random float64 for each index, at least 0 and below 1. A pure function."""
    return hashed(indices, mixed_seed(key) & MASK).double() / (MASK + 1)


def hashed(indices: torch.Tensor, key: int) -> torch.Tensor:
    """Return 32 well-mixed bits per index, as int64 >= 0 (MurmurHash3's finalizer around a key)."""
    x = (indices * 0x9E3779B1 + key) & MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK
    x = x ^ (x >> 16)
    x = ((x + key) * 0x27D4EB2F) & MASK
    return x ^ (x >> 15)
