"""Crop and flip: the right pixels, as a function of (seed, epoch, sample) alone."""

from __future__ import annotations

import torch

from trainer.data.augment import PAD, hashed, pad, random_crop_flip


def pictures(n: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (n, 32, 32, 3), generator=generator).to(torch.uint8)


def test_each_crop_is_a_window_of_the_padded_image_flipped_or_not() -> None:
    images = pictures()
    border = pad(images)
    crops = random_crop_flip(border, torch.arange(64), seed=1, epoch=2)
    for index in range(64):
        windows = [
            border[index, down : down + 32, right : right + 32]
            for down in range(2 * PAD + 1)
            for right in range(2 * PAD + 1)
        ]
        candidates = windows + [window.flip(1) for window in windows]
        assert any(torch.equal(crops[index], candidate) for candidate in candidates)


def test_a_sample_looks_alike_in_any_batch() -> None:
    border = pad(pictures())
    whole = random_crop_flip(border, torch.arange(64), seed=1, epoch=2)
    part = random_crop_flip(border, torch.tensor([40, 3]), seed=1, epoch=2)
    assert torch.equal(part, whole[[40, 3]])


def test_seed_and_epoch_change_the_crops() -> None:
    border = pad(pictures())
    first = random_crop_flip(border, torch.arange(64), seed=1, epoch=2)
    assert not torch.equal(first, random_crop_flip(border, torch.arange(64), seed=1, epoch=3))
    assert not torch.equal(first, random_crop_flip(border, torch.arange(64), seed=2, epoch=2))


def test_shifts_and_flips_are_spread_evenly() -> None:
    bits = hashed(torch.arange(81_000 * 2), 12345)
    shifts = torch.bincount(bits % 81, minlength=81)
    assert shifts.min() > 1700 and shifts.max() < 2300  # 2000 each, give or take 6 sigma
    flips = (bits // 81 % 2).float().mean().item()
    assert abs(flips - 0.5) < 0.01
