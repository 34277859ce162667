"""Augmentation, batched on the images' device. Crop, flip and cutout are pure functions of (seed,
epoch, sample); mixup and CutMix of (seed, step, micro-batch).

The random numbers are a hash, not a stream: there is no state to save, and a resumed or re-sharded
run sees the same pixels.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from .order import mixed_seed

PAD = 4  # pixels on each side that a crop may shift by
MASK = 0xFFFFFFFF


def normalised(
    pixels: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, channels_last: bool
) -> torch.Tensor:
    """(B, H, W, C) uint8 -> (B, C, H, W) float, with channels_last a view of NHWC memory."""
    images = pixels.float().sub_(mean).mul_(scale).permute(0, 3, 1, 2)
    return images if channels_last else images.contiguous()


def pad(images: torch.Tensor) -> torch.Tensor:
    """(N, H, W, C) uint8 -> (N, H+8, W+8, C), zeros around it: a crop is then one copy."""
    return F.pad(images, (0, 0, PAD, PAD, PAD, PAD)).contiguous()


def random_crop_flip(
    padded: torch.Tensor, indices: torch.Tensor, *, seed: int, epoch: int
) -> torch.Tensor:
    """The crops of samples `indices`, flipped half of the time. (B, H, W, C) uint8.

    padded: the result of `pad`. indices: (B,) int64, on the same device.
    """
    bits = hashed(indices, mixed_seed(f"augment/{seed}/{epoch}") & MASK)
    shifts = 2 * PAD + 1
    down = bits % shifts
    right = (bits // shifts) % shifts
    flip = (bits // (shifts * shifts)) % 2 == 1
    crops = windows(padded)[indices, down, right]
    height, width = padded.shape[1] - 2 * PAD, padded.shape[2] - 2 * PAD
    crops = crops.view(len(indices), height, width, padded.shape[3])
    return torch.where(flip[:, None, None, None], crops.flip(2), crops)


def windows(padded: torch.Tensor) -> torch.Tensor:
    """All crops of all images as one view, without a copy: [n, down, right] is one crop."""
    n, high, wide, channels = padded.shape
    a, b, c, _ = padded.stride()
    height, width = high - 2 * PAD, wide - 2 * PAD
    shifts = 2 * PAD + 1
    return padded.as_strided((n, shifts, shifts, height, width * channels), (a, b, c, b, 1))


def cutout(
    x: torch.Tensor, indices: torch.Tensor, edge: int, *, seed: int, epoch: int
) -> torch.Tensor:
    """Erase a square of `edge` pixels, centred anywhere, from each image of (B, C, H, W), normalised:
    zero is the mean. indices: (B,) sample numbers."""
    bits = hashed(indices.to(x.device), mixed_seed(f"cutout/{seed}/{epoch}") & MASK)
    height, width = x.shape[2:]
    top, left = bits % height - edge // 2, (bits // height) % width - edge // 2
    rows = torch.arange(height, device=x.device) - top[:, None]
    columns = torch.arange(width, device=x.device) - left[:, None]
    high, wide = (rows >= 0) & (rows < edge), (columns >= 0) & (columns < edge)
    return x.masked_fill((high[:, :, None] & wide[:, None, :])[:, None], 0.0)


def mix(x: torch.Tensor, mixup: float, cutmix: float, *, seed: int) -> tuple[torch.Tensor, float]:
    """Mix each image of (B, C, H, W) with the one before it in the micro-batch, by mixup or CutMix
    with these alphas (0: off). Returns the images and the share of its own label that each keeps;
    the rest belongs to the label before it."""
    random = np.random.default_rng(seed)
    cuts = bool(cutmix) and (not mixup or random.random() < 0.5)
    alpha = cutmix if cuts else mixup
    if not alpha:
        return x, 1.0
    share, other = float(random.beta(alpha, alpha)), x.roll(1, 0)
    if not cuts:
        return other.lerp(x, share), share
    height, width = x.shape[2:]
    down, right = random.integers(height), random.integers(width)  # centre of the cut
    half = (1 - share) ** 0.5 / 2
    rows = slice(max(0, round(down - half * height)), round(down + half * height))
    columns = slice(max(0, round(right - half * width)), round(right + half * width))
    mixed = x.clone()
    mixed[:, :, rows, columns] = other[:, :, rows, columns]
    return mixed, 1 - other[0, 0, rows, columns].numel() / (height * width)


def hashed(indices: torch.Tensor, key: int) -> torch.Tensor:
    """32 well-mixed bits per index (MurmurHash3's finalizer around a key), as int64 >= 0."""
    x = (indices * 0x9E3779B1 + key) & MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK
    x = x ^ (x >> 16)
    x = ((x + key) * 0x27D4EB2F) & MASK
    return x ^ (x >> 15)
